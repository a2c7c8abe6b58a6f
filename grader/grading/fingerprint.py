"""What a verdict depends on, part by part, as short digests: enough to tell later which part has changed."""

from __future__ import annotations

import hashlib
import json
import platform
import site
import sys
import sysconfig
from collections.abc import Iterable
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
    """Of anything that JSON can say; short, as thousands are kept."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def file_name(learner: str) -> str:
    """Of a file about this learner, whatever their name is made of; it is the same for every run."""
    return hashlib.sha256(json.dumps(learner).encode()).hexdigest()[:32]


def code(packages: Iterable[str]) -> str:
    """The text of these packages of ours, as a digest."""
    files = [path for package in packages for path in sorted((PACKAGE / package).iterdir())]
    texts = [path.read_bytes() for path in files if path.suffix in (".py", ".toml")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def versions() -> dict[str, str]:
    """The packages whose versions are told by name."""
    return {name: version(name) for name in NAMED}


def environment_fingerprint(devices: str = "cpu") -> dict[str, str]:
    """Everything besides course and notebook: our code, Python, each package that is installed, and the devices.

    A learner's cell may import any of them.
    """
    # Not sys.path: a program that grades, such as nbgrader, has folders of its own there.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    packages = sorted(found.name for place in places for found in Path(place).glob("*.dist-info"))
    python = f"{platform.python_version()} {digest([sys.version, platform.machine()])[:6]}"
    ours = digest([VERSION, code(VERDICT_PACKAGES)])
    return {
        "the grader": ours, "Python": python, **versions(), "the installed packages": digest(packages),
        "devices": devices,
    }  # fmt: skip


def text(lesson: Lesson) -> str:
    """All of a lesson that a verdict depends on."""
    return "\n".join([lesson.setup, *(repr(exercise) for exercise in lesson.exercises)])


def course(lesson: Lesson) -> Parts:
    """A lesson's setup, and of each exercise its task, its answers and its checks."""
    return {"setup": digest(lesson.setup), "exercises": {one.id: _exercise(one, lesson) for one in lesson.exercises}}


def _exercise(exercise: Exercise, lesson: Lesson) -> Parts:
    prose = [cell.source for cell in lesson.cells if cell.id == exercise.id and cell.kind in ("task", "why")]
    known = [(variant.source, variant.because) for variant in (*exercise.right, *exercise.wrong)]
    return {
        "the task's text": digest(prose),
        "the course's answer": digest([exercise.stub, exercise.reference, exercise.timeout]),
        "the known right and wrong answers": digest(known),
        "checks": {check.id: digest([check.title, check.source, check.observed]) for check in exercise.checks},
    }


def notebook(submission: Submission, lesson: Lesson) -> Parts:
    """The answer of each exercise, and all other cells."""
    ids = [exercise.id for exercise in lesson.exercises]
    others = [(cell.grade_id, cell.source) for cell in submission.cells if cell.grade_id not in ids]
    answers = {name: [cell.source for cell in submission.cells if cell.grade_id == name] for name in ids}
    return {"answers": {name: digest(sources) for name, sources in answers.items()}, "others": digest(others)}
