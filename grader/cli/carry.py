"""The verb that carries a learner's work over into newer notebooks, and the words that tell when there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from grader.cli.app import app, err, fail, notebooks, open_course, out
from grader.course import Course

if TYPE_CHECKING:
    from grader.course.migrate import Migration
    from grader.course.workspace import Copy

# Left alone, JupyterLab saves what it has open, and asks then: its red button would write the old notebook back.
RELOAD = "Where it is open in JupyterLab: File > Reload Notebook from Disk (or Revert, if JupyterLab asks)."


@app.command()
def carry(
    lessons: Annotated[list[str] | None, typer.Argument(metavar="[NN_topic]...", help="Only these lessons.")] = None,
) -> None:
    """Carry your answers and notes over into a newer course's notebooks; the old ones are kept in work/earlier/."""
    from grader.course import diff, migrate

    course = open_course()
    for lesson in lessons or ():
        if lesson not in course.ids:
            raise fail(f"There is no lesson {lesson}. Lessons: {', '.join(course.ids)}.")
    found = diff.diff_all(course, lessons or None)
    if not found:
        out.print("Your copies are as new as the course: there is nothing to carry over.")
        return
    unread = [_unread(course, one.copy, one.problem) for one in found if one.problem is not None]
    for one in found:
        if one.problem is None:
            _tell(course, migrate.migrate(course, one.copy))
    if len(found) > len(unread):
        out.print(f"Run the checks anew. {RELOAD}", soft_wrap=True)
    if unread:
        raise fail("\n".join(unread), 1)


def tell_aged(course: Course) -> None:
    """Say which of the learner's copies the course has newer notebooks for, if there are any."""
    from grader.core.text import legible  # names come from the learner's own files
    from grader.course import diff

    found = diff.diff_all(course)
    for one in found:
        if one.problem is not None:
            err.print(_unread(course, one.copy, one.problem), markup=False, soft_wrap=True)
    lines = [f"{one.copy.lesson}  {one.summary}" for one in found if one.matters]
    words = sum(one.words and not one.matters for one in found)
    if words:  # a lesson's text, what is told after an exercise: nobody need be alarmed
        lines.append(f"only words in {notebooks(words)}")
    if lines:
        out.print("The course has changed since you got your copies:")
        for line in lines:
            out.print(legible(f"  {line}"), markup=False, soft_wrap=True)
        text = "`grader carry`, in a terminal of JupyterLab, brings all that you wrote over into the new notebooks."
        out.print(f"{text} The old ones are kept.", soft_wrap=True)


def changed_since(course: Course, lesson: str | None = None) -> str:
    """One sentence about exercises that are others now than in the learner's copies; nothing where none is."""
    from grader.core.text import legible
    from grader.course import diff

    found = [one for one in diff.diff_all(course, [lesson] if lesson else None) if one.matters]
    if not found:
        return ""
    if lesson:
        said = f"The course has changed since you got your copy ({found[0].summary})"
    else:
        said = f"The course has changed {', '.join(one.copy.lesson for one in found)} since you got your copies"
    return legible(f"{said}: `grader carry{f' {lesson}' if lesson else ''}` brings your answers over.")


def _tell(course: Course, done: Migration) -> None:
    from grader.core.text import legible

    own, kept = course.shown(done.copy.own), course.shown(done.kept)
    lines = [f"{own}: {_brought(done)}. What was there is kept as {kept}."]
    lines += [f"{name} begins differently now: a comment at your answer says how." for name in done.begin]
    if done.ended:
        lines.append(f"No longer in the course: {', '.join(done.ended)}. Your answers stand below the exercises.")
    if done.restored:
        text = f"You had changed cells of the course: {', '.join(done.restored)}. "
        lines.append(text + "They say what the course says again; yours are in what was kept.")
    out.print(legible("\n  ".join(lines)), markup=False, soft_wrap=True)


def _brought(done: Migration) -> str:
    if not done.told:
        return "begun anew, as nothing in it says which cells are yours"
    counts = ((done.answers, "answer"), (done.cells, "cell"))
    found = [f"{number} {what}{'' if number == 1 else 's'}" for number, what in counts if number]
    return f"{' and '.join(found)} of yours carried over" if found else "made new, as nothing in it was yours"


def _unread(course: Course, copy: Copy, problem: str | None) -> str:
    return f"{course.shown(copy.own)} cannot be read: {problem}. Rename it, and `grader lab` lays out a fresh one."
