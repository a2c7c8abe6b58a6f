"""A task that a person grades: in the course's text, in the notebooks, and beside what the grader judges."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import COURSES, Grader
from fill import fill, write

from grader.course import Course, CourseError

LESSON = "01_by_hand"
ESSAY = '# %% [markdown] task="hand-essay"'


def cells(notebook: Path) -> dict[str, dict[str, Any]]:
    return {cell["id"]: cell for cell in json.loads(notebook.read_text())["cells"]}


def test_it_is_a_task_of_nbgraders_and_learners_do_not_see_how_it_is_marked(built: Callable[[str], Path]) -> None:
    course = built("by_hand")
    released = cells(course / "exercises" / LESSON / f"{LESSON}.ipynb")
    source = cells(course / "build" / "source" / LESSON / f"{LESSON}.ipynb")
    for one in (released, source):
        told = one["hand-essay"]["metadata"]["nbgrader"]
        assert (told["task"], told["points"], told["grade"], told["locked"]) == (True, 3, False, True)
    assert "Two points for the exponent" in "".join(source["hand-essay"]["source"])
    assert "MARK SCHEME" not in str(released)
    assert "Two points for the exponent" not in str(released)
    assert "nbgrader" not in released["hand-essay-answer"]["metadata"], "the learner's own cell, to begin with"
    assert "3 points · graded by a person" in "".join(released["hand-essay"]["source"])
    assert "1 exercise, 3 points, and 3 points that a person gives, about 11" in "".join(released["text"]["source"])


def test_it_counts_nowhere_else(built: Callable[[str], Path], grader: Grader, tmp_path: Path) -> None:
    course = built("by_hand")
    [exercise] = Course(course).lesson(LESSON).exercises
    notebook = fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {exercise.id: exercise.reference})
    mine = write(notebook, tmp_path / "all_right" / LESSON / f"{LESSON}.ipynb")
    for words in (("check", mine), ("grade", tmp_path, "--json", tmp_path / "results.json")):
        done = grader("--course", course, *words)
        assert done.returncode == 0, done.stderr
        assert "hand-essay (01_by_hand) is graded by a person. Its 3 points are not counted here." in done.stdout
    [result] = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (result["score"], result["max_score"]) == (3, 3)


def test_a_course_with_one_can_be_proved(built: Callable[[str], Path], grader: Grader) -> None:
    done = grader("--course", built("by_hand"), "prove", "--no-mutants")
    assert done.returncode == 0, done.stdout + done.stderr


# Each case: what is replaced, by what, the text whose line the problem names, its message, its fix.
CASES = {
    "no points to give": (
        " points=3", " points=0", ESSAY,
        "the task's points are 0, not positive", "Write `points=1` or more",
    ),
    "an answer of its own": (
        "# ### END MARK SCHEME\n", '# ### END MARK SCHEME\n# %% answer="hand-essay"\nx = 1\n',
        '# %% answer="hand-essay"',
        "a `answer` cell for `hand-essay`, which a person grades",
        "Take out `points` of the task, which make it one that a person grades, or correct the id",
    ),
    "an id that is taken": (
        'task="hand-essay"', 'task="hand-half-values"', '# %% [markdown] task="hand-half-values"',
        "`hand-half-values` is taken: a duplicate id", "Choose an id that no other exercise or check has",
    ),
    "not said what is judged": (
        "# **Judged.** That", "# That", ESSAY,
        "the task does not say **Judged.**", "Add a line `**Judged.** ...`",
    ),
    "half a mark scheme": (
        "# ### END MARK SCHEME\n", "", ESSAY,
        "the mark scheme is not whole, or there are two",
        "Write `### BEGIN MARK SCHEME` before it and `### END MARK SCHEME` after it",
    ),
    "items that do not add up": (
        "- 1 point: Shows", "- 2 points: Shows", "# Two points for",
        "the items of the mark scheme have 4 points, the task has 3",
        "Change the points of the items or of the task, so that they are equal",
    ),
    "a line that is no item": (
        "# ### END MARK SCHEME\n", "# - one point: Neat.\n# ### END MARK SCHEME\n", "# - one point",
        "`- one point: Neat.` is not an item with points", "Write `- 2 points: What they are for`",
    ),
    "an item twice": (
        "- 2 points: Names the exponent.",
        "- 1 point: Names the exponent.\n# - 1 point: Names the exponent.",
        "# - 1 point: Names the exponent.\n# - 1 point: Shows",
        "the item `Names the exponent.` is in the mark scheme twice", "Give each item a name of its own",
    ),
    "a mark scheme elsewhere": (
        "# Half is a product", "# ### BEGIN MARK SCHEME\n# Half is a product", "# ### BEGIN MARK SCHEME",
        "`BEGIN MARK SCHEME` is written by hand", 'Put hidden text into a `# %% hidden="..."` cell',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_with_one_is_said(tmp_path: Path, case: str) -> None:
    replaced, by, place, message, fix = CASES[case]
    root = shutil.copytree(COURSES / "by_hand", tmp_path / "course")
    path = root / "solutions" / f"{LESSON}.py"
    text = path.read_text()
    assert text.count(replaced) == 1
    path.write_text(text.replace(replaced, by))
    with pytest.raises(CourseError) as said:
        Course(root).lesson(LESSON)
    line = path.read_text().partition(place)[0].count("\n") + 1
    assert [(p.line, p.message, p.fix) for p in said.value.problems] == [(line, message, fix)]


def test_a_file_of_nothing_else_has_no_exercise(tmp_path: Path) -> None:
    root = shutil.copytree(COURSES / "by_hand", tmp_path / "course")
    path = root / "solutions" / f"{LESSON}.py"
    text = path.read_text()
    before, after = text.index("# %% [markdown] task="), text.index(ESSAY)
    path.write_text(text[:before] + text[after:])
    with pytest.raises(CourseError, match="the file has no exercise"):
        Course(root).lesson(LESSON)
