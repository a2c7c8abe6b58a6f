"""The loop of `grader watch`: on a terminal a screen and keys, elsewhere plain lines; it ends all that it started."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grader.core.points import number
from grader.core.result import Result
from grader.core.text import MARKS, legible
from grader.course import Course
from grader.grading.pool import SIGNALS, Stopped, interruptible
from grader.learning.watch import Watch
from grader.learning.watch_backend import ExaminerClient, GradeRequest, NotebookWatcher
from grader.learning.watch_screen import MESSAGE_LINES, lesson_points, mark_of, next_step, screen

# What happened, in order: threads and signal handlers add to it, which `SimpleQueue` allows (Python's documentation).
Events = queue.SimpleQueue[tuple[Any, ...]]
SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*.|O.|.)?")  # an arrow, a function key


class WatchView:
    """With `live` a whole terminal, drawn again after every event; else plain lines, none twice in a row."""

    def __init__(self, console: Console, live: Live | None = None) -> None:
        self.console, self.live, self._last = console, live, ""

    def say(self, text: str) -> None:
        if self.live is None and text and text != self._last:
            self.console.print(Text(text), soft_wrap=True)
            self._last = text

    def show(self, watch: Watch, busy: bool) -> None:
        """Draws the screen, or prints what there is beside verdicts."""
        if self.live is not None:
            self.live.update(screen(watch, self.console, busy), refresh=True)
        self.say(watch.says)

    def tell(self, watch: Watch, request: GradeRequest, result: Result) -> None:
        """Prints a verdict, and after the last one the lesson's points; on a screen they stand already."""
        self.say(verdict_lines(watch, request, result))
        if request.do == "grade" and not watch.notebook.todo:
            self.say(lesson_line(watch))


def verdict_lines(watch: Watch, request: GradeRequest, result: Result) -> str:
    """Returns the verdict on one exercise, with a few lines about what fails."""
    exercise = watch.course.lesson(request.lesson).exercise(request.exercise)
    if request.do == "name":
        perhaps = next((check.misconception for check in result.checks if check.misconception), None)
        return f"  Perhaps ({exercise.title}): {perhaps}" if perhaps else ""
    points = f"{number(result.score)} of {number(result.max_score)} points"
    lines = [f"{mark_of(watch, exercise)[0]} {request.lesson} · {exercise.title}: {points}"]
    missed = next((check for check in result.checks if check.status != "passed"), None)
    if missed is not None:
        lines.append(f"  {MARKS[missed.status][0]} {missed.title}{' (hidden)' if missed.hidden else ''}")
        message = legible(missed.message).strip().split("\n") if missed.message else []
        lines += [f"    {line}" for line in message[:MESSAGE_LINES]]
    return "\n".join(lines)


def lesson_line(watch: Watch) -> str:
    """Returns the lesson in one line, and what comes next."""
    return f"{watch.current}: {lesson_points(watch)}. {next_step(watch)}"


def run(course: Course, console: Console) -> int:
    """Watches until `q` or Ctrl-C; returns the exit status. Raises CourseError for a text that breaks a rule."""
    whole = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
    try:
        with interruptible():
            # A terminal that is closed ends the watch as Ctrl-C does; started by `nohup`, it goes on.
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, _stop)
            if whole:
                _on_screen(course, console)
            else:
                _in_lines(course, console)
    except Stopped as stopped:
        return 0 if stopped.status == 128 + signal.SIGINT else stopped.status
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _in_lines(course: Course, console: Console) -> None:
    events, view = Events(), WatchView(console)
    saves = _watcher(course, events)
    watch = Watch(course)
    view.say(f"Watching the notebooks under {course.root / 'work'}: each is judged when it is saved. Ctrl-C ends it.")
    _loop(watch, events, saves, view)


def _on_screen(course: Course, console: Console) -> None:
    live = Live(Text("Reading the course ..."), console=console, screen=True, auto_refresh=False)
    watch, events = None, Events()
    try:
        with _without_stderr(), _keys(events), live:
            live.refresh()
            saves = _watcher(course, events)
            watch = Watch(course)
            for one in (signal.SIGWINCH, signal.SIGCONT):
                signal.signal(one, lambda number, frame: events.put(("drawn over",)))
            _loop(watch, events, saves, WatchView(console, live))
    finally:
        if watch is not None:
            console.print(Text(lesson_line(watch)), soft_wrap=True)


def _watcher(course: Course, events: Events) -> NotebookWatcher:
    return NotebookWatcher(course, lambda lesson: events.put(("saved", lesson)))


def _loop(watch: Watch, events: Events, saves: NotebookWatcher, view: WatchView) -> None:
    """Passes events on, until a key ends it."""
    view.show(watch, busy=True)
    replied = lambda request, result: events.put(("replied", request, result))
    with saves, ExaminerClient(watch.course, replied) as examiners:
        # From here on a signal is an event: raised in the middle of drawing, it can leave rich's output in its buffer.
        for one in (*SIGNALS, signal.SIGHUP):
            if signal.getsignal(one) is not signal.SIG_IGN:
                signal.signal(one, lambda number, frame: events.put(("stop", number)))
        while True:
            for place, next_request in enumerate((watch.next_grading, watch.next_background)):
                request = None if examiners.busy(place) else next_request()
                if request is not None:
                    examiners.ask(request, watch.notebook.content)
            seconds = watch.doubted()
            view.show(watch, busy=examiners.busy(0))
            for kind, *what in _wait(events, seconds):
                if kind == "stop":
                    raise Stopped(what[0])
                if kind == "key" and not watch.key(what[0]):
                    return
                if kind == "saved":
                    course = watch.reopened()
                    if course is not None:
                        examiners.reopen(course)
                        saves.reopen(course)
                    watch.saved(what[0])
                elif kind == "replied" and watch.replied(*what):
                    view.tell(watch, *what)


def _wait(events: Events, seconds: float | None) -> Iterator[tuple[Any, ...]]:
    """What has happened; after so many seconds perhaps nothing."""
    with contextlib.suppress(queue.Empty):
        yield events.get(timeout=seconds)
        while True:
            yield events.get_nowait()


@contextlib.contextmanager
def _keys(events: Events) -> Iterator[None]:
    """Adds keys to `events` as they are pressed, and does not show them; restores the terminal afterwards."""
    terminal = sys.stdin.fileno()
    before, now = termios.tcgetattr(terminal), termios.tcgetattr(terminal)
    now[3] &= ~(termios.ICANON | termios.ECHO)
    now[6][termios.VSUSP] = b"\0"  # a stopped program would leave its screen behind

    def listen() -> None:
        with contextlib.suppress(OSError):
            while typed := os.read(terminal, 1024):
                for key in SEQUENCE.sub("", typed.decode(errors="replace")):
                    events.put(("key", key))
        events.put(("key", "q"))  # the terminal is gone

    try:
        termios.tcsetattr(terminal, termios.TCSADRAIN, now)
        threading.Thread(target=listen, daemon=True).start()
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discards what our processes print as errors, which would stand on the screen; results contain what matters."""
    before, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)
