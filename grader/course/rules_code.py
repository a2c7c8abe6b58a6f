"""What the code of an exercise may say: that it parses, which names it binds, and how a check reaches an answer."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from grader.core import symbols
from grader.course import exercises, probes, rules_evidence
from grader.course.exercises import BEGIN_SOLUTION, END_SOLUTION, Parts
from grader.course.percent import Cell
from grader.course.problems import Findings


def parses(cell: Cell, findings: Findings, source: str | None = None, what: str = "") -> bool:
    """Whether the cell's code parses; says where it does not. `source` stands for the cell's own where it differs."""
    wrong = symbols.syntax_error(cell.source if source is None else source)
    if wrong is not None:
        line = cell.first + wrong[0] - 1
        findings.add(line, f"{what}a Python syntax error: {wrong[1]}", "Mend the code")
    return wrong is None


def setup_first(cells: Iterable[Cell], findings: Findings) -> None:
    """Setup stands before the exercises of its file."""
    begun = False
    for cell in cells:
        begun = begun or cell.id is not None
        if begun and cell.kind == "setup":
            findings.add(cell.line, "a setup cell stands after an exercise", "Put it before the first task")


def setup(cells: Iterable[Cell], findings: Findings) -> frozenset[str]:
    """The names that setup cells bind."""
    bound: set[str] = set()
    for cell in cells:
        if not parses(cell, findings):
            continue
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                findings.add(cell.first + node.lineno - 1, "a star import hides which names it binds", "Name them")
        if "Probe" in symbols.cell_names(cell.source).binds:
            findings.add(cell.line, "setup binds `Probe`, a name that the grader keeps", "Choose another name")
        bound.update(symbols.cell_names(cell.source).binds)
    return frozenset(bound)


def answer_names(of: Parts) -> tuple[str, ...] | None:
    """The names of this exercise's answer, None when its stub does not parse."""
    answer = of.one("answer")
    if answer is None or symbols.syntax_error(exercises.stub(answer.source)) is not None:
        return None
    return symbols.defined(exercises.stub(answer.source))


def answer(of: Parts, setup_names: Collection[str], findings: Findings) -> None:
    """The answer cell, and every wrong and right answer beside it."""
    cell = of.one("answer")
    if cell is None:
        return
    whole = _markers(cell, findings)
    wanted = answer_names(of)
    if whole and parses(cell, findings):
        if parses(cell, findings, exercises.stub(cell.source), "without its solution, ") and not wanted:
            mend = "Leave a `def`, `class` or `name = None` outside the SOLUTION markers"
            findings.add(cell.line, "the stub binds no name that a check could ask for", mend)
        _binds_setup(cell, setup_names, findings)
    for variant in of.of("wrong", "right"):
        if not parses(variant, findings):
            continue
        _binds_setup(variant, setup_names, findings)
        for name in wanted or ():
            if name not in symbols.cell_names(variant.source).binds and name not in setup_names:
                mend = f"Write the whole answer cell, with `{name}`"
                findings.add(variant.line, f"a {variant.kind} answer does not bind `{name}`", mend)


def _binds_setup(cell: Cell, setup_names: Collection[str], findings: Findings) -> None:
    for name in sorted(symbols.cell_names(cell.source).binds & {*setup_names, "Probe"}):
        line = cell.first + symbols.line_of(ast.parse(cell.source), name) - 1
        message = f"the answer binds `{name}`, which setup binds" if name != "Probe" else "the answer binds `Probe`"
        findings.add(line, message, "Choose another name, or leave it to setup")


def _markers(cell: Cell, findings: Findings) -> bool:
    """Whether the SOLUTION markers are there, paired, and written as nbgrader wants them."""
    before = len(findings.problems)
    open_line = None
    regions = 0
    for number, line in enumerate(cell.source.split("\n"), cell.first):
        begins, ends = "BEGIN SOLUTION" in line, "END SOLUTION" in line
        if (begins and line.strip() != BEGIN_SOLUTION) or (ends and line.strip() != END_SOLUTION):
            findings.add(number, "a SOLUTION marker shares its line", f"Write `{BEGIN_SOLUTION}` on a line of its own")
        elif begins and open_line is not None:
            findings.add(number, "a solution begins inside another", f"Close the first with `{END_SOLUTION}`")
        elif begins:
            open_line, regions = number, regions + 1
        elif ends and open_line is None:
            findings.add(number, "a solution ends that did not begin", f"Open it with `{BEGIN_SOLUTION}`")
        elif ends:
            open_line = None
    if open_line is not None:
        findings.add(open_line, "a solution does not end", f"Close it with `{END_SOLUTION}`")
    if regions == 0 and len(findings.problems) == before:
        mend = f"Put the answer between `{BEGIN_SOLUTION}` and `{END_SOLUTION}`"
        findings.add(cell.line, "the answer has no SOLUTION markers", mend)
    return len(findings.problems) == before


def check(cell: Cell, answers: Collection[str] | None, setup_names: Collection[str], findings: Findings) -> None:
    """One check cell. `answers`: the names of this exercise's answer and of earlier ones, None when not known."""
    if not parses(cell, findings) or answers is None:
        return
    if exercises.title_of_check(cell.source) is None:
        mend = 'Open it with """One sentence that the learner reads."""'
        findings.add(cell.line, "the check has no one-line docstring", mend)
    for misuse in probes.misuses(cell.source, answers, setup_names):
        findings.add(cell.first + misuse.line - 1, misuse.message, misuse.mend)
    rules_evidence.check(cell, answers, findings)
    for node in ast.parse(cell.source).body[1:]:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call):
            line = cell.first + node.lineno - 1
            findings.add(line, f"`{ast.unparse(node)}` judges nothing", 'Write `require(..., "what should hold")`')
