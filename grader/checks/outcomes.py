"""The cells that run, and the exceptions with which a check ends that does not pass: the message that a reader sees.

Common errors of JAX, Flax and NumPy are explained by the sentences of errors.toml.
"""

from __future__ import annotations

import os
import textwrap
import time
import tomllib
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from grader.core.text import legible

# JupyterLab breaks an error's lines in the middle of a word. Broken here, between words, they fit a narrow window too.
WIDTH = 78
# Lines read at a glance, title included; the rest of a long message stands below, in a fold.
LINES = 4
PLACE = "In line "  # begins the line of a message that gives the place of an exception in a learner's cell
HIDDEN = "### BEGIN HIDDEN TESTS"  # nbgrader's mark; only the course's authors have cells with it


@dataclass(frozen=True)
class CellRun:
    """A cell that runs or ran, with the text that it had then."""

    source: str = ""
    cell_id: str | None = None  # where the front end gives it
    title: str = ""  # of a check
    when: float = field(default_factory=time.time)  # seconds since the epoch

    @property
    def hidden(self) -> bool:
        """Whether it is shown as it would be in grading, with nothing beside it."""
        return HIDDEN in self.source or "NBGRADER_EXECUTION" in os.environ


cell_runs: deque[CellRun] = deque([CellRun(when=0.0)], maxlen=1_000)  # of this kernel; the last one runs now


def runs_since(when: float) -> list[CellRun]:
    """Returns the runs after that time, the latest first; of one cell, only the last run."""
    found: dict[object, CellRun] = {}
    for run in takewhile(lambda run: run.when > when, reversed(cell_runs)):
        found.setdefault(run.cell_id or id(run), run)  # some front ends do not give ids
    return list(found.values())


class Ended(Exception):
    """A check that did not pass. In a notebook it shows as a short message instead of a traceback.

    `advice`, what to do next, is shown in a notebook and not in a report. `details` is a library's own text, and `gist`
    what of it our message does not say: as much of that is shown as keeps the message short.
    """

    mark = "✗"
    advice = ""
    details = gist = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        """The message and as much of the details as keeps it short, for a report, which has no fold."""
        if not self.details:
            return self.message
        lines = [_one_line(line, WIDTH) if line.startswith(PLACE) else line for line in self.message.splitlines()]
        shown = _fitted([self.gist], "", LINES - len(_fitted(lines, "")))
        return "\n".join([*lines, " ".join(line.strip() for line in shown)]).rstrip()

    def glance(self, title: str) -> tuple[list[str], list[str], int]:
        """Returns what is read at a glance: lines of the head (the check's title), lines below it, the number left out.

        Outside a check, where `title` is "", the message's first line is the head, and nothing is left out.
        """
        head, below = self.whole(title)
        details = _fitted(legible(self.details).splitlines(), "  ")  # whole, where there is room
        if not title:
            return head, [*below, *details], 0
        left_out = 0
        if len(head) + len(below) > LINES:
            rest = self._said()
            # The title stands in the cell, and so does the line that raised: of those one line each is enough.
            head = [_one_line(f"{self.mark} {title}", WIDTH)]
            ending = [f"  {_one_line(rest[-1], WIDTH - 2)}"] if rest[-1].startswith(PLACE) else []
            below = _fitted(rest[:-1] if ending else rest, "  ")
            left_out = max(len(head) + len(below) + len(ending) - LINES, 0)
            if left_out:
                left_out += 1  # the line that says so takes the place of one
                below = [*below[: len(below) - left_out], f"  … {left_out} more lines below."]
            below += ending
        room = LINES - len(head) - len(below)
        if len(details) > room:
            left_out += len(details) - room
            details = _fitted([legible(self.gist)], "  ", room)
        return head, [*below, *details], left_out

    def whole(self, title: str) -> tuple[list[str], list[str]]:
        """Returns the head's lines and those below it, with nothing left out."""
        first, *rest = [*filter(None, [title]), *self._said()] or [""]
        return _fitted([first], f"{self.mark} "), _fitted(rest, "  ")

    def _said(self) -> list[str]:
        return [*legible(self.message).splitlines(), *self.advice.splitlines()]

    def _render_traceback_(self) -> list[str]:  # IPython asks for this before it draws a traceback
        check = cell_runs[-1]
        head, below = self.whole(check.title) if check.hidden else self.glance(check.title)[:2]
        # Bold and no colour: on JupyterLab's error boxes, pink or dark red, no one colour of text reads well.
        return ["\x1b[1m" + "\n".join(head) + "\x1b[0m", *filter(None, ["\n".join(below)])]


def _one_line(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" …", break_on_hyphens=False)


def _fitted(lines: list[str], indent: str, most: int | None = None) -> list[str]:
    """Wraps each of `lines`, into at most `most` lines, behind `indent` and its own: an error may quote code."""
    if most is not None and most < 1:
        return []
    return [
        piece
        for line in lines
        for own in [" " * min(len(line) - len(line.lstrip()), WIDTH // 2)]
        for piece in textwrap.wrap(
            line.strip(),
            WIDTH,
            initial_indent=indent + own,
            subsequent_indent="  " + own,
            break_on_hyphens=False,
            max_lines=most,
            placeholder=" …",
        )
    ]


class CheckFailed(Ended):
    """The answer is not right.

    Args:
        message: what was found, and what was wanted.
        kind: the kind of difference ("values", "shape", "dtype", "structure", "raised", "property", ...).
        where: its place in the result.
        first: index and value of the first difference.
        hidden_message: what a hidden check shows, which is no more than kind, path, shape and dtype.
        details: `details` and `gist` of `Ended`.
        shapes: the shapes found and wanted, where `kind` is "shape".
        raised: where `kind` is "raised", the exception's text.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        where: str = "",
        first: str = "",
        hidden_message: str | None = None,
        details: tuple[str, str] = ("", ""),
        shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        raised: str = "",
    ) -> None:
        super().__init__(message)
        self.details, self.gist = details
        self.kind, self.where, self.first, self.shapes, self.raised = kind, where, first, shapes, raised
        self.hidden_message = message if hidden_message is None else hidden_message

    def put_in_case(self, when: str) -> None:
        """Begins the messages with the case that was judged; which one it was is part of the first difference."""
        begin = f"{when[:1].upper()}{when[1:]}: "
        self.message, self.hidden_message = begin + self.message, begin + self.hidden_message
        self.first = begin + self.first


class NotAttempted(Ended):
    """The stub is still as it was released."""

    mark = "○"
    advice = "Write your answer, run its cell, then run this one again."

    def __init__(self, name: str = "") -> None:
        subject = f"`{name}`" if name else "the answer"
        super().__init__(f"Not attempted yet: {subject} still raises NotImplementedError.")


class Skipped(Ended):
    """The check cannot run here; the message is the reason."""

    mark = "–"


class CheckBroken(Exception):
    """The check itself, or the grader, is at fault: never the answer."""


class NotData(CheckBroken):
    """A check passes a value that cannot be sent. Where it has it from an answer, the answer is at fault."""


class Cause(NamedTuple):
    """An exception class by its name, a piece of its text (any text where empty), and our sentence about it."""

    kind: str
    piece: str
    sentence: str

    def beyond(self, text: str) -> str:
        """Returns what an error's text holds beyond the piece that the sentence covers: shapes, sizes, names."""
        _, piece, rest = text.partition(self.piece) if self.piece else ("", "", text)
        return f"{self.kind}: {'… ' * bool(piece)}{' '.join(rest.split()).lstrip(' .,:')}".rstrip(" …:")


_TABLE = tomllib.loads(Path(__file__).with_name("errors.toml").read_text(encoding="utf-8"))
CAUSES = tuple(
    Cause(kind, piece.strip(), entry["sentence"])
    for entry in _TABLE["cause"]
    for kind, _, piece in (error.partition(":") for error in entry["errors"])
)


def explained(kind: str, text: str) -> Cause | None:
    """Returns the cause of an exception of the class `kind` with this text; None where the table has none."""
    return next((cause for cause in CAUSES if cause.kind == kind and cause.piece in text), None)
