"""A small table: what was found, in an answer or in its program, against what was wanted; and the same as text."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from grader.checks.drawings import table
from grader.checks.failure import FailedComparison, Side
from grader.checks.outcomes import WIDTH
from grader.checks.verbs import Program
from grader.core.text import legible
from grader.program.hlo import KINDS

LABELS = {
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
MAX_ROWS = 8
MAX_SHOWN = 100  # characters of a value


@dataclass(frozen=True)
class FactRow:
    """One line of the table; `failed` marks the one that the check failed by."""

    label: str
    found: str
    wanted: str = ""
    failed: bool = False


def rows(compared: FailedComparison | None, read: list[tuple[Program, str]], message: str) -> list[FactRow]:
    """Returns what a check compared, unless its message states it, then facts of the program that it read."""
    fact = compared.found.fact if compared else None
    judged = None
    # A table would only repeat a message that names both values.
    if compared and compared.found.plain and compared.wanted.plain and (fact or not _stated(compared, message)):
        owner = _owner(compared.wanted) if compared.wanted.fact else ""
        wanted = f"{compared.relation}{value(compared.wanted.value)}{owner and f', as in `{owner}`'}"
        judged = FactRow(_label(compared), value(compared.found.value), wanted, failed=True)
    table_rows = [judged] if judged else []
    program = fact[0] if fact else read[0][0] if read else None
    if program is not None and read:
        about = [name for one, name in read if one is program]
        shown = (fact[2] or fact[1]) if fact and judged else None
        table_rows += [row for name, row in _overview(program, about) if name != shown or shown in KINDS]
    return table_rows[:MAX_ROWS]


def _label(compared: FailedComparison) -> str:
    if compared.found.fact is None:
        return f"`{ast.unparse(compared.found.node)}`"
    _, name, kind = compared.found.fact
    label = {"count": f"{kind} operations", "elements": f"elements of {kind}"}.get(name) or LABELS.get(name, name)
    owner = _owner(compared.found) if compared.wanted.fact else ""
    return f"{label} of `{owner}`" if owner else label


def _owner(side: Side) -> str:
    """The program's own name in the check: `many` of `many.operations`."""
    node = side.origin.func if isinstance(side.origin, ast.Call) else side.origin
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def _stated(compared: FailedComparison, message: str) -> bool:
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
    first = [name for name in about if name in LABELS or name in kinds]
    if any(name in KINDS or name == "collectives" for name in about):
        first += kinds
    for name in dict.fromkeys([*first, *kinds, *ALWAYS]):
        if name in LABELS:
            known = getattr(program.facts, name)
            yield name, FactRow(LABELS[name], "not told" if known is None else value(known))
        elif name:
            found = [one for one in program.facts.collectives if one.kind == name]
            looped = ", in a loop" if any(one.in_loop for one in found) else ""
            yield name, FactRow(name, f"{len(found)} ({sum(one.elements for one in found):,} elements{looped})")
        else:
            yield name, FactRow("collectives", "none")


def value(given: Any) -> str:
    """Returns a value in short: many equal items as `[64] * 8`."""
    if type(given) is int:
        return f"{given:,}"
    if type(given) in (list, tuple) and len(given) > 3 and all(one == given[0] for one in given):
        one = f"[{given[0]!r}]" if type(given) is list else f"({given[0]!r},)"
        return legible(f"{one} * {len(given)}", MAX_SHOWN)
    return legible(f"{given!r}", MAX_SHOWN)


def html(rows: list[FactRow]) -> str:
    """Returns an HTML table, without colours: the row that the check failed by is marked and bold."""
    columns = 3 if any(row.wanted for row in rows) else 2
    names = ["in the program" if any(not row.failed for row in rows) else "", "found", "wanted"]
    lines = [_row("th", names[:columns])]
    for row in rows:
        cells = [f"✗ {row.label}" if row.failed else row.label, row.found, row.wanted]
        lines.append(_row("td", map(_code, cells[:columns]), "; font-weight: bold" if row.failed else ""))
    return table("".join(lines[1:]), lines[0])


def _row(tag: str, cells: Any, style: str = "") -> str:
    sides = ("left", *["right"] * 2)
    return "<tr>{}</tr>".format(
        "".join(
            f'<{tag} style="text-align: {side}; padding: 2px 16px 2px 0{style}">{cell}</{tag}>'
            for side, cell in zip(sides, cells, strict=False)
        )
    )


def _code(text: str) -> str:
    """Escaped, with `code` as code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def plain(rows: list[FactRow]) -> list[str]:
    """Returns lines of text: what the check failed by, and as much of the rest as two lines hold."""
    failed = [f"{row.label}: found {row.found}; wanted {row.wanted}." for row in rows if row.failed]
    stated: list[str] = []
    lines: list[str] = []
    for row in rows:
        longer = [*stated, f"{row.label}: {row.found}"]
        wrapped = _wrapped(f"In the program: {'; '.join(longer)}.")
        if not row.failed and len(wrapped) <= 2:
            stated, lines = longer, wrapped
    return [*[line for text in failed for line in _wrapped(text)][:2], *lines]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
