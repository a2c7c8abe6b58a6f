"""Fingerprint of what a verdict depends on: the grader and its environment, the lesson, the notebook.

Parts are short digests by name, enough to tell later which of them has changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import site
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grader.core.layout import PACKAGE, VERDICT_PACKAGES
from grader.core.notebook import Submission
from grader.core.result import VERSION
from grader.course import Exercise, Lesson

NAMED = ("jax", "jaxlib", "flax", "optax", "numpy")  # packages whose versions are told by name
Parts = dict[str, Any]


def digest(what: Any) -> str:
    """Returns a digest of anything that JSON can express; short, as thousands are stored."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def file_name(learner: str) -> str:
    """Returns the name of a file about this learner, whatever the learner's name contains; every run gets the same."""
    return hashlib.sha256(json.dumps(learner).encode()).hexdigest()[:32]


def environment_fingerprint(devices: str = "cpu") -> dict[str, str]:
    """Returns everything besides course and notebook: our code, Python, each installed package (a learner's cell may
    import any), and the devices that a run grades on (`grader.sandbox.accelerators.Hardware.edition`)."""
    # Not sys.path: a program that grades, such as nbgrader, has folders of its own there.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    packages = sorted(found.name for place in places for found in Path(place).glob("*.dist-info"))
    files = [path for name in VERDICT_PACKAGES for path in sorted((PACKAGE / name).iterdir())]
    code = [path.read_bytes() for path in files if path.suffix in (".py", ".toml", ".json")]
    return {
        "the grader": digest([VERSION, hashlib.sha256(b"\0".join(code)).hexdigest()]),
        "Python": f"{platform.python_version()} {digest([sys.version, platform.machine()])[:6]}",
        **{name: version(name) for name in NAMED},
        "the installed packages": digest(packages),
        "devices": devices,
    }


def compiler_fingerprint(devices: str = "cpu") -> str:
    """Returns what compiled code depends on: JAX, the devices, and the processor's model and features where known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    except OSError:
        processor = [platform.processor()]
    return digest([version("jax"), version("jaxlib"), platform.machine(), processor, devices])


def lesson_fingerprint(lesson: Lesson) -> str:
    """Returns a digest of all of a lesson that a verdict depends on."""
    return digest([lesson.setup, *map(repr, lesson.exercises)])


def lesson_parts(lesson: Lesson) -> Parts:
    """Returns all of a lesson, its setup, and of each exercise its task, its answers and its checks."""
    exercises = {one.id: _exercise_parts(one, lesson) for one in lesson.exercises}
    return {"all": lesson_fingerprint(lesson), "setup": digest(lesson.setup), "exercises": exercises}


def _exercise_parts(exercise: Exercise, lesson: Lesson) -> Parts:
    prose = [cell.source for cell in lesson.cells if cell.id == exercise.id and cell.kind in ("task", "why")]
    known = [(variant.source, variant.because) for variant in (*exercise.right, *exercise.wrong)]
    return {
        "the task's text": digest(prose),
        "the course's answer": digest([exercise.stub, exercise.reference, exercise.timeout]),
        "the known right and wrong answers": digest(known),
        "checks": {check.id: digest([check.title, check.source, check.observed]) for check in exercise.checks},
    }


def notebook_parts(submission: Submission, lesson: Lesson) -> Parts:
    """Returns the answer of each exercise, and all other cells."""
    ids = [exercise.id for exercise in lesson.exercises]
    others = [(cell.grade_id, cell.source) for cell in submission.cells if cell.grade_id not in ids]
    answers = {name: [cell.source for cell in submission.cells if cell.grade_id == name] for name in ids}
    return {"answers": {name: digest(sources) for name, sources in answers.items()}, "others": digest(others)}
