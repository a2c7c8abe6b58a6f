"""The same answer gets the same verdict in a plain notebook kernel and through the isolated examiner.

The course's own answers are compared in test_course_lessons.py, with the verdicts of their proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import surfaces

from grader.course import Course
from grader.prove.proof import prove

pytestmark = pytest.mark.usefixtures("forked_kernels")


@pytest.mark.parametrize(("name", "lesson"), [("vocabulary", "01_vocabulary"), ("small", "01_small")])
def test_kernel_and_examiner_agree(name: str, lesson: str, built: Callable[[str], Path], tmp_path: Path) -> None:
    course = Course(built(name))
    assert course.lesson_ids == (lesson,)
    kernel = surfaces.verdicts_of_kernel(course.lesson(lesson), tmp_path)
    surfaces.compare(course.lesson(lesson), prove(course, [lesson], mutants=False, jobs=1), kernel)
