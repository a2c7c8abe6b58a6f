"""A class for measuring: many different notebooks of one lesson, the same ones each time.

Four in ten learners have everything right, three in ten about half, two in ten nothing, one in ten answers that
nobody has written down before. "Right" is the reference or another right answer, "wrong" a known misconception or a
machine-made mutant of the reference (a program that the grader cannot know). Each answer is laid out anew, with
comments of its own, and each notebook has a cell of the learner's own.
"""

from __future__ import annotations

import ast
import random
from pathlib import Path
from typing import Any

from grader.course import Course, Exercise
from grader.course.build import exercises_path
from grader.prove.mutants import mutants
from tools.fill import fill, write

KINDS = ("right",) * 4 + ("partly",) * 3 + ("wrong",) * 2 + ("odd",)


def make(course: Course, lesson: str, folder: Path, count: int) -> list[str]:
    """Write `count` submissions of `lesson` under `folder`; returns the learners' names, in the order of the class."""
    learners = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        rng = random.Random(f"{lesson} {number}")
        answers = {exercise.id: _answer(exercise, kind, rng) for exercise in course.lesson(lesson).exercises}
        notebook = fill(exercises_path(course, lesson), {name: text for name, text in answers.items() if text})
        own = f"print('learner {number} was here')\n"
        cell: dict[str, Any] = {
            "cell_type": "code",
            "execution_count": None,
            "id": "own",
            "metadata": {},
            "outputs": [],
            "source": own,
        }
        notebook["cells"].insert(3, cell)
        learners.append(f"{kind}-{number:03}")
        write(notebook, folder / learners[-1] / lesson / f"{lesson}.ipynb")
    return learners


def _answer(exercise: Exercise, kind: str, rng: random.Random) -> str:
    """An answer cell's text; empty where the stub stays as it was given out."""
    right = [exercise.reference, *(variant.source for variant in exercise.right)]
    wrong = [variant.source for variant in exercise.wrong]
    made = [mutant.source for mutant in mutants(exercise.reference)] or wrong
    chosen = {
        "right": lambda: rng.choice(right),
        "partly": lambda: rng.choice([rng.choice(right), rng.choice(right), rng.choice(wrong), rng.choice(made), ""]),
        "wrong": lambda: rng.choice([rng.choice(wrong), rng.choice(made)]),
        "odd": lambda: rng.choice(made),
    }[kind]()
    return _in_other_words(chosen, rng) if chosen else ""


def _in_other_words(source: str, rng: random.Random) -> str:
    """The same code, laid out by Python itself, with comments between its lines."""
    lines = []
    for line in ast.unparse(ast.parse(source)).splitlines():
        lines.append(line)
        if rng.random() < 0.3 and not line.rstrip().endswith(("(", ",", "[", '"""', "\\")):
            lines.append(f"# thought {rng.randrange(1000)}")
    return "\n".join(lines) + "\n"
