"""Looks at a check before it runs: one whose answer is not there is refused, and one that stumbles says so in words.

A NameError or what a check did not expect would show the check's own lines, and not the reason.

Imported in a notebook only, as it needs IPython.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from typing import Any

from IPython.core.error import InputRejected

from grader.checks import verbs
from grader.checks.outcomes import CheckBroken, Ended, NotAttempted

# What a cell would have bound that is no Python, as far as its lines tell.
MEANT = re.compile(r"^(?:(?:async\s+)?def|class)\s+(\w+)|^(\w+)\s*=(?!=)", re.MULTILINE)


class NotDefined(Ended, InputRejected):
    """The answer's cell has not run yet, or ended before it defined the answer: `ended` is the exception's class.

    `left` says that there is an answer, but an earlier one, which grading would not find in the notebook: the cell that
    defined it could not be run since, or (`ended` is None) defines other names now.
    """

    def __init__(self, name: str, ended: str | None, left: bool = False) -> None:
        if left and ended is None:
            self.advice = f"Define `{name}` there, run that cell, then this one again."
            message = f"`{name}` is left from an earlier run: its cell does not define it any more."
        elif left:
            self.advice, message = "Mend that cell.", f"`{name}` is an earlier one: its cell ended with {ended}."
        elif ended == "NotImplementedError":  # the stub of a class raises while its cell runs
            stub = NotAttempted(name)
            self.mark, self.advice, message = stub.mark, stub.advice, stub.message
        elif ended is not None:
            self.advice, message = "Mend that cell.", f"`{name}` is not defined: its cell ended with {ended}."
        else:
            self.advice, message = "Run your answer's cell, then this one again.", f"`{name}` is not defined yet."
        super().__init__(message)


class Precheck:
    """Knows which cells ended early or define other names now, and looks at every cell before IPython runs it."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.ended: dict[str, str] = {}
        self.bound_by: dict[str, str] = {}  # names, by the id of the cell that bound each last
        self.left: set[str] = set()  # names whose values are from an earlier run than their cell's last
        self.given: frozenset[str] = frozenset()  # the setup's names, which are put back before each check
        self.needs: Iterable[str] = ()
        self.guards = False  # whether the cell that runs is a check that may stumble
        shell.ast_transformers.append(self)

    def after_cell(self, cell_id: str | None, binds: Iterable[str], problem: BaseException | None) -> None:
        """Note how a cell ended that binds these names, and which it bound before and does not bind now."""
        binds = set(binds)
        for name in binds:
            self.ended.pop(name, None)
            if problem is not None:
                self.ended[name] = type(problem).__name__
        self.left -= binds
        if cell_id is not None:  # some front ends do not tell it
            others = {name for name, owner in self.bound_by.items() if owner == cell_id} - binds
            for name in others:
                self.ended.pop(name, None)
            self.left |= others
            self.bound_by |= dict.fromkeys(binds, cell_id)

    def not_run(self, cell_id: str | None, source: str, problem: BaseException) -> None:
        """Note that a cell was no Python: what it was to bind is as it was before."""
        for found in MEANT.finditer(source):
            name = found[1] or found[2]
            self.ended[name] = type(problem).__name__
            self.left.add(name)
            if cell_id is not None:
                self.bound_by[name] = cell_id

    def visit(self, tree: ast.AST) -> ast.AST:
        """IPython's hook; where it raises InputRejected, the cell does not run."""
        for name in sorted(set(self.needs) - set(self.shell.user_ns)):
            raise NotDefined(name, self.ended.get(name))
        for name in sorted(self.left.intersection(self.needs) - self.given):
            raise NotDefined(name, self.ended.get(name), left=True)
        return guarded(tree) if self.guards and isinstance(tree, ast.Module) else tree


def guarded(tree: ast.Module) -> ast.Module:
    """The same cell; what it raises of its own once it has asked the answer becomes a check that failed."""
    verbs.take_evidence()
    guard = ast.parse(GUARD)
    [attempt] = guard.body
    assert isinstance(attempt, ast.Try)
    attempt.body = tree.body or attempt.body
    return guard


# What an `except` names may be worked out while the exception waits. One that is not named goes on as it was.
GUARD = """
try:
    pass
except __import__("grader.checks.precheck", fromlist=["ready"]).to_turn() as __stumbled:
    raise __import__("grader.checks.outcomes", fromlist=["outcomes"]).stumbled(__stumbled) from None
"""


def to_turn() -> tuple[type[Exception], ...]:
    """The class of the exception that waits, where a check ends with `stumbled` in its place; else none."""
    problem = sys.exc_info()[1]
    if not isinstance(problem, Exception) or isinstance(problem, Ended | CheckBroken):
        return ()
    judged = bool(verbs.take_evidence())
    return (type(problem),) if judged or isinstance(problem, AssertionError) else ()
