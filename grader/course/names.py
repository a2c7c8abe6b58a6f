"""Which names a piece of Python binds and which it takes from outside, as Python's own symbol table says."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

BUILTINS = frozenset(dir(builtins))


def syntax_error(source: str) -> tuple[int, str] | None:
    """The line (from 1) and the reason of the first syntax error in `source`, or None. Nothing is executed."""
    try:
        compile(source, "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    return None


def bound(source: str) -> frozenset[str]:
    """Every name that `source` binds at top level: definitions, assignments, imports, loop variables."""
    table = symtable.symtable(source, "<cell>", "exec")
    return frozenset(s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported())


def free(source: str) -> frozenset[str]:
    """Every name that `source` reads, or writes by `global`, and does not bind at its own top level."""
    table = symtable.symtable(source, "<cell>", "exec")
    read = {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    for scope in _scopes_below(table):
        read.update(s.get_name() for s in scope.get_symbols() if s.is_global())
    return frozenset(read) - bound(source)


def _scopes_below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _scopes_below(child)


def defined(source: str) -> tuple[str, ...]:
    """The names that top-level `def`, `class` and assignments bind, in order: what a stub asks a learner for."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names.extend(name for target in node.targets for name in _targets(target))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            names.extend(_targets(node.target))
    return tuple(dict.fromkeys(names))


def _targets(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, (ast.Tuple, ast.List)):
        for element in node.elts:
            yield from _targets(element)
    elif isinstance(node, ast.Starred):
        yield from _targets(node.value)


def line_of(tree: ast.AST, name: str) -> int:
    """The first line of `tree` that mentions `name`, or where the tree begins."""
    lines = []
    for node in ast.walk(tree):
        if (
            (isinstance(node, ast.Name) and node.id == name)
            or (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name)
            or (isinstance(node, ast.alias) and (node.asname or node.name.split(".")[0]) == name)
        ):
            lines.append(node.lineno)
    return min(lines, default=getattr(tree, "lineno", 1))


def devices(setup: str) -> int:
    """The most devices that a setup asks `devices.start` for, 8 where it gives no number; 1 where it never asks."""
    asked = [1]
    for node in ast.walk(ast.parse(setup)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "devices.start":
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            number = given[0].value if given and isinstance(given[0], ast.Constant) else None
            asked.append(number if isinstance(number, int) else 8)
    return max(asked)
