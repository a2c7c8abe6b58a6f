"""Reads a percent script: which cells it has, what each one is, and on which lines it stands.

The dialect is fixed (jupytext's `py:percent`, less its header): a line `# %%` opens a cell, words and `key="value"`
pairs after it say what the cell is. Jupytext itself is not used here, because importing it takes longer than
grading a submission.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from grader.course.problems import Findings

MARKER = re.compile(r"# %%(?=\s|$)(.*)")
TOKEN = re.compile(
    r'\s*(?:([A-Za-z_]\w*)=("(?:[^"\\]|\\.)*"|\[[^\]]*\]|[^\s"\[]+)|(\[(?:markdown|raw|code)\]|[A-Za-z_]\w*))(?=\s|$)'
)

# What a cell may be in each of the two kinds of file, and the attributes it takes beside the id that it names.
EXERCISES: Mapping[str, Mapping[str, type]] = {
    "text": {},
    "setup": {},
    "task": {"stars": int, "minutes": int, "skills": str, "points": float},
    "answer": {"timeout": float},
    "check": {"name": str, "points": float, "observed": bool},
    "hidden": {"name": str, "points": float, "observed": bool},
    "why": {},
    "wrong": {"because": str},
    "right": {},
}
LESSON: Mapping[str, Mapping[str, type]] = {"text": {}, "code": {"tags": list}, "predict": {}}
# An imported notebook (`grader.course.nbgrader_source`): each cell line keeps the role that nbgrader gave the cell.
_KEPT: Mapping[str, type] = {"tags": list, "metadata": str, "attachments": str}
ADOPTED: Mapping[str, Mapping[str, type]] = {
    "imported": {},
    "cell": _KEPT,
    "locked": _KEPT,
    "answer": _KEPT,
    "check": {"points": float, "observed": bool, **_KEPT},
    "manual": {"points": float, **_KEPT},
    "task": {"points": float, **_KEPT},
}
PROSE = frozenset({"text", "task", "why", "predict"})
_NAMING = frozenset({"task", "answer", "check", "hidden", "why", "wrong", "right", "predict"}) | {
    "imported",
    "locked",
    "manual",
}
_SAID = {int: "a whole number", float: "a number", str: 'text in "quotes"', bool: "true or false", list: "a [list]"}


@dataclass(frozen=True)
class Cell:
    """One authored cell. `line` is that of its `# %%`; `first` is that of the first line of `source`.

    `form` is the notebook's word for it: code, markdown or raw.
    """

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


def read(text: str, kinds: Mapping[str, Mapping[str, type]], findings: Findings) -> list[Cell]:
    """The cells of a percent script; what cannot be understood goes to `findings`, and its cell is left out."""
    lines = text.split("\n")
    starts = [n for n, line in enumerate(lines) if MARKER.match(line)]
    before = [number for number, line in enumerate(lines[: starts[0] if starts else None], 1) if line.strip()]
    if before or not starts:
        findings.add(
            before[0] if before else len(lines), "the first line is no cell line", "Begin the file with a `# %%` line"
        )
    cells = []
    for start, end in pairwise([*starts, len(lines)]):
        cell = _cell(lines[start], lines[start + 1 : end], start + 1, kinds, findings)
        if cell is not None:
            cells.append(cell)
    return cells


def _cell(
    marker: str, body: list[str], line: int, kinds: Mapping[str, Mapping[str, type]], findings: Findings
) -> Cell | None:
    match = MARKER.match(marker)
    assert match is not None
    words, values = _tokens(match[1], line, findings)
    if words is None:
        return None
    named = [key for key in values if key in _NAMING]
    adopted = kinds is ADOPTED
    bracket = next((word for word in sorted(words) if word == "[markdown]" or (adopted and word[0] == "[")), None)
    words.discard(bracket or "")
    prose = bracket == "[markdown]"
    claims = [*sorted(words), *named] or ["cell" if adopted else _unnamed(prose, values, kinds)]
    if len(claims) > 1 or claims[0] not in kinds or (not adopted and (claims[0] in PROSE) is not prose):
        _complain(claims, prose, line, kinds, findings)
        return None
    kind = claims[0]
    name = values.pop(kind, _Unquoted("nothing")) if kind in _NAMING else None
    if kind in _NAMING and type(name) is not str:
        findings.add(line, f"`{kind}` names {name!s}", f'Write `{kind}="topic-thing"`')
        return None
    attributes = _attributes(kind, values, kinds[kind], line, findings)
    if adopted:  # its cells are kept to the letter: blank lines that a comment sign makes visible are theirs
        content, first = _trimmed(body, line + 1)
        content = _prose(content, first, findings) if bracket else content
    else:
        content, first = _trimmed(_prose(body, line + 1, findings) if prose else body, line + 1)
    form = bracket.strip("[]") if bracket else "code"
    return Cell(kind, name, MappingProxyType(attributes), "\n".join(content), line, first, form)


def _trimmed(lines: list[str], first: int) -> tuple[list[str], int]:
    """The lines without blank ones at either end, and the number of the first that is left."""
    while lines and not lines[0].strip():
        lines, first = lines[1:], first + 1
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines, first


def _unnamed(prose: bool, values: Mapping[str, Any], kinds: Mapping[str, Mapping[str, type]]) -> str:
    """The kind of a cell whose line names none; an attribute that only a kind could be is taken for one."""
    kind = "text" if prose else "code"
    strange = [key for key in values if key not in kinds.get(kind, {})]
    return strange[0] if strange else kind


def _tokens(rest: str, line: int, findings: Findings) -> tuple[set[str] | None, dict[str, Any]]:
    words: set[str] = set()
    values: dict[str, Any] = {}
    place = 0
    while rest[place:].strip():
        match = TOKEN.match(rest, place)
        if match is None:
            unread = rest[place:].strip()
            findings.add(
                line, f"the cell line cannot be read from `{unread}` on", 'Write words and `key="value"` pairs'
            )
            return None, {}
        place = match.end()
        key, value, word = match.groups()
        if word is not None:
            words.add(word)
        elif key in values:
            findings.add(line, f"`{key}` is given twice", "Keep one")
        else:
            values[key] = _value(value)
    return words, values


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return _Unquoted(text)


class _Unquoted(str):
    """A bare word where a value was expected: of no type that an attribute takes."""


def _complain(
    claims: list[str], prose: bool, line: int, kinds: Mapping[str, Mapping[str, type]], findings: Findings
) -> None:
    if len(claims) > 1:
        findings.add(line, f"the cell says it is {' and '.join(f'`{c}`' for c in claims)}", "Let it say one of them")
    elif claims[0] in kinds:
        what, wanted = ("prose", "with `[markdown]`") if claims[0] in PROSE else ("code", "without `[markdown]`")
        findings.add(line, f"a `{claims[0]}` cell is {what}", f"Write its line {wanted}")
    else:
        what = "a code cell does not say what it is" if claims == ["code"] else f"`{claims[0]}` is no kind of cell here"
        known = ", ".join(kind for kind in kinds if (kind in PROSE) is prose)
        findings.add(line, what, f"A {'prose' if prose else 'code'} cell is one of: {known}")


def _attributes(
    kind: str, values: dict[str, Any], known: Mapping[str, type], line: int, findings: Findings
) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            takes = ", ".join(f"`{name}`" for name in known)
            mend = f"It takes {takes}" if known else "It takes none"
            findings.add(line, f"a `{kind}` cell has no attribute `{key}`", mend)
        elif not _is(value, known[key]):
            findings.add(line, f"`{key}={value}` is not {_SAID[known[key]]}", f"Give `{key}` {_SAID[known[key]]}")
        else:
            attributes[key] = value
    return attributes


def _is(value: Any, wanted: type) -> bool:
    if isinstance(value, _Unquoted):
        return False
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted


def _prose(body: list[str], first: int, findings: Findings) -> list[str]:
    plain = []
    for number, line in enumerate(body, first):
        if line.startswith("# "):
            plain.append(line[2:])
        elif line.rstrip() in ("#", ""):
            plain.append("")
        else:
            findings.add(number, "a line of prose is not a comment", "Begin it with `# `")
    return plain
