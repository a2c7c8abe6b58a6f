"""An overlay's text laid over the lesson that it extends: one list of cells, which then keeps every rule.

setup                       after the setup of the course below
an exercise of its own      after the exercises below, or where its task says `before="..."` or `after="..."`
check, hidden               after the checks that the exercise below has
hidden ... instead=true     the exercise's hidden checks below are left out
wrong, right                beside those that the exercise below has
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from grader.course import percent
from grader.course.percent import Cell
from grader.course.problems import Findings

# What a cell may say in an overlay's text for a lesson that the course below has, too.
KINDS: Mapping[str, Mapping[str, type]] = MappingProxyType(
    {
        **percent.EXERCISES,
        "task": {**percent.EXERCISES["task"], "before": str, "after": str},
        "hidden": {**percent.EXERCISES["hidden"], "instead": bool},
    }
)


def merged(below: Collection[Cell], own: Collection[Cell], findings: Findings) -> list[Cell]:
    """The cells of a lesson: those of the course below, and the overlay's own where they belong."""
    instead = {cell.id for cell in own if cell.attributes.get("instead")}
    cells = [cell for cell in below if not (cell.kind == "hidden" and cell.id in instead)]
    there = {cell.id for cell in below if cell.id is not None}
    for cell in own:
        if cell.attributes.get("instead") and cell.id not in there:
            message = f"`{cell.id}` is no exercise of the course below: there are no checks to leave out"
            findings.add(cell.line, message, "Leave `instead` out")
    for exercise, segment in _by_exercise(own).items():
        if exercise is None:
            at = next((i for i, cell in enumerate(cells) if cell.id is not None), len(cells))
        elif exercise in there:
            at = max(i for i, cell in enumerate(cells) if cell.id == exercise) + 1
        else:
            at = _place(cells, next(cell for cell in segment if cell.id is not None), findings)
        cells[at:at] = segment
    return cells


def _by_exercise(own: Collection[Cell]) -> dict[str | None, list[Cell]]:
    """The cells of each exercise with the prose before them; under None setup, and the prose before that."""
    found: dict[str | None, list[Cell]] = {}
    waiting: list[Cell] = []
    last: str | None = None
    for cell in own:
        if cell.id is None and cell.kind != "setup":
            waiting.append(cell)
            continue
        last = cell.id
        found.setdefault(last, []).extend([*waiting, cell])
        waiting = []
    found.setdefault(last, []).extend(waiting)
    return found


def _place(cells: list[Cell], opens: Cell, findings: Findings) -> int:
    """Where an exercise of the overlay's own begins: at the end, or where its task says."""
    places = {key: opens.attributes[key] for key in ("before", "after") if key in opens.attributes}
    if len(places) > 1:
        findings.add(opens.line, "the task says both `before` and `after`", "Keep one")
    for key, exercise in places.items():
        at = [i for i, cell in enumerate(cells) if cell.id == exercise]
        if at:
            return at[0] if key == "before" else at[-1] + 1
        findings.add(opens.line, f"`{key}` names `{exercise}`, which is no exercise above", "Name one of this lesson")
    return len(cells)
