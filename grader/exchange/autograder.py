"""Grades the one submission that Gradescope has laid out, and writes results.json whatever happens.

`python -m grader.exchange.autograder ROOT`, where ROOT holds source/, submission/ and results/; with `--rehearse` it
grades the course's own answers instead, when the image is made: that fails where grading would, and what it finds out
makes the first learner's grading faster. What is printed is for instructors (`stdout_visibility` is "hidden").
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path

from grader.course import Course, Lesson, whole
from grader.exam import batch
from grader.exam.record import Result
from grader.exchange import handed_in
from grader.exchange.gradescope import SETTINGS
from grader.reports import gradescope as report

FAULT = "Your submission was not graded: {}. This is no verdict on your work. Tell your instructor."
UNCONFINED = (
    "This container cannot confine learners' code, so nothing was graded. docs/gradescope.md says what it takes, and "
    "how to grade all the same when you trust every submission."
)


class CannotConfine(Exception):
    """Nothing but limits would stand between a submission and the course."""


def grade(root: Path, notebook: bytes, learner: str, folder: Path) -> Result:
    """Grade these bytes as `learner`'s notebook of the lesson that this autograder is for. Raises CannotConfine."""
    settings = json.loads((root / "source" / SETTINGS).read_text())
    course, lesson = Course(root / "source" / "course"), settings["lesson"]
    place = folder / "learner" / lesson / f"{lesson}.ipynb"
    place.parent.mkdir(parents=True)
    place.write_bytes(notebook)

    def accept(confined: batch.Confined) -> None:
        print(f"Learners' processes are confined: {confined.level}. {confined.refused or ''}")
        if confined.level == "limits" and not settings["allow_unsandboxed"]:
            raise CannotConfine(UNCONFINED)

    [result] = batch.grade(course, [batch.Entry(place, learner, lesson)], jobs=1, accept=accept)
    return result


def examine(root: Path) -> Result:
    """The result for what lies in submission/; every fault is one with a problem. Reasons are printed."""
    lesson = ""
    try:
        lesson = json.loads((root / "source" / SETTINGS).read_text())["lesson"]
        ids = {exercise.id for exercise in Course(root / "source" / "course").lesson(lesson).exercises}
        notebook = handed_in.notebook(root / "submission", ids, lesson)
        with tempfile.TemporaryDirectory() as folder:
            result = grade(root, notebook, learner(root), Path(folder))
    except handed_in.NotOneNotebook as problem:
        return Result("", lesson, problem=str(problem))
    except CannotConfine as problem:
        print(problem)
        return Result("", lesson, problem=FAULT.format("this autograder cannot run learners' code safely"))
    except BaseException as problem:
        traceback.print_exc()
        return Result("", lesson, problem=FAULT.format(f"the autograder failed ({type(problem).__name__})"))
    return _without_own_faults(result)


def _without_own_faults(result: Result) -> Result:
    """What the grader says of its own faults is for instructors: an exception's text may hold anything."""
    if result.problem is not None and result.problem.startswith("The grader itself failed"):
        print(result.problem)
        return replace(result, problem=FAULT.format("the autograder failed"))
    return result


def learner(root: Path) -> str:
    """Who handed in, as Gradescope's metadata say: inputs are drawn anew for each. Without them, nobody."""
    try:
        users = json.loads((root / "submission_metadata.json").read_text())["users"]
        return "+".join(sorted(str(user["id"]) for user in users))[:200] or "learner"
    except (OSError, ValueError, KeyError, TypeError):
        return "learner"


def write(root: Path, result: Result) -> None:
    """Put results.json in its place, whole: what run_autograder wrote there before stays until then."""
    whole.write(root / "results" / "results.json", report.dumps(result), mode=0o644)


def own_answers(lesson: Lesson) -> bytes:
    """A notebook of nothing but the course's own answers."""
    cells = [
        {"cell_type": "code", "source": exercise.reference, "metadata": {"nbgrader": {"grade_id": exercise.id}}}
        for exercise in lesson.exercises
    ]
    return json.dumps({"cells": cells}).encode()


def rehearse(root: Path) -> str | None:
    """Grade the course's own answers; what is wrong with that, or None."""
    settings = json.loads((root / "source" / SETTINGS).read_text())
    lesson = Course(root / "source" / "course").lesson(settings["lesson"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = grade(root, own_answers(lesson), "rehearsal", Path(folder))
        except CannotConfine as problem:
            return f"{problem} (Seen while the image was made; a submission may meet more.)"
    if result.problem is not None:
        return result.problem
    print(f"{lesson.id}: {result.score:g} of {result.max_score:g} points for the course's own answers.")
    lost = [f"{check.id} ({check.status}): {check.message}" for check in result.checks if check.status != "passed"]
    return "\n".join(["The course's own answers lose points here.", *lost]) if lost else None


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m grader.exchange.autograder")
    parser.add_argument("root", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args()
    if given.rehearse:
        problem = rehearse(given.root)
        if problem is not None:
            print(problem, file=sys.stderr)
        return problem is not None
    result = examine(given.root)
    write(given.root, result)
    print(f"{result.score:g} of {result.max_score:g} points in {result.duration_s:.1f} s. {result.problem or ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
