"""A lesson that was imported from nbgrader: its text, and what the grader can judge of it.

Each cell of the text is one of the imported notebook, so only nbgrader's own rules apply to it.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grader.core import symbols
from grader.course import assertions, exercises, percent, rules_code
from grader.course.assertions import UngradableError
from grader.course.exercises import GRADING, Check, Exercise, Lesson, Task
from grader.course.percent import Cell, Files, Findings

HEADER = "# %% [raw] imported="
GRADE_ID = re.compile(r"[A-Za-z0-9_\-]+")
MAGIC_LINE = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)
FIX = "Rewrite the check as docs/importing.md describes"
# The flags in nbgrader's metadata of each role that are true.
ROLES = {
    "locked": ("locked",),
    "answer": ("solution",),
    "check": ("grade", "locked"),
    "manual": ("grade", "solution"),
    "task": ("task", "locked"),
}
# nbgrader takes out what stands between these words, and stops where it finds them in a cell of another role.
REGIONS = {"SOLUTION": ("answer", "manual"), "HIDDEN TESTS": ("check", "manual"), "MARK SCHEME": ("task",)}


@dataclass(frozen=True)
class ImportedText:
    """The cells, without the first, which contains the notebook's own metadata; attachments of cells by their names."""

    id: str
    path: Path
    shown: str
    cells: tuple[Cell, ...]
    metadata: dict[str, Any]
    attachments: dict[str, Any]


@dataclass(frozen=True)
class GradableParts:
    """Setup and exercises as they are graded, and why a check, by its cell's line, cannot be judged."""

    setup: str
    exercises: tuple[Exercise, ...]
    ungradable: dict[int, UngradableError]


def is_imported(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return file.readline().startswith(HEADER)


def attachments_path(path: Path) -> Path:
    return path.with_suffix(".attachments.json")


def read(path: Path, shown: str) -> ImportedText:
    """Returns the imported text in `path`, which problems call `shown`. Raises CourseError."""
    findings, beside = Findings(shown), attachments_path(path)
    attachments = _object(beside.read_text(encoding="utf-8"), beside.name, findings) if beside.is_file() else {}
    findings.stop()
    return parse(path.read_text(encoding="utf-8"), attachments, path, shown)


def parse(source: str, attachments: dict[str, Any], path: Path, shown: str) -> ImportedText:
    """Returns the imported text `source`, which is in `path` or will be. Raises CourseError."""
    findings = Findings(shown)
    all_cells = percent.read(source, percent.ADOPTED, findings)
    metadata = _object(all_cells[0].source if all_cells else "", "the first cell", findings)
    cells = all_cells[1:]
    seen: set[str | None] = set()
    for cell in cells:
        if cell.id is not None and not GRADE_ID.fullmatch(cell.id):
            findings.add(cell.line, f"`{cell.id}` is no legal grade id", "Use letters, digits, `_` and `-`")
        if cell.id in seen:
            findings.add(cell.line, f"`{cell.id}` is taken: a duplicate id", "Give each graded cell an id of its own")
        seen |= {cell.id} - {None}
        _check_role(cell, findings)
        _check_regions(cell, findings)
        name, extra = cell.attributes.get("attachments"), cell.attributes.get("metadata")
        if name is not None and name not in attachments:
            findings.add(cell.line, f"there are no attachments `{name}` beside the text", "Import the notebook again")
        if extra is not None:
            _object(extra, f"`metadata` of the cell in line {cell.line}", findings)
    findings.stop()
    return ImportedText(path.stem, path, shown, tuple(cells), metadata, attachments)


def _object(source: str, what: str, findings: Findings) -> dict[str, Any]:
    try:
        found = json.loads(source)
    except json.JSONDecodeError:
        found = None
    if isinstance(found, dict):
        return found
    findings.add(1, f"{what} holds no JSON object", "Fix it, or import the notebook again")
    return {}


def _check_role(cell: Cell, findings: Findings) -> None:
    if cell.kind == "imported":
        findings.add(cell.line, "a second `imported` cell", "Keep the first alone")
    if (cell.kind == "task" and cell.form != "markdown") or (cell.kind in ("answer", "check") and cell.form != "code"):
        findings.add(cell.line, f"a `{cell.kind}` cell is {cell.form}", "nbgrader takes no such cell")
    points = cell.attributes.get("points")
    if "points" in percent.ADOPTED[cell.kind] and (points is None or not (math.isfinite(points) and points >= 0)):
        findings.add(cell.line, f"the points of `{cell.id}` are missing or negative", "Write `points=1`")


def _check_regions(cell: Cell, findings: Findings) -> None:
    for words, roles in REGIONS.items():
        opened = None
        for number, line in enumerate(cell.source.split("\n"), cell.first):
            if f"BEGIN {words}" in line:
                if cell.kind not in roles:
                    what = "a plain" if cell.kind == "cell" else f"a `{cell.kind}`"
                    findings.add(number, f"`BEGIN {words}` in {what} cell", f"It belongs in one of: {', '.join(roles)}")
                if opened is not None:
                    findings.add(number, f"`BEGIN {words}` inside another", f"Close the first with `### END {words}`")
                opened = number
            elif f"END {words}" in line:
                opened = None
        if opened is not None:
            findings.add(opened, f"`BEGIN {words}` without its end", f"Close it with `### END {words}`")


def lesson(imported: ImportedText, title: str) -> Lesson:
    """Returns the lesson as it is graded. Raises CourseError, which lists every check that cannot be judged."""
    findings = Findings(imported.shown)
    judged, opening = gradable_parts(imported), _opening(imported.cells)
    reserved = "would not run when it is graded: the grader keeps"
    for cell in imported.cells:
        if cell.line in judged.ungradable:
            wrong = judged.ungradable[cell.line]
            findings.add(cell.first + wrong.line - 1, f"the grader cannot judge `{cell.id}`: {wrong.reason}", FIX)
        elif cell.kind == "check":
            rules_code.check_evidence(cell, (), findings)
        elif cell.id == GRADING and cell.form == "code" and GRADING not in {one.id for one in judged.exercises}:
            findings.add(cell.line, f"`{cell.id}` {reserved} the name for a cell of its own", "Rename it")
        elif cell.form == "code" and (cell.id or "").split("-")[0] == "setup" and cell not in opening:
            message = f"`{cell.id}` {reserved} such names for what stands first"
            findings.add(cell.line, message, "Move it before the first answer, or rename it")
    findings.stop()
    return Lesson(
        id=imported.id,
        title=title,
        path=imported.path,
        files=Files((imported.shown,)),
        setup=judged.setup,
        setup_names=symbols.cell_names(judged.setup).binds,
        exercises=judged.exercises,
        cells=imported.cells,
        tasks=tuple(
            Task(cell.id or "", cell.id or "", cell.attributes["points"], cell.source, cell.line)
            for cell in imported.cells
            if cell.kind in ("manual", "task")
        ),
    )


def gradable_parts(imported: ImportedText) -> GradableParts:
    """Returns the exercises: each answer with the checks that use it, and no answer after it."""
    # The opening, with what checks need. Magics mean nothing on the grader's side.
    opening = (cell.source for cell in _opening(imported.cells) if not cell.source.startswith("%%"))
    sources = [MAGIC_LINE.sub(r"\1pass", source) for source in opening]
    valid = [source for source in sources if symbols.syntax_error(source) is None]
    setup = "\n\n".join([*valid, "from grader.checks import ask"])
    bound = symbols.cell_names(setup).binds
    answers: dict[str, Cell] = {}
    kinds: dict[str, str] = {}
    owners: dict[str, str] = {}
    checks: dict[str, list[Check]] = {}
    ungradable: dict[int, UngradableError] = {}
    for cell in imported.cells:
        if cell.kind == "answer" and cell.id is not None and symbols.syntax_error(cell.source) is None:
            answers[cell.id] = cell
            kinds |= _kinds(cell.source)
            owners |= dict.fromkeys(_kinds(cell.source), cell.id)
        elif cell.kind == "check" and cell.id is not None:
            try:
                source = assertions.read(cell.source, kinds, bound)
            except UngradableError as reason:
                ungradable[cell.line] = reason
                continue
            used = {owners[name] for name in kinds if name in symbols.cell_names(source).free}
            owner = max(used, key=list(answers).index)
            docstring = (ast.get_docstring(ast.parse(cell.source)) or "").strip()
            title = docstring.splitlines()[0] if docstring and not cell.source.lstrip().startswith("#") else cell.id
            checks.setdefault(owner, []).append(replace(Check.of(cell, cell.id, owner, title), source=source))
    found = []
    for name, cell in answers.items():
        if name in checks:
            # Without markers nbgrader takes out the whole cell. The reference keeps them: they may stand behind code.
            marked = "BEGIN SOLUTION" in cell.source
            stub = exercises.stub(cell.source) if marked else "\n".join(exercises.STUB_LINES)
            names = symbols.defined(cell.source)
            found.append(Exercise(name, name, names, stub, cell.source, tuple(checks[name]), cell.line))
    return GradableParts(setup, tuple(found), ungradable)


def _opening(cells: Sequence[Cell]) -> list[Cell]:
    """The code before the first answer: it runs on both sides."""
    answers = (cell.line for cell in cells if cell.kind in ("answer", "check", "manual"))
    begin = next(answers, cells[-1].line + 1 if cells else 0)
    return [cell for cell in cells if cell.form == "code" and cell.line < begin]


def _kinds(answer: str) -> dict[str, str]:
    """What each name is that an answer binds: a function, a class or a value."""
    found = dict.fromkeys(symbols.defined(answer), "value")
    for node in ast.parse(answer).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = "class" if isinstance(node, ast.ClassDef) else "function"
    return found
