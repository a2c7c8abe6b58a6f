"""How a check ends when it does not pass, each with the sentence that a reader sees."""

from __future__ import annotations


class Ended(Exception):
    """A check that did not pass. In a notebook it shows as a short message instead of a traceback."""

    mark = "✗"
    colour = 31

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def lines(self, title: str = "") -> list[str]:
        """The message as lines of plain text, under the check's title where there is one."""
        body = self.message.splitlines() or [""]
        return (
            [f"{self.mark} {title}", *(f"  {line}" for line in body)]
            if title
            else [f"{self.mark} {body[0]}", *body[1:]]
        )

    def _render_traceback_(self) -> list[str]:  # IPython asks for this before it draws a traceback
        from grader.checks.notebook import current_title

        head, *rest = self.lines(current_title())
        return [f"\x1b[{self.colour}m{head}\x1b[0m", *rest]


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

    def __init__(self, name: str = "") -> None:
        subject = f"`{name}`" if name else "This exercise"
        super().__init__(
            f"Not attempted yet: {subject} still raises NotImplementedError. Write your answer, then run this again."
        )


class Skipped(Ended):
    """The check cannot run here, and the reason."""

    mark = "–"
    colour = 33


class CheckBroken(Exception):
    """The check itself is at fault, or the grader: never the answer."""
