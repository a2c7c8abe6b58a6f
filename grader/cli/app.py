"""The `grader` command itself, the options that its verbs share, and the course to act on."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option, Typer
from typer.core import TyperGroup

from grader.cli.console import fail
from grader.core.text import stop_commands
from grader.course import Course


class Verbs(TyperGroup):
    """Lists the verbs in the order of use: those of learners, of instructors, of authors."""

    LEARNERS = "lab watch check progress solution carry reset"
    INSTRUCTORS = "grade report instructor collect bundle"
    ORDER = f"{LEARNERS} {INSTRUCTORS} build prove preview new import doctor".split()

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=self.ORDER.index)


app = Typer(
    cls=Verbs, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Build, prove and grade a course of JAX notebooks. The course is the one that contains the current folder.",
)  # fmt: skip
_course_folder: Path | None = None

LessonArgument = Annotated[str, Argument(metavar="NN_topic", help="The lesson.")]
LessonsArgument = Annotated[
    list[str] | None, Argument(metavar="[NN_topic]...", help="Only these lessons. Default: all.")
]
LessonOption = Annotated[str | None, Option("--lesson", metavar="NN_topic", help="Only this lesson.")]
JobsOption = Annotated[
    int | None, Option("--jobs", min=1, help="Number of parallel grading processes. Default: one per core.")
]
PlatformOption = Annotated[str, Option("--platform", metavar="NAME", help="cpu, cuda or rocm (docs/accelerators.md).")]


@app.callback()
def choose(
    context: Context,
    course: Annotated[Path | None, Option("--course", metavar="DIR", help="Use the course in DIR.")] = None,
) -> None:
    """Set the course to act on."""
    global _course_folder
    _course_folder = course
    if context.invoked_subcommand != "report":  # its stdout is data, or commands of ours
        stop_commands(sys.__stdout__)


def course_folder() -> Path:
    """Returns where to look for the course: the folder given by --course, else the current directory."""
    return (_course_folder or Path.cwd()).resolve()


def open_course(*lessons: str | None) -> Course:
    """Returns the course to act on. Refuses lessons that have no exercises; None stands for no choice."""
    course = Course.find(_course_folder)
    for lesson in lessons:
        if lesson is not None and lesson not in course.lesson_ids:
            raise fail(f"There is no lesson {lesson}. {suggestion(course, lesson)}")
    return course


def refuse_unknown(lessons: Iterable[str], course: Course, known: Collection[str]) -> None:
    for lesson in lessons:
        if lesson not in known:
            raise fail(f"There is no lesson {lesson}. Lessons: {', '.join(course.ids)}.")


def suggestion(course: Course, typed: str) -> str:
    """Returns a sentence with the lesson meant by `2`, `02` or `tracing`, or with all lessons that have exercises."""
    alike = [one for one in course.lesson_ids if typed in (one[:2], one[:2].lstrip("0"), one[3:])]
    return f"Did you mean {alike[0]}?" if alike else f"Lessons with exercises: {', '.join(course.lesson_ids)}."
