"""The two confined processes: a worker runs a learner's cells, an executor runs exported programs.

Both hold no secret, and everything that they reply is only an answer.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextvars
import linecache
import os
import socket
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import Any

from grader.core.faults import Fault
from grader.core.symbols import BUILTINS, REACHING, CellNames, cell_names, notebook_cell_names, plain_python
from grader.program.codec import decode, encode
from grader.program.endpoints import (
    MAX_LINE,
    MAX_TEXT,
    SETUP_FILE,
    AnswerEndpoint,
    ProgramEndpoint,
    begin,
    describe,
    namedtuples,
)
from grader.program.environment import CellEnvironment
from grader.sandbox import wire
from grader.sandbox.shell import NotebookShell

MAX_BOUND = 10_000  # names that a cell is said to have bound


class BeyondSetup(ast.NodeTransformer):
    """Leaves of a learner's setup cell what it adds to the course's, or changes."""

    def __init__(self, statements: Collection[str]) -> None:
        self.statements = statements

    def visit_Module(self, tree: ast.Module) -> ast.Module:
        tree.body = [statement for statement in tree.body if ast.dump(statement) not in self.statements]
        return tree


class Worker:
    """One notebook's namespace and the questions that may be asked of it."""

    def __init__(self) -> None:
        self.shell = NotebookShell.ready()
        self.shell.begin()
        self.after_setup: dict[str, Any] = {}
        self.setup_statements: set[str] = set()
        self.passed: list[str] = []
        self.answers: set[str] = set()
        self.surroundings = CellEnvironment({})
        self.side = AnswerEndpoint()
        self.enter({})

    def setup(self, source: str) -> dict[str, Any]:
        """Run the course's setup cells and take the state after them."""
        try:
            self.setup_statements = {ast.dump(statement) for statement in ast.parse(source).body}
            exec(self.shell.compile(source, SETUP_FILE, "exec"), self.namespace)  # its `__future__` holds for all cells
        except BaseException as problem:
            return describe(problem)
        self.after_setup = dict(self.namespace)
        bound = cell_names(source).binds
        self.surroundings.after_setup(bound)
        self.side.classes = namedtuples({name: self.namespace[name] for name in bound if name in self.namespace})
        return {"status": "ok"}

    def fresh(self) -> dict[str, Any]:
        """Forget every cell but the setup."""
        self.surroundings.before_checks(())
        self.passed.clear()
        self.enter(self.after_setup)
        return {"status": "ok"}

    def enter(self, content: dict[str, Any]) -> None:
        """A `__main__` of its own, as in a notebook, that holds `content`."""
        self.namespace: dict[str, Any] = self.shell.enter(content)
        self.surroundings.namespace = self.namespace

    def read(self, source: str) -> dict[str, Any]:
        """Names that a cell binds and needs, or the syntax error that stops it from running at all."""
        try:
            try:
                names = cell_names(plain_python(source))
            except SyntaxError:  # a magic without its sign, or what the learner has taught the shell
                if source.lstrip().startswith("%%"):
                    raise
                text = self.shell.transform_cell(source)
                compile(text, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
                names = cell_names(text)
        except Exception as problem:  # also text that no compiler takes: a NUL, half a character, endless nesting
            error = problem if isinstance(problem, SyntaxError) else SyntaxError(str(problem))
            found = {"kind": type(error).__name__, "text": str(error.msg)[:MAX_TEXT], "line": error.lineno}
            return {"status": "raised", **found, "source": (error.text or "").strip()[:MAX_LINE]}
        return {"status": "ok", "binds": sorted(names.binds), "needs": sorted(names.needs)}

    async def run(self, source: str, passed: Sequence[str] = (), setup: bool = False) -> dict[str, Any]:
        """Run one cell; what it prints goes nowhere.

        Args:
            source: its text.
            passed: texts of the course's cells between it and the one before, which count as cells that ran. They run
                only where a later cell uses a name that a check has bound.
            setup: whether it stands in the place of a setup cell: then it starts from what the setup left, and what
                the setup has too is not run again.
        """
        names, others = notebook_cell_names(source), BeyondSetup(self.setup_statements)
        bound, before = names.binds, dict(self.namespace)
        self.passed += passed
        try:
            for text in [one for one in self.passed if self.is_used(one, names)]:
                self.passed.remove(text)
                await self.shell.run(text, counts=False)
            self.shell.pass_by(passed)
            if setup:
                self.surroundings.before_checks(())
                self.shell.ast_transformers.append(others)
            # Where a timed cell fails, its own line is shown, as of any other.
            for name in ("<timed exec>", "<timed eval>"):
                linecache.cache[name] = (0, None, source.splitlines(keepends=True), name)
            problem = await self.shell.run(source)
        except BaseException as ended:  # the learner's hooks, or the shell as the learner has changed it
            problem = ended
        finally:
            if setup:
                self.shell.ast_transformers.remove(others)
            self.surroundings.after_cell(bound, source)
        now = self.namespace
        known = {name for name in now.keys() - self.shell.user_ns_hidden.keys() if isinstance(name, str)}
        found = {name for name in known if name[:2] != "__" and before.get(name, now) is not now[name]}
        found |= bound & now.keys() if problem is None else set()
        return {**({"status": "ok"} if problem is None else describe(problem)), "bound": sorted(found)[:MAX_BOUND]}

    def is_used(self, check: str, names: CellNames) -> bool:
        """Whether a cell with these names goes on with what a check, which has not run here, would have bound."""
        own = notebook_cell_names(check)
        return bool(REACHING & own.reads and (names.needs - self.namespace.keys()) & own.binds)

    def prepare(self, answers: list[str]) -> dict[str, Any]:
        """Before the checks of the exercise with these answer names."""
        self.answers = set(answers)
        return {"status": "ok", "restored": self.surroundings.before_checks(answers)}

    def question(self, asked: dict[str, Any]) -> Callable[..., Any]:
        """The function to ask: an answer by its name, or a probe from its text."""
        if "answer" in asked:
            return self.namespace[asked["answer"]]
        probe, name = asked["probe"], asked["name"]
        python = self.shadowed_builtins(probe)
        if not name and not python:
            return eval(compile(probe, "<check>", "eval", dont_inherit=True), self.namespace)
        # Inside a function, so that the probe sees the answers' names and itself, and its own name is bound nowhere.
        body = f"{textwrap.indent(probe, ' ')}\n return {name}" if name else f" return (\n{probe}\n)"
        text, made = f"def made({', '.join(python)}):\n{body}", dict[str, Any]()
        exec(compile(text, "<check>", "exec", dont_inherit=True), self.namespace, made)
        return made["made"](**python)

    def shadowed_builtins(self, probe: str) -> dict[str, Any]:
        """Python's values of the builtins that a probe uses and a cell of the learner's has rebound, such as `str`."""
        rebound = BUILTINS & self.namespace.keys() - self.shell.user_ns_hidden.keys() - self.answers
        rebound -= self.after_setup.keys()
        return {name: getattr(builtins, name) for name in sorted(rebound & cell_names(probe).free)} if rebound else {}

    def ask(self, asked: dict[str, Any], payload: bytes, how: Callable[[Any, bytes], bytes]) -> bytes:
        """Resolve the question, then ask it; an answer that is not there is a NameError like any other."""
        try:
            function = self.question(asked)
        except KeyError as missing:
            return encode({"status": "raised", "kind": "NameError", "text": f"name {missing} is not defined"})
        except BaseException as problem:
            return encode(describe(problem))
        return how(function, payload)


def serve(stream: socket.socket) -> None:
    """Run a learner's cells and answer questions about them until the stream closes."""
    # The number of devices is the examiner's; everything else about JAX is as the setup and the learner leave it.
    worker = Worker()
    # As in a kernel, one loop runs while cells and checks do, and what they set in a context stays set.
    loop, context = asyncio.new_event_loop(), contextvars.copy_context()
    asyncio.set_event_loop(loop)
    os.register_at_fork(after_in_child=stream.close)  # a process that a cell forks must not answer as well

    async def answer(what: str, request: dict[str, Any], payload: bytes) -> bytes:
        if what in ("ask", "export"):
            return worker.ask(request, payload, getattr(worker.side, what))
        done = getattr(worker, what)(**request)
        return encode(await done if asyncio.iscoroutine(done) else done)

    def handle(what: str, request: dict[str, Any], payload: bytes) -> bytes:
        return loop.run_until_complete(loop.create_task(answer(what, request, payload), context=context))

    _answer(stream, ("ask", "export"), handle)


def serve_programs(stream: socket.socket) -> None:
    """Load and run exported programs until the stream closes: in a process with none of the learner's Python."""
    side = ProgramEndpoint()

    def handle(what: str, request: dict[str, Any], payload: bytes) -> bytes:
        return side.load(payload) if what == "load" else side.run(request["program"], payload)

    _answer(stream, ("load", "run"), handle)


def _answer(
    stream: socket.socket, with_payload: tuple[str, ...], handle: Callable[[str, dict[str, Any], bytes], bytes]
) -> None:
    """Answer requests: a turn, a frame of data, and for some a payload. A reply is the same turn and a frame."""
    while True:
        try:
            turn, request = wire.receive(stream), decode(wire.receive(stream))
            what = request.pop("do")
            payload = wire.receive(stream) if what in with_payload else b""
        except Fault:
            return
        if what == "begin":
            begin(**request)
            reply = encode({"status": "ok"})
        else:
            reply = handle(what, request, payload)
        wire.send(stream, turn)
        wire.send(stream, reply)
