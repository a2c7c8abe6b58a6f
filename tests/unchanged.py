"""A record of which lessons passed which tests, so that a local run does not repeat them for an unchanged lesson."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from grader.core import files
from grader.core.layout import PACKAGE
from grader.course import Course
from grader.grading import cache

TESTS = Path(__file__).parent
TEXTS = ("notebooks", "solutions", "exercises")  # folders of a course that hold its lessons
DECIDING_TESTS = ("conftest.py", "surfaces.py", "test_course_lessons.py", "unchanged.py")


def in_ci() -> bool:
    """Whether this is continuous integration, which trusts no earlier run."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


@dataclass(frozen=True)
class Record:
    """What is known of one test of one lesson; it holds as long as nothing changes that the outcome depends on."""

    course: Course
    lesson: str
    test: str

    @property
    def holds(self) -> bool:
        """Whether the test passed before, with all that it depends on as it is now."""
        return not in_ci() and self._path.is_file() and self._path.read_text() == self.fingerprint()

    def write(self) -> None:
        """Record that the test passed."""
        files.write(self._path, self.fingerprint())

    def fingerprint(self) -> str:
        """Digest of the lesson's texts and notebooks, this package, its tests, Python and the installed packages."""
        root = self.course.root
        paths = [root / "course.toml", *(TESTS / name for name in DECIDING_TESTS), *_files(PACKAGE)]
        paths += [path for folder in TEXTS for path in _files(root / folder) if _belongs(path, root, self.lesson)]
        texts = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]
        return cache.digest([cache.environment_fingerprint(), texts])

    @property
    def _path(self) -> Path:
        return self.course.root / "build" / "tested" / self.lesson / self.test


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"]


def _belongs(path: Path, root: Path, lesson: str) -> bool:
    return any(part.partition(".")[0] == lesson for part in path.relative_to(root).parts)
