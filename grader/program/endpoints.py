"""Endpoints of a question, from bytes to bytes: one runs beside the answer, one runs programs.

A learner's kernel and an isolated worker go through these same functions, so that they cannot disagree.
"""

from __future__ import annotations

import builtins
import contextlib
import difflib
import hashlib
import math
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np

from grader.core.layout import PACKAGE
from grader.program.codec import Classes, decode, encode
from grader.program.environment import simulate
from grader.program.export import export
from grader.program.load import Loaded
from grader.program.payload import LIMITS, Malformed, Unsendable
from grader.program.validate import ProgramRefused

MAX_TEXT, MAX_LINE = 2_000, 200  # characters of an exception's text; of its class, and of a line of source
SIMILAR = 0.7  # of two names, by difflib, for one to be suggested in the place of the other
STATUSES = ("ok", "raised", "unsendable", "unattempted", "refused")
SETUP_FILE = "<setup>"


def begin(devices: int, compiled: str | None, write: bool, accelerator: str = "") -> None:
    """Configures JAX in a process of its own.

    Args:
        devices: number of simulated CPU devices.
        compiled: folder of JAX's compilation cache, or None.
        write: whether this process stores everything that it compiles there; otherwise it only reads.
        accelerator: a platform such as "gpu", whose devices are made now: that takes seconds, which are no answer's.

    Raises:
        RuntimeError: JAX finds no such accelerator and would go on with CPUs.
    """
    simulate(devices)
    if compiled is not None:
        jax.config.update("jax_compilation_cache_dir", compiled)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0 if write else math.inf)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # What XLA found to be fast on a GPU, which it would write beside it, in a folder that most may only read.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    if accelerator:
        [found] = jax.numpy.zeros(()).block_until_ready().devices()
        if found.platform != accelerator:
            raise RuntimeError(f"{found} is no {accelerator}")


def request(args: tuple[Any, ...], classes: Classes | None = None) -> bytes:
    """Returns the payload of a question: its arguments and the ambient mesh. Raises `Unsendable`."""
    mesh = jax.sharding.get_mesh()
    return encode({"args": args, "mesh": None if mesh.empty else mesh}, classes)


def read_reply(payload: bytes, classes: Classes | None = None, seconds: float = math.inf) -> dict[str, Any]:
    """Returns a reply with every field. Whoever replies may lie.

    Raises:
        Malformed: it is no reply.
        Fault: reading it takes longer than `seconds` of computing.
    """
    data = decode(payload, classes, replace(LIMITS, seconds=seconds))
    if not isinstance(data, dict) or type(data.get("status")) is not str or data["status"] not in STATUSES:
        raise Malformed("it is not a reply")
    reply: dict[str, Any] = {"kind": "", "text": "", "source": "", "line": None} | data
    for name, most in (("kind", MAX_LINE), ("text", MAX_TEXT), ("source", MAX_LINE)):
        if type(reply[name]) is not str or len(reply[name]) > most:
            raise Malformed("it says something that is no text, or too long a one")
    if reply["line"] is not None and (type(reply["line"]) is not int or not 0 <= reply["line"] < 1 << 31):
        raise Malformed("its line is no number of a line")
    return reply


def namedtuples(namespace: dict[str, Any]) -> dict[str, type]:
    """Returns the named tuple classes in a namespace by name: the only classes that cross as data."""
    return {
        name: value
        for name, value in namespace.items()
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
    }


class AnswerEndpoint:
    """Runs beside the answer: calls a function on decoded arguments, or exports it, and replies with data.

    A reply is a dict with `status`: "ok" (with `value`), "raised" (with `kind`, `text`, `line`), "unsendable" (with
    `kind`), or "unattempted" for a stub that is still as it was released.
    """

    def __init__(self, classes: Classes | None = None, check_file: str = "<check>") -> None:
        self.classes: Classes = classes or {}
        self.check_file = check_file

    def ask(self, function: Callable[..., Any], payload: bytes) -> bytes:
        """Calls `function` on fresh copies of the arguments."""
        return self._reply(lambda args: function(*args), payload)

    def export(self, function: Callable[..., Any], payload: bytes) -> bytes:
        """Exports `function` at the arguments' shapes."""

        def program(args: tuple[Any, ...]) -> Any:
            made = export(function, args, self.classes)
            return {**vars(made), "blob": np.frombuffer(made.blob, np.uint8)}

        return self._reply(program, payload)

    def _reply(self, what: Callable[[tuple[Any, ...]], Any], payload: bytes) -> bytes:
        asked = decode(payload, self.classes)
        value: Any = None
        try:
            with _on(asked["mesh"]), _all_bits():
                value = what(asked["args"])
                return encode({"status": "ok", "value": value}, self.classes)
        except Unsendable as problem:
            try:
                # An array whose computation failed is no data either. The first level alone: a result may be nested so
                # deeply, or refer to itself so often, that it cannot be traversed.
                for leaf in value[:MAX_RESULTS] if type(value) in (tuple, list) else [value]:
                    if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                        leaf.block_until_ready()
            except jax.errors.JaxRuntimeError as failed:
                return encode(describe(failed, self.check_file))
            return encode({"status": "unsendable", "kind": str(problem)[:MAX_LINE]})
        except BaseException as problem:  # SystemExit and KeyboardInterrupt are an answer's fault too, not ours
            return encode(describe(problem, self.check_file))


def _on(mesh: jax.sharding.Mesh | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def _all_bits() -> contextlib.AbstractContextManager[None]:
    """Full precision on accelerators, which round the factors of a float32 product to fewer bits than a check compares,
    unless the setup has chosen a precision."""
    # To ask for the backend makes it, with its threads: not in a process that is on CPUs for sure.
    free = jax.config.values["jax_platforms"] != "cpu" and jax.config.values["jax_default_matmul_precision"] is None
    if free and jax.default_backend() != "cpu":
        return jax.default_matmul_precision("highest")
    return contextlib.nullcontext()


def describe(problem: BaseException, check_file: str = "<check>") -> dict[str, Any]:
    """Returns an exception as a reply: kind, text, and the last line of the learner's own cells that it passed."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if is_cell(frame.filename) and frame.filename != check_file]
    if isinstance(problem, NotImplementedError) and not str(problem) and own and frames[-1] is own[-1]:
        return {"status": "unattempted"}
    try:
        text = _OURS.sub("your function", _LEAVES.sub("its inputs", _ADDRESS.sub(">", str(problem))))
        text += _suggestion(problem)
    except Exception:  # an exception class of the learner's may fail to print itself
        text = ""
    text, of_callback = _without_traceback(text)
    own += [frame for frame in of_callback if is_cell(frame.filename) and frame.filename != check_file]
    return {
        "status": "raised",
        "kind": type(problem).__name__[:MAX_LINE],
        "text": text[:MAX_TEXT],
        "line": own[-1].lineno if own else None,
        "source": (own[-1].line or "")[:MAX_LINE] if own else "",
    }


def _without_traceback(text: str) -> tuple[str, list[traceback.FrameSummary]]:
    """The text of an error in a callback without the traceback that JAX quotes in it, and the frames of that."""
    before, quoted, after = text.partition("Traceback (most recent call last):\n")
    if not quoted or "callback" not in before:
        return text, []
    lines = after.splitlines()
    frames = [_FRAME.match(line) for line in lines]
    end = next((i for i, line in enumerate(lines) if not line.startswith("  ")), len(lines))
    found = [traceback.FrameSummary(one[1], int(one[2]), one[3]) for one in frames[:end] if one]
    return "A callback raised " + "\n".join(lines[end:]), found


def _suggestion(problem: BaseException) -> str:
    """What Python would add where it prints a name that is not there: the one that may have been meant."""
    names: Iterable[str] = ()
    if isinstance(problem, AttributeError) and problem.obj is not None:
        with contextlib.suppress(Exception):  # a class of the learner's may fail here
            names = dir(problem.obj)
    elif isinstance(problem, NameError) and problem.__traceback__ is not None:
        *_, (frame, _) = traceback.walk_tb(problem.__traceback__)
        names = (*frame.f_locals, *frame.f_globals, *dir(builtins))
    name = getattr(problem, "name", None)
    meant = difflib.get_close_matches(name, names, 1, SIMILAR) if isinstance(name, str) else []
    return f". Did you mean: '{meant[0]}'?" if meant and meant[0] != name else ""


# JAX names the function that it traces, which is the one that wraps the learner's, and the arguments of that.
_OURS = re.compile(r"the function (?:flat|<lambda>) at \S*program/export\.py:\d+(?: for jit)?")
MAX_RESULTS = 100  # of an answer, whose computation is waited for where one of them is no data
_FRAME = re.compile(r'  File "(.*)", line (\d{1,6}), in (.*)')
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")  # another in every run
_LEAVES = re.compile(r"the arguments? leaves\[\d+\](?:(?:,| and) leaves\[\d+\])*")


def is_cell(filename: str) -> bool:
    """Returns whether a traceback's file is a notebook cell, and neither Python's, a package's nor ours."""
    return not filename.startswith(_INSTALLED) and filename != SETUP_FILE


_INSTALLED = tuple({*sysconfig.get_paths().values(), str(PACKAGE), "<frozen"})


def identity(payload: bytes) -> str:
    """Returns the name of a program, which both sides compute from its bytes."""
    return hashlib.sha256(payload).hexdigest()


class ProgramEndpoint:
    """Loads programs from bytes, states their facts and runs them."""

    def __init__(self) -> None:
        self._loaded: dict[str, Loaded] = {}
        self._replies: dict[str, bytes] = {}  # the same bytes are the same program, so they are loaded once

    def load(self, payload: bytes) -> bytes:
        """Loads a program; replies with its facts and abstract outputs, or with why it is refused."""
        name = identity(payload)
        if name not in self._replies:
            self._replies[name] = self._load(name, payload)
        return self._replies[name]

    def _load(self, name: str, payload: bytes) -> bytes:
        try:
            asked = decode(payload)
            with _on(asked["mesh"]):
                loaded = Loaded(asked["blob"].tobytes(), asked["parameters"], asked["donated"])
        except (ProgramRefused, Malformed) as problem:
            return encode({"status": "refused", "text": str(problem)[:MAX_TEXT]})
        except Exception as problem:
            return encode(describe(problem))
        self._loaded[name] = loaded
        return encode({"status": "ok", "facts": asdict(loaded.facts), "outputs": loaded.outputs})

    def run(self, name: str, payload: bytes) -> bytes:
        """Runs the program of this identity on the arrays in `payload`; replies with its results."""
        try:
            return encode({"status": "ok", "value": self._loaded[name].run(decode(payload))})
        except Unsendable as problem:
            return encode({"status": "unsendable", "kind": str(problem)[:MAX_LINE]})
        except Exception as problem:
            return encode(describe(problem))
