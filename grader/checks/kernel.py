"""Hooks into a notebook's kernel: the state around answers as in grading, and what is shown of how a check ended.

Imported in a notebook only, as it needs IPython.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import os
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from IPython.core.error import InputRejected
from IPython.core.getipython import get_ipython

from grader.checks import inputs, verbs
from grader.checks.compare import stumbled
from grader.checks.display import VerdictDisplay
from grader.checks.outcomes import CellRun, CheckBroken, Ended, NotAttempted, cell_runs
from grader.core import board_client
from grader.core.symbols import BUILTINS, REACHING, check_title, notebook_cell_names
from grader.program.endpoints import namedtuples
from grader.program.environment import CellEnvironment

# The ids that the builder gives the setup's cells. JupyterLab tells them to the kernel; nbclient and nbgrader do not.
SETUP_ID = re.compile(r"setup(-\d+)?")
# The names that a cell which is not Python would have bound, as far as its lines show.
MEANT = re.compile(r"^(?:(?:async\s+)?def|class)\s+(\w+)|^(\w+)\s*=(?!=)", re.MULTILINE)


class NotDefined(Ended, InputRejected):
    """The answer's cell has not run yet, or ended before it defined the answer: `ended` is the exception's class.

    `outdated` means that there is an answer, but an earlier one, which grading would not find in the notebook: the cell
    that defined it could not be run since, or (`ended` is None) defines other names now.
    """

    def __init__(self, name: str, ended: str | None, outdated: bool = False) -> None:
        if outdated and ended is None:
            self.advice = f"Define `{name}` there, run that cell, then this one again."
            message = f"`{name}` is from an earlier run. Its cell no longer defines it."
        elif ended == "NotImplementedError" and not outdated:  # the stub of a class raises while its cell runs
            stub = NotAttempted(name)
            self.mark, self.advice, message = stub.mark, stub.advice, stub.message
        elif ended is not None:
            what = "from an earlier run" if outdated else "not defined"
            self.advice, message = "Fix that cell.", f"`{name}` is {what} because its cell ended with {ended}."
        else:
            self.advice, message = "Run your answer's cell, then this one again.", f"`{name}` is not defined yet."
        super().__init__(message)


# The expression after `except` may be computed while the exception waits. A class that it does not name passes on.
GUARD = f"""
try:
    pass
except __import__("{__name__}", fromlist=["kernel"]).own_exceptions() as __stumbled:
    raise __import__("{stumbled.__module__}", fromlist=["compare"]).stumbled(__stumbled) from None
"""


def guarded(tree: ast.Module) -> ast.Module:
    """Returns the same cell; an exception of its own, once it has asked the answer, becomes a check that failed."""
    verbs.take_evidence()
    guard = ast.parse(GUARD)
    [attempt] = guard.body
    assert isinstance(attempt, ast.Try)
    attempt.body = tree.body or attempt.body
    return guard


def own_exceptions() -> tuple[type[Exception], ...]:
    """Returns the class of the exception that waits, if a check ends with `stumbled` in its place; else none."""
    problem = sys.exc_info()[1]
    if not isinstance(problem, Exception) or isinstance(problem, Ended | CheckBroken):
        return ()
    judged = bool(verbs.take_evidence())
    return (type(problem),) if judged or isinstance(problem, AssertionError) else ()


class PythonsBuiltins(ast.NodeTransformer):
    """Has a check read these builtins from Python, where a cell of the learner's has rebound them, as `sum` after
    `from numpy import *`. The answer keeps the learner's values."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def visit_Module(self, tree: ast.Module) -> ast.AST:
        own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self.names = set(self.names) - own
        return self.generic_visit(tree)

    def visit_Name(self, name: ast.Name) -> ast.expr:
        if name.id not in self.names:
            return name
        value = ast.parse(f"__import__('builtins').{name.id}", mode="eval").body
        for node in ast.walk(value):
            ast.copy_location(node, name)
        return value


class KernelHooks:
    """Callbacks before and after each cell of one IPython shell.

    A check whose answer is missing is refused before it runs, where a NameError would show the check's own lines.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.display = VerdictDisplay(shell.user_ns)
        self.environment = CellEnvironment(shell.user_ns)
        self.redirection = contextlib.ExitStack()  # of stderr
        self.has_ids = False  # whether this notebook's front end states which cell is the setup
        self.ended: dict[str, str] = {}  # names, by the class of the exception that their cell ended with
        self.bound_by: dict[str, str] = {}  # names, by the id of the cell that bound each last
        self.outdated: set[str] = set()  # names whose values are from an earlier run than their cell's last
        self.given: frozenset[str] = frozenset()  # the setup's names, which are restored before each check
        self.needs: Iterable[str] = ()  # of the check that runs
        self.shadowed: frozenset[str] = frozenset()  # builtins that it uses, and a cell of the learner's has rebound
        self.guards = False  # whether the cell that runs is a check whose own exceptions become a failure
        shell.ast_transformers.append(self)
        shell.events.register("pre_run_cell", self.before)
        shell.events.register("post_run_cell", self.after)

    def before(self, info: Any) -> None:
        """Before a check: its title, its stream of inputs, and the environment as the setup left it."""
        source = info.raw_cell or ""
        check = CellRun(source, getattr(info, "cell_id", None), check_title(source))
        cell_runs.append(check)
        if check.title:
            inputs.begin(source)
            verbs.facts_read.clear()
            names_of_check = notebook_cell_names(source)
            self.needs = needs = names_of_check.needs
            self.shadowed = frozenset(filter(self.is_rebound, names_of_check.free & BUILTINS))
            self.guards = not check.hidden
            rebound = self.environment.before_checks(needs)
            if rebound:
                names = ", ".join(f"`{name}`" for name in sorted(rebound))
                print(f"Note: {names} changed after the setup.", end=" ")
                print("The checks and your answers use the setup's values.")
            with contextlib.suppress(OSError):
                self.redirection.enter_context(stderr_to_stdout())
        elif self.is_setup(info):
            # Run again, the setup starts from what it left the first time, not from what answers made of it.
            self.environment.before_checks(())

    def visit(self, tree: ast.AST) -> ast.AST:
        """IPython's hook; where it raises InputRejected, the cell does not run."""
        for name in sorted(set(self.needs) - set(self.shell.user_ns)):
            raise NotDefined(name, self.ended.get(name))
        for name in sorted(self.outdated.intersection(self.needs) - self.given):
            raise NotDefined(name, self.ended.get(name), outdated=True)
        if self.shadowed:
            tree = PythonsBuiltins(self.shadowed).visit(tree)
        return guarded(tree) if self.guards and isinstance(tree, ast.Module) else tree

    def after(self, result: Any) -> None:
        """After a check: what is shown of how it ended. After any other cell: note what it bound and changed."""
        self.redirection.close()
        self.needs, self.shadowed, self.guards = (), frozenset(), False
        check = cell_runs[-1]
        if check.title:
            problem = result.error_in_exec or result.error_before_exec
            if result.success:
                self.display.passed(check)
            else:
                self.display.failed(check, problem)
            if not check.hidden and not isinstance(problem, NotAttempted | NotDefined):
                board_client.report_check(check.cell_id, result.success)
                for line in board_client.reporter.messages():
                    print(line)
            return
        source = result.info.raw_cell or ""
        cell, cell_id = notebook_cell_names(source), getattr(result.info, "cell_id", None)
        if isinstance(result.error_before_exec, SyntaxError):
            self.note_not_run(cell_id, source, result.error_before_exec)
        else:
            self.note_ended(cell_id, cell.binds, result.error_in_exec)
        if self.is_setup(result.info):  # what it bound is what the checks rely on
            self.environment.after_setup(cell.binds)
            self.given = cell.binds
            bound = {name: value for name, value in self.shell.user_ns.items() if name in cell.binds}
            verbs.in_process.classes = namedtuples(bound)
        else:
            self.environment.after_cell(cell.binds, source)
            self.display.answered(cell, source)

    def is_rebound(self, builtin: str) -> bool:
        """Whether a cell has rebound a builtin. A function or class written in the notebook may be an answer."""
        python = getattr(builtins, builtin)
        value = self.shell.user_ns.get(builtin, python)
        written = isinstance(value, type | types.FunctionType) and value.__module__ == "__main__"
        return value is not python and not written and builtin not in {*self.given, *self.shell.user_ns_hidden}

    def note_ended(self, cell_id: str | None, binds: frozenset[str], problem: BaseException | None) -> None:
        """Notes how a cell ended that binds these names, and which it bound before and does not bind now."""
        others = {name for name, owner in self.bound_by.items() if owner == cell_id} - binds
        for name in binds | others:
            self.ended.pop(name, None)
        if problem is not None:
            self.ended |= dict.fromkeys(binds, type(problem).__name__)
        self.outdated = (self.outdated - binds) | others
        if cell_id is not None:  # some front ends do not give it
            self.bound_by |= dict.fromkeys(binds, cell_id)

    def note_not_run(self, cell_id: str | None, source: str, problem: BaseException) -> None:
        """Notes that a cell was not Python: the names that it would have bound have earlier values."""
        names = [defined or assigned for defined, assigned in MEANT.findall(source)]
        self.ended |= dict.fromkeys(names, type(problem).__name__)
        self.outdated |= set(names)
        if cell_id is not None:
            self.bound_by |= dict.fromkeys(names, cell_id)

    def is_setup(self, info: Any) -> bool:
        """By the cell's id where the front end gives it; else the cell that imports the verbs of checks."""
        if SETUP_ID.fullmatch(getattr(info, "cell_id", None) or ""):
            self.has_ids = True
            return True
        source = info.raw_cell or ""
        return not self.has_ids and "grader.checks" in source and bool(REACHING & notebook_cell_names(source).binds)


@contextlib.contextmanager
def stderr_to_stdout() -> Iterator[None]:
    """While a check runs, what is written to stderr goes to stdout: stock nbgrader gives 0 for any text on stderr.

    A warning of Python's or a log line of XLA's says nothing about the answer. XLA writes to the file descriptor.
    """
    descriptor = os.dup(2)
    try:
        os.dup2(1, 2)
        with contextlib.redirect_stderr(sys.stdout):
            yield
    finally:
        os.dup2(descriptor, 2)
        os.close(descriptor)


@functools.cache
def install() -> KernelHooks:
    """Hooks into the running notebook's kernel, once."""
    return KernelHooks(get_ipython())
