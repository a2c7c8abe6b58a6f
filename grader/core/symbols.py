"""Names in a piece of Python, as its symbol table states them; the vocabulary of check cells; cells as plain Python.

Every reader of names uses `cell_names`, and every reader of a notebook cell uses `plain_python`, so that a kernel, a
worker and the rules for authors agree on what a cell binds.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

BUILTINS = frozenset(dir(builtins))

# The names that `grader.checks` gives to check cells, by what each does.
# They reach an answer. Their first argument is an answer's name or a probe.
REACHING = frozenset({"ask", "error", "program"})
# They judge, or name the case that is judged. Position and keyword of the words that a learner reads, which a hidden
# check guards.
JUDGING = {"require": (1, "message"), "compare": (4, "label"), "case": (0, "when")}
# They and those that draw inputs or end a check belong to the grader's side: in a probe, beside the answer, they would
# mean something else, or nothing.
NOT_IN_PROBES = REACHING | JUDGING.keys() | {"inputs", "skip"}
# Only the answer's own process can report what these show, so a check that uses one is marked as observed.
SELF_REPORTING = frozenset({"counted", "make_jaxpr", "print_saved_residuals", "saved_residuals", "_cache_size"})

# These cell magics run their cell's text in the notebook's namespace; the others (%%timeit, %%html ...) do not.
_RUNNING = re.compile(r"\A(\s*)%%(?:time|capture|prun)\b([^\n]*)(?=\n)")
_CAPTURED = re.compile(r"\A\s*%%capture\b(?:[ \t]+--?[\w-]+)*[ \t]+(\w+)")
_SCRIPT_OUTPUT = re.compile(r"(?<=[ \t])--(?:out|err|proc)[ \t=]+(\w+)")
_TIMED_LINE = re.compile(r"^([ \t]*)%(?:time|prun(?:[ \t]+-\S+)*)[ \t]+(?=\S)", re.M)
# A line that may be IPython's: it begins with a magic, a shell escape or "?", has one after "=", or ends in "?".
_IPYTHON = re.compile(r"^[ \t]*[%!?]|^[^#\n]*[%!]\w|\?[ \t]*$", re.M)
_CALL = re.compile(r"get_ipython\(\)\.(?:run_line_magic|run_cell_magic|system|getoutput)\(")


@dataclass(frozen=True)
class CellNames:
    """The names of one cell.

    Attributes:
        top: names that its top-level statements bind (definitions, assignments, imports, loop variables).
        written_globals: names that its functions bind through `global`.
        reads: names that it reads at top level, or as globals in a function; builtins included.
    """

    top: frozenset[str] = frozenset()
    written_globals: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()

    @property
    def binds(self) -> frozenset[str]:
        """Every name that the cell binds in the notebook's namespace."""
        return self.top | self.written_globals

    @property
    def needs(self) -> frozenset[str]:
        """Names that the cell reads and does not bind, without builtins."""
        return self.reads - self.binds - BUILTINS

    @property
    def free(self) -> frozenset[str]:
        """Names of the surrounding namespace that the cell reads or writes; builtins included."""
        return (self.reads | self.written_globals) - self.top


def plain_python(source: str) -> str:
    """Replaces line and cell magics, shell escapes and help requests by None; the number of lines stays the same."""
    cell, binds = source, []
    while running := _RUNNING.match(cell):  # one may stand in another
        binds += _CAPTURED.findall(cell)
        cell = running[1] + cell[running.end() :]
    if cell.lstrip().startswith("%%"):
        head = cell.lstrip().partition("\n")[0]
        return "; ".join(f"{name} = None" for name in binds + _SCRIPT_OUTPUT.findall(head)) + "\n" * source.count("\n")
    cell = "".join(f"{name} = None; " for name in binds) + _TIMED_LINE.sub(r"\1", cell)
    if _IPYTHON.search(cell):
        from IPython.core.inputtransformer2 import TransformerManager

        cell = TransformerManager().transform_cell(cell)
    return _CALL.sub("(lambda *ignored: None)(", cell)


@lru_cache(maxsize=512)
def cell_names(source: str) -> CellNames:
    """Returns the names of plain Python text. Raises SyntaxError (ValueError for a NUL) where it is not Python."""
    top = symtable.symtable(source, "<cell>", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    reads = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    written: set[str] = set()
    for scope in _scopes_below(top):
        for symbol in scope.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                reads.add(symbol.get_name())
            if symbol.is_declared_global() and symbol.is_assigned():
                written.add(symbol.get_name())
    return CellNames(frozenset(bound), frozenset(written), frozenset(reads))


@lru_cache(maxsize=512)  # IPython's time for magics grows with the square of their number, and it refuses 500 of them
def notebook_cell_names(source: str) -> CellNames:
    """Returns the names of a cell as a notebook contains it, magics included; none where it is not Python."""
    try:
        return cell_names(plain_python(source))
    except (SyntaxError, ValueError, RuntimeError, MemoryError):
        return CellNames()


def _scopes_below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _scopes_below(child)


def syntax_error(source: str) -> tuple[int, str] | None:
    """Returns the line (from 1) and the reason of the first syntax error in `source`, or None. Nothing is executed."""
    try:
        compile(source, "<cell>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    return None


def defined(source: str) -> tuple[str, ...]:
    """Returns the names that top-level `def`, `class` and assignments bind, in order: those a stub asks for."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            leaves = [leaf for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
            names += [leaf.id for leaf in leaves if isinstance(leaf.ctx, ast.Store)]
    return tuple(dict.fromkeys(names))


def check_title(source: str) -> str:
    """Returns the first line of the docstring if `source` is a check cell, which calls a verb; else ""."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # magics, half-typed cells
        return ""
    title = ast.get_docstring(tree)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return title.splitlines()[0] if title and called & REACHING else ""


def line_of(tree: ast.AST, name: str) -> int:
    """Returns the first line of `tree` that mentions `name`, or the line where the tree begins."""
    lines = []
    for node in ast.walk(tree):
        mentioned = getattr(node, "id", None) or getattr(node, "asname", None) or getattr(node, "name", None)
        if isinstance(mentioned, str) and mentioned.split(".")[0] == name:
            lines.append(getattr(node, "lineno", 1))
    return min(lines, default=getattr(tree, "lineno", 1))
