"""A worker and an executor for one notebook, replaced and replayed after a fault; where a check's questions go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from grader.checks.asking import Answer, Probe
from grader.program.codec import Classes, Malformed, decode, encode
from grader.sandbox.process import Process, Zygote
from grader.sandbox.wire import Fault

DEVICES = 8
# Seconds of computing, not of waiting: for a cell of the learner's own, and for an answer's cell and each call of it,
# where the exercise does not say otherwise. Four times as long on the clock.
CELL_S, ANSWER_S = 20.0, 5.0


@dataclass(frozen=True)
class Ran:
    """How a cell ran: `problem` is None when it ran to its end, else a sentence; `stub`: it is an untouched stub."""

    source: str
    label: str
    binds: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    problem: str | None = None
    short: str = ""
    fault: str | None = None
    stub: bool = False


class Isolated:
    """The surface behind `ask`, `error` and `program` on the trusted side."""

    def __init__(self, zygote: Zygote, setup: str, classes: Classes) -> None:
        self.zygote, self.setup_source, self.classes = zygote, setup, classes
        self.seconds = ANSWER_S
        self.asked = 0
        self._history: list[Ran] = []
        self._exports: dict[tuple[Answer | Probe, bytes], bytes] = {}
        self._worker: Process | None = None
        self._executor: Process | None = None

    def run(self, source: str, label: str, seconds: float = CELL_S) -> Ran:
        """Run a learner's cell and remember it for a replay. A fault in it costs the worker, not the exam."""
        self._exports.clear()
        known = Ran(source, label)
        try:
            names = self._tell({"do": "read", "source": source}, CELL_S)
            if names["status"] != "ok":
                place = f" on line {names['line']}" if names.get("line") else ""
                short = f"has a syntax error{place}"
                return replace(known, problem=f"{short}: {names['text']}\n{names['source']}".rstrip(), short=short)
            known = replace(known, binds=frozenset(names["binds"]), needs=frozenset(names["needs"]))
            reply = self._tell({"do": "run", "source": source, "name": label}, seconds)
        except Fault as fault:
            self.drop()
            return replace(known, problem=_fault_text(fault), short=_fault_text(fault), fault=fault.kind)
        if reply["status"] == "ok":
            ran = known
        else:
            ran = _raised(known, reply)
        self._history.append(ran)
        return ran

    def prepare(self, answers: tuple[str, ...]) -> list[str]:
        """Put setup names, configuration and mesh back before an exercise's checks; returns the names put back."""
        reply = self._tell({"do": "prepare", "answers": list(answers)}, CELL_S)
        return [name for name in reply.get("restored", []) if isinstance(name, str)]

    def fresh(self) -> None:
        """Forget every cell but the setup, in the same process: for answers of the course's own."""
        self._history.clear()
        self._exports.clear()
        if self._worker is not None:
            self._tell({"do": "fresh"}, CELL_S)

    def ask(self, question: Answer | Probe, payload: bytes) -> bytes:
        """The live call, in the worker."""
        self.asked += 1
        return self.worker.exchange(encode({"do": "ask", **_question(question)}), payload, seconds=self.seconds)

    def export(self, question: Answer | Probe, payload: bytes) -> bytes:
        """The export, in the worker; asked again at the same shapes before another cell ran, it is the same program."""
        self.asked += 1
        key = (question, payload)
        if key not in self._exports:
            asked = encode({"do": "export", **_question(question)})
            self._exports[key] = self.worker.exchange(asked, payload, seconds=self.seconds)
        return self._exports[key]

    def load(self, payload: bytes) -> bytes:
        """Load a program, in the executor."""
        return self.executor.exchange(encode({"do": "load"}), payload, seconds=self.seconds)

    def run_program(self, payload: bytes) -> bytes:
        """Run a program, in the executor."""
        return self.executor.exchange(encode({"do": "run"}), payload, seconds=self.seconds)

    @property
    def worker(self) -> Process:
        """The worker, forked when first needed and, after a fault, forked again with its cells run again."""
        if self._worker is None:
            self._worker = self._start("grader.sandbox.worker:serve")
            ran = self._tell({"do": "setup", "source": self.setup_source}, CELL_S)
            if ran["status"] != "ok":
                raise RuntimeError(f"the course's setup raised {ran.get('kind')}: {ran.get('text')}")
            for cell in self._history:
                self._tell({"do": "run", "source": cell.source, "name": cell.label}, CELL_S)
        return self._worker

    @property
    def executor(self) -> Process:
        """The executor, forked when first needed."""
        if self._executor is None:
            self._executor = self._start("grader.sandbox.executor:serve")
        return self._executor

    def _start(self, entry: str) -> Process:
        process = self.zygote.fork(entry)
        frames = [encode({"do": "devices", "count": DEVICES})]
        process.exchange(*frames, *([b""] if "executor" in entry else []), seconds=CELL_S)
        return process

    def _tell(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            reply = decode(self.worker.exchange(encode(request), seconds=seconds))
        except Malformed as problem:
            raise Fault("crashed", f"its reply could not be read: {problem}") from None
        if not isinstance(reply, dict) or "status" not in reply:
            raise Fault("crashed", "its reply could not be read")
        return reply

    def drop(self) -> None:
        """End both processes; the next question starts new ones and replays the cells."""
        for process in (self._worker, self._executor):
            if process is not None:
                process.kill()
        self._worker = self._executor = None


class Surface:
    """What `grader.checks` talks to: the isolated processes under the names that it uses."""

    def __init__(self, isolated: Isolated) -> None:
        self.classes = isolated.classes
        self.ask, self.export = isolated.ask, isolated.export
        self.load, self.run = isolated.load, isolated.run_program


def _question(p: Answer | Probe) -> dict[str, Any]:
    return {"probe": p.text, "name": p.name} if isinstance(p, Probe) else {"answer": p.name}


def _raised(ran: Ran, reply: dict[str, Any]) -> Ran:
    if reply["status"] == "unattempted":
        return replace(ran, problem="still raises NotImplementedError", short="is not attempted", stub=True)
    place = f" on line {reply['line']}" if reply.get("line") else ""
    short = f"raised {reply.get('kind')}{place}"
    text = "\n".join(str(reply.get("text", "")).strip().splitlines()[:4])
    return replace(ran, problem=f"{short}: {text}\n{reply.get('source') or ''}".rstrip(), short=short)


def _fault_text(fault: Fault) -> str:
    return {"timeout": f"did not end: {fault.message}", "crashed": "ended the whole process"}.get(
        fault.kind, fault.message
    )
