"""In a notebook: a quiet tick under a check that passes, and the same surroundings for answers as in grading."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
from typing import Any

from grader.checks import facts_read, inputs, run_history, verbs
from grader.checks.cell_state import RunningCheck, begin, current
from grader.core.symbols import CellNames, notebook_cell_names
from grader.core.vocabulary import REACHING
from grader.program.endpoints import namedtuples
from grader.program.environment import CellEnvironment

# The ids that the builder gives the setup's cells. JupyterLab tells them to the kernel; nbclient and nbgrader do not.
SETUP_ID = re.compile(r"setup(-\d+)?")
# These cell magics run their cell's text in the notebook's namespace, and grading runs it too.
RUNNING = re.compile(r"\A\s*%%(?:time|capture|prun)\b[^\n]*\n")


def check_title(source: str) -> str | None:
    """The docstring's first line when `source` is a check cell, else None."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # magics, half-typed cells
        return None
    title = ast.get_docstring(tree)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return title.splitlines()[0] if title and called & REACHING else None


class KernelHooks:
    """Watches the cells of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        from grader.checks.display import VerdictDisplay
        from grader.checks.precheck import Precheck

        self.shell = shell
        self.ready = Precheck(shell)
        self.shown = VerdictDisplay(shell.user_ns)
        self.surroundings = CellEnvironment(shell.user_ns)
        self.stderr = Stderr()
        self.told_ids = False  # whether this notebook's front end says which cell is the setup
        shell.events.register("pre_run_cell", self.before)
        shell.events.register("post_run_cell", self.after)

    def before(self, info: Any) -> None:
        """Before a check: its title, its stream of inputs, and the surroundings as the setup left them."""
        source = info.raw_cell or ""
        check = RunningCheck(check_title(source) or "", source, getattr(info, "cell_id", None))
        begin(check)
        run_history.note(check.cell_id, source)
        if check.title:
            inputs.begin(source)
            facts_read.judged()
            self.ready.needs = needs = notebook_cell_names(source).needs
            self.ready.guards = not check.hidden
            rebound = self.surroundings.before_checks(needs)
            if rebound:
                print(put_back(rebound))
            self.stderr.to_stdout()
        elif self.is_setup(info):
            # Run again, the setup starts from what it left the first time, not from what answers made of it.
            self.surroundings.before_checks(())

    def after(self, result: Any) -> None:
        """After a check: what is shown of how it ended. After any other cell: note what it bound and changed."""
        self.stderr.back()
        self.ready.needs, self.ready.guards = (), False
        check = current()
        if check.title:
            if result.success:
                self.shown.passed(check)
            else:
                self.shown.failed(check, result.error_in_exec or result.error_before_exec)
            return
        source = result.info.raw_cell or ""
        cell, cell_id = notebook_cell_names(source), getattr(result.info, "cell_id", None)
        if isinstance(result.error_before_exec, SyntaxError):
            self.ready.not_run(cell_id, source, result.error_before_exec)
        else:
            self.ready.after_cell(cell_id, cell.binds, result.error_in_exec)
        if self.is_setup(result.info):
            self.setup(cell)
        else:
            self.surroundings.after_cell(cell.binds, source)
            self.shown.answered(cell, source)

    def is_setup(self, info: Any) -> bool:
        """By the cell's id where the front end tells it; else the cell that imports the verbs of checks."""
        source = info.raw_cell or ""
        if SETUP_ID.fullmatch(getattr(info, "cell_id", None) or ""):
            self.told_ids = True
            return True
        return not self.told_ids and "grader.checks" in source and bool(REACHING & notebook_cell_names(source).binds)

    def setup(self, cell: CellNames) -> None:
        """The setup cell ran: what it bound is what the checks rely on."""
        self.surroundings.after_setup(cell.binds)
        self.ready.given = frozenset(cell.binds)
        bound = {name: self.shell.user_ns[name] for name in cell.binds if name in self.shell.user_ns}
        verbs.allow(namedtuples(bound))


class Stderr:
    """While a check runs, what is written to stderr goes to stdout: stock nbgrader gives 0 for any text on stderr.

    A warning of Python's or a log line of XLA's says nothing about the answer. XLA writes to the file descriptor.
    """

    def __init__(self) -> None:
        self.kept: tuple[Any, int] | None = None

    def to_stdout(self) -> None:
        """From now on."""
        with contextlib.suppress(OSError):
            self.kept = sys.stderr, os.dup(2)
            sys.stderr = sys.stdout
            os.dup2(1, 2)

    def back(self) -> None:
        """As it was before `to_stdout`, if that was called."""
        if self.kept is not None:
            sys.stderr, descriptor = self.kept
            os.dup2(descriptor, 2)
            os.close(descriptor)
            self.kept = None


def put_back(rebound: list[str]) -> str:
    """What to tell a learner whose cells gave names of the setup another meaning."""
    said = ", ".join(f"`{name}`" for name in sorted(rebound))
    return f"Note: {said} had been given another value since the setup. For the checks it is the setup's again."


_desk: KernelHooks | None = None


def install() -> None:
    """Watch the running notebook's cells, once; nothing happens outside IPython."""
    global _desk
    if "IPython" not in sys.modules or _desk is not None:
        return
    shell = sys.modules["IPython"].get_ipython()
    if shell is not None:
        _desk = KernelHooks(shell)
