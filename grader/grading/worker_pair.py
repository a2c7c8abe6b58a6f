"""A worker and an executor for one notebook, replaced after a fault: the backend that a check's questions go to."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from grader.checks.outcomes import CheckBroken, explained
from grader.checks.verbs import AnswerName, ProbeSource, exception_names
from grader.core.faults import Fault
from grader.core.layout import WORKER
from grader.grading.executors import ATTEMPTS, ExecutorPrograms, ReferencePrograms, start
from grader.program.codec import Classes, encode
from grader.program.endpoints import identity, read_reply
from grader.program.payload import Malformed
from grader.program.validate import MAX_BYTES
from grader.sandbox.process import IN_LINE_FACTOR, REPLY_LIMIT, Process, ProcessTree

# Seconds of computing, not of waiting: for a cell of the learner's own, and for an answer's cell and each call of it,
# where the exercise does not say otherwise. Four times as long on the clock.
CELL_S, ANSWER_S = 20.0, 5.0
# Minutes on the clock for a whole notebook: some for its own cells, and some for each exercise's seconds.
OWN_MIN, EXERCISE_MIN_PER_S = 1.0, 0.1
LARGEST_EXPORT = MAX_BYTES + (1 << 20)  # a program, and what lies beside it: all of them are kept for a while
# Exceptions of what the learner's machine has and this one has not, and what a learner is told about them.
NOT_HERE = ("ModuleNotFoundError", "FileNotFoundError")
AVAILABLE = "the notebook, the course's files and its packages"
AVAILABLE_WITH_OWN_FILES = "the notebook, the files submitted beside it, the course's files and its packages"
AGAIN = 2  # times as many seconds for a cell that runs again: it ended in time before
NAME_LISTS = ("binds", "needs", "bound", "restored")


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ran: `problem` is None when it ran to its end, else a sentence; `stub`: it is an untouched stub.

    `binds` and `needs` are the names in its text; `bound` are those that it came to bind, as its process says.
    """

    label: str
    binds: frozenset[str] = frozenset()
    bound: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    problem: str | None = None
    short: str = ""
    fault: str | None = None
    stub: bool = False


class Told(NamedTuple):
    """A request that changed the state of a worker, its seconds, and an identity of all cells up to it.

    Without frames, it stands for the end of the worker by a fault: the next worker has heard no question.
    """

    frames: tuple[bytes, ...]
    seconds: float
    state: str
    question: bool = False


@contextlib.contextmanager
def exchange() -> Iterator[None]:
    """Within it no value of a learner's is looked at: an exception there is a fault of the grader."""
    try:
        yield
    except (Fault, CheckBroken):
        raise
    except Exception as problem:
        traceback.print_exception(problem, file=sys.stderr)
        raise CheckBroken(f"{type(problem).__name__} in the grader") from problem


class NotebookClock:
    """Minutes on the clock for a notebook as a whole. It stands still while the processes that are asked, or this one,
    stand in line for a processor, as beside other work; but not for ever."""

    def __init__(self, minutes: float) -> None:
        self.minutes, self._own = minutes, ProcessTree(os.getpid())
        self._own.stood()
        self._began, self._in_line = time.monotonic(), Process.in_line

    def check(self) -> None:
        """Raise `Fault` when the time is over."""
        passed, most = time.monotonic() - self._began, 60 * self.minutes
        if passed <= most:
            return
        if passed - (Process.in_line - self._in_line) - self._own.stood() > most or passed > most * IN_LINE_FACTOR:
            raise Fault("timeout", f"your notebook as a whole took longer than {self.minutes:g} minutes")


class WorkerPair:
    """A notebook's worker and executor on the trusted side, and the backend of `grader.checks` that asks them.

    `known` are programs of the course's own answers, None for processes that run those answers. `data` is the folder
    of the lesson's files, "" if it has none. Processes start when first needed.
    """

    def __init__(
        self, setup: str, classes: Classes, programs: ExecutorPrograms, known: ReferencePrograms | None = None,
        data: str = "",
    ) -> None:  # fmt: skip
        self.data, self.available = data, AVAILABLE
        self.setup, self.classes, self.programs, self.known = setup, classes, programs, known
        self.seconds = ANSWER_S
        self.asked = 0
        self.first = False  # whether the next question is the first one of a public check
        self._log: list[Told] = []  # all that changed the state of a worker since the setup, in the first pass
        self._first_pass = True
        self._history: list[Told] = []  # what of it a fresh worker is told again
        self._place = 0  # up to where in the log the history goes
        self._heard = 0  # how much of the history the worker has been told
        self._state = ""  # an identity of all of that
        self.clock = NotebookClock(math.inf)
        self._exports: dict[tuple[str, AnswerName | ProbeSource, bytes], bytes] = {}
        self._earlier: dict[tuple[str, AnswerName | ProbeSource, bytes], bytes] = {}
        self._places: dict[str, ExecutorPrograms] = {}  # where each program was loaded, by its identity
        self._worker: Process | None = None
        self.programs.beside = lambda: self._worker
        self._names: dict[str, dict[str, Any] | Fault] = {}  # what was read of each cell, by its text

    @property
    def loopback(self) -> bool:
        """Whether processes that a worker starts can connect to each other, as the zygote has found out."""
        return self.programs.zygote.confined.loopback

    def read(self, sources: Iterable[str]) -> None:
        """Find the names in all cells while nothing of a learner's has run: what is told of them then is true."""
        for source in sources:
            for _ in range(0 if source in self._names else ATTEMPTS):
                try:
                    self.clock.check()
                    self._names[source] = self._tell({"do": "read", "source": source}, CELL_S)
                    break
                except Fault as fault:
                    self.drop()
                    self._names[source] = fault
                    if fault.kind != "crashed":  # a process that ended may have been ended from outside
                        break

    @property
    def place(self) -> int:
        """How much has run up to here, for `advance`."""
        return self._place

    def rewind(self) -> None:
        """End the worker and go back to before the first cell: the next one has run nothing and was asked nothing."""
        self._end_worker()
        self._history, self._state, self._place, self._first_pass = [], "", 0, False

    def advance(self, place: int) -> None:
        """Have all run again that ran up to this place, which is none before the current one."""
        for told in self._log[self._place : place]:
            if told.frames:
                self._history.append(told)
            else:
                self._end_worker()
        self._state, self._place = self._log[place - 1].state if place else "", place

    def run_cell(
        self, source: str, label: str, seconds: float = CELL_S, passed: Sequence[str] = (), setup: bool = False
    ) -> CellOutcome:
        """Run a learner's cell and remember it for a replay. A fault in it costs the worker, not the session.

        `passed` are the texts of the course's cells that stand between it and the one that ran before, and `setup` says
        that it stands in the place of a setup cell.
        """
        request = {"do": "run", "source": source, "passed": list(passed), "setup": setup}
        ran = self._run_cell(request, label, seconds)
        return self._run_cell(request, label, seconds) if ran.fault == "crashed" else ran

    def binds(self, source: str) -> frozenset[str] | None:
        """The names that the text of a cell binds; None where it is no Python that this can be said of."""
        self.read([source])
        names = self._names[source]
        return None if isinstance(names, Fault) or names["status"] != "ok" else frozenset(names["binds"])

    def _run_cell(self, request: dict[str, Any], label: str, seconds: float) -> CellOutcome:
        known, source = CellOutcome(label), request["source"]
        try:
            self.clock.check()
            self.read([source])
            names = self._names[source]
            if isinstance(names, Fault):
                raise names
            if names["status"] != "ok":  # a cell before it may have taught the shell to read it
                names = self._tell({"do": "read", "source": source}, CELL_S)
            if names["status"] != "ok":
                place, quoted = _place_and_text(names)
                return replace(known, problem=f"has a syntax error{place}{quoted}", short=f"has a syntax error{place}")
            known = replace(known, binds=frozenset(names["binds"]), needs=frozenset(names["needs"]))
            reply = self._remembered(request, seconds)
        except Fault as fault:
            self.drop()
            return replace(known, problem=_fault_text(fault), short=_fault_text(fault), fault=fault.kind)
        known = replace(known, bound=frozenset(reply["bound"]))
        if reply["status"] == "ok":
            return known
        if reply["status"] == "unattempted":
            return replace(known, problem="still raises NotImplementedError", short="is not attempted", stub=True)
        # In a note, no class of a learner's: its name may be a text of any kind.
        kind = reply["kind"] if reply["kind"] in exception_names() else "an exception class of its own"
        place, quoted = _place_and_text(reply)
        short = f"raised {kind}{place}"
        if kind in NOT_HERE:
            short = f"{short} (the grader has only {self.available})"
            fix = "Write other modules in a cell that begins with %%writefile."
            quoted += f"\nThe grader has only {self.available}. {fix}"
        return replace(known, problem=f"raised {reply['kind']}{place}{quoted}", short=short)

    def prepare(self, answers: tuple[str, ...]) -> list[str]:
        """Put setup names, configuration and mesh back before an exercise's checks; returns the names put back."""
        request = {"do": "prepare", "answers": list(answers)}
        for _ in range(ATTEMPTS):
            try:
                return list(self._remembered(request, CELL_S)["restored"])
            except Fault:
                self.drop()
        return []

    def _remembered(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Tell the worker something that a replay has to tell it again."""
        self._state = identity(f"{self._state} {request}".encode())
        reply = self._tell(request, seconds)
        told = Told((encode(request),), seconds, self._state)
        self._log.append(told)
        self._history.append(told)
        self._place, self._heard = len(self._log), len(self._history)
        return reply

    def _question(self, do: str, p: AnswerName | ProbeSource, payload: bytes, most: int = REPLY_LIMIT) -> bytes:
        """Ask the worker. A second pass repeats the first question of a public check: an answer may keep something."""
        asked = {"probe": p.text, "name": p.name} if isinstance(p, ProbeSource) else {"answer": p.name}
        frames = encode({"do": do, **asked}), payload
        reply = self._exchange(*frames, seconds=self.seconds, most=most)
        if self.first:
            self._log.append(Told(frames, self.seconds, self._state, question=True))
            self._place, self.first = len(self._log), False
        return reply

    def fresh(self, reuse: bool = False) -> None:
        """Forget every cell but the setup, in the same process: for answers of the course's own.

        With `reuse`, what the same cells exported before is taken from then instead of being traced again.
        """
        self._log, self._history, self._state, self._place, self._heard = [], [], "", 0, 0
        self._first_pass = True
        self._earlier |= self._exports
        self._exports = dict(self._earlier) if reuse else {}
        if self._worker is not None:
            try:
                self._tell({"do": "fresh"}, CELL_S)
            except Fault:
                self.drop()  # the next is fresh anyway

    @exchange()
    def ask(self, question: AnswerName | ProbeSource, payload: bytes) -> bytes:
        """Call the answer, in the worker."""
        self.clock.check()
        self.asked += 1
        return self._question("ask", question, payload)

    @exchange()
    def export(self, question: AnswerName | ProbeSource, payload: bytes) -> bytes:
        """Export a program, in the worker; at the same shapes, before another cell ran, it is the same program."""
        self.clock.check()
        self.asked += 1
        key = (self._state, question, payload)
        if key not in self._exports:
            self._exports[key] = self._question("export", question, payload, LARGEST_EXPORT)
        return self._exports[key]

    @exchange()
    def load(self, payload: bytes) -> bytes:
        """Load a program, in the executor of the known ones or in the notebook's own."""
        place = self.known if self.known is not None and payload in self.known.payloads else self.programs
        self._places[identity(payload)] = place
        return place.load(payload, self.seconds)

    @exchange()
    def run(self, program: str, payload: bytes) -> bytes:
        """Run a loaded program, in the executor that loaded it."""
        return self._places[program].run(program, payload, self.seconds)

    @property
    def worker(self) -> Process:
        """The worker, forked when first needed and, after a fault or a step back, forked again and told all again."""
        lost: dict[int, int] = {}  # how often each request ended it
        while self._worker is None or self._heard < len(self._history):
            at = -1  # the setup
            try:
                if self._worker is None:
                    self._worker = start(self.programs.zygote, WORKER, self.programs.compiled, self.data)
                    self._setup(self._worker)
                while self._heard < len(self._history):
                    at, told = self._heard, self._history[self._heard]
                    self.clock.check()
                    self._exchange(*told.frames, seconds=AGAIN * told.seconds, at=self._worker)
                    self._heard += 1
            except Fault as fault:
                self._kill_worker()
                self.programs.drop()
                self.clock.check()
                lost[at] = lost.get(at, 0) + 1
                if at == -1 and lost[at] == ATTEMPTS:
                    raise CheckBroken(f"the course's setup did not run: {fault.message}") from None
                if lost[at] == ATTEMPTS:  # it ran before and now does not: left out from here on, as the others count
                    del self._history[at]
                    lost = {}
        return self._worker

    def _setup(self, worker: Process) -> None:
        ran = self._tell({"do": "setup", "source": self.setup}, CELL_S, worker)
        if ran["status"] != "ok":
            raise CheckBroken(f"the course's setup raised {ran['kind']}: {ran['text']}")

    def _exchange(self, *frames: bytes, seconds: float, most: int = REPLY_LIMIT, at: Process | None = None) -> bytes:
        return (at or self.worker).exchange(*frames, seconds=seconds, most=most, beside=self.programs.executor)

    def _tell(self, request: dict[str, Any], seconds: float, worker: Process | None = None) -> dict[str, Any]:
        try:
            reply = read_reply(self._exchange(encode(request), seconds=seconds, at=worker), seconds=seconds)
            for names in (reply.setdefault(kind, []) for kind in NAME_LISTS):
                if type(names) is not list or not all(type(name) is str and name.isidentifier() for name in names):
                    raise Malformed("it lists something that is not a name")
            return reply
        except Malformed as problem:
            raise Fault("crashed", f"its reply could not be read: {problem}") from None

    def drop(self) -> None:
        """End both processes; the next question starts new ones and replays the cells."""
        self._end_worker()
        self.programs.drop()
        if self._first_pass:
            self._log.append(Told((), 0, self._state))
            self._place = len(self._log)

    def _end_worker(self) -> None:
        """End the worker. The next one is told the cells, and none of the questions."""
        self._kill_worker()
        self._history = [told for told in self._history if not told.question]

    def _kill_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker, self._heard = None, 0


def _place_and_text(reply: dict[str, Any]) -> tuple[str, str]:
    """Where an exception came from, and what it says, or our own words for it, with that line's text."""
    cause = explained(reply["kind"], reply["text"])
    text = cause.sentence if cause else "\n".join(reply["text"].strip().splitlines()[:4])
    place = f" on line {reply['line']}" if reply["line"] else ""
    return place, (f": {text}" if text else "") + (f"\n{reply['source']}".rstrip() if reply["source"] else "")


def _fault_text(fault: Fault) -> str:
    texts = {"timeout": f"did not end: {fault.message}", "memory": f"was stopped: it {fault.message}"}
    return texts.get(fault.kind, "ended the whole process")
