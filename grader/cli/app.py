"""What all verbs share: the command itself, where it prints, how it refuses, and which course it acts on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from grader.course import Course


class Verbs(typer.core.TyperGroup):
    """The help lists verbs as one meets them: what learners use, what instructors use, what authors use."""

    LEARNERS = "lab watch check progress solution carry reset"
    INSTRUCTORS = "grade report instructor collect bundle"
    ORDER = f"{LEARNERS} {INSTRUCTORS} build prove preview new import doctor".split()

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=self.ORDER.index)


app = typer.Typer(
    cls=Verbs, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Build, prove and grade a course of JAX notebooks. Acts on the course found upward from here.",
)  # fmt: skip
out, err = Console(highlight=False), Console(stderr=True, highlight=False)
_course_folder: Path | None = None

PlatformOption = Annotated[
    str, typer.Option("--platform", metavar="NAME", help="Grade on accelerators: cuda, rocm. docs/accelerators.md.")
]
LessonOption = Annotated[str | None, typer.Option("--lesson", metavar="NN_topic", help="Only this lesson.")]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Examiners side by side; one for each core by default.")
]


@app.callback()
def choose(
    course: Annotated[Path | None, typer.Option("--course", metavar="DIR", help="Act on the course in DIR.")] = None,
) -> None:
    """Take note of which course is meant."""
    global _course_folder
    _course_folder = course


def course_folder() -> Path:
    """Where to look for the course: what --course names, else the current directory."""
    return (_course_folder or Path.cwd()).resolve()


def fail(message: str, status: int = 2) -> typer.Exit:
    """Say what is wrong, and end with this status."""
    from grader.core.text import legible  # a path and a learner's name may hold anything

    err.print(legible(message), markup=False, soft_wrap=True)
    return typer.Exit(status)


def writable(path: Path) -> bool:
    """Whether a file can be written there; makes the folders above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return not path.is_dir() and os.access(path.parent, os.W_OK)


def notebooks(count: int) -> str:
    return "1 notebook" if count == 1 else f"{count} notebooks"


def open_course(lesson: str | None = None) -> Course:
    """The course that is meant, with `lesson` checked."""
    course = Course.find(_course_folder)
    if lesson is not None and lesson not in course.lesson_ids:
        raise fail(f"There is no lesson {lesson}. {perhaps(course, lesson)}")
    return course


def perhaps(course: Course, asked: str) -> str:
    """Which lesson with exercises was meant (of `2`, `02` or `tracing`); all of them where that does not tell it."""
    alike = [one for one in course.lesson_ids if asked in (one[:2], one[:2].lstrip("0"), one[3:])]
    return f"Did you mean {alike[0]}?" if alike else f"Lessons with exercises: {', '.join(course.lesson_ids)}."
