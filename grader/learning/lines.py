"""What `grader watch` says where there is no terminal: a line for each verdict, and a few for what fails."""

from __future__ import annotations

from grader.core.points import number
from grader.core.result import Result
from grader.core.text import MARKS, legible
from grader.learning.client import GradeRequest
from grader.learning.watch import Watch
from grader.learning.watch_screen import MESSAGE_LINES, mark_of, next_step


def opening(watch: Watch) -> str:
    """What is watched, and how to end it."""
    return (
        f"Watching the notebooks under {watch.course.root / 'work'}: each is judged when it is saved. Ctrl-C ends it."
    )


def told(watch: Watch, ask: GradeRequest, result: Result) -> str:
    """What the grader said of one exercise."""
    perhaps = next((check.misconception for check in result.checks if check.misconception), None)
    exercise = watch.course.lesson(ask.lesson).exercise(ask.exercise)
    if ask.do == "name":
        return f"  Perhaps ({exercise.title}): {perhaps}" if perhaps else ""
    points = f"{number(result.score)} of {number(result.max_score)} points"
    lines = [f"{mark_of(watch, exercise)[0]} {ask.lesson} · {exercise.title}: {points}"]
    missed = next((check for check in result.checks if check.status != "passed"), None)
    if missed is not None:
        hidden = " (hidden)" if missed.hidden else ""
        lines.append(f"  {MARKS[missed.status][0]} {missed.title}{hidden}")
        said = legible(missed.message).strip().split("\n") if missed.message else []
        lines += [f"    {line}" for line in said[:MESSAGE_LINES]]
    return "\n".join(lines)


def standing(watch: Watch) -> str:
    """The lesson in one line, and what comes next."""
    earned = sum(watch.earned(one) for one in watch.lesson.exercises)
    return f"{watch.current}: {number(earned)} of {number(watch.lesson.points)} points. {next_step(watch)}"
