"""Refuses to run a check whose answer is not there: a NameError would show the check's own lines, not the reason.

Imported in a notebook only, as it needs IPython.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from IPython.core.error import InputRejected

from grader.checks.outcomes import Ended, NotAttempted


class NotDefined(Ended, InputRejected):
    """The answer's cell has not run yet, or ended before it defined the answer: `ended` is the exception's class."""

    def __init__(self, name: str, ended: str | None) -> None:
        if ended == "NotImplementedError":  # the stub of a class raises while its cell runs
            stub = NotAttempted(name)
            self.mark, self.advice, message = stub.mark, stub.advice, stub.message
        elif ended is not None:
            self.advice, message = "Mend that cell.", f"`{name}` is not defined: its cell ended with {ended}."
        else:
            self.advice, message = "Run your answer's cell, then this one again.", f"`{name}` is not defined yet."
        super().__init__(message)


class Ready:
    """Knows which cells ended early, and looks at every cell before IPython runs it."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.ended: dict[str, str] = {}
        self.needs: Iterable[str] = ()
        shell.ast_transformers.append(self)

    def after_cell(self, binds: Iterable[str], problem: BaseException | None) -> None:
        """Note how a cell ended that binds these names."""
        for name in binds:
            self.ended.pop(name, None)
            if problem is not None:
                self.ended[name] = type(problem).__name__

    def visit(self, tree: ast.AST) -> ast.AST:
        """IPython's hook; where it raises InputRejected, the cell does not run."""
        for name in sorted(set(self.needs) - set(self.shell.user_ns)):
            raise NotDefined(name, self.ended.get(name))
        return tree
