"""The floor under grading: forks of one warm process that run the same cells and checks, with nothing around them.

No confinement, no wire, no examiner, no deadline: each fork runs setup, every cell that is not the course's own and
every check of one notebook in its own memory, as a kernel would, with the same compiler settings and the same
compiled code at hand. What a learner's cell does there, it does to its own score. Run it on what you trust only.
"""

from __future__ import annotations

import argparse
import gc
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grader.core.notebook import Submission, read_bytes, read_submission
from grader.core.points import total
from grader.core.symbols import notebook_cell_names, plain_python
from grader.course import Course, Lesson
from grader.grading.batch import cores, find, imports
from grader.grading.executors import CompileCache
from grader.grading.plan import JudgeExercise, plan
from grader.program.endpoints import begin as begin_process
from grader.sandbox.accelerators import CPU
from grader.sandbox.zygote import QUICK, warm_up


def score(submission: Submission, lesson: Lesson, only: str | None = None) -> float:
    """Points that the notebook's own process would give itself, or those of one exercise alone."""
    from grader.checks import inputs, verbs
    from grader.program.endpoints import namedtuples

    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(lesson.setup, "<setup>", "exec"), names)
    verbs.in_process.classes = namedtuples(names)
    points = []
    for step in plan(submission, lesson, lambda source: notebook_cell_names(source).binds)[0]:
        if not isinstance(step, JudgeExercise):
            _try(plain_python(step.source), f"<cell {step.label}>", names)
            continue
        if only not in (None, step.exercise.id):
            continue
        for check in step.exercise.checks if not step.untouched else ():
            inputs.begin(f"{submission.digest}/{check.id}")
            points.append(check.points if _try(check.source, f"<check {check.id}>", names) else 0.0)
    return total(points)


def _try(source: str, name: str, names: dict[str, Any]) -> bool:
    try:
        exec(compile(source, name, "exec"), names)
    except Exception:
        return False
    return True


def ready(course: Course, lesson: Lesson, compiled: CompileCache) -> Callable[[], None]:
    """Make this process warm; what a fork of it does first, to have this code at hand."""
    warm_up(sorted(imports(course, [lesson.id])), CPU)
    gc.collect()
    gc.freeze()
    os.environ["XLA_FLAGS"] = QUICK

    def begin() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        begin_process(**compiled.terms)

    return begin


def _score_in_fork(submission: Submission, lesson: Lesson, begin: Callable[[], None], writing: int) -> None:
    try:
        begin()
        os.write(writing, f"{score(submission, lesson)}\n".encode())
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Score a folder of submissions; prints their sum. A notebook without a score ends the run with its traceback."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("lesson")
    asked = parser.parse_args()
    course = Course.find(None)
    lesson = course.lesson(asked.lesson)
    begin = ready(course, lesson, CompileCache.of_our_own(course.root / "build", lesson.id))
    reading, writing = os.pipe()
    waiting = [
        read_submission(read_bytes(entry.path), entry.learner, lesson.id)
        for entry in find(asked.folder, course, lesson.id)
    ]
    running = 0
    while waiting or running:
        if waiting and running < cores(None, len(waiting) + running):
            submission = waiting.pop(0)
            if os.fork() == 0:
                _score_in_fork(submission, lesson, begin, writing)
            running += 1
        else:
            if os.wait()[1]:
                raise SystemExit("A notebook has no score.")
            running -= 1
    os.close(writing)
    with os.fdopen(reading) as stream:
        scores = [float(line) for line in stream]
    print(f"{len(scores)} notebooks, {sum(scores):g} points")


if __name__ == "__main__":
    main()
