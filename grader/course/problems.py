"""Problems in the course's text: where each one is, and what fixes it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grader.core import symbols


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to fix. `path` is relative to the course, `line` counts from 1."""

    path: str
    line: int
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}. {self.fix}."


class CourseError(Exception):
    """The course's text cannot be used; `problems` contains every reason that was found, in reading order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True)
class Files:
    """Files that are read as one text, an overlay's after the one that it extends; `begins` counts the lines above."""

    paths: tuple[str, ...]
    begins: tuple[int, ...] = (0,)

    @classmethod
    def join(cls, texts: Mapping[str, str]) -> Files:
        """Returns the files that contain `texts`, by path."""
        lengths = [text.count("\n") + 1 for text in texts.values()]
        return cls(tuple(texts), tuple(sum(lengths[:i]) for i in range(len(texts))))

    def place(self, line: int) -> tuple[str, int]:
        """Returns the file that a line of the whole text is in, and its number there."""
        at = bisect_left(self.begins, line) - 1
        return self.paths[at], line - self.begins[at]


@dataclass
class Findings:
    """Collects the problems of one text, so that an author sees all of them at once."""

    of: str | Files
    problems: list[Problem] = field(default_factory=list)

    def add(self, line: int, message: str, fix: str) -> None:
        path, number = self.of.place(line) if isinstance(self.of, Files) else (self.of, line)
        self.problems.append(Problem(path, number, message, fix))

    def parses(self, source: str, first: int, fix: str = "Mend the code", what: str = "") -> bool:
        """Returns whether `source`, which begins in line `first`, is Python; adds a problem where it is not."""
        wrong = symbols.syntax_error(source)
        if wrong is not None:
            self.add(first + wrong[0] - 1, f"{what}a Python syntax error: {wrong[1]}", fix)
        return wrong is None

    def stop(self) -> None:
        """Raises CourseError if anything was found."""
        if self.problems:
            raise CourseError(self.problems)
