"""A class with one learner for each ending that a feedback page has to tell, and one who attacks who looks at it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import payloads
from conftest import ROOT
from fill import fill, write
from test_lms_nbgrader_autograde import nbgrader

from grader.course import Course

LESSON = "01_by_hand"
[HALF] = Course(ROOT / "tests/courses/by_hand").lesson(LESSON).exercises
HOSTILE = "<img src=x onerror=window.ran=1>"
SCRIPT = payloads.OPENED["script"]
ANSWERS = {
    "all_right": HALF.reference,
    "untouched": HALF.stub,
    "misled": HALF.wrong[0].source,
    "exits": "import os\nos._exit(0)\n",
    "loops": "while True:\n    pass\n",
    "blocked": "def half(x):\n    return x / here\n\n\nhalf(2)\n",
    "too_long": HALF.reference,
    "twice": HALF.reference,
    HOSTILE: f"def half(x):\n    '''</pre></code></div>{SCRIPT}<!--'''\n    raise ValueError({SCRIPT!r})\n",
}
# What is left of these in a notebook is shown nowhere.
OUTPUTS = [
    {"output_type": "display_data", "metadata": {}, "data": data}
    for data in (
        {"text/html": SCRIPT},
        {"image/svg+xml": payloads.OPENED["svg that is loaded"]},
        {"application/javascript": payloads.RUNS},
        {"application/vnd.jupyter.widget-view+json": {"model_id": "x", "version_major": 2, "version_minor": 0}},
    )
]


def hand_in(course: Path, *learners: str) -> None:
    """Lay the notebooks of `learners` out under submitted/, on the first of the year; all_right is late."""
    for learner in learners:
        path = write(_notebook(course, learner), course / "submitted" / learner / LESSON / f"{LESSON}.ipynb")
        (path.parent / "timestamp.txt").write_text(f"2026-01-0{3 if learner == 'all_right' else 1} 12:00:00 UTC")
        (path.parent / "mine.html").write_text(SCRIPT)


def _notebook(course: Path, learner: str) -> dict[str, Any]:
    notebook = fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {HALF.id: ANSWERS[learner]})
    cells = notebook["cells"]
    before = next(place for place, cell in enumerate(cells) if cell["id"] == HALF.id)
    if learner == "blocked":
        cells.insert(before, _own("code", "here = 1 / 0\n"))
    if learner == "twice":
        cells.append(dict(cells[before]))
    if learner == "too_long":
        cells += [_own("markdown", "x") for _ in range(2_000)]
    if learner == HOSTILE:
        cells[before:before] = [
            *(_own("markdown", text) for text in payloads.EVERY.values()),
            _own("markdown", "![dot](attachment:dot.png)", attachments={"dot.png": {"image/png": payloads.DOT}}),
            _own("markdown", "![x](attachment:x.svg)", attachments={"x.svg": {"image/svg+xml": "PHN2Zy8+"}}),
            _own("code", f"# </pre>{SCRIPT}\n"),
            _own("raw", SCRIPT),
        ]
        notebook["metadata"]["jaxercise_verdict"] = {"title": "Full marks", "notes": ["Full marks"], "checks": []}
        notebook["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {"x": SCRIPT}}}
    for place, cell in enumerate(cells):
        cell["id"] = f"cell-{place}"
    return notebook


def _own(kind: str, source: str, **more: Any) -> dict[str, Any]:
    cell = {"cell_type": kind, "metadata": {}, "source": source, **more}
    return cell | {"execution_count": 1, "outputs": OUTPUTS} if kind == "code" else cell


def with_feedback(built: Path, root: Path) -> Path:
    """The class graded, looked at by a person, and given feedback, with stock commands, in a copy of `built`."""
    from nbgrader.api import Gradebook

    shutil.copytree(built, root)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    with (root / "nbgrader_config.py").open("a") as config:
        config.write("c.LateSubmissionPlugin.penalty_method = 'zero'\n")
    hand_in(root, *ANSWERS)
    run(root, "generate_assignment", "--force")
    with Gradebook(f"sqlite:///{root}/gradebook.db", "jaxercise") as book:
        book.update_or_create_assignment(LESSON, duedate="2026-01-02 12:00:00 UTC")
    run(root, "autograde")
    with Gradebook(f"sqlite:///{root}/gradebook.db", "jaxercise") as book:
        for learner, cell, points in (("all_right", "hand-essay", 2), ("misled", "hand-half-example", 0.5)):
            book.find_grade(cell, LESSON, LESSON, learner).manual_score = points
        items = "- 2 of 2 points: Names the exponent.\n- 0 of 1 point: Shows a `subnormal` number."
        for learner, words in (("all_right", f"{items}\n\nGood: **exact** powers of two."), (HOSTILE, SCRIPT)):
            book.find_comment("hand-essay", LESSON, LESSON, learner).manual_comment = words
        book.db.commit()
    run(root, "generate_feedback")
    return root


def run(course: Path, verb: str, *options: str) -> None:
    """A stock command on the lesson."""
    done = nbgrader(course, verb, LESSON, *options)
    assert done.returncode == 0, done.stderr[-3000:]
