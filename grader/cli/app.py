"""The `grader` command itself, the options that its verbs share, and the course to act on."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer import Argument, Context, Option, Typer
from typer.core import TyperCommand, TyperGroup

from grader.cli.console import fail
from grader.core.text import stop_commands
from grader.course import Course


class CommandGroups(TyperGroup):
    """Lists the commands by the people who use them, in the order of use."""

    GROUPS: ClassVar[dict[str, str]] = {
        "For learners": "lab watch check progress solution carry reset join raise-hand share doctor",
        "For instructors": "grade report similar instructor board bundle collect feedback personal-data",
        "For authors": "new build prove totals preview import",
    }

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in self.GROUPS.items():
            found = [(name, self.get_command(ctx, name)) for name in names.split()]
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(80)) for name, command in found if command])


class PlainCommand(TyperCommand):
    """Names arguments in usage and help as in the documentation, without the types of their Python values."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for kind in ("argument", "option"):
            records = [one.get_help_record(ctx) for one in self.get_params(ctx) if one.param_type_name == kind]
            if rows := [(re.sub(r" <.*>", "", row[0]), row[1]) for row in records if row]:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)


class App(Typer):
    """Commands whose usage and help are those of `PlainCommand`."""

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": PlainCommand, **options})


app = App(
    cls=CommandGroups, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Work through, grade or write a course of JAX notebooks. Commands use the course that contains the current "
    "folder.",
)  # fmt: skip
_course_folder: Path | None = None

LessonArgument = Annotated[str, Argument(metavar="NN_topic", help="The lesson.")]
LessonsArgument = Annotated[list[str] | None, Argument(metavar="NN_topic", help="Only these lessons. [default: all]")]
LessonOption = Annotated[str | None, Option("--lesson", metavar="NN_topic", help="Only this lesson.")]
JobsOption = Annotated[
    int | None,
    Option("--jobs", metavar="N", min=1, help="Number of parallel grading processes. [default: one per core]"),
]
PlatformOption = Annotated[str, Option("--platform", metavar="NAME", help="Where answers run: cpu, cuda or rocm.")]


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
    if _course_folder is not None and not _course_folder.is_dir():
        raise fail(f"There is no folder {_course_folder}. Pass the folder of a course to --course.")
    course = Course.find(_course_folder)
    for lesson in lessons:
        if lesson is not None and lesson not in course.lesson_ids:
            raise fail(f"{absence(course, lesson)} {suggestion(course, lesson)}")
    return course


def refuse_unknown(lessons: Iterable[str], course: Course) -> None:
    """Refuses lessons of which nothing is written."""
    known = [one for one in course.ids if one in {*course.lesson_ids, *course.text_ids}]
    for lesson in lessons:
        if lesson not in known:
            names = f"Lessons: {', '.join(known)}."
            raise fail(f"{absence(course, lesson)} {_alike(lesson, known) or names}")


def absence(course: Course, typed: str, what: str = "lesson") -> str:
    """Returns why no exercises belong to a lesson's id that was typed."""
    if typed in course.text_ids:
        return f"Lesson {typed} has no exercises."
    return f"Lesson {typed} is not written yet." if typed in course.ids else f"There is no {what} {typed}."


def suggestion(course: Course, typed: str) -> str:
    """Returns a sentence with the lesson meant by `2`, `02`, `tracing` or a misspelling, or with all that have
    exercises."""
    return _alike(typed, course.lesson_ids) or f"Lessons with exercises: {', '.join(course.lesson_ids)}."


def _alike(typed: str, lessons: Collection[str]) -> str:
    """A question that names the lesson that was probably meant; "" if none is similar."""
    alike = [one for one in lessons if typed in (one, one[:2], one[:2].lstrip("0"), one[3:])]
    alike = alike or get_close_matches(typed, lessons, n=1, cutoff=0.8)
    return f"Did you mean {alike[0]}?" if alike else ""
