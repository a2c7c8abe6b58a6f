"""Which names a piece of Python binds and which it needs from elsewhere."""

from __future__ import annotations

import builtins
import symtable
from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Of one cell: names it binds at top level, and names it reads that it does not bind itself (no builtins)."""

    binds: frozenset[str]
    needs: frozenset[str]


def names(source: str) -> Names:
    """The names of a cell's plain Python text. Raises SyntaxError where the text is not Python."""
    top = symtable.symtable(source, "cell", "exec")
    binds = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    reads: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                reads.add(symbol.get_name())
            if table is not top and symbol.is_declared_global() and symbol.is_assigned():
                binds.add(symbol.get_name())
    return Names(frozenset(binds), frozenset(reads - binds - set(dir(builtins))))
