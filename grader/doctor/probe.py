"""A question put to a process of its own: what hangs or dies there does not take the doctor along."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Self

from grader.core.layout import SOURCE

PATIENCE_S = 60.0
LONGEST = 300  # characters of a complaint


class BackgroundProbe:
    """A Python process that was asked something: it runs while others do, and ends with the block at the latest."""

    def __init__(self, *words: str, environment: Mapping[str, str] | None = None) -> None:
        package = str(SOURCE)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
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

    def told(self) -> tuple[str, str]:
        """What it printed, and the last line that it complained with; "" where it did not."""
        try:
            out, complaints = self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "", f"it said nothing for {PATIENCE_S:.0f} s"
        lines = complaints.strip().splitlines()
        return out, lines[-1][:LONGEST] if lines else ""
