"""The loop of `grader watch`: notices saved notebooks, has examiners judge them, and shows their verdicts.

On a terminal it draws a screen and takes keys, elsewhere it prints lines. It ends all that it started.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from grader.core import board_client
from grader.core.faults import Fault
from grader.core.layout import EXAMINER
from grader.core.result import Result, grader_fault
from grader.course import Course, workspace
from grader.grading.batch import imports, secret
from grader.grading.pool import SIGNALS, Pool, Stopped, interruptible
from grader.learning.watch import GradeRequest, Watch, file_stamp
from grader.learning.watch_screen import lesson_line, screen, verdict_lines

# What happened, in order: threads and signal handlers add to it, which `SimpleQueue` allows (Python's documentation).
Events = queue.SimpleQueue[tuple[Any, ...]]
SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*.|O.|.)?")  # an arrow, a function key
LEARNER = "you"  # as in `grader check`, so that both draw the same inputs
# The file system wakes us; what it does not report (a network drive, too many watchers, a folder made after we began to
# listen) is found by a look every so often.
LOOK_S = 2.0
# An editor's save is several events: they are grouped for so long, or until it is quiet for so long.
GROUP_MS, QUIET_MS = 200, 50


class NotebookWatcher:
    """Calls `tell(lesson)`, in its own thread, for each notebook that was saved or is gone since this was made."""

    def __init__(self, course: Course, tell: Callable[[str], None]) -> None:
        self.folder, self.tell = course.home / "work", tell
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self.reopen(course)
        self._over, self._thread = threading.Event(), threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def reopen(self, course: Course) -> None:
        """Watches the notebooks of this course from now on."""
        self._paths = {lesson: workspace.exercises_copy(course, lesson) for lesson in course.lesson_ids}
        self._stamps = {lesson: file_stamp(path) for lesson, path in self._paths.items()} | self._stamps

    def close(self) -> None:
        # Waited for: Python ends a thread that is inside watchfiles by ending the whole process, with a core dump.
        self._over.set()
        self._thread.join(LOOK_S)

    def _follow(self) -> None:
        from watchfiles import watch

        while not self._over.is_set():
            inode = file_stamp(self.folder)[2]
            try:
                for _ in watch(
                    self.folder, watch_filter=None, debounce=GROUP_MS, step=QUIET_MS, stop_event=self._over,
                    rust_timeout=int(LOOK_S * 1000), yield_on_timeout=True, raise_interrupt=False,
                ):  # fmt: skip
                    self._look()
                    if file_stamp(self.folder)[2] != inode:
                        break  # made again: the file system reports about the old one
            except (OSError, RuntimeError):  # there is no work/ yet, or no more can be watched
                self._look()
                self._over.wait(LOOK_S / 2)

    def _look(self) -> None:
        for lesson, path in self._paths.items():
            stamp = file_stamp(path)
            if stamp != self._stamps[lesson]:
                self._stamps[lesson] = stamp
                self.tell(lesson)


class ExaminerClient:
    """Two open examiners: one for verdicts, one for what may take longer. Notebooks to judge are copied to `folder`.
    Replies arrive in its own threads: `tell(request, result)`."""

    def __init__(self, course: Course, folder: str, tell: Callable[[GradeRequest, Result], None]) -> None:
        self.folder, self.tell = folder, tell
        self._pool: Pool | None = None
        self.reopen(course)

    def close(self) -> None:
        """Ends the examiners and all that they started, whatever they are doing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(KeyboardInterrupt, None, None)

    def reopen(self, course: Course) -> None:
        """Starts new examiners, for a course that has changed."""
        self.close()
        self.busy = [False, False]  # whether the examiner for verdicts, and the other one, is at work
        opening = {"home": str(course.home), "secret": secret(course)}
        self._pool = Pool(EXAMINER, opening, len(self.busy), imports(course, course.lesson_ids), patient=1).__enter__()

    def ask(self, request: GradeRequest, content: bytes) -> None:
        """Sends a request to its examiner, which must be free; `content` is the notebook as it was read."""
        place = 0 if request.do == "grade" else 1
        self.busy[place] = True
        message: dict[str, Any] = {"learner": LEARNER, "lesson": request.lesson}
        if request.do == "prepare":
            message |= {"do": "prepare", "exercise": request.exercise}
        else:
            # A copy: the learner's own may be saved again, renamed or deleted meanwhile.
            copy = Path(self.folder, request.do, request.lesson, f"{request.lesson}.ipynb")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            message |= {"path": str(copy), "only": request.exercise, "named": request.do == "name"}
        threading.Thread(target=self._exchange, args=(self._pool, place, request, message), daemon=True).start()

    def _exchange(self, pool: Pool, place: int, request: GradeRequest, message: dict[str, Any]) -> None:
        reply = pool.ask(place, message)
        if pool is self._pool:  # else it was closed meanwhile
            self.busy[place] = False
            faulty = isinstance(reply, Fault)
            result = grader_fault(LEARNER, request.lesson, reply.message) if faulty else Result.from_json(reply)
            self.tell(request, result)


class WatchView:
    """With `live` a whole terminal, drawn again after every event; else plain lines, none twice in a row."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self.console, self.live, self._last = console, live, ""

    def say(self, text: str) -> None:
        """Prints a line; on a screen it stands already."""
        if self.live is None and text and text != self._last:
            self.console.print(Text(text), soft_wrap=True)
            self._last = text

    def show(self, watch: Watch, busy: bool) -> None:
        """Draws the screen, or prints what there is beside verdicts."""
        if self.live is not None:
            self.live.update(screen(watch, self.console, busy), refresh=True)
        self.say(watch.message)

    def tell(self, watch: Watch, request: GradeRequest, result: Result) -> None:
        """Prints a verdict, and after the last one the lesson's points."""
        self.say(verdict_lines(watch, request, result))
        if request.do == "grade" and not watch.notebook.todo:
            self.say(lesson_line(watch))


def run(course: Course, console: Console) -> int:
    """Watches until `q` or Ctrl-C; returns the exit status. Raises CourseError for a text that breaks a rule."""
    live, watch, events = None, None, Events()
    if console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty():
        live = Live(Text("Reading the course ..."), console=console, screen=True, auto_refresh=False)
    try:
        with interruptible(), contextlib.ExitStack() as stack:
            # A terminal that is closed ends the watch as Ctrl-C does; started by `nohup`, it goes on.
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, _stop)
            if live is not None:
                for one in (_without_stderr(), _keys(events), live):
                    stack.enter_context(one)
                for number in (signal.SIGWINCH, signal.SIGCONT):
                    signal.signal(number, lambda number, frame: events.put(("drawn over",)))
            # Made before the notebooks are read, so that no save is lost.
            saves = NotebookWatcher(course, lambda lesson: events.put(("saved", lesson)))
            stack.callback(saves.close)
            watch, view = Watch(course), WatchView(console, live)
            work = course.home / "work"
            view.say(f"Watching the notebooks under {work}. Each is graded when it is saved. Ctrl-C stops the watch.")
            _loop(watch, events, saves, view)
    except Stopped as stopped:
        return 0 if stopped.status == 128 + signal.SIGINT else stopped.status
    finally:
        if live is not None and watch is not None:
            console.print(Text(lesson_line(watch)), soft_wrap=True)
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _loop(watch: Watch, events: Events, saves: NotebookWatcher, view: WatchView) -> None:
    """Passes events on, until a key ends it."""
    view.show(watch, busy=True)
    replied = lambda request, result: events.put(("replied", request, result))
    with (
        tempfile.TemporaryDirectory(prefix="grader-watch-", ignore_cleanup_errors=True) as folder,
        contextlib.closing(ExaminerClient(watch.course, folder, replied)) as examiners,
    ):
        # From here on a signal is an event: raised in the middle of drawing, it can leave rich's output in its buffer.
        for one in (*SIGNALS, signal.SIGHUP):
            if signal.getsignal(one) is not signal.SIG_IGN:
                signal.signal(one, lambda number, frame: events.put(("stop", number)))
        while True:
            for place, next_request in enumerate((watch.next_grading, watch.next_background)):
                request = None if examiners.busy[place] else next_request()
                if request is not None:
                    examiners.ask(request, watch.notebook.content)
            seconds = watch.doubted()
            view.show(watch, busy=examiners.busy[0])
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
                    if watch.notebook.todo:
                        board_client.reporter.send_notebook(watch.current, watch.notebook.content)
                elif kind == "replied" and watch.replied(*what):
                    view.tell(watch, *what)
                    if what[0].do == "grade":
                        board_client.report_result(what[1])


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
    before = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
