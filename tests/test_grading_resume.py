"""Stopping `grader grade` at any moment costs nothing that was done: the same command goes on, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fill
import psutil
import pytest
from conftest import ROOT

from grader.core.result import CheckResult, Result
from grader.course import Course
from grader.course.build import exercises_path
from grader.grading.cache import ResultCache, file_name
from grader.sandbox.confine import LEVELS
from grader.sandbox.process import AT_MOST

LESSON = "01_small"
WAITS = "import time\ntime.sleep(1000)\n"
MEAN = "def loss(x):\n    return (x**2).mean()\n"
Results = dict[str, dict[str, Any]]  # by learner
LARGE = 1 << 29  # bytes: with so many a process is told from all others here


def eventually(holds: Callable[[], bool], seconds: float = 10.0, pause: float = 0.005) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(pause)
    return holds()


@dataclass
class Class:
    """A course of its own, a folder of submissions, and a temporary folder that shall be empty afterwards."""

    root: Path
    folder: Path
    temporary: Path
    at_most: str = os.environ.get(AT_MOST, LEVELS[0])

    def submit(self, learner: str, **answers: str) -> Path:
        """Hand in a notebook: each answer as given here (double, mean, total), else right."""
        course = Course(self.root)
        mine = {e.id: e.reference for e in course.lesson(LESSON).exercises}
        mine |= {f"small-{name}": source for name, source in answers.items()}
        notebook = fill.fill(exercises_path(course, LESSON), mine)
        return fill.write(notebook, self.folder / learner / LESSON / f"{LESSON}.ipynb")

    @property
    def json(self) -> Path:
        return self.folder.parent / "results.json"

    @property
    def kept(self) -> dict[Path, int]:
        """The results kept so far, and when each was written."""
        return {path: path.stat().st_mtime_ns for path in (self.root / "build" / "graded").glob("*/*.json")}

    def ungraded(self) -> list[str]:
        """The learners whose results are not kept yet, in the order in which they are graded."""
        cache = self.root / "build" / "graded" / LESSON
        learners = sorted(path.name for path in self.folder.iterdir())
        return [learner for learner in learners if not (cache / f"{file_name(learner)}.json").exists()]

    def start(self, *options: str) -> subprocess.Popen[str]:
        """`grader grade` on the class, in a session of its own."""
        command = [sys.executable, "-m", "grader", "--course", self.root, "grade", self.folder]
        environment = {**os.environ, "COLUMNS": "160", "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        environment |= {AT_MOST: self.at_most}
        return subprocess.Popen(
            [*command, "--jobs", "2", "--json", self.json, *options],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def grade(self, *options: str, status: int = 0) -> Results:
        """Grade to the end; each learner's result without its duration."""
        running = self.start(*options)
        self.said, complaint = running.communicate(timeout=300)
        assert running.returncode == status, complaint
        self.nothing_is_left(running.pid)
        return self.results()

    def results(self) -> Results:
        """Each learner's result without its duration, as the last run wrote it."""
        results = json.loads(self.json.read_text())["results"]
        return {result["learner"]: {**result, "duration_s": None} for result in results}

    def forget(self, references: bool) -> None:
        """Remove what earlier runs have left: results, and with `references` also what they noted on the course's own
        answers."""
        for name in ("graded", *(("notes", "compiled") if references else ())):
            shutil.rmtree(self.root / "build" / name, ignore_errors=True)
        self.json.unlink()

    def nothing_is_left(self, session: int) -> None:
        """No process of that session, and no file of it."""
        assert eventually(lambda: not members(session)), members(session)
        assert eventually(lambda: not list(self.temporary.iterdir())), list(self.temporary.rglob("*"))


def members(session: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


def large(pid: int) -> int:
    """How many processes under this one hold `LARGE` bytes."""
    sizes = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            sizes.append(process.memory_info().rss)
    return sum(size > LARGE for size in sizes)


def make_class(built: Callable[[str], Path], place: Path) -> Class:
    shutil.copytree(built("small"), place / "course", ignore=shutil.ignore_patterns("graded"))
    (place / "temporary").mkdir()
    return Class(place / "course", place / "class", place / "temporary")


@pytest.fixture
def lesson(built: Callable[[str], Path], tmp_path: Path) -> Class:
    return make_class(built, tmp_path)


def test_only_what_has_changed_is_graded_again(lesson: Class) -> None:
    """A notebook, and then the course."""
    for number in range(4):
        lesson.submit(f"learner-{number}")
    lesson.submit("wrong", double="def double(x):\n    return x + 2\n")
    first, kept = lesson.grade(), lesson.kept
    assert len(kept) == 5
    assert "before" not in lesson.said
    assert lesson.grade() == first
    assert lesson.kept == kept
    assert "5 notebooks" in lesson.said
    assert "All were graded before and have not changed. --force grades them again." in lesson.said
    too_long = lesson.start("--json", str(lesson.root / f"{'x' * 250}.json"))  # which only writing finds out
    said, complaint = too_long.communicate(timeout=60)
    assert too_long.returncode == 2
    assert complaint.strip().endswith(".json: File name too long. Run the same command again.")
    assert "learner-3" in said
    lesson.submit("learner-2", mean="def loss(x):\n    return x.sum()\n")
    second = lesson.grade()
    assert [(name, second[name]["score"]) for name in second if second[name] != first[name]] == [("learner-2", 6.0)]
    assert len(kept.items() - lesson.kept.items()) == 1
    assert "4 of them were graded before" in lesson.said
    assert lesson.grade("--force") == second
    assert not kept.items() & lesson.kept.items()
    solutions = lesson.root / "solutions" / f"{LESSON}.py"
    solutions.write_text(solutions.read_text().replace('name="values" points=2', 'name="values" points=3', 1))
    kept, third = lesson.kept, lesson.grade()
    assert {result["max_score"] for result in third.values()} == {10.0}
    assert not kept.items() & lesson.kept.items()


def test_less_confinement_is_not_taken_for_more(lesson: Class) -> None:
    """And more is taken for less."""

    def grade(at_most: str) -> tuple[str, bool]:
        lesson.at_most = at_most
        [result] = lesson.grade().values()
        return result["confinement"], "All were graded before" in lesson.said

    lesson.submit("one")
    assert grade("landlock") == ("landlock", False)
    assert grade("landlock") == ("landlock", True)
    best, before = grade(LEVELS[0])
    if best == "landlock":
        pytest.skip("this machine confines no better than by Landlock")
    assert not before
    assert grade(LEVELS[0]) == (best, True)
    assert grade("landlock") == (best, True)


def full(learner: str, score: float = 1.0) -> Result:
    return Result(learner, LESSON, (CheckResult("c", "e", "t", "passed", score, 1.0),), max_score=1.0)


@pytest.fixture
def ledger(lesson: Class) -> ResultCache:
    return ResultCache(Course(lesson.root), "secret", "edition")


def test_a_result_is_found_by_all_that_decided_it_only(lesson: Class, ledger: ResultCache) -> None:
    ledger.keep(full("one"), b"notebook")
    assert ledger.find("one", LESSON, b"notebook") == full("one")
    assert ledger.find("two", LESSON, b"notebook") is None
    assert ledger.find("one", LESSON, b"notebook ") is None
    assert ResultCache(ledger.course, "secret", "newer").find("one", LESSON, b"notebook") is None
    assert ResultCache(ledger.course, "other", "edition").find("one", LESSON, b"notebook") is None
    odd = os.fsdecode(b"\xff/../\n\x1b[2J")
    ledger.keep(full(odd), b"notebook")
    assert ledger.find(odd, LESSON, b"notebook") == full(odd)


@pytest.mark.parametrize(
    "result",
    [
        Result("one", LESSON, problem="The grader itself failed: it ended.", fault="grader"),
        Result("one", LESSON, (CheckResult("c", "e", "t", "error", 0.0, 1.0),)),
    ],
    ids=["problem", "error"],
)
def test_what_was_not_the_learners_fault_is_not_kept(ledger: ResultCache, lesson: Class, result: Result) -> None:
    ledger.keep(result, b"notebook")
    assert not lesson.kept


def flipped(text: bytes) -> bytes:
    return text.replace(b'"points": 0.0', b'"points": 1.0')


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "half": lambda text: text[: len(text) // 2],
    "points raised": flipped,
    "no seal": lambda text: json.dumps({"result": json.loads(text)["result"]}).encode(),
    "seal of another kind": lambda text: json.dumps({**json.loads(text), "seal": 7}).encode(),
    "not ASCII": lambda text: json.dumps({**json.loads(text), "seal": "ü"}).encode(),
    "a list": lambda text: b"[]",
    "deep": lambda text: b"[" * 100_000,
    "binary": lambda text: bytes(range(256)),
    "huge": lambda text: text + b" " * (20 << 20),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_as_if_it_were_not_there(ledger: ResultCache, lesson: Class, name: str) -> None:
    ledger.keep(full("one", score=0.0), b"notebook")
    [path] = lesson.kept
    text = path.read_bytes()
    assert DAMAGES[name](text) != text
    path.write_bytes(DAMAGES[name](text))
    assert ledger.find("one", LESSON, b"notebook") is None
    ledger.keep(full("one"), b"notebook")
    assert ledger.find("one", LESSON, b"notebook") == full("one")


def test_a_key_that_is_cut_short_is_replaced(lesson: Class) -> None:
    """With an empty key, anyone could seal results."""
    made_ledger = lambda: ResultCache(Course(lesson.root), "secret", "edition")
    made_ledger().keep(full("one"), b"notebook")
    key = lesson.root / "build" / "graded" / ".key"
    for cut in ("", key.read_text()[:10]):
        key.write_text(cut)
        assert made_ledger().find("one", LESSON, b"notebook") is None
        made_ledger().keep(full("one"), b"notebook")
        assert made_ledger().find("one", LESSON, b"notebook") == full("one")
        assert len(key.read_text()) == 64


def test_what_is_in_the_way_of_the_results_stops_nothing(ledger: ResultCache, lesson: Class) -> None:
    """A folder or a pipe where a file should be, and a file where the folder should be."""
    ledger.keep(full("one"), b"notebook")
    [path] = lesson.kept
    for make in (Path.mkdir, os.mkfifo):
        path.unlink()
        make(path)
        assert ledger.find("one", LESSON, b"notebook") is None
        if path.is_dir():
            ledger.keep(full("one"), b"notebook")
            path.rmdir()
            path.touch()
    shutil.rmtree(path.parent)
    path.parent.write_text("in the way")
    ledger.keep(full("one"), b"notebook")
    assert ledger.find("one", LESSON, b"notebook") is None


def test_killed_at_any_moment_it_goes_on_from_there(lesson: Class, moments: random.Random) -> None:
    for number in range(6):
        lesson.submit(f"right-{number}", mean=f"def loss(x):\n    return (x**2).mean()  # {number}\n")
    lesson.submit("endless", double="def double(x):\n    while True:\n        pass\n")
    lesson.submit("wrong", total="def loss(x):\n    return x.sum()\n")
    undisturbed = lesson.grade()
    shutil.rmtree(lesson.root / "build" / "graded")
    lesson.json.unlink()
    for more in (0, 1, 0, 2, 1):
        before, running = lesson.kept, lesson.start()
        goal = len(before) + more
        eventually(lambda goal=goal, running=running: len(lesson.kept) >= goal or running.poll() is not None, 60)
        time.sleep(moments.uniform(0, 0.3 if more else 3))
        running.kill()
        running.communicate(timeout=60)
        lesson.nothing_is_left(running.pid)
        assert before.items() <= lesson.kept.items()
        if lesson.json.exists():
            assert len(json.loads(lesson.json.read_text())["results"]) == 8
    before = lesson.kept
    assert lesson.grade() == undisturbed
    assert before.items() <= lesson.kept.items()
    assert len(lesson.kept) == 8
    assert not list(lesson.root.rglob("*.part"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_within_two_seconds_and_reports(
    lesson: Class, number: signal.Signals, moments: random.Random
) -> None:
    """Sent to the whole process group, as a terminal does, while an answer waits without end."""
    lesson.submit("a-waits", mean=WAITS)
    for name in ("b", "c"):
        lesson.submit(name)
    for name in ("d", "e"):
        lesson.submit(f"{name}-waits", mean=WAITS)
    running = lesson.start()
    assert eventually(lambda: len(lesson.kept) == 2, 120)
    time.sleep(moments.uniform(0, 1))
    began = time.monotonic()
    os.killpg(running.pid, number)
    os.killpg(running.pid, number)  # a person in a hurry
    said, complaint = running.communicate(timeout=60)
    seconds = time.monotonic() - began
    assert seconds < 2
    assert running.returncode == 128 + number
    lesson.nothing_is_left(running.pid)
    assert "9/9" in said
    assert "waits" not in said
    # A result is kept before it is reported: the second may have been on its way.
    told = r"Stopped after [12] of 5 notebooks\. The same command continues from there\. (.*) was not written\.\n"
    found = re.search(told, complaint)
    assert found, complaint
    assert found[1] == str(lesson.json)
    assert not lesson.json.exists()
    lesson.submit("a-waits")
    for name in ("d", "e"):
        shutil.rmtree(lesson.folder / f"{name}-waits")
    assert [result["score"] for result in lesson.grade().values()] == [9.0] * 3
    assert "2 of them were graded before" in lesson.said


@pytest.mark.parametrize("who", ["examiner", "zygote"])
def test_what_dies_in_the_middle_costs_nobody_anything(lesson: Class, who: str, moments: random.Random) -> None:
    """The notebooks that it had are graded by another."""
    for name in ("a-waits", "c-waits"):
        lesson.submit(name, mean=f"{MEAN}block = b'x' * {LARGE}\nimport time\ntime.sleep(2)\n")
    for name in ("b", "d", "e"):
        lesson.submit(name)
    running = lesson.start()
    # A kept result is not yet a reported one: what tells is that both learners' own code runs.
    assert eventually(lambda: large(running.pid) == 2, 120)
    assert len(lesson.kept) == 1
    time.sleep(moments.uniform(0, 1.5))
    for process in named(running, who):
        process.kill()
    _, complaint = running.communicate(timeout=120)
    assert running.returncode == 0, complaint
    lesson.nothing_is_left(running.pid)
    assert [one["score"] for one in json.loads(lesson.json.read_text())["results"]] == [9.0] * 5


def named(running: subprocess.Popen[str], role: str) -> list[psutil.Process]:
    """The processes of a run with this role."""
    family = psutil.Process(running.pid).children(recursive=True)
    return [process for process in family if process.name() == f"grader {role}"]


KILLS = int(os.environ.get("GRADER_KILLS", "6"))  # of each kind; docs/confinement.md states how many were tried
KINDS = ("examiner", "worker", "executor", "zygote", "grader")
MEANS = (
    *(MEAN, "def loss(x):\n    return jnp.mean(x * x * 1.0)\n", "def loss(x):\n    return x.sum()\n"),
    *("raise ValueError\n", "x = 1 +\n"),
)


@pytest.fixture(scope="module")
def disturbed(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Class, Results]:
    """A class of forty, and its results when nothing disturbs their grading."""
    one = make_class(built, tmp_path_factory.mktemp("disturbed"))
    for number in range(38):
        one.submit(f"one-{number:02}", mean=f"{MEANS[number % len(MEANS)]}# {number}\n")
    one.submit("one-10-endless", double="def double(x):\n    while True:\n        pass\n")
    one.submit("one-20-exits", double="import os\ndef double(x):\n    os._exit(0)\n")
    return one, one.grade()


def kill(lesson: Class, running: subprocess.Popen[str], kind: str, moments: random.Random, most: int) -> int:
    """Kill at most so many processes of this kind, one or several at a time, while a run lasts; returns how many.

    What a kill may have hit is not killed again: notebooks that were being graded are graded before the next one.
    """
    killed = 0
    while killed < most and running.poll() is None:
        if kind == "grader" and moments.random() < 0.7:
            goal = len(lesson.kept) + moments.randrange(1, 4)
            eventually(lambda goal=goal: len(lesson.kept) >= goal or running.poll() is not None, 120, 0.05)
        time.sleep(moments.uniform(0, 1 if killed else 4))
        left = set(lesson.ungraded()[:2])
        with contextlib.suppress(psutil.Error):
            found = [psutil.Process(running.pid)] if kind == "grader" else named(running, kind)
            if not found:
                continue
            for process in moments.sample(found, moments.randint(1, min(len(found), most - killed))):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                    killed += 1
                    print(f"{time.time():.2f} killed {process.pid} while {sorted(left)} were graded")
        assert eventually(lambda left=left: left.isdisjoint(lesson.ungraded()) or running.poll() is not None, 600, 0.05)
    return killed


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_killed_from_outside_at_random_it_grades_as_if_nothing_had_been(
    disturbed: tuple[Class, Results], kind: str, moments: random.Random
) -> None:
    """A grader that was killed is started again until it ends, and grades nothing twice."""
    lesson, undisturbed = disturbed
    killed = 0
    while killed < KILLS:
        lesson.forget(references=moments.random() < 0.5)
        status = -signal.SIGKILL
        while status == -signal.SIGKILL:
            before, running = lesson.kept, lesson.start()
            try:
                killed += kill(lesson, running, kind, moments, KILLS - killed)
                said, complaint = running.communicate(timeout=600)
            finally:
                running.kill()
            lesson.nothing_is_left(running.pid)
            assert before.items() <= lesson.kept.items()
            status = running.returncode
            assert status == 0 or (kind, status) == ("grader", -signal.SIGKILL), (said, complaint)
        assert lesson.results() == undisturbed, killed
    assert not list(lesson.root.rglob("*.part"))


def test_two_at_once_disturb_each_other_in_nothing(lesson: Class) -> None:
    for name in ("a", "b", "c"):
        lesson.submit(name)
    both = [lesson.start(), lesson.start()]
    for running in both:
        _, complaint = running.communicate(timeout=300)
        assert running.returncode == 0, complaint
    assert len(lesson.kept) == 3
    assert [result["score"] for result in lesson.grade().values()] == [9.0] * 3
    assert "All were graded before" in lesson.said
