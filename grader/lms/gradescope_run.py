"""Grades the one submission that Gradescope has laid out, and writes results.json whatever happens.

`python -m grader.lms.gradescope_run ROOT`, where ROOT holds source/, submission/ and results/; with `--rehearse` it
grades the course's own answers instead, when the image is made: that fails where grading would, and what it finds out
makes the first learner's grading faster. What is printed is for instructors (`stdout_visibility` is "hidden").
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from pathlib import Path

from grader.core import files
from grader.core.faults import UnconfinedError
from grader.core.result import Result
from grader.course import Course, Lesson
from grader.grading import batch
from grader.lms import upload
from grader.lms.gradescope import SETTINGS
from grader.reports import gradescope_report as report
from grader.sandbox.process import ConfinementReport

FAULT = "Your submission was not graded: {}. This is no verdict on your work. Tell your instructor."
UNCONFINED = (
    "Nothing was graded in this container. docs/gradescope.md says what it takes, and how to grade all the same when "
    "you trust every submission."
)


def grade(root: Path, notebook: bytes, learner: str, folder: Path) -> Result:
    """Grade these bytes as `learner`'s notebook of the lesson that this autograder is for. Raises UnconfinedError."""
    settings = json.loads((root / "source" / SETTINGS).read_text())
    course, lesson = Course(root / "source" / "course"), settings["lesson"]
    place = folder / "learner" / lesson / f"{lesson}.ipynb"
    place.parent.mkdir(parents=True)
    place.write_bytes(notebook)

    def tell(confined: ConfinementReport) -> None:
        print(f"Learners' processes are confined: {confined.level}. {confined.refused or ''}")

    entry, allowed = batch.Entry(place, learner, lesson), settings["allow_unsandboxed"]
    [result] = batch.grade(course, [entry], jobs=1, on_confined=tell, allow_unsandboxed=allowed)
    return result


def examine(root: Path) -> Result:
    """The result for what lies in submission/; every fault is one with a problem. Reasons are printed."""
    lesson = ""
    try:
        lesson = json.loads((root / "source" / SETTINGS).read_text())["lesson"]
        ids = {exercise.id for exercise in Course(root / "source" / "course").lesson(lesson).exercises}
        notebook = upload.notebook(root / "submission", ids, lesson)
        with tempfile.TemporaryDirectory() as folder:
            result = grade(root, notebook, learner(root), Path(folder))
    except upload.NotOneNotebook as problem:
        return Result("", lesson, problem=str(problem), fault="submission")
    except UnconfinedError as problem:
        print(f"{problem} {UNCONFINED}")
        return _not_graded(lesson, "this autograder cannot run learners' code safely")
    except BaseException as problem:
        traceback.print_exc()
        return _not_graded(lesson, f"the autograder failed ({type(problem).__name__})")
    return _without_own_faults(result)


def _not_graded(lesson: str, reason: str) -> Result:
    return Result("", lesson, problem=FAULT.format(reason), fault="grader")


def _without_own_faults(result: Result) -> Result:
    """What the grader says of its own faults is for instructors: an exception's text may hold anything."""
    if result.grader_failed:
        print(result.fault_text)
        return _not_graded(result.lesson, "the autograder failed")
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
    files.write(root / "results" / "results.json", report.dumps(result), mode=0o644)


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
        except UnconfinedError as problem:
            return f"{problem} {UNCONFINED} (Seen while the image was made; a submission may meet more.)"
    if result.problem is not None:
        return result.problem
    print(f"{lesson.id}: {result.score:g} of {result.max_score:g} points for the course's own answers.")
    lost = [f"{check.id} ({check.status}): {check.message}" for check in result.checks if check.status != "passed"]
    return "\n".join(["The course's own answers lose points here.", *lost]) if lost else None


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m grader.lms.gradescope_run")
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
