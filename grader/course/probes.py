"""Find the probes of a check cell, and take them out of it.

A check cell reaches an answer through `ask`, `error` and `program`. Their first argument is an answer's name or a
probe: a `def` of the cell, or a lambda written right there. A probe's text runs beside the answer; the rest of the
cell runs where the verdict is made, and there a probe is only its text.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import lru_cache

from grader.core import symbols
from grader.core.symbols import NOT_IN_PROBES, REACHING
from grader.course.percent import Findings, Problem


def probes(check_source: str, answer_names: Collection[str]) -> list[ast.FunctionDef | ast.Lambda]:
    """Returns every probe of the cell, in reading order. `answer_names`: those of this answer and of earlier ones."""
    cell = _parsed(check_source)
    asked = cell.asked - set(answer_names)
    nodes: list[ast.FunctionDef | ast.Lambda] = [node for node in cell.defs if node.name in asked]
    nodes += [call.args[0] for call in cell.calls if call.args and isinstance(call.args[0], ast.Lambda)]
    return sorted(nodes, key=lambda node: (node.lineno, node.col_offset))


def runs_probe(check_source: str, answer_names: Collection[str]) -> bool:
    """Whether the cell calls a probe beside the answer, with `ask` or `error`; a program's is only traced."""
    first = [call.args[0] for call in _parsed(check_source).calls if call.args and ast.unparse(call.func) != "program"]
    return any(not (isinstance(one, ast.Name) and one.id in answer_names) for one in first)


def split(check_source: str, answer_names: Collection[str]) -> ast.Module:
    """Returns the cell without the code of its probes, ready to compile; every other line keeps its number.

    A lambda that is a probe becomes `Probe("<its text>")`; a `def` becomes `name = Probe("<its text>", "name")`.
    The caller binds `Probe`, and binds each answer's name to something that `ask` understands.
    """
    asked = _parsed(check_source).asked
    return ast.fix_missing_locations(_Splitter(asked - set(answer_names)).visit(ast.parse(check_source)))


class _ParsedCell:
    """A cell's tree, walked once. `calls` are those of ask, error and program; `asked` the names passed to them."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.names = [node for node in nodes if isinstance(node, ast.Name)]
        self.defs = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        self.calls = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in REACHING]
        first = (call.args[0] for call in self.calls if call.args)
        self.asked = frozenset(node.id for node in first if isinstance(node, ast.Name))


@lru_cache(maxsize=256)
def _parsed(source: str) -> _ParsedCell:
    return _ParsedCell(ast.parse(source))


class _Splitter(ast.NodeTransformer):
    """Takes the probes' code out; with `blank`, the names in first place too, so that only the rest is left."""

    def __init__(self, probe_names: Collection[str], blank: bool = False) -> None:
        self._probe_names = probe_names
        self._blank = blank

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in REACHING and node.args:
            first = node.args[0]
            if isinstance(first, ast.Lambda):
                node.args[0] = ast.copy_location(_probe_call(ast.unparse(first)), first)
            elif isinstance(first, ast.Name) and self._blank:
                node.args[0] = ast.copy_location(ast.Constant(None), first)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name not in self._probe_names:
            return self.generic_visit(node)
        target = ast.Name(node.name, ast.Store())
        return ast.copy_location(ast.Assign([target], _probe_call(ast.unparse(node), node.name)), node)


def _probe_call(*arguments: str) -> ast.Call:
    return ast.Call(ast.Name("Probe", ast.Load()), [ast.Constant(argument) for argument in arguments], [])


def misuses(check_source: str, answer_names: Collection[str], setup_names: Collection[str]) -> list[Problem]:
    """Returns everything in the cell that would not mean the same on every surface; lines count within the cell.

    These are wrong first arguments, names used where they may not be, probes with free names, and names that nothing
    binds.
    """
    cell, findings = _parsed(check_source), Findings("")
    probe_names = cell.asked - set(answer_names)
    rest = _Splitter(probe_names, blank=True).visit(ast.parse(check_source))
    _check_calls(cell, answer_names, findings)
    for probe in probes(check_source, answer_names):
        _check_probe(probe, {*answer_names, *setup_names, *symbols.BUILTINS}, findings)
    _check_rest(rest, set(answer_names), set(setup_names), findings)
    probe_names &= {node.name for node in cell.defs}
    for node in ast.walk(rest):
        if isinstance(node, ast.Name) and node.id in probe_names and isinstance(node.ctx, ast.Load):
            message = f"`{node.id}` is a probe and is also used directly, on the grader's side"
            fix = f"Ask for it with `ask({node.id}, ...)`, or write a second function for the check's own use"
            findings.add(node.lineno, message, fix)
    for node in cell.names:
        if isinstance(node.ctx, ast.Store) and node.id in probe_names:
            findings.add(node.lineno, f"`{node.id}` is a probe and is also assigned to", "Choose another name")
    return sorted(findings.problems, key=lambda problem: problem.line)


def _check_calls(cell: _ParsedCell, answer_names: Collection[str], findings: Findings) -> None:
    if not cell.calls:
        findings.add(1, "the check asks the answer nothing", "Call `ask`, `error` or `program`")
    known = {*answer_names, *(node.name for node in cell.defs)}
    for call in cell.calls:
        first = call.args[0] if call.args else None
        if not isinstance(first, ast.Lambda) and not (isinstance(first, ast.Name) and first.id in known):
            shown = f"`{ast.unparse(first)}`" if first is not None else "nothing"
            what = f"`{ast.unparse(call.func)}` is called with {shown}, which is neither an answer's name nor a probe"
            fix = "Pass an answer's name, a `def` of this cell or a lambda first, and data after it"
            findings.add(call.lineno, what, fix)
    called = {id(call.func) for call in cell.calls}
    for node in cell.names:
        if node.id in REACHING and id(node) not in called:
            fix = f"Call it where it is needed: `{node.id}(answer, ...)`"
            findings.add(node.lineno, f"`{node.id}` is used other than by calling it", fix)


def _check_probe(probe: ast.FunctionDef | ast.Lambda, allowed: set[str], findings: Findings) -> None:
    what = f"the probe `{probe.name}`" if isinstance(probe, ast.FunctionDef) else "a lambda probe"
    for name in sorted(symbols.cell_names(ast.unparse(probe)).free - (allowed - NOT_IN_PROBES)):
        if name in NOT_IN_PROBES:
            message = f"{what} uses `{name}`, which judges or draws on the grader's side only"
            fix = "Return data from the probe, and judge it in the check"
        else:
            message = f"{what} uses `{name}`, which is no name of setup, of an answer or of its own"
            fix = f"Pass `{name}` as an argument, or bind it in a setup cell"
        findings.add(symbols.line_of(probe, name), message, fix)


def _check_rest(rest: ast.Module, answers: set[str], setup: set[str], findings: Findings) -> None:
    """What is wrong with the names of the cell's own part, where its probes and first arguments are gone."""
    names = symbols.cell_names(ast.unparse(rest))
    for name in sorted(names.free & answers):
        message = f"the answer's name `{name}` is used outside `ask`, `error`, `program` and probes"
        fix = f"Write `ask({name}, ...)` with data, or do it inside a probe"
        findings.add(symbols.line_of(rest, name), message, fix)
    for name in sorted(names.binds & (answers | setup)):
        whose = "is an answer's name" if name in answers else "setup binds"
        message = f"the check binds `{name}`, which {whose}"
        findings.add(symbols.line_of(rest, name), message, "Choose another name")
    for name in sorted(names.free - answers - setup - symbols.BUILTINS - {"Probe"}):
        message = f"the check uses `{name}`, which neither setup nor this cell binds"
        fix = "Bind it in this cell or in a setup cell: each check stands alone"
        findings.add(symbols.line_of(rest, name), message, fix)
