"""Runs `grader watch` as a learner would, on a terminal or into a pipe, and sees that nothing of it is left."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fill
import psutil
from conftest import ROOT

from grader.course import Course

LESSON = "01_small"
PATIENCE_S = 120.0  # how long a busy machine may take for what takes a second
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
# Takes the terminal as its own, then becomes the command. (Code of ours in a fork would have JAX warn of threads.)
OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
HOME = "\x1b[H"  # each frame of the screen begins with it


def eventually(holds: Callable[[], Any], seconds: float = PATIENCE_S) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(holds())


@dataclass
class Desk:
    """A learner's course of three small exercises, and what is saved in it."""

    root: Path
    temporary: Path

    def __post_init__(self) -> None:
        self.course = Course(self.root)

    @classmethod
    def make(cls, built: Path, place: Path) -> Desk:
        """A course of its own, with the learner's copies laid out."""
        shutil.copytree(built, place / "course", ignore=shutil.ignore_patterns("work", "graded"))
        (place / "temporary").mkdir()
        desk = cls(place / "course", place / "temporary")
        desk.lay_out()
        return desk

    def lay_out(self) -> None:
        command = [sys.executable, "-m", "grader", "--course", str(self.root), "lab", "--no-open"]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.DEVNULL)

    @property
    def own(self) -> Path:
        return self.root / "work" / LESSON / f"{LESSON}.ipynb"

    @property
    def progress(self) -> str:
        state = self.root / "work" / ".jaxercise.json"
        return state.read_text() if state.exists() else ""

    def text(self, **answers: str) -> str:
        """The notebook with answers (double, mean, total) in it: `right`, or as they are given."""
        told = {f"small-{name}": source for name, source in answers.items()}
        told = {
            name: self.course.lesson(LESSON).exercise(name).reference if text == "right" else text
            for name, text in told.items()
        }
        draft = self.own.parent / ".draft"  # as some editors save
        fill.write(fill.fill(self.root / "exercises" / LESSON / f"{LESSON}.ipynb", told), draft)
        text = draft.read_text()
        draft.unlink()
        return text

    def save(self, **answers: str) -> None:
        """Save as JupyterLab does: written in place."""
        self.own.write_text(self.text(**answers))

    def environment(self, **more: str) -> dict[str, str]:
        """Of the command: without what says how to colour and how wide."""
        left_out = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        ours = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        return {**kept, **ours, "TERM": "xterm-256color", **more}

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "grader", "--course", str(self.root), "watch"]

    @contextmanager
    def piped(self) -> Iterator[Piped]:
        """`grader watch` into a pipe; ended by Ctrl-C."""
        with Piped(self) as watching:
            yield watching

    @contextmanager
    def on_terminal(self, columns: int = 80, rows: int = 24, **environment: str) -> Iterator[Terminal]:
        """`grader watch` on a terminal; the test ends it, by q or by Ctrl-C."""
        with Terminal(self, columns, rows, environment) as watching:
            yield watching


class Running:
    """A command in a session of its own, and all that it has started; it leaves its temporary folder empty."""

    process: subprocess.Popen[bytes]

    def __init__(self, desk: Desk) -> None:
        self.temporary = Path(tempfile.mkdtemp(dir=desk.temporary))

    def pids(self) -> list[int]:
        """Those of its session that live: every process that it started is in it."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except (psutil.Error, ProcessLookupError):
                continue
        return found

    def ends(self, status: int) -> None:
        """It ends with this status, and nothing that it started and no file is left."""
        assert self.process.wait(PATIENCE_S) == status
        assert eventually(lambda: not self.pids(), 20), self.pids()
        assert list(self.temporary.iterdir()) == []

    def kill(self) -> None:
        for pid in {self.process.pid, *self.pids()}:
            with _gone():
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Piped(Running):
    """Its output is read line by line."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.process = subprocess.Popen(
            desk.command, env=desk.environment(TMPDIR=str(self.temporary)), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line.decode().rstrip("\n"))

    def __enter__(self) -> Piped:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.process.send_signal(signal.SIGINT)
                self.ends(0)
        finally:
            self.kill()

    def says(self, text: str, after: int = 0) -> int:
        """Wait for a line that holds `text` among those from `after` on; the number of the line after it."""
        found = lambda: [i for i, line in enumerate(self.lines) if i >= after and text in line]
        assert eventually(found), (text, self.lines[after:])
        return found()[0] + 1


class Terminal(Running):
    """A pseudo terminal, whose screen is what was written since its last frame began."""

    def __init__(self, desk: Desk, columns: int, rows: int, environment: dict[str, str]) -> None:
        super().__init__(desk)
        self.written = b""
        self.main, self.second = pty.openpty()  # the second end stays open, so that its state can be asked afterwards
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.second)
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *desk.command],
            env=desk.environment(TMPDIR=str(self.temporary), **environment),
            start_new_session=True, stdin=self.second, stdout=self.second, stderr=self.second,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with _gone():
            while chunk := os.read(self.main, 65536):
                self.written += chunk

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        os.close(self.second)
        os.close(self.main)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.main, keys.encode())

    @property
    def raw(self) -> str:
        return self.written.decode(errors="replace")

    @property
    def screen(self) -> list[str]:
        """Its lines now."""
        return [line.rstrip() for line in ESCAPE.sub("", self.raw.rpartition(HOME)[2]).replace("\r", "").split("\n")]

    def shows(self, text: str) -> None:
        """Wait until the screen holds `text`."""
        assert eventually(lambda: text in "\n".join(self.screen)), (text, self.screen)


@contextmanager
def _gone() -> Iterator[None]:
    with suppress(OSError):
        yield
