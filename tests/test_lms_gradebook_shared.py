"""nbgrader's database with several at it: what changed is stored, whole or not at all, and what is wrong is told."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PYTHONPATH, ROOT, Grader
from fill import fill, write

from grader.course import Course
from grader.grading import batch
from grader.grading.cache import environment_fingerprint
from grader.lms import nbgrader_database
from grader.lms.gradebook import CourseGradebook, Progress
from grader.lms.nbgrader_database import NoGradebook

LESSON = "01_small"
RIGHT = {exercise.id: exercise.reference for exercise in Course(ROOT / "tests/courses/small").lesson(LESSON).exercises}
SUMS = "def loss(x):\n    return (x**2).sum()\n"
CLASS = {f"right_{number}": RIGHT for number in range(4)} | {"partly": {**RIGHT, "small-mean": SUMS}, "untouched": {}}
GRADES = """
    select student.id, base_cell.name, grade.auto_score, grade.manual_score, grade.needs_manual_grade from grade
    join base_cell on base_cell.id = grade.cell_id
    join submitted_notebook on submitted_notebook.id = grade.notebook_id
    join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id
    join student on student.id = submitted_assignment.student_id order by student.id, base_cell.name"""


def hand_in(root: Path, learner: str, answers: dict[str, str]) -> None:
    notebook = fill(root / "exercises" / LESSON / f"{LESSON}.ipynb", answers)
    write(notebook, root / "submitted" / learner / LESSON / f"{LESSON}.ipynb")


def rows(root: Path) -> list[tuple[object, ...]]:
    with (
        contextlib.closing(sqlite3.connect(f"file:{root}/gradebook.db?mode=ro", uri=True, timeout=30)) as opened,
        opened,
    ):
        return opened.execute(GRADES).fetchall()


def command(root: Path) -> list[str]:
    return [sys.executable, "-m", "grader", "--course", str(root), "grade", str(root / "submitted"), "--gradebook"]


def start(root: Path) -> subprocess.Popen[str]:
    variables = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen(
        command(root), env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def eventually(holds: Callable[[], bool], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
    return holds()


def store(root: Path, **about: Callable[..., None]) -> Progress:
    """Store what is graded already, in this process."""
    course = Course(root)
    entries = batch.find(root / "submitted", course)
    return CourseGradebook(course).store(batch.graded_before(course, entries, environment_fingerprint()), **about)


@pytest.fixture(scope="module")
def graded(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, grader: Grader) -> Path:
    """The small course, released and handed in; everything is graded, and nothing is stored yet."""
    root = shutil.copytree(built("small"), tmp_path_factory.mktemp("shared") / "course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    for learner, answers in CLASS.items():
        hand_in(root, learner, answers)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": PYTHONPATH, "JUPYTER_CONFIG_DIR": str(root / "none")}
    release = [sys.executable, "-m", "nbgrader", "generate_assignment", LESSON, "--force"]
    done = subprocess.run(release, cwd=root, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    done = grader("--course", root, "grade", root / "submitted")
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(scope="module")
def stored(graded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the grades in the database."""
    root = shutil.copytree(graded, tmp_path_factory.mktemp("stored") / "course")
    assert len(store(root).now) == len(CLASS)
    return root


@pytest.fixture
def course(graded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(graded, tmp_path / "course")


@pytest.fixture
def full(stored: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stored, tmp_path / "course")


def by(progress: Progress) -> list[str]:
    """Whose grades were stored now; nobody's were refused."""
    assert not progress.refused
    return sorted(entry.learner for entry in progress.now)


def change(root: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(root / "gradebook.db")) as opened, opened:
        assert opened.execute(statement).rowcount > 0


def configure(root: Path, line: str) -> None:
    with (root / "nbgrader_config.py").open("a") as config:
        config.write(f"{line}\n")


def test_only_who_handed_in_anew_is_stored_again(full: Path, grader: Grader) -> None:
    """What a person gave and looked at stays as it is, by the real command."""
    change(full, "update grade set manual_score = 0.5, needs_manual_grade = 0")
    before = rows(full)
    hand_in(full, "right_2", {**RIGHT, "small-mean": SUMS})
    (full / "submitted" / "right_1" / "01_smal").mkdir()
    (full / "submitted" / "right_1" / f"{LESSON}.ipynb").touch()
    done = grader("--course", full, "grade", full / "submitted", "--gradebook")
    assert done.returncode == 0, done.stderr
    assert "Stored in the gradebook: 1. Already there and unchanged: 5." in done.stdout
    assert "Ignored, because no lesson has this name: right_1/01_smal, right_1/01_small.ipynb." in done.stderr
    after = rows(full)
    assert {row[0] for row in set(after) - set(before)} == {"right_2"}
    assert {row[3] for row in after} == {0.5}
    assert {row[4] for row in after if row[0] == "right_2"} == {1}, "as nbgrader has it: a person shall look again"
    assert [row[2] for row in after if row[0] == "right_2"].count(0) == 2


@pytest.mark.parametrize(
    ("spoil", "whose"),
    [
        (lambda root: None, []),
        (lambda root: change(root, "update grade set auto_score = 1 where auto_score = 0"), ["partly", "untouched"]),
        (lambda root: change(root, "update assignment set duedate = '2026-01-02 12:00:00.000000'"), sorted(CLASS)),
        (lambda root: shutil.rmtree(root / "build" / "autograded" / "partly"), ["partly"]),
        (
            lambda root: (root / "submitted" / "partly" / LESSON / "timestamp.txt").write_text("2026-01-01 12:00 UTC"),
            ["partly"],
        ),
        (
            lambda root: configure(root, "c.Known.enabled = True"),
            sorted(CLASS),
        ),
        (lambda root: (root / "build" / "stored" / LESSON).rename(root / "aside"), sorted(CLASS)),
    ],
    ids=["nothing", "grades", "deadline", "notebook", "timestamp", "configuration", "marks"],
)
def test_what_is_not_as_it_was_stored_is_stored_again(
    full: Path, spoil: Callable[[Path], object], whose: list[str]
) -> None:
    before = rows(full)
    spoil(full)
    assert by(store(full)) == whose
    assert rows(full) == before
    assert by(store(full)) == []


def test_what_lies_beside_a_notebook_stops_nobody(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files larger than memory, folders deeper than Python's stack, and more files than anyone needs."""
    before, places = rows(full), {learner: full / "submitted" / learner / LESSON for learner in CLASS}
    (places["partly"] / "deeper").mkdir()
    for path in (places["partly"] / "timestamp.txt", places["partly"] / "deeper" / f"{LESSON}.ipynb"):
        path.touch()
        os.truncate(path, 1 << 40)  # of which the disk stores nothing
    for number in range(20):
        (places["right_1"] / f"{number}.bin").touch()
        os.truncate(places["right_1"] / f"{number}.bin", 99 << 20)
    for number in range(6_000):
        (places["right_2"] / f"{number}.txt").touch()
    (places["right_3"] / "x").mkdir()
    with monkeypatch.context() as moving:
        for place, name in ((places["right_0"], "d"), (places["right_3"] / "x", "d" * 250)):
            moving.chdir(place)
            for _ in range(1_500 if name == "d" else 40):
                os.mkdir(name)
                os.chdir(name)
            Path("deep.txt").touch()
    try:
        configure(full, "c.CourseDirectory.max_dir_size = 250_000")
        began = time.monotonic()
        assert by(store(full)) == sorted(CLASS)
        assert time.monotonic() - began < 60
        assert rows(full) == before
        copied = sum(path.stat().st_blocks * 512 for path in (full / "build" / "autograded").rglob("*"))
        assert copied < 300 << 20
        assert len(list((full / "build" / "autograded" / "right_2" / LESSON).iterdir())) <= 5_001
        assert by(store(full)) == []
    finally:
        subprocess.run(["rm", "-rf", places["right_0"], places["right_3"]], check=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_ended_at_any_moment_it_goes_on_from_there(
    course: Path, stored: Path, number: signal.Signals, moments: random.Random
) -> None:
    """Each learner's grades are there whole or not at all."""
    running, least = start(course), moments.randrange(1, len(CLASS) - 2)
    assert eventually(lambda: len({row[0] for row in rows(course)}) >= least)
    os.killpg(running.pid, number)
    _, complaint = running.communicate(timeout=60)
    held = rows(course)
    there = {row[0] for row in held}
    assert least <= len(there) < len(CLASS), "it was ended in the middle"
    assert held == [row for row in rows(stored) if row[0] in there]
    if number == signal.SIGINT:
        assert running.returncode == 130
        # The last one's may be there before it is counted.
        told = re.search(
            r"the gradebook contains the grades of (\d) of 6 notebooks\. The same command continues", complaint
        )
        assert told, complaint
        assert int(told[1]) in (len(there) - 1, len(there))
    else:
        assert running.returncode == -signal.SIGKILL
    assert set(by(store(course))) >= set(CLASS) - there
    assert rows(course) == rows(stored)


def test_two_graders_and_a_person_lose_nothing(course: Path, stored: Path) -> None:
    """Two store the same class at once, and somebody gives grades by hand meanwhile, as Formgrader would."""
    running = [start(course), start(course)]
    given: set[str] = set()
    with (
        contextlib.closing(sqlite3.connect(course / "gradebook.db", timeout=60, isolation_level=None)) as person,
        person,
    ):
        reader = sqlite3.connect(course / "gradebook.db", isolation_level=None)
        while any(one.poll() is None for one in running):
            for (name,) in person.execute("select id from grade").fetchall():
                if name not in given:
                    person.execute("update grade set manual_score = 0.25 where id = ?", (name,))
                    given.add(name)
            if len(given) > 6 and not reader.in_transaction:  # a page that is open, and reads on and on
                reader.execute("begin")
                reader.execute("select count(*) from grade").fetchone()
            time.sleep(0.002)
        reader.close()
        for (name,) in person.execute("select id from grade").fetchall():
            person.execute("update grade set manual_score = 0.25 where id = ?", (name,))
    for one in running:
        _, complaint = one.communicate(timeout=60)
        assert one.returncode == 0, complaint
    assert given, "while they were at it"
    assert [(row[:3], row[3]) for row in rows(course)] == [(row[:3], 0.25) for row in rows(stored)]
    assert by(store(course)) == []


def test_a_program_that_does_not_end_is_told_of(full: Path, grader: Grader) -> None:
    """It is in the middle of writing to the database; when it has ended, the same command stores what was left."""
    configure(full, f"c.CourseDirectory.db_url = 'sqlite:///{full}/gradebook.db?timeout=0.1'")
    hand_in(full, "right_2", {})
    other = sqlite3.connect(full / "gradebook.db", isolation_level=None)
    other.execute("begin immediate")
    done = grader("--course", full, "grade", full / "submitted", "--gradebook")
    other.close()
    assert done.returncode == 1
    assert done.stderr.endswith("is in use by another program. Run the same command again when it has finished.\n")
    assert "database is locked" not in done.stderr
    assert "right_2" in by(store(full))


def test_a_second_grader_waits_and_says_so(full: Path) -> None:
    said: list[str] = []
    first = nbgrader_database.Database(f"sqlite:///{full}/gradebook.db", full)
    with first.alone(lambda: said.append("first")):
        script = (
            "import sys; from pathlib import Path; from grader.lms.nbgrader_database import Database\n"
            f"with Database('sqlite:///{full}/gradebook.db', Path('.')).alone(lambda: print('waits', flush=True)):\n"
            "    print('has it', flush=True)\n"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "waits\n"
        assert other.poll() is None
    assert other.communicate(timeout=60)[0] == "has it\n"
    with first.alone(lambda: said.append("second")):
        assert said == []


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "older": (
        lambda root: change(root, "update alembic_version set version_num = '167914646830'"),
        "was created by an older nbgrader (its version is 167914646830). Back it up, then run: nbgrader db upgrade",
    ),
    "newer": (
        lambda root: change(root, "update alembic_version set version_num = 'f00'"),
        "has a version that this nbgrader does not support ('f00'). A newer nbgrader created it. Install that one",
    ),
    "foreign": (
        lambda root: sqlite3.connect(root / "gradebook.db").execute("drop table alembic_version"),
        "is not a gradebook, or a very old one (no such table: alembic_version). Set db_url to another.",
    ),
    "a folder": (
        lambda root: [(root / "gradebook.db").unlink(), (root / "gradebook.db").mkdir()],
        "cannot be written to, so no grades can be stored. The user who grades needs write access to this file and its",
    ),
    "empty": (
        lambda root: (root / "gradebook.db").write_bytes(b""),
        "01_small is not in the gradebook yet. Release it first: nbgrader generate_assignment 01_small",
    ),
    "none": (lambda root: (root / "gradebook.db").unlink(), "01_small is not in the gradebook yet. Release it first: "),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_database_that_is_not_for_us_is_refused_and_left_alone(course: Path, what: str) -> None:
    spoil, said = REFUSED[what]
    spoil(course)
    file = course / "gradebook.db"
    before = file.read_bytes() if file.is_file() else None
    with pytest.raises(NoGradebook) as refused:
        CourseGradebook(Course(course)).check(course / "submitted", [LESSON])
    assert said in str(refused.value)
    assert (file.read_bytes() if file.is_file() else None) == before


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nowhere", "Could not parse SQLAlchemy URL"),
        ("odd://host/grades", "Can't load plugin: sqlalchemy.dial"),
    ],
)
def test_an_address_that_leads_nowhere_is_told(course: Path, address: str, said: str) -> None:
    configure(course, f"c.CourseDirectory.db_url = {address!r}")
    with pytest.raises(NoGradebook, match=f"The gradebook '{address}' cannot be used: {said}"):
        CourseGradebook(Course(course))


def test_lessons_that_are_not_released_are_named_at_once(course: Path) -> None:
    with pytest.raises(NoGradebook, match="02_a, 03_b are not in the gradebook yet"):
        CourseGradebook(Course(course)).check(course / "submitted", ["02_a", LESSON, "03_b"])


@pytest.mark.parametrize("what", ["gradebook.db", "."], ids=["file", "folder"])
def test_what_cannot_be_written_to_is_refused_before_anything_is_graded(course: Path, what: str) -> None:
    place, run = course / what, command(course)
    if os.geteuid() == 0:  # whom modes do not stop
        script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
        run = ["unshare", "--mount", "sh", "-c", script, "sh", str(place), *run]
    else:
        place.chmod(0o444 if place.is_file() else 0o555)
    variables = {**os.environ, "COLUMNS": "160", "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(run, env=variables, capture_output=True, text=True, timeout=120, check=False)
    place.chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert (
        "gradebook.db cannot be written to, so no grades can be stored. The user who grades needs write access"
        in done.stderr
    )
    assert not done.stdout


@pytest.mark.parametrize(
    ("kind", "where", "remote"),
    [("nfs4", "/srv/class", True), ("cifs", "/srv", True), ("ext4", "/srv/class", False), ("nfs4", "/home", False)],
)
def test_a_database_on_a_network_keeps_the_older_journal(kind: str, where: str, remote: bool) -> None:
    mounts = [("/", "ext4"), (where, kind)]
    assert nbgrader_database._remote(Path("/srv/class/gradebook.db"), mounts) == remote


def test_others_read_while_one_writes(full: Path) -> None:
    with contextlib.closing(sqlite3.connect(full / "gradebook.db")) as opened, opened:
        assert opened.execute("pragma journal_mode").fetchone() == ("wal",)
        found = opened.execute("select name from sqlite_master where type = 'index' and name like 'ix_%'").fetchall()
    assert {name for (name,) in found} == {f"ix_{table}_{column}" for table, column in nbgrader_database.LOOKED_UP}
