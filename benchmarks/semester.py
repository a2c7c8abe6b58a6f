"""A course of real size to measure with: ten lessons, three hundred learners, every notebook there and graded.

The lessons are the course's own, under other names. A few notebooks of each lesson are graded; everybody else's differs
from one of those in a comment, and its result is that one's, kept under its own name as if it had been graded.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import classroom
from benchmarks.others import ROOT, run
from grader.course import Course
from grader.grading import batch
from grader.grading.cache import Parts, ResultCache, environment_fingerprint

GRADED = 10  # notebooks of each lesson that are really graded: one of each kind of learner


def make(root: Path, lessons: int, learners: int) -> Course:
    """The course in `root`, released, with everything in `submitted/` and its results kept."""
    course = _course(root, lessons)
    run([sys.executable, "-m", "grader", "--course", str(root), "build"], ROOT)
    for lesson in course.lesson_ids:
        run([sys.executable, "-m", "nbgrader", "generate_assignment", lesson, "--force"], root)
        classroom.make(course, lesson, root / "build" / "graded really", GRADED)
    run([sys.executable, "-m", "grader", "--course", str(root), "grade", str(root / "build" / "graded really")], ROOT)
    ours = environment_fingerprint()
    for lesson in course.lesson_ids:
        hand_in(course, lesson, range(learners), ours)
    return course


def change(course: Course, lesson: str, number: int) -> None:
    """A learner hands in anew."""
    path = course.root / "submitted" / f"learner-{number:03}" / lesson / f"{lesson}.ipynb"
    path.write_text(path.read_text(encoding="utf-8").replace("was here", "was here again"), encoding="utf-8")


def hand_in(course: Course, lesson: str, learners: range, edition: Parts) -> None:
    """Put the notebooks of these learners in place, and keep their results."""
    entries = batch.find(course.root / "build" / "graded really", course, lesson)
    ledger, graded = ResultCache(course, batch.secret(course), edition), batch.graded_before(course, entries, edition)
    for number in learners:
        entry = entries[number % len(entries)]
        text = entry.path.read_text(encoding="utf-8").replace("was here", f"was here, says {number}")
        place = course.root / "submitted" / f"learner-{number:03}" / lesson
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{lesson}.ipynb").write_text(text, encoding="utf-8")
        (place / "timestamp.txt").write_text("2026-11-20 12:00:00 UTC\n", encoding="utf-8")
        ledger.keep(replace(graded[entry], learner=f"learner-{number:03}"), text.encode())


def _course(root: Path, lessons: int) -> Course:
    """The course's own lessons in turn, each with exercises of its own names."""
    ours = Course(ROOT)
    (root / "solutions").mkdir(parents=True)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    outline = (ROOT / "course.toml").read_text(encoding="utf-8")
    for number in range(lessons):
        lesson = ours.lesson(ours.lesson_ids[number % len(ours.lesson_ids)])
        name = f"{50 + number}_{lesson.id[3:]}"
        outline += f'\n[[lesson]]\nid = "{name}"\ntitle = "{lesson.title}"\npart = "V. Again"\n'
        text = lesson.path.read_text(encoding="utf-8").replace(f"# {lesson.id[:2]} ", f"# {name[:2]} ", 1)
        for exercise in lesson.exercises:
            text = re.sub(rf"(?<![\w-]){exercise.id}(?![\w-])", f"{exercise.id}-{number}", text)
        (root / "solutions" / f"{name}.py").write_text(text, encoding="utf-8")
    (root / "course.toml").write_text(outline, encoding="utf-8")
    return Course(root)
