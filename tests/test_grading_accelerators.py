"""Grading on an accelerator: which lessons go there, what is said of the others, and what its driver is let to.

No test has an accelerator. Where one would be, CPU devices stand under its name, with its confinement and its files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Grader, ask, run
from typer.testing import CliRunner

from grader import cli
from grader.course import Course
from grader.grading.batch import device_groups
from grader.sandbox import accelerators
from grader.sandbox.accelerators import CPU, ON_CPUS, PLATFORMS, Absent, Hardware, Platform, needs
from grader.sandbox.process import Process, Zygote

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines more than by limits")
STAND_IN = Platform("cuda", jax="cpu", device="cpu", made_by="NVIDIA", files=("/dev/tty",), shown=("/sys/kernel",))
ONE = Hardware(STAND_IN, 1, "H200")
NOTE = "02_together needs 8 devices, but this machine has 1 NVIDIA H200. It was graded on 8 simulated CPU devices."


def test_an_accelerator_that_is_not_there_is_one_sentence(grader: Grader, tmp_path: Path) -> None:
    """Before anything is graded."""
    (tmp_path / "one" / "05_vmap").mkdir(parents=True)
    done = grader("grade", tmp_path, "--platform", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "Nothing was graded: JAX finds no cuda device on this machine. It needs the driver and, in this environment, "
        "`pip install 'jax[cuda12]'` (docs/accelerators.md). Without --platform, the CPU is used.\n"
    )


def test_a_tpu_is_for_lessons_only(grader: Grader) -> None:
    done = grader("grade", "examples/submitted", "--platform", "tpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Nothing was graded. Only one process at a time can use a TPU")


def test_an_unknown_platform_is_told_the_known_ones(grader: Grader) -> None:
    done = grader("grade", "examples/submitted", "--platform", "gpu")
    assert (done.returncode, done.stderr) == (2, "There is no platform gpu. Platforms: cpu, cuda, rocm, tpu.\n")


@pytest.mark.parametrize(
    ("printed", "count"),
    [
        ('{"count": 2, "kind": "NVIDIA H200", "device": "gpu"}', 2),
        ('{"count": 1, "kind": "cpu", "device": "cpu"}', 0),  # JAX goes on with the next in its list
        ("", 0),
    ],
)
def test_devices_are_counted_by_another_process(printed: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0, printed, "")
    monkeypatch.setattr(accelerators.subprocess, "run", lambda *words, **options: done)
    if not count:
        with pytest.raises(Absent, match="JAX finds no cuda device"):
            accelerators.look("cuda")
        return
    found = accelerators.look("cuda")
    assert (found.count, str(found), found.edition) == (2, "2 NVIDIA H200", "cuda, 2 NVIDIA H200")


SETUPS = {
    "import jax": 1,
    "from grader.checks import devices\ndevices.start(8)": 8,
    "from grader.checks import devices\n\ndevices.start()": 8,
    "from grader.checks import devices\ndevices.start(count=4)\nmesh = devices.mesh((4,), ('d',))": 4,
    "other.start(8)\nstart(8)": 1,
}


@pytest.mark.parametrize("setup", SETUPS)
def test_a_setup_tells_how_many_devices_its_lesson_needs(setup: str) -> None:
    lesson = Course(ROOT / "tests/courses/small").lesson("01_small")
    assert replace(lesson, setup=setup).devices == SETUPS[setup]


def test_lessons_of_the_course_that_need_several_devices() -> None:
    course = Course(ROOT)
    several = {lesson for lesson in course.lesson_ids if course.lesson(lesson).devices > 1}
    assert {"16_sharding", "18_data_parallel"} <= several
    assert "05_vmap" not in several


def test_lessons_go_where_there_are_devices_enough(built: Callable[[str], Path]) -> None:
    course, lessons = Course(built("two_sizes")), ["01_alone", "02_together"]
    here, elsewhere = device_groups(course, ONE, lessons)
    assert (here.machine, here.lessons, here.count, here.notes) == (ONE, ("01_alone",), 1, {})
    assert (elsewhere.machine, elsewhere.lessons, elsewhere.notes) == (ON_CPUS, ("02_together",), {"02_together": NOTE})
    [all_of_them] = device_groups(course, Hardware(STAND_IN, 8, "NVIDIA H200"), lessons)
    assert (all_of_them.lessons, all_of_them.count, all_of_them.notes) == (("01_alone", "02_together"), 8, {})
    [as_ever] = device_groups(course, ON_CPUS, lessons)
    assert (as_ever.machine.platform, as_ever.lessons, as_ever.notes) == (CPU, ("01_alone", "02_together"), {})
    assert device_groups(course, ONE, []) == device_groups(course, ON_CPUS, []) == []


@linux
def test_what_needs_more_devices_is_judged_on_simulated_ones_and_says_so(
    built: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was judged on an accelerator counts for nothing on a CPU."""
    course = tmp_path / "course"
    shutil.copytree(built("two_sizes"), course, ignore=shutil.ignore_patterns("graded", "notes", "compiled"))
    for lesson in ("01_alone", "02_together"):
        text = (course / "build" / "source" / lesson / f"{lesson}.ipynb").read_text()
        (tmp_path / "class" / "one" / lesson).mkdir(parents=True)
        (tmp_path / "class" / "one" / lesson / f"{lesson}.ipynb").write_text(text)
    monkeypatch.setattr(accelerators, "look", lambda name: ONE if name == "cuda" else ON_CPUS)

    def grade(*options: str) -> tuple[str, list[dict[str, Any]]]:
        results = tmp_path / "results.json"
        command = ["--course", str(course), "grade", str(tmp_path / "class"), "--json", str(results), *options]
        done = CliRunner().invoke(cli.app, command)
        assert done.exit_code == 0, done.output
        return done.output, json.loads(results.read_text())["results"]

    said, (alone, together) = grade("--platform", "cuda")
    assert "Grading on 1 NVIDIA H200." in said
    assert NOTE in " ".join(said.split())
    assert (alone["platform"], alone["score"], alone["notes"]) == ("cuda", 3, [])
    assert (together["platform"], together["score"], together["notes"]) == ("cpu", 3, [NOTE])
    assert "All were graded before" in grade("--platform", "cuda")[0]
    said, (alone, together) = grade()
    assert "graded before" not in said
    assert (alone["platform"], alone["notes"], together["notes"]) == ("cpu", [], [])


@pytest.mark.parametrize("leave", [False, True])
def test_grading_on_cpus_does_not_load_what_is_installed_for_gpus(tmp_path: Path, leave: bool) -> None:
    """JAX does, and where the driver is missing that writes to stderr."""
    (tmp_path / "jax_plugins").mkdir()
    for name in ("jax_cuda12_plugin", "jax_plugins/xla_cuda12"):
        (tmp_path / f"{name}.py").write_text(
            f"import sys; print('loaded {name}', file=sys.stderr)\ndef initialize(): pass"
        )
    text = "from grader.sandbox import accelerators; accelerators.leave_alone()\n" * leave + "import jax; jax.devices()"
    around = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", text], env=around, capture_output=True, text=True, check=True)
    assert ("loaded" in done.stderr) == (not leave), done.stderr


# What a driver is let to, on every rung with namespaces or Landlock.

ZYGOTE = ([], STAND_IN, 8)  # what the fixture `zygote` starts one with
on_each_level = pytest.mark.parametrize("zygote", ["full", "namespaces", "landlock"], indirect=True, scope="module")
OWN_NETWORK = """
def spoken():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.send(b"x")
        return server.accept()[0].recv(1)
"""


@linux
@on_each_level
def test_a_driver_finds_what_it_asks_for(worker: Process, zygote: Zygote) -> None:
    """Its device files, what it reads of /sys, files in memory, names for its threads, addresses without end; and a
    network of the process's own, which devices that compute together find each other by."""
    assert ask(worker, "os.path.exists('/dev/tty') and os.path.isdir('/sys/kernel')") is True
    assert ask(worker, "os.memfd_create('x') > 0") is True
    assert ask(worker, "resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY") is True
    assert ask(worker, "open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write('driver')") == 6
    assert ask(worker, "os.environ['XLA_PYTHON_CLIENT_PREALLOCATE']") == "false"
    run(worker, OWN_NETWORK)
    assert ask(worker, "spoken() == b'x'") == ("PermissionError" if zygote.confined.level == "landlock" else True)


@linux
@on_each_level
def test_that_opens_nothing_else(worker: Process, zygote: Zygote) -> None:
    inside = zygote.confined.level in ("full", "namespaces")
    refused = ("FileNotFoundError", "PermissionError", "OSError")
    assert ask(worker, f"len(open({str(ROOT / 'course.toml')!r}).read())") in refused
    assert ask(worker, "open('/proc/sys/kernel/hostname', 'w').write('x')") in refused
    assert ask(worker, "open('/sys/kernel/profiling', 'w').write('1')") in refused
    assert ask(worker, "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)") == "PermissionError"
    assert ask(worker, "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)") == "PermissionError"
    if inside:
        assert ask(worker, "sorted(name for _, name in socket.if_nameindex())") == ["lo"]


@linux
def test_grading_on_cpus_opens_none_of_it() -> None:
    zygote = Zygote.start([])
    try:
        worker = zygote.fork("grader.sandbox.worker:serve")
        run(worker, "import os, resource, threading")
        assert ask(worker, "os.memfd_create('x')") == "OSError"
        assert ask(worker, "resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY") is False
        assert ask(worker, "os.environ['JAX_PLATFORMS']") == "cpu"
        assert ask(worker, "os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE')") is None
        worker.kill()
    finally:
        zygote.stop()


def test_a_program_that_ends_up_on_a_cpu_is_no_verdict_on_an_accelerator() -> None:
    """JAX goes on with the CPU where an accelerator does not start."""
    text = "from grader.program.endpoints import begin; begin(1, None, False, 'gpu')"
    around = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", text], env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is no gpu" in done.stderr


def test_only_device_files_that_are_there_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of libraries' folders those that the loader knows and that hold the driver."""
    for name in ("nvidia0", "nvidiactl", "lib/libcuda.so.1", "other/libm.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/lib:{tmp_path}/other:")
    here = Platform("cuda", files=(f"{tmp_path}/nvidia[0-9]*", f"{tmp_path}/nvidiactl", f"{tmp_path}/nvidia-uvm"),
                    libraries=("libcuda.so*",))  # fmt: skip
    found = needs(here)
    assert found.files == (f"{tmp_path}/nvidia0", f"{tmp_path}/nvidiactl")
    assert f"{tmp_path}/lib" in found.shown
    assert f"{tmp_path}/other" not in found.shown
    assert "/dev/nvidia-modeset" not in str(PLATFORMS["cuda"].files)
