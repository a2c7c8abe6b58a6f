"""How a check ends when it does not pass, each with the sentence that a reader sees."""

from __future__ import annotations

import textwrap

# JupyterLab breaks an error's lines in the middle of a word. Broken here, between words, they fit a narrow window too.
WIDTH = 78


class Ended(Exception):
    """A check that did not pass. In a notebook it shows as a short message instead of a traceback.

    `advice` is for who can act on it at once: a notebook shows it, a report of grading does not.
    """

    mark = "✗"
    advice = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def parts(self, title: str = "") -> tuple[str, str]:
        """The head (the check's title, else the message's first line) and what stands below it, broken to fit."""
        head, *below = [*filter(None, [title]), *self.message.splitlines(), *self.advice.splitlines()] or [""]
        return _fitted([head], f"{self.mark} "), _fitted(below, "  ")

    def _render_traceback_(self) -> list[str]:  # IPython asks for this before it draws a traceback
        from grader.checks.notebook import current_title

        # Bold and no colour: on JupyterLab's error boxes, pink or dark red, no one colour of text reads well.
        head, below = self.parts(current_title())
        return [f"\x1b[1m{head}\x1b[0m", *filter(None, [below])]


def _fitted(lines: list[str], indent: str) -> str:
    """`lines` behind `indent`; what does not fit goes below, as far in as its line begins: an error may quote code."""
    return "\n".join(
        piece
        for line in lines
        for own in [" " * (len(line) - len(line.lstrip()))]
        for piece in textwrap.wrap(
            line.strip(), WIDTH, initial_indent=indent + own, subsequent_indent="  " + own,
            break_long_words=False, break_on_hyphens=False,
        )
    )  # fmt: skip


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
    advice = "Write your answer, run its cell, then run this one again."

    def __init__(self, name: str = "") -> None:
        subject = f"`{name}`" if name else "the answer"
        super().__init__(f"Not attempted yet: {subject} still raises NotImplementedError.")


class Skipped(Ended):
    """The check cannot run here, and the reason."""

    mark = "–"


class CheckBroken(Exception):
    """The check itself is at fault, or the grader: never the answer."""
