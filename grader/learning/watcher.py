"""Tells which exercise notebooks under work/ were saved: woken by the file system, and looking for itself besides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from grader.course import Course, workspace

# The file system's word wakes us early; where it says nothing (a network drive, too many watchers, a folder made
# after we began to listen) a save is seen by the next look.
LOOK_S = 2.0
GROUP_MS, QUIET_MS = 200, 50  # an editor's save is several events: so long they are one, and so long it is quiet after

Seen = tuple[int, int, int]


class NotebookWatcher:
    """Calls `tell(lesson)` from a thread of its own for each notebook that is another than before, or is gone."""

    def __init__(self, course: Course, tell: Callable[[str], None]) -> None:
        self.folder = course.root / "work"
        self.tell = tell
        self._over = threading.Event()
        self.of(course)

    def of(self, course: Course) -> None:
        """Look at the notebooks of this course from now on."""
        self._paths = {lesson: workspace.exercises_copy(course, lesson) for lesson in course.lesson_ids}
        self._seen = {lesson: _seen(path) for lesson, path in self._paths.items()}

    def __enter__(self) -> NotebookWatcher:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        # Waited for: Python ends a thread that is inside watchfiles by ending the whole process, with a core dump.
        self._over.set()
        self._thread.join(LOOK_S)

    def _follow(self) -> None:
        from watchfiles import watch

        while not self._over.is_set():
            place = _inode(self.folder)
            try:
                for _ in watch(
                    self.folder, watch_filter=None, debounce=GROUP_MS, step=QUIET_MS, stop_event=self._over,
                    rust_timeout=int(LOOK_S * 1000), yield_on_timeout=True, raise_interrupt=False,
                ):  # fmt: skip
                    self._look()
                    if _inode(self.folder) != place:
                        break  # begun anew: what the file system tells is told of the old one
            except (OSError, RuntimeError):  # there is no work/ yet, or no more can be listened to
                self._look()
                self._over.wait(LOOK_S / 2)

    def _look(self) -> None:
        for lesson, path in self._paths.items():
            seen = _seen(path)
            if seen != self._seen.get(lesson):
                self._seen[lesson] = seen
                self.tell(lesson)


def _seen(path: Path) -> Seen | None:
    """What is another after a save, however it was done; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None
