"""Has a saved notebook judged by a process of its own, and ends that and all it started when one is interrupted."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.core.layout import SOURCE, course_above

TICK_S = 1.0
PATIENCE_S = 10.0  # to end in good order
REFUSED = 2  # the exit status of a command that did not begin
LONGEST = 300  # characters of a line that the command said
JUDGED = re.compile(r"[^\w\s] \S+  \S+ of \S+")  # a line about one exercise, as `grader check --json` writes it


class NotGradable(Exception):
    """There is no result; the text says why, and what to do."""


@dataclass(frozen=True)
class ProcessResult:
    """A result as docs/results.md describes it; of public checks alone where the course is not at hand."""

    result: dict[str, Any]
    public_only: bool = False
    because: str = ""


def judge(path: Path, tell: Callable[[str], None]) -> ProcessResult:
    """The notebook's result, with hidden checks where the course is at hand; `tell` is called each second.

    It is told the lines that the command has said of exercises so far. Raises NotJudged, and KeyboardInterrupt when
    nothing is left running.
    """
    because = ""
    if importlib.util.find_spec("grader.cli") is not None and course_above(path.parent) is not None:
        status, result, last = _run(["grader", "check"], path, tell)
        if result is not None:
            return ProcessResult(result)
        if status != REFUSED:
            again = f"Run it in a terminal to see more: grader check {path.stem}"
            raise NotGradable(f"`grader check` ended without a result: {last or f'status {status}'}. {again}")
        because = last
    status, result, last = _run(["grader.checks"], path, tell)
    if result is None:
        again = f"Run it in a terminal to see more: python -m grader.checks {path.stem}"
        raise NotGradable(f"The checks ended without a result: {last or f'status {status}'}. {again}")
    return ProcessResult(result, public_only=True, because=because)


def _run(words: list[str], path: Path, tell: Callable[[str], None]) -> tuple[int, dict[str, Any] | None, str]:
    """The command's exit status, the result that it wrote, and its last words."""
    with tempfile.TemporaryDirectory(prefix="grade-") as folder:
        written = Path(folder) / "result.json"
        # -P: a file beside the notebook may be called as a module of Python's.
        command = [sys.executable, "-P", "-m", *words, str(path), "--json", str(written)]
        process = subprocess.Popen(
            command, cwd=path.parent, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        try:
            last = _follow(process, tell)
        finally:
            _end(process)
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError, TypeError):
            return process.returncode, dict(json.loads(written.read_text(encoding="utf-8"))["results"][0]), last
        return process.returncode, None, last


def _environment() -> dict[str, str]:
    """The kernel's own, with this package in sight; plain text, whatever the front end wants of colours."""
    package = str(SOURCE)
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    kept_out = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "JPY_SESSION_NAME")
    ours = {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    return {**{name: value for name, value in os.environ.items() if name not in kept_out}, **ours}


def _follow(process: subprocess.Popen[str], tell: Callable[[str], None]) -> str:
    """Tell what is said until the command ends; its last words that are not about an exercise."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen() -> None:
        assert process.stderr is not None
        with process.stderr as said:
            for line in said:
                lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=listen, daemon=True).start()
    judged: list[str] = []
    last = ""
    while True:
        tell("\n".join(judged))
        try:
            line = lines.get(timeout=TICK_S)  # an interrupt is heard while this waits
        except queue.Empty:
            if process.poll() is None:
                continue
            line = None  # something that it started lives on and has its stderr
        if line is None:
            process.wait()
            return last
        if JUDGED.fullmatch(line):
            judged.append(line)
        elif line.strip():
            last = line.strip()[:LONGEST]


def _end(process: subprocess.Popen[str]) -> None:
    """End it if it has not ended: in good order, so that it ends what it started, else at once."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(PATIENCE_S)
    if process.poll() is None:
        process.kill()
        process.wait()
