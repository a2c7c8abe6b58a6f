"""What is wrong in the course's text, and how a reader is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to mend. `path` is relative to the course, `line` counts from 1."""

    path: str
    line: int
    message: str
    mend: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}. {self.mend}."


class CourseError(Exception):
    """The course's text cannot be used; `problems` holds every reason that was found, in reading order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass
class Findings:
    """Gathers the problems of one file, so that an author sees all of them at once."""

    path: str
    problems: list[Problem] = field(default_factory=list)

    def add(self, line: int, message: str, mend: str) -> None:
        self.problems.append(Problem(self.path, line, message, mend))

    def stop(self) -> None:
        """Raises CourseError when anything was found."""
        if self.problems:
            raise CourseError(self.problems)
