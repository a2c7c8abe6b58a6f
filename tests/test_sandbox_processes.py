"""Forked processes and the wire to them: what they inherit, how long they may take, how they end, what they leave."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import run

from grader.core.faults import Fault
from grader.core.layout import EXECUTOR, WORKER
from grader.program.codec import decode, encode
from grader.sandbox import wire
from grader.sandbox.accelerators import CPU
from grader.sandbox.process import Process, Zygote

# In a worker: the number of the socket to the examiner.
STREAM = """
import os, socket, stat
def stream():
    for n in sorted(int(name) for name in os.listdir("/proc/self/fd"))[3:]:
        if os.path.exists(f"/proc/self/fd/{n}") and stat.S_ISSOCK(os.fstat(n).st_mode):
            with socket.socket(fileno=os.dup(n)) as one:  # the other sockets are the loop's own
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED) != os.getpid():
                    return n
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """One for all: starting it takes seconds, forking from it milliseconds."""
    os.environ["COURSE_SECRET"] = "of ours"
    one = Zygote.start([])
    yield one
    one.stop()
    assert one.process is not None
    assert one.process.returncode == 0
    del os.environ["COURSE_SECRET"]


@pytest.fixture
def worker(zygote: Zygote) -> Iterator[Process]:
    process = zygote.fork(WORKER)
    yield process
    process.kill()
    assert gone(process.pid)
    assert process.folder is None or not process.folder.exists()


def gone(pid: int) -> bool:
    return eventually(lambda: not psutil.pid_exists(pid))


def eventually(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def ask(process: Process, probe: str, *args: Any, seconds: float = 20.0) -> Any:
    asked, payload = encode({"do": "ask", "probe": probe, "name": ""}), encode({"args": args, "mesh": None})
    reply = decode(process.exchange(asked, payload, seconds=seconds))
    return reply.get("value", reply)


def stopwatch(seconds: float) -> wire.Expired:
    end = time.monotonic() + seconds
    return lambda: Fault("timeout", f"no answer within {seconds:g} s") if time.monotonic() > end else None


def fault(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        call(*args, **kwargs)
    return caught.value


def test_every_fork_answers_for_itself(zygote: Zygote) -> None:
    workers = [zygote.fork(WORKER) for _ in range(3)]
    try:
        for number, process in enumerate(workers):
            assert run(process, f"mine = {number}") == {"status": "ok", "bound": ["mine"]}
        assert [ask(process, "lambda: mine") for process in workers] == [0, 1, 2]
        assert len({process.pid for process in workers}) == 3
    finally:
        for process in workers:
            process.kill()


def begin(devices: int) -> dict[str, Any]:
    return {"do": "begin", "devices": devices, "compiled": None, "write": False, "accelerator": ""}


def test_worker_and_executor_choose_their_own_number_of_devices(zygote: Zygote, worker: Process) -> None:
    assert decode(worker.exchange(encode(begin(3)), seconds=20)) == {"status": "ok"}
    assert ask(worker, "lambda: __import__('jax').device_count()") == 3
    executor = zygote.fork(EXECUTOR)
    try:
        reply = executor.exchange(encode(begin(2)), seconds=20)
        assert decode(reply) == {"status": "ok"}
        refused = decode(executor.exchange(encode({"do": "load"}), b"not a program", seconds=20))
        assert refused["status"] == "refused"
    finally:
        executor.kill()


def test_a_fork_inherits_neither_environment_nor_files_of_ours(worker: Process, tmp_path: Path) -> None:
    with (tmp_path / "gradebook").open("w") as held:
        environment = ask(worker, "lambda: dict(__import__('os').environ)")
        assert "of ours" not in environment.values()
        assert not set(environment) & {"COURSE_SECRET", "PYTEST_CURRENT_TEST", "USER", "SHELL", "LS_COLORS"}
        assert environment["HOME"] == environment["TMPDIR"] == ask(worker, "lambda: __import__('os').getcwd()")
        assert Path(environment["HOME"]) == (worker.folder or Path("/tmp"))
        opened = ask(worker, "lambda: [os.fstat(n).st_rdev for os in [__import__('os')] for n in (0, 1, 2)]")
        assert opened == [os.stat("/dev/null").st_rdev] * 3
        run(worker, STREAM)
        others = ask(
            worker,
            "lambda: [p for n in os.listdir('/proc/self/fd') if int(n) > 2 and int(n) != stream() "
            "for p in [os.path.realpath(f'/proc/self/fd/{n}')] if '/proc/' not in p]",
        )
        assert others == []
        assert not held.closed


def test_an_unknown_entry_runs_nothing(zygote: Zygote) -> None:
    process = zygote.fork("os:abort")
    assert fault(wire.receive, process.stream, expired=stopwatch(10)).kind == "crashed"
    process.kill()


# Time.


def test_computing_counts_and_waiting_does_not(worker: Process) -> None:
    run(worker, "import time")
    assert ask(worker, "lambda: time.sleep(1)", seconds=0.5) is None
    stopped = fault(ask, worker, "lambda: [None for _ in iter(int, 1)]", seconds=0.5)
    assert stopped.kind == "timeout"
    # On a machine so busy that a process gets less than a quarter of a core, the clock is first.
    assert stopped.message in ("stopped after 0.5 s of processor time", "stopped after 2 s")


def test_the_clock_ends_an_endless_wait(worker: Process) -> None:
    run(worker, "import time")
    began = time.monotonic()
    stopped = fault(ask, worker, "lambda: time.sleep(100)", seconds=0.2)
    assert (stopped.kind, stopped.message) == ("timeout", "stopped after 0.8 s")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("pause", [0.02, 0])
def test_a_reply_that_drips_runs_out_of_time(worker: Process, pause: float) -> None:
    """Some byte every now and then is not an answer."""
    run(worker, STREAM + "import struct, time")
    run(worker, "def drip(pause):\n    to = stream()\n"
        "    os.write(to, struct.pack('<Q', 1 << 27))\n    while True:\n        time.sleep(pause)\n"
        "        os.write(to, b'.')\n")  # fmt: skip
    began = time.monotonic()
    assert fault(ask, worker, "drip", pause, seconds=0.3).kind == "timeout"
    assert time.monotonic() - began < 20


def test_a_process_that_does_not_listen_runs_out_of_time(worker: Process) -> None:
    """More than the socket holds, to a process that has stopped."""
    run(worker, "import ctypes, threading\nthreading.Timer(0.2, ctypes.PyDLL(None).sleep, [100]).start()")
    time.sleep(0.5)
    began = time.monotonic()
    assert fault(ask, worker, "lambda x: 0", np.zeros(8 << 20, np.uint8), seconds=0.3).kind == "timeout"
    assert time.monotonic() - began < 20


def test_large_arguments_and_results_arrive(worker: Process) -> None:
    array = np.arange(3 << 20, dtype=np.float32)
    assert np.array_equal(ask(worker, "lambda x: x[::-1]", array), array[::-1])


# Endings.

ENDS = {
    "exit": "import os\nos._exit(0)",
    "abort": "import os\nos.abort()",
    "segfault": "import ctypes\nctypes.string_at(0)",
    "closed files": "import os\nos.closerange(0, 4096)",
    "other stream": STREAM + "os.dup2(os.open('/dev/zero', os.O_RDONLY), stream())",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_that_ends_is_a_crash(worker: Process, name: str) -> None:
    assert fault(run, worker, ENDS[name]).kind == "crashed"
    assert fault(run, worker, "pass").kind == "crashed", "and stays one"


HARMLESS = {
    "exit": "raise SystemExit(3)",
    "input": "input()",
    "interrupt": "raise KeyboardInterrupt",
    "broken exception": "class Odd(Exception):\n    def __str__(self):\n        raise self\nraise Odd",
    "surrogate": "raise ValueError('\\ud800')",
    "NUL": "x = 1\0",
    "lone surrogate in the text": "x = '\ud800'",
    "deep": "x = " + "(" * 300 + ")" * 300,
    "deeper": "x = " + "-" * 5000 + "1",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_an_exception_ends_nothing(worker: Process, name: str) -> None:
    assert run(worker, HARMLESS[name])["status"] == "raised"
    read = decode(worker.exchange(encode({"do": "read", "source": HARMLESS[name]}), seconds=20))
    assert read["status"] in ("ok", "raised")
    assert run(worker, "still = 1")["status"] == "ok"


def test_prints_and_logs_go_nowhere(worker: Process) -> None:
    noise = "import os, sys\nprint('x' * 3_000_000)\nos.write(2, b'y' * 100_000)\nprint('z', file=sys.stderr)"
    assert run(worker, noise)["status"] == "ok"


def test_a_claim_to_send_too_much_is_a_flood(worker: Process) -> None:
    run(worker, STREAM + "import struct")
    flood = fault(ask, worker, "lambda: os.write(stream(), struct.pack('<Q', 1 << 40))")
    assert flood.kind == "flooded"
    assert flood.message == "the reply has more than 268,435,456 bytes"  # not how many it claims: 64 bits


def test_an_answer_without_its_question_is_refused(worker: Process) -> None:
    """Else every later reply would be taken for the answer to the next question."""
    run(worker, STREAM)
    ahead = encode({"status": "ok", "value": 7})
    early = fault(ask, worker, f"lambda: os.write(stream(), {struct.pack('<Q', len(ahead)) + ahead!r}) and None")
    assert (early.kind, early.message) == ("crashed", "the process answered a different request")


def test_a_second_answer_is_refused(worker: Process) -> None:
    """Even with the number of the question: that is in reach of what the process runs."""
    run(worker, f"{STREAM}\nimport sys\nturn = lambda frame: frame.f_locals.get('turn') or turn(frame.f_back)")
    frame = struct.pack("<Q", 16)
    second = encode({"status": "ok", "value": 7})
    said = f"{frame!r} + turn(sys._getframe()) + {struct.pack('<Q', len(second)) + second!r}"
    assert ask(worker, f"lambda: os.write(stream(), {said}) and None") == 7
    assert select.select([worker.stream], [], [], 30)[0], "the worker's own reply is on its way"
    assert not wire.silent(worker.stream)
    assert fault(ask, worker, "lambda: 1").kind == "crashed"


def test_a_cell_that_forks_answers_once(worker: Process) -> None:
    run(worker, "import os, warnings\nwarnings.simplefilter('ignore')\nchild = os.fork()")
    assert ask(worker, "lambda: child") > 0
    assert [ask(worker, "lambda x: x", i) for i in range(5)] == [0, 1, 2, 3, 4]


def test_the_end_takes_the_whole_group_and_the_folder(zygote: Zygote) -> None:
    process = zygote.fork(WORKER)
    run(process, "import os, subprocess\nchild = subprocess.Popen(['sleep', '100'])")
    run(process, "os.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.symlink('/', 'a/root')")
    run(process, "os.chmod('a/b', 0)\nos.chmod('a', 0)")
    [child] = psutil.Process(process.pid).children()
    process.kill()
    assert gone(process.pid)
    assert gone(child.pid)
    assert process.folder is None or not process.folder.exists()
    process.kill()  # a second time is nothing


def test_a_process_that_is_let_go_ends_by_itself(zygote: Zygote) -> None:
    process = zygote.fork(WORKER)
    began = time.monotonic()
    process.finish(60)
    assert time.monotonic() - began < 30
    assert gone(process.pid)
    assert process.folder is None or not process.folder.exists()


def test_nothing_is_left_after_the_zygote_stops() -> None:
    """Not even a loop that nobody waits for any more."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    zygote = Zygote.start([])
    process = zygote.fork(WORKER)
    wire.send(process.stream, encode({"do": "run", "source": "while True: pass"}))
    started = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert process.pid in started
    zygote.stop()
    assert all(gone(pid) for pid in started)
    process.kill()
    with pytest.raises(OSError, match=r"closed|Bad file|ended|Broken pipe"):
        zygote.fork(WORKER)


ABANDON = """
import os
from grader.program.codec import encode
from grader.sandbox import wire
from grader.sandbox.process import Zygote
zygote = Zygote.start([])
workers = [zygote.fork("grader.sandbox.worker:serve") for _ in range(2)]
endless = encode({"do": "run", "source": "open('left', 'w').close()\\nwhile True: pass"})
for worker in workers:
    wire.send(worker.stream, endless)
print(*(worker.pid for worker in workers), flush=True)
os.kill(os.getpid(), 9)
"""


def test_nothing_outlives_a_client_that_was_killed(tmp_path: Path) -> None:
    """Neither its zygote, nor what was forked from them, nor the folders of that."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ABANDON], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    assert eventually(lambda: not list(tmp_path.iterdir()))


def test_a_client_that_goes_before_its_zygote_is_ready_leaves_nothing_and_no_message(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opening = {"preload": [], "at_most": "full", "platform": asdict(CPU), "count": 1, "hidden": []}
    ours.send(json.dumps(opening).encode())
    command = [sys.executable, "-m", "grader.sandbox.zygote", str(theirs.fileno()), str(folder)]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as zygote:
        theirs.close()
        ours.close()
        _, said = zygote.communicate(timeout=120)
        assert (zygote.returncode, said) == (0, b"")
    assert not folder.exists()


# The wire alone.


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_frames_arrive_whole_and_in_order(pair: Any) -> None:
    ours, theirs = pair
    frames = [b"", b"a", bytes(range(256)) * 5_000, b"end"]
    sender = threading.Thread(target=lambda: [wire.send(theirs, frame) for frame in frames])
    sender.start()
    assert [wire.receive(ours) for _ in frames] == frames
    sender.join()


@pytest.mark.parametrize("sent", [b"", b"\x05\0\0", struct.pack("<Q", 5) + b"abc"])
def test_a_frame_cut_short_is_a_crash(pair: Any, sent: bytes) -> None:
    ours, theirs = pair
    theirs.sendall(sent)
    theirs.close()
    assert fault(wire.receive, ours).kind == "crashed"


def test_a_frame_beyond_the_limit_is_refused_unread(pair: Any) -> None:
    ours, theirs = pair
    theirs.sendall(struct.pack("<Q", 11))
    assert fault(wire.receive, ours, 10).kind == "flooded"


def test_sending_to_nobody_is_a_crash_and_to_a_sleeper_a_timeout(pair: Any) -> None:
    ours, theirs = pair
    assert fault(wire.send, ours, bytes(16 << 20), stopwatch(0.2)).kind == "timeout"
    theirs.close()
    assert fault(wire.send, ours, b"x").kind == "crashed"


@pytest.mark.parametrize(("orphaned", "ending"), [(False, 7), (True, 1)])
def test_a_process_whose_parent_ended_before_it_could_be_told_ends_itself(orphaned: bool, ending: int) -> None:
    """The kernel tells nothing about a parent that has ended before `prctl`: an examiner without its zygote went on."""
    ask = "from grader.sandbox.confine_kernel import end_with_parent; end_with_parent({}); raise SystemExit(7)"
    done = subprocess.run([sys.executable, "-c", ask.format(1 << 30 if orphaned else os.getpid())])
    assert done.returncode == ending
