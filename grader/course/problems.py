"""What is wrong in the course's text, and how a reader is told."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
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


@dataclass(frozen=True)
class Files:
    """Files that are read as one text, line under line: an overlay's follows the one that it extends.

    `paths` as problems name them; `begins` how many lines stand above each.
    """

    paths: tuple[str, ...]
    begins: tuple[int, ...] = (0,)

    @classmethod
    def under(cls, texts: Mapping[str, str]) -> Files:
        """These texts, by their paths."""
        lengths = [text.count("\n") + 1 for text in texts.values()]
        return cls(tuple(texts), tuple(sum(lengths[:i]) for i in range(len(texts))))

    def place(self, line: int) -> tuple[str, int]:
        """The file that a line of the whole text stands in, and its number there."""
        at = bisect_left(self.begins, line) - 1
        return self.paths[at], line - self.begins[at]


@dataclass
class Findings:
    """Gathers the problems of one text, so that an author sees all of them at once. `of` is a path or several files."""

    of: str | Files
    problems: list[Problem] = field(default_factory=list)

    def add(self, line: int, message: str, mend: str) -> None:
        path, number = self.of.place(line) if isinstance(self.of, Files) else (self.of, line)
        self.problems.append(Problem(path, number, message, mend))

    def stop(self) -> None:
        """Raises CourseError when anything was found."""
        if self.problems:
            raise CourseError(self.problems)
