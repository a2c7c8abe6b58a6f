"""A finding about one part of the machine or the set-up, and probes that run beside the doctor."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from grader.core.layout import SOURCE

MARKS = {"fine": "✓", "costs": "!", "stops": "✗"}
PATIENCE_S = 60.0
MAX_COMPLAINT = 300  # characters


@dataclass(frozen=True)
class Finding:
    """One part that was examined, in a short sentence where all is fine, and a command, to be typed, that mends it.

    Its grade is "fine", "costs" (it works with a disadvantage) or "stops" (something cannot work).
    """

    grade: Literal["fine", "costs", "stops"]
    text: str
    mend: str = ""

    def lines(self) -> list[str]:
        """Returns the lines to print: the mark first, the lines below it indented as far."""
        text = self.text.splitlines() + ([f"To mend it: {self.mend}"] if self.mend else [])
        return [f"{MARKS[self.grade] if i == 0 else ' '} {line}" for i, line in enumerate(text)]


class BackgroundProbe(subprocess.Popen[str]):
    """A Python process that answers one question: it runs while others do, and a hang or crash in it ends nothing else.

    It is killed at the end of the `with` block at the latest.
    """

    def __init__(self, *words: str) -> None:
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
        super().__init__(
            [sys.executable, *words],
            # Asking what devices there are shall not take all memory of a GPU.
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()

    def answer(self) -> tuple[str, str]:
        """Returns what it printed, and its last line on stderr; "" for what it did not print."""
        try:
            out, complaints = self.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "", f"it said nothing for {PATIENCE_S:.0f} s"
        lines = complaints.strip().splitlines()
        return out, lines[-1][:MAX_COMPLAINT] if lines else ""
