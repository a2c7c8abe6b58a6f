"""A finding about one part of the machine or the set-up, and probes that run beside the doctor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from grader.core.layout import SOURCE

MARKS = {"fine": "✓", "costs": "!", "stops": "✗"}
PATIENCE_S = 60.0
MAX_COMPLAINT = 300  # characters


@dataclass(frozen=True)
class Finding:
    """One part that was examined.

    Attributes:
        grade: "fine", "costs" (it works with a disadvantage) or "stops" (something cannot work).
        text: what was found; one short sentence where all is fine.
        mend: a command that fixes it, to be typed as it is; "" where there is nothing to fix.
    """

    grade: Literal["fine", "costs", "stops"]
    text: str
    mend: str = ""

    def lines(self) -> list[str]:
        """Returns the lines to print: the mark first, the lines below it indented as far."""
        text = self.text.splitlines() + ([f"To mend it: {self.mend}"] if self.mend else [])
        return [f"{MARKS[self.grade] if i == 0 else ' '} {line}" for i, line in enumerate(text)]


class BackgroundProbe:
    """A Python process that answers one question: it runs while others do, and a hang or crash in it ends nothing else.

    It is killed at the end of the `with` block at the latest.
    """

    def __init__(self, *words: str, environment: Mapping[str, str] | None = None) -> None:
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def answer(self) -> tuple[str, str]:
        """Returns what it printed, and its last line on stderr; "" for what it did not print."""
        try:
            out, complaints = self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "", f"it said nothing for {PATIENCE_S:.0f} s"
        lines = complaints.strip().splitlines()
        return out, lines[-1][:MAX_COMPLAINT] if lines else ""
