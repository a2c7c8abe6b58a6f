"""The two confined processes: a worker runs a learner's cells, an executor runs exported programs.

Both hold no secret, and everything that they reply is only an answer.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import linecache
import os
import socket
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any

from grader.core.faults import Fault
from grader.core.symbols import cell_names, plain_python
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


class Worker:
    """One notebook's namespace and the questions that may be asked of it."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self.after_setup: dict[str, Any] = {}
        self.surroundings = CellEnvironment(self.namespace)
        self.side = AnswerEndpoint()

    def setup(self, source: str) -> dict[str, Any]:
        """Run the course's setup cells and take the state after them."""
        self.enter({})
        ran = self.run(source, "", SETUP_FILE)
        self.after_setup = dict(self.namespace)
        bound = cell_names(source).binds
        self.surroundings.after_setup(bound)
        self.side.classes = namedtuples({name: self.namespace[name] for name in bound if name in self.namespace})
        return ran

    def fresh(self) -> dict[str, Any]:
        """Forget every cell but the setup."""
        self.surroundings.before_checks(())
        self.enter(self.after_setup)
        return {"status": "ok"}

    def enter(self, content: dict[str, Any]) -> None:
        """A `__main__` of its own, as in a notebook, that holds `content`."""
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self.namespace = self.surroundings.namespace = module.__dict__
        self.namespace.update(content)

    def read(self, source: str) -> dict[str, Any]:
        """Names that a cell binds and needs, or the syntax error that stops it from running at all."""
        try:
            names = cell_names(plain_python(source))
        except SyntaxError as problem:
            found = {"kind": type(problem).__name__, "text": problem.msg[:MAX_TEXT], "line": problem.lineno}
            return {"status": "raised", **found, "source": (problem.text or "").strip()[:MAX_LINE]}
        except Exception as problem:  # text that no compiler takes: a NUL, half a character, nesting without end
            return {
                "status": "raised",
                "kind": "SyntaxError",
                "text": str(problem)[:MAX_TEXT],
                "line": None,
                "source": "",
            }
        return {"status": "ok", "binds": sorted(names.binds), "needs": sorted(names.needs)}

    def run(self, source: str, name: str, filename: str = "") -> dict[str, Any]:
        """Run one cell; magics are left out, what it prints goes nowhere."""
        bound: frozenset[str] = frozenset()
        before = dict(self.namespace)
        try:
            text = plain_python(source)
            filename = filename or f"<cell {name}>"
            linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
            bound = cell_names(text).binds
            # As in a notebook: `await` may stand at the top, and this module's `__future__` does not count.
            code = compile(text, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            running = eval(code, self.namespace)
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(running)
            return {"status": "ok"}
        except BaseException as problem:
            there = [name for name in bound if name in self.namespace]
            return {**describe(problem), "bound": [n for n in there if self.namespace[n] is not before.get(n, before)]}
        finally:
            self.surroundings.after_cell(bound, source)

    def prepare(self, answers: list[str]) -> dict[str, Any]:
        """Before the checks of the exercise with these answer names."""
        return {"status": "ok", "restored": self.surroundings.before_checks(answers)}

    def question(self, asked: dict[str, Any]) -> Callable[..., Any]:
        """The function to ask: an answer by its name, or a probe from its text."""
        if "answer" in asked:
            return self.namespace[asked["answer"]]
        if not asked["name"]:
            return eval(compile(asked["probe"], "<check>", "eval", dont_inherit=True), self.namespace)
        # Inside a function, so that the probe sees the answers' names and itself, and its own name is bound nowhere.
        text = f"def made():\n{textwrap.indent(asked['probe'], ' ')}\n return {asked['name']}"
        made: dict[str, Any] = {}
        exec(compile(text, "<check>", "exec", dont_inherit=True), self.namespace, made)
        return made["made"]()

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
    # What a notebook has without an import.
    builtins.__dict__.update(display=lambda *shown, **how: None, get_ipython=lambda: None)
    os.register_at_fork(after_in_child=stream.close)  # a process that a cell forks must not answer as well

    def handle(what: str, request: dict[str, Any], payload: bytes) -> bytes:
        if what in ("ask", "export"):
            return worker.ask(request, payload, getattr(worker.side, what))
        return encode(getattr(worker, what)(**request))

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
