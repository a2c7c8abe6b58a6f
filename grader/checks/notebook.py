"""In a notebook: a quiet tick under a check that passes, and the same surroundings for answers as in grading."""

from __future__ import annotations

import ast
from typing import Any

from grader.checks import asking, inputs
from grader.program.names import Names, names
from grader.program.sides import namedtuples
from grader.program.surroundings import Surroundings

VERBS = frozenset({"ask", "error", "program"})
_title = ""


def current_title() -> str:
    """The first line of the check cell that runs now; empty outside a notebook."""
    return _title


def check_title(source: str) -> str | None:
    """The docstring's first line when `source` is a check cell, else None."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # magics, half-typed cells
        return None
    title = ast.get_docstring(tree)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return title.splitlines()[0] if title and called & VERBS else None


class Desk:
    """Watches the cells of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.surroundings = Surroundings(shell.user_ns)
        shell.events.register("pre_run_cell", self.before)
        shell.events.register("post_run_cell", self.after)

    def before(self, info: Any) -> None:
        """Before a check: its title, its stream of inputs, and the surroundings as the setup left them."""
        global _title
        source = info.raw_cell or ""
        _title = check_title(source) or ""
        if _title:
            inputs.begin(source)
            rebound = self.surroundings.before_checks(names(source).needs)
            if rebound:
                print(f"Put back for this check: {', '.join(rebound)} (set by the setup, rebound since).")

    def after(self, result: Any) -> None:
        """After a check that passed: the tick. After any other cell: note what it bound and changed."""
        source = getattr(result.info, "raw_cell", "") or ""
        if _title:
            if result.success:
                self.tick()
            return
        cell = _names(source)
        if "grader.checks" in source and VERBS & cell.binds:
            self.setup(cell)
        else:
            self.surroundings.after_cell(cell.binds)

    def setup(self, cell: Names) -> None:
        """The setup cell ran: what it bound is what the checks rely on."""
        self.surroundings.after_setup(cell.binds)
        bound = {name: self.shell.user_ns[name] for name in cell.binds if name in self.shell.user_ns}
        asking.allow(namedtuples(bound))

    @staticmethod
    def tick() -> None:
        """Say that the check passed: green where there is colour, plain text elsewhere."""
        from html import escape

        from IPython.display import display

        text = f"✓ {_title}"
        html = f'<div style="color:#1a7f37" role="status">{escape(text)}</div>'
        display({"text/plain": text, "text/html": html}, raw=True)


def _names(source: str) -> Names:
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return names(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError):
        return Names(frozenset(), frozenset())


_desk: Desk | None = None


def install() -> None:
    """Watch the running notebook's cells, once; nothing happens outside IPython."""
    global _desk
    import sys

    if "IPython" not in sys.modules or _desk is not None:
        return
    shell = sys.modules["IPython"].get_ipython()
    if shell is not None:
        _desk = Desk(shell)
