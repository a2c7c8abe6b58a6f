"""An autograder zip for Gradescope: how the image is made, how a submission is run, and the course with all of it."""

from __future__ import annotations

import json
import re

from grader.course import Course
from grader.lms import checkout

SETTINGS = "autograder.json"
READ = ("course.toml", ".secret", "solutions/*.py", "notebooks/*.py")
EXTENDS = re.compile(rb"^\s*extends\s*=.*$", re.MULTILINE)


def files(course: Course, lesson: str, allow_unsandboxed: bool = False) -> dict[str, bytes]:
    """The zip's files by path. It holds hidden checks, answers and the secret: it is for the instructor alone."""
    settings = {"lesson": lesson, "allow_unsandboxed": allow_unsandboxed}
    package = {
        **checkout.package(),
        **{name: checkout.file(name) for name in ("pyproject.toml", "README.md", "LICENSE")},
    }
    return {
        "setup.sh": (checkout.HERE / "for_gradescope" / "setup.sh").read_bytes(),
        "run_autograder": (checkout.HERE / "for_gradescope" / "run_autograder").read_bytes(),
        SETTINGS: (json.dumps(settings, indent=1) + "\n").encode(),
        checkout.LOCK: checkout.file(checkout.LOCK),
        **{f"package/{path}": content for path, content in package.items()},
        **_course(course),
    }


def _course(course: Course) -> dict[str, bytes]:
    """What the course is read from, an overlay's with the course that it extends beside it.

    All lessons: an exercise may name skills of another lesson's.
    """
    made = _read(course, "course")
    if course.base is not None:
        made["course/course.toml"] = EXTENDS.sub(b'extends = "../below"', made["course/course.toml"])
        made |= _read(course.base, "below")
    return made


def _read(course: Course, folder: str) -> dict[str, bytes]:
    found = [path for pattern in READ for path in sorted(course.root.glob(pattern))]
    return {f"{folder}/{path.relative_to(course.root).as_posix()}": path.read_bytes() for path in found}
