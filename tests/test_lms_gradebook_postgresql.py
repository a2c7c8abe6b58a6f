"""The gradebook in a real PostgreSQL server, with ten graders from ten copies of the course that write at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import postgres
import pytest
from conftest import PYTHONPATH, ROOT, Grader
from sqlalchemy import create_engine, text
from test_lms_gradebook_shared import CLASS, GRADES, LESSON, RIGHT, SUMS, configure, hand_in

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing()),
]
GRADERS = 10


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres.server() as address:
        yield address


@pytest.fixture(scope="module")
def graded(built: Callable[[str], Path], url: str, tmp_path_factory: pytest.TempPathFactory, grader: Grader) -> Path:
    """The small course, whose gradebook is the server's, released and handed in; everything is graded."""
    root = shutil.copytree(built("small"), tmp_path_factory.mktemp("postgresql") / "course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    configure(root, f"c.CourseDirectory.db_url = {url!r}")
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


def rows(url: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(GRADES))]
    engine.dispose()
    return found


def test_ten_graders_write_at_once_and_lose_nothing(graded: Path, url: str, tmp_path: Path, grader: Grader) -> None:
    """All have the same class but for one learner of their own; then one learner submits again."""
    copies = [shutil.copytree(graded, tmp_path / f"machine-{number}" / "course") for number in range(GRADERS)]
    for number, root in enumerate(copies):
        own = root / "submitted" / f"own_{number}" / LESSON
        shutil.copytree(root / "submitted" / "right_0" / LESSON, own)
    variables = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "PYTHONPATH": PYTHONPATH}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "grader", "--course", str(root), "grade", str(root / "submitted"), "--gradebook",
             "--jobs", "1"],
            env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for root in copies
    ]  # fmt: skip
    ended = [(*one.communicate(timeout=600), one.returncode) for one in running]
    assert any("Another grader is writing" in complaint for _, complaint, _ in ended)
    for said, complaint, status in ended:
        assert status == 0, complaint
        assert f"Stored in the gradebook: {len(CLASS) + 1}." in said, "a copy has no marks of what another has stored"
    stored = rows(url)
    learners = {*CLASS, *(f"own_{number}" for number in range(GRADERS))}
    assert {row[0] for row in stored} == learners
    assert len(stored) == len({(row[0], row[1]) for row in stored}) == len(learners) * len(stored) // len(learners)
    points = {learner: sum(row[2] for row in stored if row[0] == learner) for learner in learners}
    assert points == {
        learner: {"partly": points["right_0"] - 3, "untouched": 0}.get(learner, 9) for learner in learners
    }

    hand_in(copies[0], "right_2", {**RIGHT, "small-mean": SUMS})
    done = grader("--course", copies[0], "grade", copies[0] / "submitted", "--gradebook")
    assert done.returncode == 0, done.stderr
    assert f"Stored in the gradebook: 1. Already there and unchanged: {len(CLASS)}." in done.stdout
    assert {row[0] for row in set(rows(url)) - set(stored)} == {"right_2"}
