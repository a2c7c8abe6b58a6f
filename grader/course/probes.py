"""Finds the probes of a check cell, and takes them out of it.

A check cell reaches an answer through `ask`, `error` and `program`. Their first argument is an answer's name or a
probe: a `def` of the cell, or a lambda written right there. A probe's text runs beside the answer; the rest of the
cell runs where the verdict is made, and there a probe is only its text.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from grader.core import symbols
from grader.core.vocabulary import NOT_IN_PROBES, REACHING


@dataclass(frozen=True)
class CheckProbe:
    """One probe. `text` is a `def` statement when `name` is given, else a lambda; `line` counts within the cell."""

    name: str | None
    text: str
    line: int
    free: frozenset[str]
    node: ast.FunctionDef | ast.Lambda = field(repr=False, compare=False)


@dataclass(frozen=True)
class Misuse:
    """Something in a check cell that would not mean the same on every surface; `line` counts within the cell."""

    line: int
    message: str
    mend: str


def probes(check_source: str, answer_names: Collection[str]) -> list[CheckProbe]:
    """Every probe of the cell, in reading order. `answer_names`: the names of this answer and of earlier ones."""
    cell = _parsed(check_source)
    asked = cell.asked - set(answer_names)
    nodes: list[ast.FunctionDef | ast.Lambda] = [
        node for node in cell.nodes if isinstance(node, ast.FunctionDef) and node.name in asked
    ]
    nodes += [call.args[0] for call in cell.calls if call.args and isinstance(call.args[0], ast.Lambda)]
    found = []
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        name, text = getattr(node, "name", None), ast.unparse(node)
        found.append(CheckProbe(name, text, node.lineno, symbols.cell_names(text).free, node))
    return found


def split(check_source: str, answer_names: Collection[str], filename: str = "<check>") -> ast.Module:
    """The cell without the code of its probes, ready to compile; every other line keeps its number.

    A lambda that is a probe becomes `Probe("<its text>")`; a `def` becomes `name = Probe("<its text>", "name")`.
    Whoever runs the module binds `Probe`, and binds each answer's name to something that `ask` understands.
    """
    asked = _parsed(check_source).asked
    module = _Splitter(asked - set(answer_names)).visit(ast.parse(check_source, filename))
    return ast.fix_missing_locations(module)


class _Parsed:
    """A cell's tree, walked once. `calls` are those of ask, error and program; `asked` the names passed to them."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = tuple(ast.walk(tree))
        self.calls = tuple(
            node
            for node in self.nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REACHING
        )
        self.asked = frozenset(
            call.args[0].id for call in self.calls if call.args and isinstance(call.args[0], ast.Name)
        )
        self.defs = frozenset(node.name for node in self.nodes if isinstance(node, ast.FunctionDef))


@lru_cache(maxsize=256)
def _parsed(source: str) -> _Parsed:
    return _Parsed(ast.parse(source))


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
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name not in self._probe_names:
            self.generic_visit(node)
            return node
        target = ast.Name(node.name, ast.Store())
        assign = ast.Assign([target], _probe_call(ast.unparse(node), node.name))
        return ast.copy_location(assign, node)


def _probe_call(*arguments: str) -> ast.Call:
    return ast.Call(ast.Name("Probe", ast.Load()), [ast.Constant(argument) for argument in arguments], [])


def misuses(check_source: str, answer_names: Collection[str], setup_names: Collection[str]) -> list[Misuse]:
    """Everything in the cell that breaks the vocabulary's rules: wrong first arguments, names used where they may not
    be, probes with free names, names that nothing binds."""
    cell = _parsed(check_source)
    asked = cell.asked - set(answer_names)
    found = [*_calls(cell, answer_names), *_verbs_elsewhere(cell)]
    for probe in probes(check_source, answer_names):
        found.extend(_probe_names(probe, {*answer_names, *setup_names}))
    rest = _Splitter(asked, blank=True).visit(ast.parse(check_source))
    found.extend(_rest_names(rest, answer_names, setup_names))
    found.extend(_probes_elsewhere(rest, cell, asked & cell.defs))
    return sorted(found, key=lambda misuse: misuse.line)


def _calls(cell: _Parsed, answer_names: Collection[str]) -> Iterator[Misuse]:
    if not cell.calls:
        yield Misuse(1, "the check asks the answer nothing", "Call `ask`, `error` or `program`")
    for call in cell.calls:
        assert isinstance(call.func, ast.Name)
        first = call.args[0] if call.args else None
        if isinstance(first, ast.Lambda):
            continue
        if isinstance(first, ast.Name) and (first.id in answer_names or first.id in cell.defs):
            continue
        shown = f"`{ast.unparse(first)}`" if first is not None else "nothing"
        yield Misuse(
            call.lineno,
            f"`{call.func.id}` is called with {shown}, which is neither an answer's name nor a probe",
            "Pass an answer's name, a `def` of this cell or a lambda first, and data after it",
        )


def _verbs_elsewhere(cell: _Parsed) -> Iterator[Misuse]:
    called = {id(call.func) for call in cell.calls}
    for node in cell.nodes:
        if isinstance(node, ast.Name) and node.id in REACHING and id(node) not in called:
            yield Misuse(
                node.lineno,
                f"`{node.id}` is used other than by calling it",
                f"Call it where it is needed: `{node.id}(answer, ...)`",
            )


def _probe_names(probe: CheckProbe, allowed: Collection[str]) -> Iterator[Misuse]:
    what = f"the probe `{probe.name}`" if probe.name else "a lambda probe"
    for name in sorted(probe.free & NOT_IN_PROBES):
        yield Misuse(
            symbols.line_of(probe.node, name),
            f"{what} uses `{name}`, which judges or draws on the grader's side only",
            "Return data from the probe, and judge it in the check",
        )
    for name in sorted(probe.free - set(allowed) - symbols.BUILTINS - NOT_IN_PROBES):
        yield Misuse(
            symbols.line_of(probe.node, name),
            f"{what} uses `{name}`, which is no name of setup, of an answer or of its own",
            f"Pass `{name}` as an argument, or bind it in a setup cell",
        )


def _rest_names(rest: ast.Module, answer_names: Collection[str], setup_names: Collection[str]) -> Iterator[Misuse]:
    """What is wrong with the names of the cell's own part, where its probes and first arguments are gone."""
    source = ast.unparse(rest)
    free, bound = symbols.cell_names(source).free, symbols.cell_names(source).binds
    answers, setup = set(answer_names), set(setup_names)
    for name in sorted(free & answers):
        message = f"the answer's name `{name}` is used outside `ask`, `error`, `program` and probes"
        yield Misuse(
            symbols.line_of(rest, name), message, f"Write `ask({name}, ...)` with data, or do it inside a probe"
        )
    for name in sorted(bound & answers):
        message = f"the check binds `{name}`, which is an answer's name"
        yield Misuse(symbols.line_of(rest, name), message, "Choose another name")
    for name in sorted((bound & setup) - answers):
        message = f"the check binds `{name}`, which setup binds"
        yield Misuse(symbols.line_of(rest, name), message, "Choose another name")
    for name in sorted(free - answers - setup - symbols.BUILTINS - {"Probe"}):
        message = f"the check uses `{name}`, which neither setup nor this cell binds"
        mend = "Bind it in this cell or in a setup cell: each check stands alone"
        yield Misuse(symbols.line_of(rest, name), message, mend)


def _probes_elsewhere(rest: ast.Module, cell: _Parsed, probe_names: Collection[str]) -> Iterator[Misuse]:
    for node in ast.walk(rest):
        if isinstance(node, ast.Name) and node.id in probe_names and isinstance(node.ctx, ast.Load):
            yield Misuse(
                node.lineno,
                f"`{node.id}` is a probe and is also used directly, on the grader's side",
                f"Ask for it with `ask({node.id}, ...)`, or write a second function for the check's own use",
            )
    for node in cell.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in probe_names:
            yield Misuse(node.lineno, f"`{node.id}` is a probe and is also assigned to", "Choose another name")
