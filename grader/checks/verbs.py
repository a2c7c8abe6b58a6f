"""The three ways in which a check reaches an answer: `ask`, `error` and `program`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from grader.checks import facts_read
from grader.checks.error_table import QUESTIONS
from grader.checks.errors import explained
from grader.checks.outcomes import PLACE, CheckBroken, CheckFailed, NotAttempted
from grader.program.codec import Classes, abstract, encode
from grader.program.endpoints import AnswerEndpoint, ProgramEndpoint, identity, is_cell, read_reply, request
from grader.program.export import fill, parameters
from grader.program.hlo import Collective
from grader.program.limits import Malformed, Unsendable
from grader.program.load import Facts


@dataclass(frozen=True)
class AnswerName:
    """Stands for an answer on the trusted side, where the answer itself never is."""

    name: str


@dataclass(frozen=True)
class ProbeSource:
    """The text of a function that runs beside the answer; `name` is the `def`'s, empty for a lambda."""

    text: str
    name: str = ""


Question = Callable[..., Any] | AnswerName | ProbeSource


class Backend(Protocol):
    """Where questions go: this process, or an isolated one. Each method maps request bytes to reply bytes."""

    @property
    def classes(self) -> Classes:
        """The named tuple classes that may cross."""

    def ask(self, question: Any, payload: bytes) -> bytes:
        """Make the live call."""

    def export(self, question: Any, payload: bytes) -> bytes:
        """Turn the function into a program."""

    def load(self, payload: bytes) -> bytes:
        """Load a program and state its facts."""

    def run(self, program: str, payload: bytes) -> bytes:
        """Run the loaded program of this identity."""


class InProcessBackend:
    """Answers and programs in this very process: a learner's kernel, or stock nbgrader."""

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        self._programs = ProgramEndpoint()

    def ask(self, question: Callable[..., Any], payload: bytes) -> bytes:
        """Call it here, on copies."""
        return AnswerEndpoint(self.classes, _check_file()).ask(question, payload)

    def export(self, question: Callable[..., Any], payload: bytes) -> bytes:
        """Export it here."""
        return AnswerEndpoint(self.classes, _check_file()).export(question, payload)

    def load(self, payload: bytes) -> bytes:
        """Load it here."""
        return self._programs.load(payload)

    def run(self, program: str, payload: bytes) -> bytes:
        """Run it here."""
        return self._programs.run(program, payload)


def _check_file() -> str:
    """The file name of the check cell that asks: its own lines are not the learner's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_cell(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename


_here = InProcessBackend()
_surface: Backend = _here
_evidence: set[str] = set()
_overheard: list[Any] | None = None


def set_backend(surface: Backend) -> Backend:
    """Send questions to `surface` from now on; returns the one before."""
    global _surface
    before, _surface = _surface, surface
    return before


def allow(classes: dict[str, type]) -> None:
    """In this process, let these named tuple classes cross as data: those of the setup."""
    _here.classes = classes


def overhear(replies: list[Any] | None) -> None:
    """From now on, add everything that an answer's side says to `replies`; None ends it."""
    global _overheard
    _overheard = replies


def take_evidence() -> frozenset[str]:
    """Which kinds of evidence ("value", "program") were asked for since the last call."""
    taken = frozenset(_evidence)
    _evidence.clear()
    return taken


def ask(p: Question, *data: Any) -> Any:
    """The live call `p(*data)` on fresh copies of `data`; its result as data.

    `p` is an answer or a probe. Raises `CheckFailed` when the call raises or returns something that is not data.
    """
    _evidence.add("value")
    return _hear(_value(p, _exchange(_surface.ask, p, data)))


def error(p: Question, *data: Any) -> str | None:
    """The class name of the exception that `p(*data)` raises; None when it raises none."""
    _evidence.add("value")
    reply = _exchange(_surface.ask, p, data)
    if reply["status"] == "unattempted":
        raise NotAttempted(_name(p))
    return reply["kind"] if reply["status"] == "raised" else None


def program(p: Question, *data: Any) -> Program:
    """`p` as a compiled program at the shapes of `data`, always rebuilt from its exported bytes.

    Arrays (NumPy, JAX, keys, ShapeDtypeStruct) become parameters, with their NamedShardings; other leaves are closed
    over. Only shapes travel, no values. Raises `CheckFailed` when tracing raises or the result is not arrays and data.
    """
    _evidence.add("program")
    arrays, rebuild = parameters(data)
    shapes = [abstract(array) for array in arrays]
    exported = _value(p, _exchange(_surface.export, p, rebuild(shapes)))
    _hear(exported["results"])
    mesh = jax.sharding.get_mesh()
    wanted = {
        "blob": exported["blob"],
        "parameters": tuple(shapes),
        "donated": exported["donated"],
        "mesh": None if mesh.empty else mesh,
    }
    payload = encode(wanted)
    loaded = _decoded(_surface.load(payload))
    if loaded["status"] != "ok":
        text = f"{_subject(p)} does not become a program that runs: {loaded['text']}"
        raise CheckFailed(text, kind="refused", hidden_message=f"{_subject(p)} does not become a program that runs.")
    facts, outputs = Facts.from_data(loaded["facts"]), tuple(loaded["outputs"])
    return Program(facts, exported["results"], outputs, identity(payload))


@dataclass(frozen=True)
class Program:
    """A program and its facts (see `grader.program.load.Facts`); bytes and flops are per device."""

    facts: Facts
    _results: Any
    _outputs: tuple[jax.ShapeDtypeStruct, ...]
    _identity: str

    def run(self, *data: Any) -> Any:
        """The program's result for arguments of the same structure, shapes and dtypes as it was built for."""
        arrays, _ = parameters(data)
        reply = _decoded(_surface.run(self._identity, encode(arrays)))
        if reply["status"] != "ok":
            raise CheckFailed(
                f"The program failed while it ran: {reply['text']}",
                kind="ran",
                hidden_message="The program failed while it ran.",
            )
        return fill(self._results, reply["value"])

    @property
    def outputs(self) -> Any:
        """The result's tree with a ShapeDtypeStruct (with its sharding) for each array."""
        return fill(self._results, self._outputs)

    def count(self, kind: str) -> int:
        """Number of collectives of this kind."""
        facts_read.read(self, kind)
        return sum(item.kind == kind for item in self.facts.collectives)

    def elements(self, kind: str) -> int:
        """Elements that the collectives of this kind produce together on one device."""
        facts_read.read(self, kind)
        return sum(item.elements for item in self.facts.collectives if item.kind == kind)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of the compiled program."""
        facts_read.read(self, "collectives")
        return self.facts.collectives

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in Facts.__dataclass_fields__:
            raise AttributeError(name)
        facts_read.read(self, name)
        return getattr(self.facts, name)


def _exchange(send: Callable[[Any, bytes], bytes], p: Question, data: tuple[Any, ...]) -> dict[str, Any]:
    try:
        payload = request(data, _surface.classes)
    except Unsendable as problem:
        raise CheckBroken(f"this check hands over a {problem.name}, which is not data") from None
    reply = _decoded(send(p, payload))
    _hear([reply["kind"], reply["text"], reply["source"]])
    return reply


def _decoded(reply: bytes) -> dict[str, Any]:
    try:
        return read_reply(reply, _surface.classes)
    except Malformed as problem:
        raise CheckFailed(f"The reply could not be read: {problem}.", kind="malformed") from None


def _hear(told: Any) -> Any:
    if _overheard is not None:
        _overheard.append(told)
    return told


def _value(p: Question, reply: dict[str, Any]) -> Any:
    status = reply["status"]
    if status == "unattempted":
        raise NotAttempted(_name(p))
    if status == "unsendable":
        wanted = "return arrays, numbers, strings or containers of them"
        raise CheckFailed(
            f"{_subject(p)} returned a `{reply['kind']}`; {wanted}.",
            kind="unsendable",
            where=reply["kind"],
            hidden_message=f"{_subject(p)} returned something that is not data; {wanted}.",
        )
    if status == "raised":
        raise _raised(p, reply)
    value = reply["value"]
    if _has_ellipsis(value):
        raise NotAttempted(_name(p))
    return value


def _raised(p: Question, reply: dict[str, Any]) -> CheckFailed:
    kind, line, text = reply["kind"], reply["line"], reply["text"].strip()
    short = f"{_subject(p)} raised {kind}"
    cause = explained(kind, text)
    hidden = f"{_subject(p)} raised an exception of its own."
    if kind in exception_names():
        said = cause.sentence if cause else QUESTIONS.get(kind)
        hidden = f"{short}: {said}" if said else f"{short}."
    place = f"\n{PLACE}{line} of your cell: {reply['source']}" if line and reply["source"] else ""
    if cause:
        details = f"{kind}: {text}", cause.beyond(text)
        return CheckFailed(cause.sentence + place, kind="raised", where=kind, hidden_message=hidden, details=details)
    first = "\n".join(text.splitlines()[:4])
    said = f"{short}: {first}{place}" if first else short + place
    return CheckFailed(said, kind="raised", where=kind, hidden_message=hidden)


def exception_names() -> set[str]:
    """Of every exception class that this process knows. A class that an answer made may carry anything in its name."""
    found: set[type[BaseException]] = set()
    todo: list[type[BaseException]] = [BaseException]
    while todo:
        found.add(kind := todo.pop())
        todo += kind.__subclasses__()
    return {kind.__name__ for kind in found}


def _has_ellipsis(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_ellipsis(item) for item in value.values())
    if isinstance(value, tuple | list):
        return any(_has_ellipsis(item) for item in value)
    return value is ...


def _name(p: Question) -> str:
    """An answer's name; nothing for a probe, which is not the learner's."""
    if isinstance(p, AnswerName):
        return p.name
    code = getattr(p, "__code__", None)
    if isinstance(p, ProbeSource) or (code is not None and code.co_filename == _check_file()):
        return ""
    return str(getattr(p, "__name__", type(p).__name__))


def _subject(p: Question) -> str:
    name = _name(p)
    return f"`{name}`" if name else "Your answer"
