"""Which rung a machine gives: found by real refusals, told by `grader doctor`, and heeded by every verb."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fill
import pytest
from conftest import ROOT, Grader

from grader.course import Course
from grader.doctor import diagnosis
from grader.grading import batch
from grader.sandbox import confine
from grader.sandbox.process import AT_MOST, ConfinementReport

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines more than by limits")

# Start the command with these system calls refused, as Docker's profile or an older kernel refuses them.
REFUSING = """
import os, sys, pyseccomp as sc
rules = sc.SyscallFilter(sc.ALLOW)
for name in sys.argv[1].split():
    rules.add_rule(sc.ERRNO(1), int(name) if name.isdigit() else name)
rules.load()
os.execv(sys.executable, [sys.executable, "-m", "grader", "doctor"])
"""
LANDLOCK = "444"


def doctor_says(*command: str) -> str:
    """What it says of confinement, without its marks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: something else stands in the way, for a user without a home
    lines = [line[2:] for line in done.stdout.splitlines()]
    [start] = [i for i, line in enumerate(lines) if line.startswith("Confinement of learners' processes: ")]
    return "\n".join(lines[start:])


def this_machine() -> str:
    return doctor_says(sys.executable, "-m", "grader", "doctor")


@pytest.fixture(scope="module")
def full() -> None:
    said = this_machine()
    if ": full (" not in said:
        pytest.skip(f"this machine refuses the top of the ladder: {said}")


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("refused", "level", "reason"),
    [
        ("unshare", "landlock", "full is not available: unshare: Operation not permitted."),
        ("mount", "landlock", "full is not available: mount of none on /: Operation not permitted."),
        ("pivot_root", "landlock", "full is not available: pivot_root: Operation not permitted."),
        ("setns", "full", "Confinement of learners' processes: full (namespaces, Landlock, seccomp and limits)."),
        (LANDLOCK, "namespaces", "full is not available: landlock: not in this kernel."),
        (f"unshare {LANDLOCK}", "limits", "landlock is not available: landlock: not in this kernel."),
    ],
)
def test_what_is_refused_costs_the_rung_that_needs_it_and_no_more(refused: str, level: str, reason: str) -> None:
    said = doctor_says(sys.executable, "-c", REFUSING, refused)
    assert said.startswith(f"Confinement of learners' processes: {level} ("), said
    assert reason in said.splitlines()


# Show root's home to everybody, as a learner's is to the learner, in a copy of the mounts; then start the command.
OPEN_HOME = """
set -e
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/home
mount --bind "$1" /mnt/home
mount -t tmpfs -o mode=755 none "$1"
for name in $(ls -A /mnt/home); do
    if [ -d "/mnt/home/$name" ]; then mkdir "$1/$name"; mount --bind "/mnt/home/$name" "$1/$name"; fi
done
shift
exec "$@"
"""
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("user", "at_most", "level", "same_user"),
    [
        (NOBODY, "full", "full", False),
        (NOBODY, "landlock", "landlock", True),
        ((), "landlock", "landlock", False),
    ],
)
def test_a_plain_user_gets_as_far_as_root_and_root_gives_users_where_they_reach_the_interpreter(
    user: tuple[str, ...], at_most: str, level: str, same_user: bool
) -> None:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become another user")
    doctor_command = (*user, "env", f"{AT_MOST}={at_most}", sys.executable, "-m", "grader", "doctor")
    said = doctor_says("unshare", "--mount", "sh", "-c", OPEN_HOME, "sh", pwd.getpwuid(0).pw_dir, *doctor_command)
    assert said.startswith(f"Confinement of learners' processes: {level} ("), said
    assert ("They run as the same user as the grader" in said) == same_user


@pytest.mark.usefixtures("full")
def test_where_no_user_namespace_is_left_the_doctor_says_which_switch(tmp_path: Path) -> None:
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    said = doctor_says(
        "unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", sys.executable, "-m", "grader", "doctor"
    )
    assert said.startswith("Confinement of learners' processes: landlock ("), said
    assert "full is not available: unshare: No space left on device." in said
    assert diagnosis.NONE_LEFT in said


# What the doctor advises.


@pytest.mark.parametrize(
    ("level", "reason", "files", "advice"),
    [
        ("landlock", "unshare: Operation not permitted", {".dockerenv": ""}, diagnosis.DOCKER),
        ("landlock", "unshare: Operation not permitted", {"run/.containerenv": ""}, diagnosis.DOCKER),
        (
            "landlock",
            "mount of none on /: Permission denied",
            {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"},
            diagnosis.UBUNTU,
        ),
        (
            "landlock",
            "unshare: Operation not permitted",
            {"proc/sys/kernel/unprivileged_userns_clone": "0\n"},
            diagnosis.DEBIAN,
        ),
        (
            "landlock",
            "unshare: No space left on device",
            {"proc/sys/user/max_user_namespaces": "0\n"},
            diagnosis.NONE_LEFT,
        ),
        ("landlock", "unshare: Operation not permitted", {}, diagnosis.ROOT),
        ("namespaces", "landlock: not in this kernel", {}, diagnosis.LANDLOCK.format("5.13")),
        ("limits", "landlock: not in this kernel", {}, diagnosis.LANDLOCK.format("6.2")),
        ("limits", "seccomp: libseccomp is not installed", {".dockerenv": ""}, diagnosis.SECCOMP),
    ],
)
def test_the_doctor_says_how_to_get_more(
    level: str, reason: str, files: dict[str, str], advice: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    refused = dict.fromkeys(confine.LEVELS[: confine.LEVELS.index(level)], reason)
    assert diagnosis.confinement_advice(ConfinementReport(level, refused), "linux", tmp_path) == [advice]
    assert diagnosis.confinement_advice(ConfinementReport(level, refused), "darwin", tmp_path) == [diagnosis.MACOS]
    assert diagnosis.confinement_warning(ConfinementReport(level, refused)) is not None


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # other tests may have used JAX in this process
def test_without_libseccomp_the_doctor_says_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pyseccomp is there, and does not find the library: what it then raises says neither file nor reason."""

    class Missing:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "pyseccomp":
                raise OSError("libseccomp.so.2: cannot open shared object file")

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "pyseccomp", raising=False)
    found = confine.settle("full", lambda: None, tmp_path)
    assert found.refused["full"] == "libseccomp: not installed"
    assert diagnosis.confinement_advice(ConfinementReport("limits", found.refused), "linux") == [diagnosis.SECCOMP]


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # other tests may have used JAX in this process
def test_elsewhere_there_are_limits_alone_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("grader.sandbox.confine_kernel.LINUX", False)
    found = confine.settle("full", lambda: None, tmp_path)
    assert (found.level, set(found.refused.values())) == ("limits", {"it requires Linux"})
    assert diagnosis.MACOS in diagnosis.confinement_advice(ConfinementReport(found.level, found.refused), "darwin")


# What an older Landlock leaves to seccomp.
UNSCOPED = """
import fcntl, os, signal
from grader.sandbox import confine_kernel, confine_restrictions
confine_kernel.prctl(confine_kernel.NO_NEW_PRIVILEGES)
confine_restrictions.refuse_calls(among_others=True, signals_are_scoped=False)
here, there = os.pipe()
for call in (
    lambda: os.kill(os.getppid(), 0),
    lambda: os.kill(0, 0),
    lambda: os.kill(-1, 0),
    lambda: fcntl.fcntl(here, fcntl.F_SETOWN, os.getppid()),
    lambda: fcntl.fcntl(here, 10, signal.SIGKILL),
):
    try:
        call()
    except PermissionError:
        print("refused")
os.kill(os.getpid(), 0)
signal.raise_signal(signal.SIGTERM)
"""


def test_without_scoped_signals_a_process_signals_itself_alone() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-u", "-c", UNSCOPED], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("refused\n" * 5, "", -15)


def test_the_top_needs_no_advice() -> None:
    assert diagnosis.confinement_advice(ConfinementReport("full", {})) == []
    assert diagnosis.confinement_warning(ConfinementReport("full", {})) is None
    assert diagnosis.confinement_report(ConfinementReport("full", {})).count("\n") == 0


# The verbs.

LESSON = "01_small"
SNOOP = "def double(x):\n    return x * (1 + len(open({!r}).read()))\n"


@pytest.fixture(scope="module")
def submitted(
    built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, open_folder: Path
) -> tuple[Path, Path]:
    """A course, and a class of two: one is right, the other reads a file that is not its own."""
    root, folder = built("small"), tmp_path_factory.mktemp("class")
    (open_folder / "gradebook").write_text("1")
    right = {exercise.id: exercise.reference for exercise in Course(root).lesson(LESSON).exercises}
    answers = {"all-right": right, "snoop": {**right, "small-double": SNOOP.format(str(open_folder / "gradebook"))}}
    for name, given in answers.items():
        notebook = fill.fill(root / "exercises" / LESSON / f"{LESSON}.ipynb", given)
        fill.write(notebook, folder / name / LESSON / f"{LESSON}.ipynb")
    return root, folder


@pytest.mark.parametrize("level", confine.LEVELS)
def test_the_whole_command_on_each_rung(
    level: str, grader: Grader, submitted: tuple[Path, Path], tmp_path: Path
) -> None:
    root, folder = submitted
    words = ("--course", root, "grade", folder, "--force", "--jobs", "1", "--json", tmp_path / "results.json")
    done = grader(*words, "--allow-unsandboxed", **{AT_MOST: level})
    assert done.returncode == 0, done.stderr
    results = {r["learner"]: r for r in json.loads((tmp_path / "results.json").read_text())["results"]}
    if results["all-right"]["confinement"] != level:
        pytest.skip(f"this machine gives {results['all-right']['confinement']}")
    assert results["all-right"]["score"] == results["all-right"]["max_score"]
    assert (results["snoop"]["score"] == results["snoop"]["max_score"]) == (level == "limits")
    assert ("`grader doctor` explains how to get more" in done.stderr) == (level != "full")


def test_limits_alone_grade_nobody_elses_notebook_unless_asked(
    grader: Grader, submitted: tuple[Path, Path], tmp_path: Path
) -> None:
    root, folder = submitted
    results = tmp_path / "results.json"
    refused = grader("--course", root, "grade", folder, "--force", "--json", results, **{AT_MOST: "limits"})
    assert (refused.returncode, refused.stdout, results.exists()) == (2, "", False)
    to_allow = "If you trust every notebook, add --allow-unsandboxed."
    assert refused.stderr.strip() == f"Nothing was graded. {batch.UNCONFINED} {to_allow}"
    own = folder / "all-right" / LESSON / f"{LESSON}.ipynb"
    assert grader("--course", root, "check", own, **{AT_MOST: "limits"}).returncode == 0
    assert grader("--course", root, "prove", "--no-mutants", **{AT_MOST: "limits"}).returncode == 0
