"""Read a percent script: its cells, what each one is, the lines that it occupies, and its problems.

The dialect is fixed (jupytext's `py:percent` without its header): a line `# %%` opens a cell; words and `key="value"`
pairs after it state what the cell is. Jupytext itself is not used, because importing it takes longer than grading a
submission.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from grader.core import symbols

MARKER = re.compile(r"# %%(?=\s|$)(.*)")
TOKEN = re.compile(
    r'\s*(?:([A-Za-z_]\w*)=("(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^\s"\[]+)|(\[(?:markdown|raw|code)\]|[A-Za-z_]\w*))(?=\s|$)'
)

# What a cell may be in each kind of file, and the attributes it takes beside the id that it names.
Kinds = Mapping[str, Mapping[str, type]]
EXERCISES: Kinds = {
    "text": {},
    "setup": {},
    "task": {"stars": int, "minutes": int, "skills": str, "points": float},
    "answer": {"timeout": float},
    "check": {"name": str, "points": float, "observed": bool},
    "hidden": {"name": str, "points": float, "observed": bool},
    "why": {},
    "wrong": {"because": str},
    "right": {},
    "equivalent": {"because": str},
}
# An overlay's text for a lesson that the course below has, too.
OVERLAY: Kinds = {
    **EXERCISES,
    "task": {**EXERCISES["task"], "before": str, "after": str},
    "hidden": {**EXERCISES["hidden"], "instead": bool},
}
LESSON: Kinds = {"text": {}, "code": {"tags": list}, "predict": {}}
# An imported notebook (`grader.course.nbgrader_lesson`): each cell line contains the role that nbgrader gave the cell.
_COPIED: Mapping[str, type] = {"tags": list, "metadata": str, "attachments": str}
ADOPTED: Kinds = {
    "imported": {},
    **dict.fromkeys(("cell", "locked", "answer"), _COPIED),
    "check": {"points": float, "observed": bool, **_COPIED},
    "manual": {"points": float, **_COPIED},
    "task": {"points": float, **_COPIED},
}
PROSE = frozenset({"text", "task", "why", "predict"})
_NAMING = frozenset("task answer check hidden why wrong right equivalent predict imported locked manual".split())
_TYPES = {int: "a whole number", float: "a number", str: 'text in "quotes"', bool: "true or false", list: "a [list]"}


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to fix. `path` is relative to the course, `line` counts from 1, and is 0 for a folder."""

    path: str
    line: int
    message: str
    fix: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.message}. {self.fix}."


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

    def parses(self, source: str, first: int, fix: str = "Fix the code", what: str = "") -> bool:
        """Returns whether `source`, which begins in line `first`, is Python; adds a problem where it is not."""
        wrong = symbols.syntax_error(source)
        if wrong is not None:
            self.add(first + wrong[0] - 1, f"{what}a Python syntax error: {wrong[1]}", fix)
        return wrong is None

    def stop(self) -> None:
        """Raises CourseError if anything was found."""
        if self.problems:
            raise CourseError(self.problems)


@dataclass(frozen=True)
class Cell:
    """One authored cell. Its `# %%` is in `line`, its source begins in line `first`; `form` is Jupyter's cell type."""

    kind: str
    id: str | None
    attributes: Mapping[str, Any]
    source: str
    line: int
    first: int
    form: str = "code"

    @property
    def prose(self) -> bool:
        return self.kind in PROSE


def read(text: str, kinds: Kinds, findings: Findings) -> list[Cell]:
    """Returns the cells of a percent script; what cannot be understood goes to `findings`, and its cell is left out."""
    lines = text.split("\n")
    starts = [n for n, line in enumerate(lines) if MARKER.match(line)]
    before = [number for number, line in enumerate(lines[: starts[0] if starts else None], 1) if line.strip()]
    if before or not starts:
        line = before[0] if before else len(lines)
        findings.add(line, "the first line is no cell line", "Begin the file with a `# %%` line")
    read_cells = (
        _CellReader(start + 1, kinds, findings).cell(lines[start].removeprefix("# %%"), lines[start + 1 : end])
        for start, end in pairwise([*starts, len(lines)])
    )
    return [cell for cell in read_cells if cell is not None]


class _Unquoted(str):
    """A bare word where a value was expected: of no type that an attribute takes."""


_NOTHING = _Unquoted("nothing")  # the value of a word alone


@dataclass(frozen=True)
class _CellReader:
    line: int
    kinds: Kinds
    findings: Findings

    def cell(self, marker: str, body: list[str]) -> Cell | None:
        values = self._values(marker)
        if values is None:
            return None
        adopted = self.kinds is ADOPTED
        bracket = next((key for key in values if key == "[markdown]" or (adopted and key[0] == "[")), "")
        values.pop(bracket, None)
        prose = bracket == "[markdown]"
        unnamed = "cell" if adopted else "text" if prose else "code"
        # An attribute that only a kind could be is taken for one.
        unnamed = next((key for key in values if key not in self.kinds.get(unnamed, {})), unnamed)
        claims = [key for key, value in values.items() if key in _NAMING or value is _NOTHING] or [unnamed]
        kind = claims[0]
        if len(claims) > 1 or kind not in self.kinds or (not adopted and (kind in PROSE) is not prose):
            self._complain(claims, prose)
            return None
        name = values.pop(kind, None)
        if kind in _NAMING and type(name) is not str:
            self.findings.add(self.line, f"`{kind}` names {name!s}", f'Write `{kind}="topic-thing"`')
            return None
        attributes = self._attributes(kind, values)
        content, first = _trimmed(body if adopted or not prose else self._prose(body, self.line + 1), self.line + 1)
        if adopted and bracket:  # copied to the letter: blank lines that a comment sign makes visible belong to it
            content = self._prose(content, first)
        form = bracket.strip("[]") or "code"
        name = name if kind in _NAMING else None
        return Cell(kind, name, MappingProxyType(attributes), "\n".join(content), self.line, first, form)

    def _values(self, rest: str) -> dict[str, Any] | None:
        values: dict[str, Any] = {}
        while rest.strip():
            match = TOKEN.match(rest)
            if match is None:
                message = f"the cell line cannot be read from `{rest.strip()}` on"
                self.findings.add(self.line, message, 'Write words and `key="value"` pairs')
                return None
            rest = rest[match.end() :]
            key, value, word = match.groups()
            if word is not None:
                values[word] = _NOTHING
            elif key in values:
                self.findings.add(self.line, f"`{key}` is given twice", "Keep one")
            else:
                try:
                    values[key] = json.loads(value)
                except json.JSONDecodeError:
                    values[key] = _Unquoted(value)
        return values

    def _complain(self, claims: list[str], prose: bool) -> None:
        kind = claims[0]
        if len(claims) > 1:
            message = f"the cell says it is {' and '.join(f'`{claim}`' for claim in claims)}"
            self.findings.add(self.line, message, "Let it say one of them")
        elif kind in self.kinds:
            what, line = ("prose", "with `[markdown]`") if kind in PROSE else ("code", "without `[markdown]`")
            self.findings.add(self.line, f"a `{kind}` cell is {what}", f"Write its line {line}")
        else:
            what = "a code cell does not say what it is" if kind == "code" else f"`{kind}` is no kind of cell here"
            known = ", ".join(known for known in self.kinds if (known in PROSE) is prose)
            self.findings.add(self.line, what, f"A {'prose' if prose else 'code'} cell is one of: {known}")

    def _attributes(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        known, attributes = self.kinds[kind], {}
        for key, value in values.items():
            if key not in known:
                fix = f"It takes {', '.join(f'`{name}`' for name in known) or 'none'}"
                self.findings.add(self.line, f"a `{kind}` cell has no attribute `{key}`", fix)
            elif type(value) is known[key] or (known[key] is float and type(value) is int):
                attributes[key] = value
            else:
                what = _TYPES[known[key]]
                self.findings.add(self.line, f"`{key}={value}` is not {what}", f"Give `{key}` {what}")
        return attributes

    def _prose(self, body: list[str], first: int) -> list[str]:
        for number, line in enumerate(body, first):
            if not line.startswith("# ") and line.rstrip() not in ("#", ""):
                self.findings.add(number, "a line of prose is not a comment", "Begin it with `# `")
        return [line[2:] if line.startswith("# ") else "" for line in body]


def _trimmed(lines: list[str], first: int) -> tuple[list[str], int]:
    """The lines without blank ones at either end, and the number of the first that is left."""
    filled = [number for number, line in enumerate(lines) if line.strip()]
    return (lines[filled[0] : filled[-1] + 1], first + filled[0]) if filled else ([], first + len(lines))
