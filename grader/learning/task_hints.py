"""The three hints of an exercise, as its task has them folded."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grader.course import Lesson

FOLD = re.compile(r"<details[^>]*>\s*<summary>(.*?)</summary>(.*?)</details>", re.DOTALL)


@dataclass(frozen=True)
class Hint:
    """`title` is what stands on the fold, `text` what is behind it, as Markdown."""

    title: str
    text: str


def hints(lesson: Lesson, exercise: str) -> tuple[Hint, ...]:
    """From the question to nearly there. An imported exercise may have none."""
    tasks = [cell.source for cell in lesson.cells if cell.id == exercise and cell.kind == "task"]
    return tuple(Hint(title.strip(), text.strip()) for source in tasks for title, text in FOLD.findall(source))
