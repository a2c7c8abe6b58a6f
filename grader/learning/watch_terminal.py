"""Runs `grader watch`: on a terminal a screen and keys, elsewhere plain lines; ends everything that it started."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import select
import signal
import sys
import termios
from collections.abc import Iterator
from types import FrameType
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grader.core.result import Result
from grader.course import Course
from grader.grading.pool import Stopped, interruptible
from grader.learning import lines
from grader.learning.client import ExaminerClient, GradeRequest
from grader.learning.watch import Watch
from grader.learning.watch_screen import screen
from grader.learning.watcher import NotebookWatcher

Event = tuple[Any, ...]
SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*.|O.|.)?")  # an arrow, a function key


class Events:
    """What happened, in order: threads and signals add to it, and `wait` sleeps until something is there."""

    def __init__(self, keys: int | None) -> None:
        self.keys = keys
        self._happened: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def add(self, *event: Any) -> None:
        """Add one, from anywhere."""
        self._happened.put(event)
        with contextlib.suppress(OSError):
            os.write(self._writing, b".")

    def wait(self, seconds: float | None) -> Iterator[Event]:
        """What has happened, keys among it; after so many seconds perhaps nothing."""
        ready, _, _ = select.select([one for one in (self._reading, self.keys) if one is not None], [], [], seconds)
        if self._reading in ready:
            os.read(self._reading, 4096)
        if self.keys is not None and self.keys in ready:
            yield from (("key", key) for key in _typed(self.keys))
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._happened.get_nowait()


def _typed(keys: int) -> str:
    """What was typed: an arrow or a function key is a sequence of characters that nobody meant one by one."""
    try:
        typed = os.read(keys, 1024).decode(errors="replace")
    except OSError:
        typed = ""
    return SEQUENCE.sub("", typed) if typed else "q"  # the terminal is gone


class View(Protocol):
    """Where it is shown."""

    def show(self, watch: Watch, busy: bool) -> None: ...

    def tell(self, watch: Watch, ask: GradeRequest, result: Result) -> None: ...


class Lines:
    """Plain lines, for a pipe or a file: nothing is said twice in a row."""

    def __init__(self, console: Console) -> None:
        self.console, self._said = console, ""

    def say(self, text: str) -> None:
        """A line, or a few."""
        if text and text != self._said:
            self.console.print(Text(text), soft_wrap=True)
            self._said = text

    def show(self, watch: Watch, busy: bool) -> None:
        """What there is to say beside verdicts."""
        self.say(watch.says)

    def tell(self, watch: Watch, ask: GradeRequest, result: Result) -> None:
        """A verdict, and after the last one how the lesson stands."""
        self.say(lines.told(watch, ask, result))
        if ask.do == "grade" and not watch.standing.todo:
            self.say(lines.standing(watch))


class Screen:
    """A whole terminal, drawn anew after everything that happens."""

    def __init__(self, console: Console, live: Live) -> None:
        self.console, self.live = console, live

    def show(self, watch: Watch, busy: bool) -> None:
        """Draw it."""
        self.live.update(screen(watch, self.console, busy), refresh=True)

    def tell(self, watch: Watch, ask: GradeRequest, result: Result) -> None:
        """It is on the screen."""


def run(course: Course, console: Console) -> int:
    """Watch until `q` or Ctrl-C; returns the exit status. Raises CourseError for a text that breaks a rule."""
    whole = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
    try:
        with interruptible(), _hung_up():
            if whole:
                _on_screen(course, console)
            else:
                _in_lines(course, console)
    except Stopped as stopped:
        return 0 if stopped.status == 128 + signal.SIGINT else stopped.status
    return 0


@contextlib.contextmanager
def _hung_up() -> Iterator[None]:
    """A terminal that is closed ends it as Ctrl-C does; started by `nohup`, it goes on."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, stop)
    yield


def _in_lines(course: Course, console: Console) -> None:
    watch, view = Watch(course), Lines(console)
    view.say(lines.opening(watch))
    _loop(watch, Events(None), view)


def _on_screen(course: Course, console: Console) -> None:
    live = Live(Text("Reading the course ..."), console=console, screen=True, auto_refresh=False)
    watch = None
    try:
        with _quiet(), _keys() as keys, live:
            live.refresh()
            events = Events(keys)
            watch = Watch(course)
            for number in (signal.SIGWINCH, signal.SIGCONT):
                signal.signal(number, lambda number, frame: events.add("drawn over"))
            _loop(watch, events, Screen(console, live))
    finally:
        if watch is not None:
            console.print(Text(lines.standing(watch)), soft_wrap=True)


def _loop(watch: Watch, events: Events, view: View) -> None:
    """Hand on what happens, until a key ends it."""
    view.show(watch, busy=True)
    with (
        NotebookWatcher(watch.course, lambda lesson: events.add("saved", lesson)) as saves,
        ExaminerClient(watch.course, lambda ask, result: events.add("told", ask, result)) as warm,
    ):
        while True:
            for ask in (None if warm.judging else watch.next_ask(), None if warm.looking else watch.next_look()):
                if ask is not None:
                    warm.ask(ask, watch.standing.content)
            doubted = watch.doubted()
            view.show(watch, busy=warm.judging)
            for kind, *what in events.wait(doubted):
                if kind == "key" and not watch.key(what[0]):
                    return
                if kind == "saved":
                    _saved(watch, warm, saves, what[0])
                elif kind == "told" and watch.told(*what):
                    view.tell(watch, *what)


def _saved(watch: Watch, warm: ExaminerClient, saves: NotebookWatcher, lesson: str) -> None:
    if watch.course_changed():
        course = watch.reopened()
        if course is not None:
            warm.again(course)
            saves.of(course)
    watch.saved(lesson)


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """Keys are read as they are pressed, and not shown; the terminal is as before afterwards."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    now = termios.tcgetattr(terminal)
    now[3] &= ~(termios.ICANON | termios.ECHO)
    now[6][termios.VSUSP] = b"\0"  # a stopped program would leave its screen behind
    try:
        termios.tcsetattr(terminal, termios.TCSADRAIN, now)
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What our processes print as errors would stand in the middle of the screen; what matters of it is in a result."""
    before, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)
