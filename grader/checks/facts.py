"""A small table: what was found, in an answer or in its program, against what was wanted; and the same as text."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from grader.checks.evaluate import is_plain
from grader.checks.failure import FailedComparison, Side, fact
from grader.checks.outcomes import WIDTH
from grader.checks.verbs import Program
from grader.core.text import legible
from grader.program.hlo import KINDS

WORDS = {
    "devices": "devices",
    "loops": "loops",
    "operations": "operations",
    "intermediates": "elements of the largest array",
    "argument_bytes": "argument bytes per device",
    "output_bytes": "output bytes per device",
    "temp_bytes": "temporary bytes per device",
    "alias_bytes": "bytes taken over from arguments",
    "flops": "flops per device",
}
ALWAYS = ("loops", "argument_bytes", "output_bytes", "temp_bytes")
MOST_ROWS = 8
MOST_SHOWN = 100  # characters of a value
LEFT, RIGHT = "text-align: left; padding: 2px 16px 2px 0", "text-align: right; padding: 2px 16px 2px 0"


@dataclass(frozen=True)
class FactRow:
    """One line of the table; `missed` is the one that the check failed by."""

    label: str
    found: str
    wanted: str = ""
    missed: bool = False


def rows(compared: FailedComparison | None, read: list[tuple[Program, str]], message: str) -> list[FactRow]:
    """What a check compared, unless its message says as much, then what stands in the programs that it read."""
    judged = None if compared is None else _judged(compared)
    programs = list({id(program): program for program, _ in read}.values())
    asked = fact(compared.found, compared.frame) if compared else None
    if compared and judged and not asked and _said(compared, message):
        judged = None  # a table would only repeat it
    if not programs:
        return [judged] if judged else []
    program = asked[0] if asked else programs[0]
    about = [name for one, name in read if one is program]
    told = (asked[2] or asked[1]) if asked and judged else None
    overview = [row for name, row in _overview(program, about) if name != told or told in KINDS]
    return [*([judged] if judged else []), *overview][:MOST_ROWS]


def _judged(compared: FailedComparison) -> FactRow | None:
    found, wanted = compared.found, compared.wanted
    if not all(side.known and is_plain(side.value) for side in (found, wanted)):
        return None
    other = fact(wanted, compared.frame)
    like = f", as in `{_owner(wanted)}`" if other and _owner(wanted) else ""
    return FactRow(_label(compared), value(found.value), f"{compared.relation}{value(wanted.value)}{like}", missed=True)


def _label(compared: FailedComparison) -> str:
    asked = fact(compared.found, compared.frame)
    if asked is None:
        return f"`{compared.found.text}`"
    _, name, kind = asked
    said = {"count": f"{kind} operations", "elements": f"elements of {kind}"}.get(name) or WORDS.get(name, name)
    other = fact(compared.wanted, compared.frame)
    return f"{said} of `{_owner(compared.found)}`" if other and _owner(compared.found) else said


def _owner(side: Side) -> str:
    """The program's own name in the check: `many` of `many.operations`."""
    node = side.origin.func if isinstance(side.origin, ast.Call) else side.origin
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def _said(compared: FailedComparison, message: str) -> bool:
    """Whether the check's own sentence names both values."""
    both = (_single(compared.found.value), _single(compared.wanted.value))
    return all(any(text in message for text in (value(one), str(one), f"{one!r}")) for one in both)


def _single(given: Any) -> Any:
    """The item that all items of a list are, else what was given."""
    alike = type(given) is list and given and all(one == given[0] for one in given)
    return given[0] if alike else given


def _overview(program: Program, about: list[str]) -> Iterator[tuple[str, FactRow]]:
    """What was asked about first, then what says most of a program."""
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in program.facts.collectives)]
    if program.facts.devices > 1 and not kinds:
        kinds = [""]
    first = [name for name in about if name in WORDS or name in kinds]
    if any(name in KINDS or name == "collectives" for name in about):
        first += kinds
    for name in dict.fromkeys([*first, *kinds, *ALWAYS]):
        if name in WORDS:
            known = getattr(program.facts, name)
            yield name, FactRow(WORDS[name], "not told" if known is None else value(known))
        elif name:
            yield name, FactRow(name, _collectives(program, name))
        else:
            yield name, FactRow("collectives", "none")


def _collectives(program: Program, kind: str) -> str:
    found = [one for one in program.facts.collectives if one.kind == kind]
    looped = ", in a loop" if any(one.in_loop for one in found) else ""
    return f"{len(found)} ({sum(one.elements for one in found):,} elements{looped})"


def value(given: Any) -> str:
    """A value in short: many equal items as `[64] * 8`."""
    if type(given) is int:
        return f"{given:,}"
    if type(given) in (list, tuple) and len(given) > 3 and all(one == given[0] for one in given):
        one = f"[{given[0]!r}]" if type(given) is list else f"({given[0]!r},)"
        return legible(f"{one} * {len(given)}", MOST_SHOWN)
    return legible(f"{given!r}", MOST_SHOWN)


def html(table: list[FactRow]) -> str:
    """As an HTML table, without colours: the row that the check failed by is marked and bold."""
    with_wanted = any(row.wanted for row in table)
    of = "in the program" if any(not row.missed for row in table) else ""
    names = [of, "found", *(["wanted"] if with_wanted else [])]
    head = "".join(f'<th style="{LEFT if i == 0 else RIGHT}">{name}</th>' for i, name in enumerate(names))
    body = []
    for row in table:
        cells = [(f"✗ {row.label}" if row.missed else row.label), row.found, *([row.wanted] if with_wanted else [])]
        weight = "; font-weight: bold" if row.missed else ""
        body.append(
            "".join(f'<td style="{RIGHT if i else LEFT}{weight}">{_code(cell)}</td>' for i, cell in enumerate(cells))
        )
    lines = "".join(f"<tr>{cells}</tr>" for cells in body)
    inside = f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
    return f'<table style="border-collapse: collapse; margin: 4px 0">{inside}</table>'


def _code(text: str) -> str:
    """Escaped, with `code` as code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def plain(table: list[FactRow]) -> list[str]:
    """As lines of text: what the check failed by, and as much of the rest as two lines hold."""
    lines = [line for row in table if row.missed for line in _wrapped(_missed(row))]
    rest: list[str] = []
    for row in table:
        if not row.missed and len(_wrapped(_program([*rest, f"{row.label}: {row.found}"]))) <= 2:
            rest.append(f"{row.label}: {row.found}")
    return [*lines[:2], *(_wrapped(_program(rest)) if rest else [])]


def _missed(row: FactRow) -> str:
    return f"{row.label}: found {row.found}; wanted {row.wanted}."


def _program(facts: list[str]) -> str:
    return f"In the program: {'; '.join(facts)}."


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
