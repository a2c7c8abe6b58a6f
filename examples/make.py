"""Creates the example class in examples/submitted/ from the course's own answers; `--check` only lists what is stale.

Each learner is an example of what happens in a real class (examples/README.md). All of them submit lesson 05, and the
first four also submit every other lesson.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader.course import Course, Lesson
from grader.course.build import exercises_path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from fill import fill  # noqa: E402

SUBMITTED = ROOT / "examples" / "submitted"
FULL_CLASS = "05_vmap"
Notebook = dict[str, Any]


def all_right(lesson: Lesson) -> dict[str, str]:
    return {exercise.id: exercise.reference for exercise in lesson.exercises}


def another_way(lesson: Lesson) -> dict[str, str]:
    return {exercise.id: exercise.right[0].source for exercise in lesson.exercises}


def partly_right(lesson: Lesson) -> dict[str, str]:
    """Half of the exercises are right, the next one is wrong, and the rest is as released."""
    half = len(lesson.exercises) // 2
    done = {exercise.id: exercise.reference for exercise in lesson.exercises[:half]}
    return {**done, lesson.exercises[half].id: lesson.exercises[half].wrong[0].source}


def misconceptions(lesson: Lesson) -> dict[str, str]:
    """Everything is right except for the first and the last exercise, which contain known mistakes."""
    first, last = lesson.exercises[0], lesson.exercises[-1]
    return {**all_right(lesson), first.id: first.wrong[0].source, last.id: last.wrong[-1].source}


def untouched(lesson: Lesson) -> dict[str, str]:
    return {}


def syntax_error(lesson: Lesson) -> dict[str, str]:
    """A closing bracket is missing in the second exercise."""
    second = lesson.exercises[1]
    return {**all_right(lesson), second.id: second.reference.rstrip().rstrip(")}]") + "\n"}


def endless_loop(lesson: Lesson) -> dict[str, str]:
    """The second exercise contains an endless loop."""
    second = lesson.exercises[1]
    return {**all_right(lesson), second.id: f"{second.reference}\ntries = 0\nwhile tries < 3:\n    tries - 1\n"}


def with_helpers(lesson: Lesson) -> dict[str, str]:
    """The last answer uses a function and an import from cells of the learner's own; see `add_helpers`."""
    last = lesson.exercises[-1]
    return {**all_right(lesson), last.id: f"{last.reference}\n{last.names[0]} = shown({last.names[0]})\n"}


def add_helpers(notebook: Notebook, lesson: Lesson) -> None:
    """Cells of the learner's own before the last answer: an import, a helper, a warning, a timing."""
    helper = (
        "import functools\nimport warnings\n\n\n"
        "def shown(function):\n    @functools.wraps(function)\n    def wrapper(*args):\n"
        "        print('called with', len(args), 'arguments')\n        return function(*args)\n\n"
        "    return wrapper\n\n\n"
        "warnings.warn('still thinking about this one')\n"
    )
    at = next(
        i
        for i, cell in enumerate(notebook["cells"])
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == lesson.exercises[-1].id
    )
    notebook["cells"][at:at] = [_code("own-helper", helper), _code("own-timing", "%timeit jnp.ones(3) + 1\n")]


def _code(cell_id: str, source: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "id": cell_id, "metadata": {}, "outputs": [], "source": lines}


LEARNERS: dict[str, Callable[[Lesson], dict[str, str]]] = {
    "all-right": all_right,
    "another-way": another_way,
    "partly-right": partly_right,
    "misconceptions": misconceptions,
    "untouched": untouched,
    "syntax-error": syntax_error,
    "endless-loop": endless_loop,
    "with-helpers": with_helpers,
}


def submissions(course: Course) -> dict[Path, str]:
    """Every notebook of the class: its path and its text."""
    made = {}
    for lesson_id in course.lesson_ids:
        lesson = course.lesson(lesson_id)
        names = list(LEARNERS) if lesson_id == FULL_CLASS else list(LEARNERS)[:4]
        for name in names:
            notebook = fill(exercises_path(course, lesson_id), LEARNERS[name](lesson))
            if name == "with-helpers":
                add_helpers(notebook, lesson)
            path = SUBMITTED / name / lesson_id / f"{lesson_id}.ipynb"
            made[path] = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    return made


def main() -> int:
    """Write the class, or with `--check` end with 1 when it is stale."""
    wanted = submissions(Course(ROOT))
    there = {path: path.read_text(encoding="utf-8") for path in SUBMITTED.rglob("*.ipynb")}
    stale = sorted(path for path in {*wanted, *there} if wanted.get(path) != there.get(path))
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run `make build` and commit it.")
        return bool(stale)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8") if path in wanted else path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
