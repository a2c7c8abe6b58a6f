"""What a worker reaches on each rung of confinement, and what limits it there."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from conftest import ROOT, ask, run

from grader.core.faults import Fault
from grader.core.layout import WORKER
from grader.doctor import diagnosis
from grader.program.codec import decode, encode
from grader.sandbox import confine
from grader.sandbox.accelerators import CPU
from grader.sandbox.confine import without
from grader.sandbox.confine_restrictions import FILE, OPEN_FILES, SCRATCH, TCP_BUFFER
from grader.sandbox.process import Process, ProcessTree, Zygote

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines more than by limits")
INSIDE = ("full", "namespaces")  # with namespaces of its own
Test = TypeVar("Test", bound=Callable[..., None])
KEPT_IN = (*INSIDE, "landlock")  # kept from our files, processes and the network


def on(*levels: str) -> Callable[[Test], Test]:
    """A test that holds on these levels alone."""

    def mark(test: Test) -> Test:
        test.__dict__["levels"] = levels
        return test

    return mark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "zygote" in metafunc.fixturenames:
        levels = getattr(metafunc.function, "levels", confine.LEVELS)
        metafunc.parametrize("zygote", levels, indirect=True, scope="module")


@pytest.fixture
def level(zygote: Zygote) -> str:
    return zygote.confined.level


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


# Files.


def test_files_of_ours_are_out_of_reach(worker: Process, level: str, open_folder: Path) -> None:
    (open_folder / "gradebook").write_text("1")
    ours = (ROOT / "course.toml", ROOT / "grader" / "grading" / "session.py") if level in KEPT_IN else ()
    for path in (open_folder / "gradebook", *ours):
        seen = ask(worker, f"len(open({str(path)!r}).read())")
        assert (seen in ("FileNotFoundError", "PermissionError")) == (level in KEPT_IN), (path, seen)


def test_digits_of_lessons_are_there(worker: Process) -> None:
    """Without a network, and where no file but the scratch's can be written."""
    said = run(
        worker, "from grader.learning import digits\nfound = digits.get()\nimages, labels = found.arrays(train=True)"
    )
    assert said.get("error") is None, said
    assert ask(worker, "(found.source, images.shape, int(labels.max()))") == ("embedded", (1437, 28, 28), 9)


@on(*KEPT_IN)
def test_nothing_outside_the_scratch_can_be_written(worker: Process) -> None:
    package = str(Path(np_file()).parent)
    for place in (
        "/",
        "/usr",
        "/etc",
        "/dev",
        "/proc/sys/kernel",
        package,
        str(ROOT),
        str(Path(diagnosis.__file__).parent),
    ):
        assert ask(worker, f"open(os.path.join({place!r}, 'left'), 'w')") in (
            "FileNotFoundError",
            "PermissionError",
            "OSError",
        ), place
    assert ask(worker, f"os.truncate({np_file()!r}, 0)") in ("OSError", "PermissionError")
    assert ask(worker, "open('mine', 'w').write('mine')") == 4
    assert ask(worker, "open('mine').read()") == "mine"


def np_file() -> str:
    import numpy

    assert numpy.__file__ is not None
    return numpy.__file__


@on(*KEPT_IN)
def test_rights_of_our_files_cannot_be_changed(worker: Process, tmp_path: Path) -> None:
    """Landlock alone does not cover this: a worker that is the same user as the grader owns what the grader owns."""
    (tmp_path / "gradebook").write_text("1")
    before = os.stat(tmp_path / "gradebook")
    for call in ("os.chmod({0!r}, 0)", "os.utime({0!r}, (1, 1))", "os.setxattr({0!r}, 'user.x', b'1')"):
        ask(worker, call.format(str(tmp_path / "gradebook")))
    after = os.stat(tmp_path / "gradebook")
    assert (before.st_mode, before.st_mtime) == (after.st_mode, after.st_mtime)
    assert os.listxattr(tmp_path / "gradebook") == []


def test_what_it_is_given_it_sees_and_what_it_may_write_it_writes(zygote: Zygote, tmp_path: Path) -> None:
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    process = zygote.fork(WORKER, readable=[str(tmp_path / "read")], writable=[str(tmp_path / "write")])
    try:
        assert ask(process, f"open({str(tmp_path / 'read' / 'file')!r}).read()") == "read"
        assert ask(process, f"open({str(tmp_path / 'write' / 'new')!r}, 'w').write('1')") == 1
        if zygote.confined.level in KEPT_IN:
            assert ask(process, f"open({str(tmp_path / 'read' / 'new')!r}, 'w')") in ("OSError", "PermissionError")
    finally:
        process.kill()
    assert (tmp_path / "write" / "new").read_text() == "1"


def test_what_is_hidden_is_left_out_of_what_is_shown(tmp_path: Path) -> None:
    """All that lies beside it is shown instead of what it lies in."""
    for name in ("a/exchange", "a/b", "c"):
        (tmp_path / name).mkdir(parents=True)
    top, hidden = str(tmp_path), str(tmp_path / "a" / "exchange")
    assert without(top, hidden) == [f"{top}/a/b", f"{top}/c"]
    assert without(f"{top}/c", hidden) == [f"{top}/c"]
    assert without(top, f"{top}/a/none") == [top]
    assert without(hidden, hidden) == []


@on(*INSIDE)
def test_what_sockets_hold_counts_as_memory(zygote: Zygote) -> None:
    process = zygote.fork(WORKER)
    try:
        alone = ProcessTree(process.pid, own_network=True)
        sockets = "[__import__('socket').socketpair() for _ in range(40)]"
        assert ask(process, "None") is None  # it has started, so its other memory no longer grows
        before = alone.memory(1 << 40) - ProcessTree(process.pid).memory(1 << 40)
        assert ask(process, f"globals().__setitem__('kept', {sockets})") is None
        after = alone.memory(1 << 40) - ProcessTree(process.pid).memory(1 << 40)
        assert after - before > 80 * 100_000
    finally:
        process.kill()


def test_page_tables_count_as_memory(zygote: Zygote) -> None:
    """Reading memory that was never written takes no page of it, but page tables."""
    process = zygote.fork(WORKER)
    try:
        counted, size = ProcessTree(process.pid), 2 << 30
        assert ask(process, "None") is None
        before, before_share = counted.memory(1 << 40), counted.memory(0)
        mapped = f"__import__('mmap').mmap(-1, {size}, flags=34, prot=1)"  # private and anonymous, to be read only
        read = f"(lambda found: (sum(found[i] for i in range(0, {size}, 2 << 20)), found))({mapped})[1]"
        assert ask(process, f"globals().__setitem__('kept', {read})") is None
        assert counted.memory(1 << 40) - before > 3_500_000
        assert counted.memory(0) - before_share > 3_500_000
    finally:
        process.kill()


def test_a_course_in_a_folder_of_the_system_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what lies beside it hidden, or an environment in it."""
    for name in ("src/course/.venv/lib", "src/course/solutions", "lib"):
        (tmp_path / name).mkdir(parents=True)
    course = str(tmp_path / "src" / "course")
    monkeypatch.setattr(confine, "SYSTEM", [str(tmp_path)])
    monkeypatch.setattr(sys, "prefix", f"{course}/.venv")
    shown = confine._visible(CPU, [course])
    assert [path for path in shown if path.startswith(str(tmp_path))] == [f"{tmp_path}/lib", f"{course}/.venv/lib"]


@on(*INSIDE)
def test_a_root_of_its_own_leaves_no_folder_behind(worker: Process) -> None:
    assert worker.folder is None
    assert ask(worker, "os.getcwd()") == "/tmp"
    assert set(ask(worker, "os.listdir('/dev')")) <= {
        *("null", "zero", "full", "random", "urandom", "fd", "shm", "stdin", "stdout", "stderr")
    }
    assert ask(worker, "__import__('getpass').getuser()") == "learner"
    assert ask(worker, "socket.gethostname()") == "sandbox"


def test_what_an_exercise_needs_works(worker: Process, level: str) -> None:
    """JAX on eight devices, threads, packages not imported yet, a child process, a compiler where there is one."""
    begin = {"do": "begin", "devices": 8, "compiled": None, "write": False}
    assert decode(worker.exchange(encode(begin), seconds=60)) == {"status": "ok"}
    run(worker, "import jax, jax.numpy as jnp, sklearn.datasets, tempfile, multiprocessing")
    assert ask(worker, "float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((4, 4))))") == 64.0
    assert ask(worker, "jax.device_count()") == 8
    assert ask(worker, "len(sklearn.datasets.load_digits().images)") == 1797
    assert ask(worker, "subprocess.run(['echo', 'said'], capture_output=True, text=True).stdout") == "said\n"
    assert ask(worker, "subprocess.run([sys.executable, '-c', 'import numpy'], check=True).returncode") == 0
    run(worker, "with tempfile.TemporaryFile() as file:\n    wrote = file.write(b'1')")
    assert ask(worker, "wrote") == 1
    if level in INSIDE:
        assert run(worker, "lock = multiprocessing.Lock()")["status"] == "ok"
    if shutil.which("g++"):
        run(worker, "open('f.cc', 'w').write('extern \"C\" int f() { return 7; }')")
        assert (
            ask(worker, "subprocess.run(['g++', '-shared', '-fPIC', '-o', 'f.so', 'f.cc'], check=True).returncode") == 0
        )
        assert ask(worker, "ctypes.CDLL('./f.so').f()") == 7


# Network, processes, memory of others, privileges.


@on(*KEPT_IN)
def test_nothing_outside_can_be_reached(worker: Process) -> None:
    for family in ("AF_INET", "AF_INET6", "AF_PACKET", "AF_VSOCK"):
        assert ask(worker, f"socket.socket(socket.{family}, socket.SOCK_RAW)") == "PermissionError"
    for protocol in (*range(1, 23), 1 << 32):  # of netlink, all but the one that lists interfaces
        assert ask(worker, f"socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, {protocol})") in (
            "PermissionError",
            "OverflowError",
        )
    for family in ("AF_INET6", "AF_VSOCK"):
        for kind in ("SOCK_STREAM", "SOCK_DGRAM"):
            assert ask(worker, f"socket.socket(socket.{family}, socket.{kind})") == "PermissionError"
    assert ask(worker, "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)") == "PermissionError"
    for protocol in (132, 256, 262):  # SCTP, SMC, MPTCP
        assert ask(worker, f"socket.socket(socket.AF_INET, socket.SOCK_STREAM, {protocol})") == "PermissionError"
    for address in ("127.0.0.1", "192.0.2.1", "10.0.0.1", "169.254.169.254"):
        said = ask(worker, f"socket.create_connection(('{address}', 80), 1)")
        assert said in ("PermissionError", "OSError", "ConnectionRefusedError"), (address, said)
    assert ask(worker, "socket.create_connection(('example.org', 80), 1)") in ("PermissionError", "OSError", "gaierror")


@on(*KEPT_IN)
def test_the_loopback_of_this_machine_is_out_of_reach(worker: Process) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        said = ask(worker, f"socket.create_connection(('127.0.0.1', {port}), 1)")
        assert said in ("PermissionError", "ConnectionRefusedError")
        ours.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ours.accept()


@on(*INSIDE)
def test_a_worker_has_a_loopback_of_its_own(worker: Process, zygote: Zygote) -> None:
    """Its child processes use it too; another worker and this process do not reach it, and an executor has none."""
    assert zygote.confined.loopback
    run(worker, "server = socket.create_server(('127.0.0.1', 0))\nport = server.getsockname()[1]")
    port = ask(worker, "port")
    code = f"import socket; socket.create_connection(('127.0.0.1', {port})).sendall(b'said')"
    run(worker, f"child = subprocess.Popen([sys.executable, '-c', {code!r}])")
    assert ask(worker, "server.accept()[0].makefile().read()") == "said"
    assert ask(worker, "child.wait()") == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
    other = zygote.fork(WORKER)
    try:
        run(other, "import socket")
        assert ask(other, f"socket.create_connection(('127.0.0.1', {port}), 1)") == "ConnectionRefusedError"
        assert ask(other, "[name for _, name in socket.if_nameindex()]") in (["lo"], "PermissionError", "OSError")
        assert set(ask(other, "open('/proc/net/dev').read()").split()) & {"eth0:", "lo:"} == {"lo:"}
        assert len(ask(other, "open('/proc/net/route').read()").splitlines()) == 1
    finally:
        other.kill()


@on(*INSIDE)
def test_two_workers_do_not_meet_at_an_abstract_name(worker: Process, zygote: Zygote) -> None:
    run(worker, "meeting = socket.socket(socket.AF_UNIX)\nmeeting.bind('\\0meeting')\nmeeting.listen()")
    run(worker, "own = socket.socket(socket.AF_UNIX)\nown.connect('\\0meeting')")
    assert ask(worker, "own.send(b'1')") == 1
    other = zygote.fork(WORKER)
    try:
        run(other, "import socket")
        run(other, "def reach():\n    socket.socket(socket.AF_UNIX).connect('\\0meeting')")
        assert ask(other, "reach()") in ("ConnectionRefusedError", "PermissionError")
    finally:
        other.kill()


@on(*INSIDE)
def test_a_leftover_server_ends_with_its_worker(zygote: Zygote) -> None:
    process = zygote.fork(WORKER)
    run(process, "import subprocess, sys")
    name = f"leftover{os.getpid()}"
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(600)"
    run(process, f"subprocess.Popen([sys.executable, '-c', {code!r}, {name!r}], process_group=0)")
    there = lambda: [one for one in psutil.process_iter() if name in " ".join(_command(one))]
    assert eventually(lambda: bool(there()))
    process.kill()
    assert eventually(lambda: not there())


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


# As many bytes as a connection takes that nobody reads, after asking for large buffers in two spellings.
FILL = """
import ctypes, os, socket

def fill():
    global kept
    server, sent = socket.create_server(("127.0.0.1", 0)), 0
    one = socket.create_connection(server.getsockname())
    kept = server, one, server.accept()[0]
    number, long = {"x86_64": 54}.get(os.uname().machine, 208), ctypes.c_long
    for level in (1, 1 + (1 << 32)):
        for option in (7, 8):
            size = ctypes.c_int(64 << 20)
            ctypes.CDLL(None).syscall(
                long(number), long(one.fileno()), long(level), long(option), ctypes.byref(size), long(4)
            )
    one.settimeout(1)
    try:
        while True:
            sent += one.send(bytes(1 << 16))
    except TimeoutError:
        return sent
"""


@on(*INSIDE)
def test_what_tcp_holds_is_limited_and_counted(zygote: Zygote) -> None:
    """The kernel may grow a buffer to 32 MiB, and counts it for no process."""
    process = zygote.fork(WORKER)
    try:
        alone = ProcessTree(process.pid, own_network=True)
        run(process, FILL)
        before = alone.memory(1 << 40) - ProcessTree(process.pid).memory(1 << 40)
        sent = ask(process, "fill()")
        assert 1 << 15 < sent < 1 << 20
        assert alone.memory(1 << 40) - ProcessTree(process.pid).memory(1 << 40) - before > sent
        assert ask(process, "open('/proc/sys/net/ipv4/tcp_rmem').read().split()[2]") == str(TCP_BUFFER)
        assert ask(process, "open('/proc/sys/net/ipv4/tcp_rmem', 'w').write('4096 65536 99999999')") in (
            "OSError",
            "PermissionError",
        )
    finally:
        process.kill()


@on(*KEPT_IN)
def test_sockets_of_this_machine_are_out_of_reach(worker: Process, tmp_path: Path) -> None:
    """By path and by abstract name; a pair of its own works."""
    for name in (str(tmp_path / "socket"), f"\0{tmp_path.name}-{os.getpid()}"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_UNIX, kind) as ours:
                ours.bind(name)
                if kind == socket.SOCK_STREAM:
                    ours.listen()
                run(
                    worker, f"def reach():\n    s = socket.socket(socket.AF_UNIX, {int(kind)})\n    s.connect({name!r})"
                )
                assert ask(worker, "reach()") in ("PermissionError", "FileNotFoundError", "ConnectionRefusedError")
            if not name.startswith("\0"):
                os.unlink(name)
    assert ask(worker, "[s.close() for s in socket.socketpair()]") == [None, None]


@on(*KEPT_IN)
def test_other_processes_can_be_neither_seen_nor_ended(worker: Process, level: str, zygote: Zygote) -> None:
    assert zygote.process is not None
    with subprocess.Popen(["sleep", "100"], process_group=0) as bystander:
        for pid in (bystander.pid, zygote.process.pid, os.getpid()):
            for call in ("os.kill({0}, 9)", "os.killpg({0}, 9)", "os.setpriority(os.PRIO_PROCESS, {0}, 19)",
                         "open('/proc/{0}/environ').read()", "open('/proc/{0}/mem', 'rb')",
                         "os.listdir('/proc/{0}/fd')", "__import__('resource').prlimit({0}, 0, (1, 1))",
                         "signal.pidfd_send_signal(os.pidfd_open({0}), 9)"):  # fmt: skip
                said = ask(worker, call.format(pid))
                assert said in ("ProcessLookupError", "PermissionError", "FileNotFoundError"), (call, said)
            libc = "ctypes.CDLL(None, use_errno=True)"
            assert ask(worker, f"{libc}.ptrace(16, {pid}, 0, 0)") == -1
            assert ask(worker, f"{libc}.process_vm_readv({pid}, None, 0, None, 0, 0)") == -1
        assert bystander.poll() is None
        bystander.kill()
    if level in INSIDE:
        assert ask(worker, "[name for name in os.listdir('/proc') if name.isdigit()]") == ["1"]


def test_no_privilege_is_left_and_none_comes_back(worker: Process, level: str) -> None:
    status = dict(line.split(":\t") for line in ask(worker, "open('/proc/self/status').read()").splitlines())
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    if level in KEPT_IN:
        libc = "ctypes.CDLL(None, use_errno=True)"
        for call in ("unshare(0x10000000)", "unshare(0x20000)", "setns(0, 0)", "chroot(b'.')", "umount2(b'/proc', 2)",
                     "mount(b'a', b'/tmp', b'tmpfs', 0, None)", "prctl(1, 0, 0, 0, 0)", "memfd_create(b'', 0)",
                     "syscall(425, 1, None)", "shmget(0, 1, 0o1600)"):  # fmt: skip
            assert ask(worker, f"{libc}.{call}") == -1, call


@on(*KEPT_IN)
def test_nothing_keeps_the_whole_machine_waiting(worker: Process) -> None:
    libc = "ctypes.CDLL(None, use_errno=True)"
    assert ask(worker, f"{libc}.syncfs(999)") == 0, "it has no effect, or would refuse this file"
    if platform.machine() == "x86_64":
        assert ask(worker, f"[{libc}.syscall(324, command, 0, 0) for command in (1, 2)]") == [-1, -1]
        assert ask(worker, f"{libc}.syscall(324, 0, 0, 0)") >= 0, "asks which commands there are"


@on(*INSIDE)
def test_processes_have_users_of_their_own_where_root_confines_them(zygote: Zygote, worker: Process) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give them")
    other = zygote.fork(WORKER)
    try:
        run(other, "import os")
        users = {ask(process, "os.getuid()") for process in (worker, other)}
        assert len(users) == 2
        assert 0 not in users
    finally:
        other.kill()


def test_a_daemon_ends_with_its_worker(zygote: Zygote) -> None:
    process = zygote.fork(WORKER)
    daemon = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        try:
            os.setsid()
        except OSError:
            pass
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
"""
    run(process, "import warnings\nwarnings.simplefilter('ignore')" + daemon)
    assert zygote.process is not None
    pids = {child.pid for child in psutil.Process(zygote.process.pid).children(recursive=True)}
    assert len(pids) >= 3
    process.kill()
    if zygote.confined.level in KEPT_IN:
        assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))


# Limits.


def test_each_limit_ends_in_an_exception_not_in_harm(worker: Process, level: str) -> None:
    assert run(worker, f"x = bytearray({4 << 30})")["kind"] == "MemoryError"
    sleepers = "threads = [threading.Thread(target=time.sleep, args=(1000,), daemon=True) for _ in range(5_000)]"
    if level in INSIDE:
        assert run(worker, f"{sleepers}\nfor t in threads: t.start()")["text"] == "can't start new thread"
    big = f"with open('big', 'wb', buffering=0) as file:\n    while file.write(bytes({FILE + 1})):\n        pass"
    assert run(worker, big)["text"] == "[Errno 27] File too large"
    assert run(worker, f"files = [open('/dev/null') for _ in range({OPEN_FILES})]")["text"].startswith("[Errno 24]")
    if level in INSIDE:
        run(worker, "os.remove('big')\nfiles = None")
        many = f"for i in range({SCRATCH // FILE + 1}): open(f'big{{i}}', 'wb').write(bytes({FILE}))"
        assert run(worker, many)["text"].startswith("[Errno 28]")


@on(*INSIDE)
def test_a_bomb_of_processes_runs_out_of_time_and_is_gone(zygote: Zygote) -> None:
    process = zygote.fork(WORKER)
    bomb = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.01)"
    with pytest.raises(Fault) as caught:
        run(process, bomb, seconds=1)
    assert caught.value.kind == "timeout"
    family = ProcessTree(process.pid).members()
    process.kill()
    assert eventually(lambda: not any(psutil.pid_exists(pid) for pid in family), 30)


def test_what_it_started_counts_with_it(worker: Process) -> None:
    run(worker, "busy = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(2)]")
    with pytest.raises(Fault, match=r"stopped after 1 s of processor time|stopped after 4 s"):
        ask(worker, "[child.wait() for child in busy]", seconds=1)


@on("full", "landlock")
def test_one_that_starts_a_hundred_processes_costs_its_neighbour_nothing(zygote: Zygote, worker: Process) -> None:
    """Half a second of computing has six on the clock, and would take 25 if all were alike."""
    other = zygote.fork(WORKER)
    try:
        bomb = "    if os.fork() == 0:\n        time.sleep(3)\n        while True:\n            pass"
        run(other, f"import os, time, warnings\nwarnings.simplefilter('ignore')\nfor _ in range(100):\n{bomb}")
        time.sleep(3)
        run(worker, "began = time.process_time()")
        assert run(worker, "while time.process_time() - began < 0.5: pass", seconds=1.5)["status"] == "ok"
    finally:
        other.kill()


def test_standing_in_line_for_a_processor_is_told_from_waiting() -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    crowd = [subprocess.Popen(spin) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        first = ProcessTree(crowd[0].pid)
        assert first.stood() == 0.0
        assert eventually(lambda: first.stood() > 0.2)
        assert first.seconds() > 0
    finally:
        for process in crowd:
            process.kill()
            process.wait()


@on("full")  # it is watched alike on all
def test_memory_of_all_together_is_bounded(worker: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory, which no limit of the kernel's counts as data."""
    monkeypatch.setattr("grader.sandbox.process.MEMORY", 1 << 30)
    run(worker, "import mmap\nkept = []\ndef fill():\n    while True:\n"
        "        kept.append(mmap.mmap(-1, 1 << 27))\n        kept[-1].write(bytes(1 << 27))\n")  # fmt: skip
    with pytest.raises(Fault, match="used more than 1 GiB of memory") as caught:
        ask(worker, "fill()", seconds=60)
    assert caught.value.kind == "memory"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may say so of processes that let nobody look at them")
@on("full")
def test_the_kernel_ends_a_bombs_children_before_an_honest_worker(zygote: Zygote, worker: Process) -> None:
    """Each of them is smaller than the honest one; all of them together are not."""
    other = zygote.fork(WORKER)
    try:
        # Both answer for longer than it takes to look at their memory.
        run(worker, "import numpy as np\nkept = np.ones(3 << 25)\ntime.sleep(0.5)")
        fill = "    if os.fork() == 0:\n        kept = bytearray(48 << 20)\n        time.sleep(60)"
        run(
            other,
            f"import os, time, warnings\nwarnings.simplefilter('ignore')\nfor _ in range(40):\n{fill}\ntime.sleep(2)",
        )
        bomb, honest = ([_score(pid) for pid in ProcessTree(one.pid).members()] for one in (other, worker))
        assert len(bomb) == 41
        assert min(bomb) > max(honest)
    finally:
        other.kill()


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score").read_text())


@on("full")
def test_worker_and_executor_share_one_bound_of_memory(
    zygote: Zygote, worker: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's children go on while the executor of the same notebook is asked."""
    monkeypatch.setattr("grader.sandbox.process.MEMORY", 1 << 30)
    fill = "import os, warnings\nwarnings.simplefilter('ignore')\nif os.fork() == 0:\n    time.sleep(0.5)\n"
    fill += "    kept = bytearray(2 << 30)\n    time.sleep(60)"
    run(worker, fill)
    other = zygote.fork(WORKER)
    try:
        with pytest.raises(Fault, match="used more than 1 GiB of memory"):
            other.exchange(encode({"do": "run", "source": "import time\ntime.sleep(20)"}), seconds=20, beside=worker)
    finally:
        other.kill()
