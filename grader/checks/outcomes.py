"""How a check ends when it does not pass, each with the sentence that a reader sees."""

from __future__ import annotations

import textwrap

# JupyterLab breaks the lines of an error in the middle of a word. Broken here, at spaces, they fit a narrow window too.
WIDTH = 78
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


class Ended(Exception):
    """A check that did not pass. In a notebook it shows as a short message instead of a traceback."""

    mark = "✗"
    colour = 31
    advice = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def lines(self, title: str = "") -> list[str]:
        """The message as lines of plain text, under the check's title where there is one."""
        parts = [*self.message.splitlines(), *self.advice.splitlines()]
        head, *body = [title, *parts] if title else parts or [""]
        first = _wrapped(head, f"{self.mark} ")
        return [*first, *(line for part in body for line in _wrapped(part, "  "))]

    def _render_traceback_(self) -> list[str]:  # IPython asks for this before it draws a traceback
        from grader.checks.notebook import current_title

        # Only the mark has a colour: JupyterLab's error box is pink or dark red, and no one colour reads well on both.
        title = current_title()
        lines = self.lines(title)
        heads = len(_wrapped(title, f"{self.mark} ")) if title else 1
        head = [f"{BOLD}{line}{PLAIN}" for line in lines[:heads]]
        head[0] = head[0].replace(self.mark, f"\x1b[{self.colour}m{self.mark}{PLAIN}{BOLD}", 1)
        return [*head, *lines[heads:]]


def _wrapped(line: str, indent: str) -> list[str]:
    """`line` behind `indent`, what does not fit below it; spaces that the line begins with are code's own."""
    own = " " * (len(line) - len(line.lstrip()))
    below = " " * len(indent) + own
    return textwrap.wrap(
        line.strip(), WIDTH, initial_indent=indent + own, subsequent_indent=below, break_long_words=False,
        break_on_hyphens=False,
    ) or [indent.rstrip()]  # fmt: skip


class CheckFailed(Ended):
    """The answer is not right.

    `kind` is what kind of difference was found ("values", "shape", "dtype", "structure", "raised", "program", ...),
    `where` its place, `first` the index and value of the first difference. `hidden_message` says no more than kind,
    path, shape and dtype: it is what a hidden check shows.
    """

    def __init__(
        self, message: str, *, kind: str, where: str = "", first: str = "", hidden_message: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.where, self.first = kind, where, first
        self.hidden_message = message if hidden_message is None else hidden_message


class NotAttempted(Ended):
    """The stub is still as it was given out."""

    mark = "○"
    colour = 33
    advice = "Write your answer, run its cell, then run this one again."

    def __init__(self, name: str = "") -> None:
        subject = f"`{name}`" if name else "the answer"
        super().__init__(f"Not attempted yet: {subject} still raises NotImplementedError.")


class Skipped(Ended):
    """The check cannot run here, and the reason."""

    mark = "–"
    colour = 33


class CheckBroken(Exception):
    """The check itself is at fault, or the grader: never the answer."""
