"""`grader doctor`: each fault of a machine or a set-up is found by the real command, or by the question it asks."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import environment as setup
import pytest
from conftest import ROOT, Grader

from grader.course import Course
from grader.doctor import diagnosis, installation
from grader.doctor.installation import BackgroundProbe, Finding

TINY = "name = 'Tiny'\n[[lesson]]\nid = '01_tiny'\ntitle = 'Tiny'\npart = 'One'\n"
NO_KERNEL_FOLDERS = {"JUPYTER_PATH": "", "JAX_PLATFORMS": "", "XLA_FLAGS": ""}


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A course in a folder of its own."""
    folder = tmp_path / "course"
    folder.mkdir()
    (folder / "course.toml").write_text(TINY)
    return folder


def paragraph(said: str, words: str) -> str:
    """What the doctor said about one thing: the line with `words`, and the lines below it that are indented."""
    found: list[str] = []
    for line in said.splitlines():
        if found and line.startswith("  "):
            found.append(line)
        elif found:
            break
        elif words in line:
            found.append(line)
    return "\n".join(found)


def kernelspec(folder: Path, python: str) -> Path:
    """A folder for JUPYTER_PATH whose kernel `python3` starts this Python."""
    spec = {"argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Python 3"}
    place = folder / "kernels" / "python3"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps({**spec, "language": "python"}))
    return place


def distribution(folder: Path, name: str, version: str) -> None:
    """What pip leaves of an installed package, for whoever asks for its version."""
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_what_is_fine_is_a_line_each(grader: Grader, course: Path) -> None:
    said = grader("doctor", cwd=course, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", **NO_KERNEL_FOLDERS)
    assert said.returncode == 0, said.stdout + said.stderr
    lines = said.stdout.splitlines()
    version = "Python {}.{}.{}, jax ".format(*sys.version_info[:3])
    for words in (version, "torch", f"Your copies: {course}/work", "Disk: ", "Kernel of notebooks: ", "Devices: "):
        [line] = [line for line in lines if words in line and not line.startswith("✓ Environment")]
        assert line.startswith("✓ "), line
    assert "8 simulated CPU devices start" in said.stdout
    assert not (course / "work").exists(), "it looks, and makes nothing"


def test_what_stands_in_the_way_is_told_with_what_mends_it(grader: Grader, course: Path, tmp_path: Path) -> None:
    """Several faults at once, as they come: each is found though the others are there."""
    (course / "work").write_text("not a folder")
    gone = kernelspec(tmp_path / "share", "/opt/gone/bin/python")
    packages = tmp_path / "packages"
    distribution(packages, "flax", "0.1.0")
    (packages / "jax.py").write_text("raise ImportError('jaxlib is version 0.1, but jax wants 0.10')\n")
    other = tmp_path / "bin" / "grader"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    done = grader(
        "doctor",
        cwd=course,
        PATH=f"{other.parent}:{os.environ['PATH']}",
        PYTHONPATH=f"{packages}:{ROOT}",
        JUPYTER_PATH=str(gone.parents[1]),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.strip() == "4 errors were found (✗)."
    too_old = paragraph(done.stdout, "Too old: flax 0.1.0")
    assert too_old.startswith("✗ ")
    assert "requirements.lock" in too_old or "conda env update" in too_old
    kernel = paragraph(done.stdout, "Kernel of notebooks")
    assert kernel.startswith("✗ Kernel of notebooks: /opt/gone/bin/python, which does not exist, set in ")
    assert kernel.endswith(f"To fix it: mv {gone} {gone.parents[1]}/python3-aside")
    copies = paragraph(done.stdout, "is not a folder")
    assert copies.endswith(f"To fix it: mv {course}/work {course}/work-aside")
    jax = paragraph(done.stdout, "JAX does not start")
    assert "jaxlib is version 0.1, but jax wants 0.10. Every lesson needs it." in jax
    typed = paragraph(done.stdout, "In this terminal")
    assert typed.startswith("! ")
    assert f"is {other}, not the one in" in typed
    # What mends is what it says: typed as it stands, the fault is gone.
    for text in (kernel, copies):
        subprocess.run(["bash", "-c", text.partition("To fix it: ")[2]], check=True)
    assert not gone.exists()
    assert (gone.parents[1] / "python3-aside" / "kernel.json").is_file(), "beside the folder of kernels, not in it"
    assert (course / "work-aside").read_text() == "not a folder"


def test_a_cuda_that_sees_no_gpu_costs_and_does_not_stand_in_the_way(
    grader: Grader, course: Path, tmp_path: Path
) -> None:
    distribution(tmp_path / "packages", "jax-cuda12-plugin", "0.10.2")
    done = grader("doctor", cwd=course, PYTHONPATH=f"{tmp_path / 'packages'}:{ROOT}", **NO_KERNEL_FOLDERS)
    assert done.returncode == 0, done.stdout + done.stderr
    said = paragraph(done.stdout, "jax-cuda12-plugin")
    assert said.startswith(
        "! JAX was installed with jax-cuda12-plugin but finds no such device, so lessons run on the CPU."
    )
    assert "`nvidia-smi`" in said
    assert said.endswith("-m pip uninstall -y jax-cuda12-plugin")


def test_without_a_course_the_machine_is_looked_at(grader: Grader, tmp_path: Path) -> None:
    done = grader("doctor", cwd=tmp_path, **NO_KERNEL_FOLDERS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This folder is not in a course" in done.stdout
    assert "Confinement of learners' processes: " in done.stdout


# --- the environment: really one, in a checkout that moves -----------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its locks, and a `.venv` of its own that is stamped as a finished one."""
    folder = tmp_path_factory.mktemp("of") / "checkout"
    (folder / "tools").mkdir(parents=True)
    shutil.copytree(ROOT / "grader", folder / "grader", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tools/environment.py", "pyproject.toml", *installation.LOCKS):
        shutil.copy(ROOT / name, folder / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    site = next((folder / ".venv" / "lib").glob("python*/site-packages"))
    (site / "all.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / ".venv" / setup.STAMP).write_text(json.dumps(setup.wanted(folder, "cpu")))
    return folder


def says(checkout: Path) -> str:
    """What its own grader says of its environment, without asking JAX."""
    code = "from grader.doctor import installation as e; print('\\n'.join(e.environment(e.checkout()).lines()))"
    python, variables = checkout / ".venv" / "bin" / "python", {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run([python, "-c", code], env=variables, cwd="/", capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_venv_that_is_up_to_date_stale_moved_or_unfinished(checkout: Path) -> None:
    make = f"To fix it: make -C {checkout} setup"
    assert says(checkout) == f"✓ Environment: {checkout}/.venv, up to date."
    lock = checkout / "requirements.lock"
    pinned = lock.read_text()
    lock.write_text(pinned + "one-more==1.0\n")
    stale = says(checkout)
    assert stale.startswith(f"! {checkout}/.venv is older than the versions that this checkout pins")
    assert stale.endswith(make)
    lock.write_text(pinned)
    stamp = (checkout / ".venv" / setup.STAMP).read_text()
    (checkout / ".venv" / setup.STAMP).write_text(stamp.replace(str(checkout), "/where/it/was"))
    moved = says(checkout)
    assert moved.startswith(f"! {checkout}/.venv was created in /where/it/was. Its commands contain that path")
    assert moved.endswith(make)
    (checkout / ".venv" / setup.STAMP).unlink()
    assert says(checkout).startswith(f"! {checkout}/.venv is incomplete")
    (checkout / ".venv" / setup.STAMP).write_text(stamp)


def test_another_environment_than_the_one_that_make_uses(checkout: Path) -> None:
    said = installation.environment(checkout)
    assert said.grade == "costs"
    assert said.text.startswith(f"`grader` runs in {sys.prefix}, but `make` uses {checkout}/.venv")
    assert said.fix == f"source {checkout}/.venv/bin/activate"
    assert Path(shlex.split(said.fix)[1]).is_file()


def test_a_course_with_a_grader_of_its_own(checkout: Path, tmp_path: Path) -> None:
    said = installation.course_of_another(checkout)
    assert said is not None
    assert str(ROOT) in said.text
    assert installation.course_of_another(tmp_path) is None
    assert installation.course_of_another(ROOT) is None


def test_versions_in_an_environment_that_make_made_are_the_pinned_ones(checkout: Path) -> None:
    assert installation.versions(checkout, True, "fix").grade == "fine"
    lock = checkout / "requirements.lock"
    pinned = lock.read_text()
    lock.write_text(pinned.replace(f"optax=={installation.installed('optax')}", "optax==0.1.9"))
    try:
        assert (
            f"optax {installation.installed('optax')} (pinned: 0.1.9)"
            in installation.versions(checkout, True, "fix").text
        )
        assert installation.versions(checkout, False, "fix").text.endswith("not all are the tested versions.")
    finally:
        lock.write_text(pinned)


def test_a_package_that_is_missing_stands_in_the_way(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "installed", lambda name: None if name == "optax" else "999")
    assert installation.versions(checkout, True, "fix") == Finding(
        "stops", "Not installed: optax. Programs that need them cannot start.", "fix"
    )


def test_every_range_is_read(checkout: Path) -> None:
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    elsewhere = [text for text in declared if "sys_platform" in text and sys.platform not in text]
    assert len(installation.requirements(checkout, installation.PROJECT)) == len(declared) - len(elsewhere)


def test_builds_and_zeros_at_the_end_make_no_other_version(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {name: pin for lock in installation.LOCKS for name, pin in installation.requirements(checkout, lock).items()}
    pinned = {name: next(iter(pin.specifier)).version for name, pin in pins.items()}
    pinned |= {"jax": f"{pinned['jax']}+cpu", "flax": f"{pinned['flax']}.0"}
    monkeypatch.setattr(installation, "installed", pinned.get)
    assert installation.versions(checkout, True, "fix").text.endswith(": the pinned versions.")
    pinned["flax"] = "0.9"
    assert "Too old: flax 0.9 (needed: 0.12.8 or newer)." in installation.versions(checkout, True, "fix").text


BOTH = {"torch": "2.13.0", "torchvision": "0.28.0"}


@pytest.mark.parametrize(
    ("there", "imports", "grade", "text"),
    [
        (BOTH, {"01": "import torch", "02": "import jax"}, "fine", "torch 2.13.0, torchvision 0.28.0, for lesson 01."),
        (BOTH, {"01": "import jax"}, "fine", "torch 2.13.0, torchvision 0.28.0."),
        ({}, {"01": "import jax"}, "fine", "No torch: imported by no lesson."),
        (
            {},
            {
                "01": "if found:\n    import torch",
                "02": "from grader.learning.loaders import MNIST",
                "03": "import torch",
            },
            "fine",
            "No torch: optional in lessons 01 and 02, needed in lesson 03 (`make setup TORCH=cpu`).",
        ),
        (
            {"torch": "2.13.0"},
            {"01": "import torch", "02": "from grader.lessons.loaders import MNIST"},
            "costs",
            "torch 2.13.0 is installed without torchvision. Stand-ins replace it in lesson 02.",
        ),
        ({"torch": "2.13.0"}, {"01": "import torch"}, "fine", "torch 2.13.0 without torchvision, for lesson 01."),
    ],
)
def test_torch_or_not(
    tmp_path: Path, there: dict[str, str], imports: dict[str, str], grade: str, text: str, monkeypatch
) -> None:
    """Which lessons import it is read from the course, so that the sentence holds for any."""
    (tmp_path / "notebooks").mkdir()
    lessons = [f"[[lesson]]\nid = '{i}_tiny'\ntitle = 'Tiny'\npart = 'One'\n" for i in imports]
    (tmp_path / "course.toml").write_text("name = 'Tiny'\n" + "".join(lessons))
    for lesson, code in imports.items():
        (tmp_path / "notebooks" / f"{lesson}_tiny.py").write_text(f"# %%\n{code}\n")
    monkeypatch.setattr(installation, "installed", there.get)
    found = installation.torch(Course(tmp_path))
    assert (found.grade, found.text) == (grade, text)


def test_without_torch_this_courses_lessons_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "installed", {}.get)
    assert "11" in installation.torch(Course(ROOT)).text
    assert installation.torch(None).text == "No torch: optional in most lessons."


# --- the rest, by the questions that are asked -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "kind", "grade", "words"),
    [
        ("6.6.87.2-microsoft-standard-WSL2", "ext4", None, ""),
        ("6.6.87.2-microsoft-standard-WSL2", "9p", "costs", "a Windows disk"),
        ("4.4.0-19041-Microsoft", "wslfs", "costs", "WSL 1"),
        ("6.1.0-13-amd64", "nfs4", "costs", "a network disk (nfs4)"),
        ("6.1.0-13-amd64", "9p", None, ""),
    ],
)
def test_where_the_checkout_lies(release: str, kind: str, grade: str | None, words: str) -> None:
    root = Path("/mnt/c/Users/me/jax course")
    said = diagnosis.file_system(root, release, [("/", "ext4"), ("/mnt/c", kind), ("/mnt/c/other", "tmpfs")])
    assert (said.grade if said else None) == grade
    if said is not None:
        assert words in said.text
        assert shlex.split(said.fix), "a path with a space is quoted"


def test_a_notebook_that_belongs_to_root(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = course / "work" / "05_vmap" / "05_vmap.ipynb"
    notebook.parent.mkdir(parents=True)
    notebook.touch()
    assert diagnosis.work(course).grade == "fine"
    monkeypatch.setattr(diagnosis.os, "access", lambda path, mode: path != notebook)
    said = diagnosis.work(course)
    assert said.grade == "stops"
    assert str(notebook) in said.text
    assert said.fix == f'sudo chown -R "$(id -un)" {course}/work'


@pytest.mark.parametrize(("free", "grade"), [(5e9, "fine"), (0.5e9, "costs"), (0.01e9, "stops")])
def test_a_disk_that_fills(course: Path, monkeypatch: pytest.MonkeyPatch, free: float, grade: str) -> None:
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    assert diagnosis.disk(course).grade == grade


def test_a_container_has_the_memory_that_it_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1500000000\n")
    (tmp_path / "memory.current").write_text("600000000\n")
    assert diagnosis.available_gb(tmp_path) == (1.5, 0.9)
    (tmp_path / "memory.stat").write_text("anon 400000000\ninactive_file 200000000\n")
    assert diagnosis.available_gb(tmp_path) == (1.5, 1.1), "files in the cache make room"
    (tmp_path / "memory.max").write_text("max\n")
    assert diagnosis.available_gb(tmp_path)[0] > 1.5
    older = tmp_path / "memory"
    older.mkdir()
    (older / "memory.limit_in_bytes").write_text("1400000000\n")
    (older / "memory.usage_in_bytes").write_text("600000000\n")
    assert diagnosis.available_gb(tmp_path) == (1.4, 0.8), "cgroups of version 1"
    monkeypatch.setattr(diagnosis, "available_gb", lambda: (1.5, 0.9))
    said = diagnosis.memory()
    assert said.grade == "costs"
    assert said.text.startswith("Only 0.9 of 1.5 GB of memory are free. A lesson takes up to 1 GB")


def test_variables_that_keep_jax_from_starting_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with BackgroundProbe("-c", "import sys; sys.exit('RuntimeError: Unknown backend cuda.')") as asked:
        said = diagnosis.devices(asked, "fix")
    assert said == Finding(
        "stops",
        "JAX does not start: RuntimeError: Unknown backend cuda. Every lesson needs it.",
        "unset JAX_PLATFORMS",
    )


def test_a_jax_that_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grader.doctor.installation.PATIENCE_S", 0.2)
    with BackgroundProbe("-c", "import time; time.sleep(60)") as asked:
        said = diagnosis.devices(asked, "fix")
    assert said.grade == "stops"
    assert "it did not answer within 0 s" in said.text
    assert asked.poll() is not None


def test_a_gpu_is_named() -> None:
    told = json.dumps({"found": [["gpu", "NVIDIA H200"]] * 2, "simulated": 8})
    with BackgroundProbe("-c", f"print({told!r})") as asked:
        said = diagnosis.devices(asked, "fix")
    assert said.grade == "fine"
    assert said.text.startswith("Devices: 2 x NVIDIA H200; 8 simulated CPU devices start")


@pytest.mark.parametrize(
    ("argv", "grade"),
    [("python", "fine"), (sys.executable, "fine"), ("/bin/sh", "stops"), ("python2", "stops")],
)
def test_kernels_of_this_python_and_of_others(argv: str, grade: str, tmp_path: Path) -> None:
    listed = {"kernelspecs": {"python3": {"resource_dir": str(tmp_path), "spec": {"argv": [argv, "-m", "x"]}}}}
    with BackgroundProbe("-c", f"print({json.dumps(listed)!r})") as asked:
        assert installation.kernel(asked).grade == grade


def test_no_kernel_at_all() -> None:
    with BackgroundProbe("-c", "print('{\"kernelspecs\": {}}')") as asked:
        said = installation.kernel(asked)
    assert said.grade == "stops"
    assert said.fix.endswith("-m ipykernel install --sys-prefix")


def test_a_kernel_of_this_environment_that_points_elsewhere_is_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = f"{sys.prefix}/share/jupyter/kernels/python3"
    listed = {"kernelspecs": {"python3": {"resource_dir": inside, "spec": {"argv": ["/old/.venv/bin/python"]}}}}
    with BackgroundProbe("-c", f"print({json.dumps(listed)!r})") as asked:
        assert installation.kernel(asked).fix.endswith("-m ipykernel install --sys-prefix")


def test_a_machine_that_cannot_start_a_learners_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: list[str]) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(diagnosis.Zygote, "start", refuse)
    said = diagnosis.confinement()
    assert said.grade == "stops"
    assert "Cannot allocate memory" in said.text
