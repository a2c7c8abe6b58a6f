"""docs/instructors.md to the letter: every command on the page, in its order, in a fresh copy of the course."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import desk
import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
# Run elsewhere: setting up comes before every run of these tests; the other opens JupyterLab and stays.
ELSEWHERE = {
    "make setup TORCH=no": ("../Makefile", "lint: setup"),
    "make instructor": ("test_lms_formgrader.py", "instructor"),
}
LEARNERS = {path.name for path in (ROOT / "examples" / "submitted").iterdir() if (path / "05_vmap").is_dir()}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The course after all commands, and what they printed. A line that fails ends it."""
    course = desk.copy_course(tmp_path_factory.mktemp("reader"))
    activate = course / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f'source "{sys.prefix}/bin/activate"\n')
    lines = ["set -e", *(f"echo '$ {line}'\n{line}" for line in COMMANDS if line not in ELSEWHERE)]
    # What a reader has: this Python's folder on PATH only once the page says so.
    places = [place for place in os.environ["PATH"].split(os.pathsep) if Path(place) != Path(sys.executable).parent]
    variables = {**desk.environment(course), "PATH": os.pathsep.join(places), "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=course, env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return course, done.stdout


def test_every_command_is_run() -> None:
    assert len(COMMANDS) >= 12
    for line in set(COMMANDS) & set(ELSEWHERE):
        name, word = ELSEWHERE[line]
        assert word in (ROOT / "tests" / name).read_text()


@pytest.mark.thorough
def test_the_class_is_graded_and_stored(followed: tuple[Path, str]) -> None:
    course, said = followed
    grades = (course / "grades.csv").read_text().splitlines()
    assert len(grades) == 1 + len(LEARNERS)
    assert "Perhaps" in said, "misconceptions are named"
    assert "endless-loop" in said
    assert (course / "canvas.csv").read_text().count("\n") == 2 + len(LEARNERS)
    assert "Misconceptions" in (course / "class.html").read_text()


@pytest.mark.thorough
def test_each_learner_has_feedback(followed: tuple[Path, str]) -> None:
    course, _ = followed
    pages = course / "build" / "feedback"
    assert {page.parts[-3] for page in pages.glob("*/05_vmap/05_vmap.html")} == LEARNERS


@pytest.mark.thorough
def test_a_course_of_ones_own_is_begun(followed: tuple[Path, str]) -> None:
    course, _ = followed
    own = course.parent / "my-class"
    assert "vmap-banded" in (own / "solutions" / "05_vmap.py").read_text()
    assert (own / ".secret").stat().st_mode & 0o077 == 0


def test_a_reader_finds_the_page_and_its_links() -> None:
    assert "docs/instructors.md" in (ROOT / "README.md").read_text()
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", PAGE) if "://" not in target]
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
