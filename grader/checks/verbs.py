"""Verbs with which a check reaches an answer, `ask`, `error` and `program`, and the counter of calls `counted`."""

from __future__ import annotations

import functools
import math
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from grader.checks.outcomes import PLACE, CheckFailed, NotAttempted, NotData, explained
from grader.program.codec import Classes, abstract, encode
from grader.program.endpoints import AnswerEndpoint, ProgramEndpoint, identity, is_cell, read_reply, request
from grader.program.export import fill, parameters, slots
from grader.program.hlo import Collective
from grader.program.load import Facts
from grader.program.payload import DIVERGED, DONATED, Malformed, Unsendable


@dataclass(frozen=True)
class AnswerName:
    """Represents an answer on the trusted side, where the answer itself never is."""

    name: str


@dataclass(frozen=True)
class ProbeSource:
    """The text of a function that runs beside the answer; `name` is that of its `def`, empty for a lambda."""

    text: str
    name: str = ""


Question = Callable[..., Any] | AnswerName | ProbeSource


class Backend(Protocol):
    """The process that answers questions: this one, or an isolated one. Each method maps a request to a reply.

    Functions are called or exported, programs are loaded, then run by their identity.
    """

    @property
    def classes(self) -> Classes: ...  # that may cross as data
    @property
    def seconds(self) -> float: ...  # of computing that reading a reply may take
    @property
    def loopback(self) -> bool: ...  # whether processes that an answer starts can connect to each other
    def ask(self, question: Any, payload: bytes) -> bytes: ...
    def export(self, question: Any, payload: bytes) -> bytes: ...
    def load(self, payload: bytes) -> bytes: ...
    def run(self, program: str, payload: bytes) -> bytes: ...


class InProcessBackend(ProgramEndpoint):
    """Answers and programs in this very process: a learner's kernel, or stock nbgrader."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: dict[str, type] = {}  # the setup's named tuples
        self.seconds = math.inf

    @property
    def loopback(self) -> bool:
        try:
            with socket.create_server(("127.0.0.1", 0)) as server:
                socket.create_connection(server.getsockname(), 5).close()
        except OSError:
            return False
        return True

    def ask(self, question: Callable[..., Any], payload: bytes) -> bytes:
        return AnswerEndpoint(self.classes, _check_file()).ask(question, payload)

    def export(self, question: Callable[..., Any], payload: bytes) -> bytes:
        return AnswerEndpoint(self.classes, _check_file()).export(question, payload)


def _check_file() -> str:
    """The file name of the check cell that asks: its own lines are not the learner's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_cell(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename


PROGRAM = "Your program"  # what a message calls it
NOT_DATA = "Return arrays, numbers, strings or containers of them"
ADVICE = {
    DONATED: "Do not donate an array that is used again",
    DIVERGED: "Its sharding states that several devices store the same values, but they do not",
}
# The programs and facts (or kinds of collectives) that were read and not judged yet: a failure now is about them.
facts_read: list[tuple[Any, str]] = []
in_process = InProcessBackend()
_backend: Backend = in_process
_evidence: set[str] = set()
_overheard: list[Any] | None = None
_questions: list[tuple[Any, ...]] | None = None
_last_value: tuple[str, Any] = ("Your answer", None)
_replace: Callable[[str, Any], Any] | None = None


def set_backend(backend: Backend) -> Backend:
    """Sends questions to `backend` from now on; returns the one before."""
    global _backend
    before, _backend = _backend, backend
    return before


def backend() -> Backend:
    """Returns the process that answers questions now."""
    return _backend


def overhear(replies: list[Any] | None) -> None:
    """Adds everything that an answer's side replies from now on to `replies`; None ends it."""
    global _overheard
    _overheard = replies


def watch_questions(questions: list[tuple[Any, ...]] | None) -> None:
    """Adds the arguments of each question to an answer's side to `questions` from now on; None ends it."""
    global _questions
    _questions = questions


def replace_values(change: Callable[[str, Any], Any] | None) -> None:
    """Has checks get `change(subject, value)` for each value that an answer returns, from now on; None ends it."""
    global _replace
    _replace = change


def _returned(subject: str, value: Any) -> Any:
    global _last_value
    value = value if _replace is None else _replace(subject, value)
    _last_value = subject, value
    return value


def last_value() -> tuple[str, Any]:
    """Returns what was asked last, as a message calls it, and the value that it returned."""
    return _last_value


def take_evidence() -> frozenset[str]:
    """Returns the kinds of evidence ("value", "program") that were asked for since the last call."""
    taken = frozenset(_evidence)
    _evidence.clear()
    return taken


def ask(p: Question, *data: Any) -> Any:
    """Calls `p(*data)` live, on fresh copies of `data`.

    Args:
        p: an answer, or a probe: a function of the check's that runs beside the answer.
        *data: arguments, as data: arrays, keys, numbers, strings, dtypes, shardings, and containers of them.

    Returns:
        The result as data; arrays keep shape, dtype, weak type and sharding.

    Raises:
        NotAttempted: the answer is still the stub.
        CheckFailed: the call raises, or returns something that is not data.
    """
    _evidence.add("value")
    return _returned(_subject(p), _hear(_value(p, _exchange(_backend.ask, p, data))))


def error(p: Question, *data: Any) -> str | None:
    """Returns the class name of the exception that `p(*data)` raises; None when it raises none.

    Takes what `ask` takes. Raises `NotAttempted` where the answer is still the stub.
    """
    _evidence.add("value")
    reply = _exchange(_backend.ask, p, data)
    return reply["kind"] if reply["status"] == "raised" else None


def program(p: Question, *data: Any) -> Program:
    """Compiles `p` at the shapes of `data`, always from its exported bytes.

    Args:
        p: an answer or a probe.
        *data: trees of arguments. Arrays (NumPy, JAX, keys, ShapeDtypeStruct) become parameters of their shape, dtype
            and NamedSharding, and their values are not used; other leaves are closed over.

    Returns:
        The program, to inspect and to run.

    Raises:
        NotAttempted: the answer is still the stub.
        CheckFailed: tracing raises, the result is not arrays and data, or the program is refused.
    """
    _evidence.add("program")
    arrays, rebuild = parameters(data)
    shapes = [abstract(array) for array in arrays]
    exported = _value(p, _exchange(_backend.export, p, rebuild(shapes)))
    _hear(exported["results"])
    mesh = jax.sharding.get_mesh()
    taken = {"blob": exported["blob"], "parameters": tuple(shapes), "donated": exported["donated"]}
    payload = encode({**taken, "mesh": None if mesh.empty else mesh})
    loaded = _decoded(_backend.load(payload))
    if loaded["status"] != "ok":
        short = f"{_subject(p)} does not compile to a program that can be checked"
        raise CheckFailed(f"{short}: {loaded['text']}", kind="refused", hidden_message=f"{short}.")
    facts, outputs = Facts.from_data(loaded["facts"]), tuple(loaded["outputs"])
    if slots(exported["results"]) != list(range(len(outputs))):
        # Its facts are about all results. One that no check can look at would change them.
        raise CheckFailed("The reply could not be read: it does not name each result once.", kind="malformed")
    return _program_class(facts, exported["results"], outputs, identity(payload))


@dataclass(frozen=True)
class Program:
    """A compiled program; the attributes of `grader.program.load.Facts` are its own too, bytes and flops per device."""

    facts: Facts
    _results: Any
    _outputs: tuple[jax.ShapeDtypeStruct, ...]
    _identity: str

    def run(self, *data: Any) -> Any:
        """Runs the program.

        Args:
            *data: arguments of the structure, shapes and dtypes that it was compiled for.

        Returns:
            The result, in the answer's own structure.

        Raises:
            CheckFailed: the program failed while it ran.
        """
        arrays, _ = parameters(data)
        reply = _decoded(_backend.run(self._identity, encode(arrays)))
        if reply["status"] == "unsendable":
            raise _unsendable(PROGRAM, reply["kind"])
        if reply["status"] != "ok":
            short = "The program failed while it ran"
            raise CheckFailed(f"{short}: {reply['text']}", kind="ran", hidden_message=f"{short}.")
        return _returned(PROGRAM, fill(self._results, reply["value"]))

    @property
    def outputs(self) -> Any:
        """The result's tree with a ShapeDtypeStruct, sharding included, for each array."""
        return fill(self._results, self._outputs)

    def count(self, kind: str) -> int:
        """Returns the number of collectives of this kind, one of `grader.program.hlo.KINDS`."""
        facts_read.append((self, kind))
        return sum(item.kind == kind for item in self.facts.collectives)

    def elements(self, *kinds: str) -> float:
        """Returns the number of elements that all collectives of these kinds (of any kind if none is given) produce on
        one device in one call. A loop counts each of its iterations, without end where their number is not stated."""
        facts_read.append((self, kinds[0] if len(kinds) == 1 else "collectives"))
        return sum(_in_one_call(item) for item in self.facts.collectives if not kinds or item.kind in kinds)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of the compiled program."""
        facts_read.append((self, "collectives"))
        return self.facts.collectives

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in Facts.__dataclass_fields__:
            raise AttributeError(name)
        facts_read.append((self, name))
        return getattr(self.facts, name)


def _in_one_call(item: Collective) -> float:
    # A program for TPUs states the iterations of no loop. Elsewhere, only those of a loop that hides them are missing.
    unstated = 1 if jax.default_backend() == "tpu" else math.inf
    return item.elements * (unstated if item.times is None else item.times)


_program_class = Program


def set_program_class(kind: type[Program]) -> type[Program]:
    """Makes `program` return instances of `kind` from now on; returns the class before."""
    global _program_class
    before, _program_class = _program_class, kind
    return before


def _exchange(send: Callable[[Any, bytes], bytes], p: Question, data: tuple[Any, ...]) -> dict[str, Any]:
    try:
        payload = request(data, _backend.classes)
    except Unsendable as problem:
        raise NotData(f"this check passes a {problem}, which is not data") from None
    if _questions is not None:
        _questions.append(data)
    reply = _decoded(send(p, payload))
    _hear([reply["kind"], reply["text"], reply["source"]])
    if reply["status"] == "unattempted":
        raise NotAttempted(_name(p))
    return reply


def _decoded(reply: bytes) -> dict[str, Any]:
    try:
        return read_reply(reply, _backend.classes, _backend.seconds)
    except Malformed as problem:
        raise CheckFailed(f"The reply could not be read: {problem}.", kind="malformed") from None


def _hear(reply: Any) -> Any:
    if _overheard is not None:
        _overheard.append(reply)
    return reply


def _value(p: Question, reply: dict[str, Any]) -> Any:
    if reply["status"] == "unsendable":
        raise _unsendable(_subject(p), reply["kind"])
    if reply["status"] == "raised":
        raise _raised(p, reply)
    if _has_ellipsis(reply["value"]):
        raise NotAttempted(_name(p))
    return reply["value"]


def _unsendable(subject: str, kind: str) -> CheckFailed:
    advice = ADVICE.get(kind, NOT_DATA)
    shown = f"{'an' if kind[:1].lower() in 'aeio' else 'a'} `{kind}`"
    return CheckFailed(
        f"{subject} returned {shown}. {advice}.",
        kind="unsendable",
        where=kind,
        hidden_message=f"{subject} returned {shown if kind in ADVICE else 'something that is not data'}. {advice}.",
    )


def _raised(p: Question, reply: dict[str, Any]) -> CheckFailed:
    kind, line, text = reply["kind"], reply["line"], reply["text"].strip()
    short = f"{_subject(p)} raised {kind}"
    cause = explained(kind, text)
    hidden = f"{_subject(p)} raised an exception class of its own."
    if kind in exception_names():
        hidden = f"{short}: {cause.sentence}" if cause else f"{short}."
    place = f"\n{PLACE}{line} of your cell: {reply['source']}" if line and reply["source"] else ""
    if cause:
        details = f"{kind}: {text}", cause.beyond(text)
        said = cause.sentence + place
        return CheckFailed(said, kind="raised", where=kind, hidden_message=hidden, details=details, raised=text)
    first = "\n".join(text.splitlines()[:4])
    said = f"{short}: {first}{place}" if first else short + place
    return CheckFailed(said, kind="raised", where=kind, hidden_message=hidden, raised=text)


def exception_names() -> set[str]:
    """Returns the names of every exception class in this process; an answer's own may contain anything."""
    found: set[type[BaseException]] = set()
    todo: list[type[BaseException]] = [BaseException]
    while todo:
        found.add(kind := todo.pop())
        todo += kind.__subclasses__()
    return {kind.__name__ for kind in found}


def _has_ellipsis(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return value is ... or any(map(_has_ellipsis, items))


def _name(p: Question) -> str:
    """An answer's name; "" for a probe, which is not the learner's."""
    if isinstance(p, AnswerName):
        return p.name
    code = getattr(p, "__code__", None)
    if isinstance(p, ProbeSource) or (code is not None and code.co_filename == _check_file()):
        return ""
    return str(getattr(p, "__name__", type(p).__name__))


def _subject(p: Question) -> str:
    name = _name(p)
    return f"`{name}`" if name else "Your answer"


class counted:
    """Wraps a function and counts how often Python calls it: under `jit` and `vmap`, how often it is traced.

    A counter is in the answer's process, so what it reports is observed: an answer that attacks the grader could forge
    it.

    Args:
        function: the function to wrap.

    Attributes:
        calls: number of calls so far.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)
