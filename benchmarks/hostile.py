"""A class of any size for one lesson: its answers in every way that the course knows, one in ten of them hostile."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from grader.course import Course, Lesson
from grader.course.build import exercises_path
from tools import fill

EVERY = 10
# What a hostile answer does when its cell runs, and when it is called. Any answer of the course stands between the two.
CELLS = {
    "exits": "import os\nos._exit(0)",
    "kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "closes files": "import os\nos.closerange(0, 4096)",
    "segfault": "import ctypes\nctypes.string_at(0)",
    "forks": "import os, time, warnings\nwarnings.simplefilter('ignore')\n"
    "for _ in range(20):\n    if not os.fork():\n        time.sleep(600)",
    "threads": "import threading, time\n"
    "for _ in range(20):\n    threading.Thread(target=time.sleep, args=(600,)).start()",
    "prints": "for _ in range(50):\n    print('x' * 1_000_000)",
    "fills its folder": "with open('full', 'wb') as stream:\n    stream.write(bytes(40 << 20))",
    "says too much": "raise ValueError('word ' * 1_000_000)",
    "shell hook": "get_ipython().events.register('post_run_cell', lambda result: [0] * 10**7)",
    "goes on behind": "import asyncio\nasync def spin():\n    while True:\n        await asyncio.sleep(0)\n"
    "kept = asyncio.create_task(spin())",
}
CALLS = {
    "endless loop": "    while True:\n        pass",
    "endless program": "    import jax\n    return jax.lax.while_loop(lambda y: True, lambda y: y + 1, 0)",
    "exits when called": "    import os\n    os._exit(0)",
    "memory": "    hog = [bytearray(b'x' * (64 << 20)) for _ in range(12)]\n    return len(hog)",
    "flood": "    import numpy\n    return numpy.zeros(300 << 20, numpy.uint8)",
    "recursion": "    return {name}(*anything)",
    "slow to read": "    import jax\n    return [jax.eval_shape(lambda: jax.random.key(0))] * 150_000",
    "many children": "    import os, time\n    for _ in range(60):\n        if not os.fork():\n"
    "            hog = bytearray(40 << 20)\n            time.sleep(600)\n    time.sleep(600)",
    "threads without end": "    import threading\n    while True:\n        threading.Thread(target=int).start()",
}


@dataclass(frozen=True)
class Expected:
    """What a notebook is worth: which exercises earn all, and which less; an exercise in neither may earn anything.

    `hostile`: whether one of its answers does something to the process that it runs in.
    """

    full: frozenset[str]
    less: frozenset[str]
    hostile: bool = False


def answers(lesson: Lesson, number: int, chance: random.Random) -> tuple[dict[str, str], Expected]:
    """The answers of the notebook with this number, and what they are worth."""
    given: dict[str, str] = {}
    full: set[str] = set()
    for exercise in lesson.exercises:
        given[exercise.id] = chance.choice([exercise.reference, *(right.source for right in exercise.right)])
        full.add(exercise.id)
    target = chance.choice(lesson.exercises)
    if number % EVERY == 0:
        kinds = [*CELLS, *CALLS]
        given[target.id] = hostile(kinds[number // EVERY % len(kinds)], given[target.id], target.names[0])
        spoilt, less = {target.id}, set[str]()
    elif number % 3 == 0:
        given[target.id] = chance.choice(target.wrong).source
        spoilt = less = {target.id}
    elif number % 7 == 0:
        del given[target.id]
        spoilt = less = {target.id}
    else:
        spoilt, less = set(), set()
    commented = {name: f"{source.rstrip()}\n# notebook {number}\n" for name, source in given.items()}
    return commented, Expected(frozenset(full - spoilt), frozenset(less), number % EVERY == 0)


def hostile(kind: str, answer: str, name: str) -> str:
    """An answer that does something to the process that it runs in."""
    if kind in CELLS:
        return f"{answer}\n{CELLS[kind]}\n"
    return f"def {name}(*anything):\n{CALLS[kind].format(name=name)}\n"


def make(course: Course, lesson: Lesson, folder: Path, count: int) -> dict[str, Expected]:
    """Write the class; what each learner's notebook is worth."""
    chance = random.Random(count)
    worth = {}
    for number in range(count):
        given, worth[f"learner-{number:04}"] = answers(lesson, number, chance)
        notebook = fill.fill(exercises_path(course, lesson.id), given)
        fill.write(notebook, folder / f"learner-{number:04}" / lesson.id / f"{lesson.id}.ipynb")
    return worth
