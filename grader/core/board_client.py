"""A learner's side of a workshop: the file that states the membership, and reports of outcomes to the board.

Nothing is sent before the learner has joined a workshop. Code is sent only if the learner shares an answer, or if the
board states when the learner joins that it grades saved notebooks. Reports are sent by a thread, so that a slow or
absent board delays nothing. While the board does not answer, the thread waits and tries again, until the process ends
or the learner leaves. What a process could not send is stored, and sent by the next one that reports something. Only
modules of Python's own are used.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import json
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from grader.core import files
from grader.core.layout import course_above
from grader.core.notebook import Unreadable, cells, grade_id, is_answer, parse, text
from grader.core.points import number
from grader.core.result import CheckResult, Result
from grader.core.text import legible

TIMEOUT_S = 5.0
AT_EXIT_S = 2.0  # that a command waits for its last reports
MOST_WAITING = 100
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # between two attempts to send a report
MAX_REPLY = 16 * 1024
TOKEN = "X-Board-Token"
PROOF = Path("build", "board-member")  # in a folder that the board watches: which learner it belongs to


class BoardError(Exception):
    """The board did not do what was requested; the text says why, and what to do."""


class BoardAway(BoardError):
    """The board did not answer, or not yet: the same request may succeed later."""


class Membership(NamedTuple):
    """The workshop that a learner has joined: the board's address, their token and name there, and whether the board
    grades their saved notebooks and watches folders, as the board stated when they joined."""

    url: str
    token: str
    name: str
    judges: bool = False
    watches: bool = False


def membership_path() -> Path:
    """Returns the file with the membership: one for each person, whichever folder or environment they work in."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "jaxercise" / "workshop.json"


def membership() -> Membership | None:
    """Returns the workshop that was joined, or None."""
    try:
        content = json.loads(membership_path().read_text(encoding="utf-8"))
        url, token, name = (str(content[one]) for one in ("url", "token", "name"))
        return Membership(url, token, name, content.get("judges") is True, content.get("watches") is True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def unsent_path() -> Path:
    """Returns the file with the reports that the board has not received."""
    return membership_path().with_name("unsent.json")


def _post(url: str, content: dict[str, Any], token: str = "") -> dict[str, Any]:
    """Raises BoardError."""
    if not url.startswith(("http://", "https://")):
        address = url.partition("/api/")[0]
        raise BoardError(f"{address} is not the address of a board, which begins with http:// or https://.")
    request = urllib.request.Request(url, json.dumps(content).encode(), {TOKEN: token})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            found = json.loads(reply.read(MAX_REPLY))
    except urllib.error.HTTPError as problem:
        kind = BoardAway if problem.code == 429 or problem.code >= 500 else BoardError
        raise kind(f"The board answered: {problem.reason}.") from None
    except (OSError, ValueError):
        address = url.partition("/api/")[0]
        raise BoardAway(f"No board answers at {address}. Check the address, or ask your instructor.") from None
    if not isinstance(found, dict):
        raise BoardError("The reply is not that of a board.")
    return found


def join(url: str, code: str, name: str = "") -> Membership:
    """Joins the workshop at `url`, and leaves any other. Without a name, the board draws one. Raises BoardError, and
    OSError if the membership cannot be stored."""
    url = url.partition("#")[0].rstrip("/")
    reply, before = _post(f"{url}/api/join", {"code": code, "name": name}), membership()
    token, name = (str(reply.get(one, "")) for one in ("token", "name"))
    joined = Membership(url, token, name, reply.get("judges") is True, reply.get("watches") is True)
    files.write(membership_path(), json.dumps(joined._asdict()) + "\n")
    _prove_folder(joined)
    if before is not None:
        _tell_left(before)
    return joined


def token_digest(token: str) -> str:
    """Returns what the board stores of a token."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def folder_proof(digest: str, folder: os.stat_result) -> bytes:
    """Returns what the learner whose token has this digest writes into the course folder. In another folder, a copy of
    it proves nothing. Folders are identified by their inode, as their paths may differ between machines."""
    return hmac.digest(digest.encode(), str(folder.st_ino).encode(), "sha256").hex().encode()


def _prove_folder(joined: Membership) -> None:
    """Tells a board that watches folders whose course folder this is, so that the learner appears there once."""
    with contextlib.suppress(OSError):  # the current folder may be gone
        if joined.watches and (folder := course_above(Path.cwd())) is not None:
            files.write(folder / PROOF, folder_proof(token_digest(joined.token), folder.stat()), mode=0o644)


def leave() -> None:
    """Tells the board, if it answers, and forgets the workshop: nothing more is sent."""
    joined = membership()
    membership_path().unlink(missing_ok=True)
    unsent_path().unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        if (folder := course_above(Path.cwd())) is not None:
            (folder / PROOF).unlink(missing_ok=True)
    if joined is not None:
        _tell_left(joined)


def _tell_left(joined: Membership) -> None:
    with contextlib.suppress(BoardError):
        _post(f"{joined.url}/api/report", {"events": [{"kind": "left"}]}, joined.token)


def joined_workshop() -> Membership:
    """Returns the workshop that was joined. Raises BoardError if there is none."""
    joined = membership()
    if joined is None:
        raise BoardError("You have not joined a workshop. Join one with the command on the projector.")
    return joined


def tell(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Sends events now; returns what the board sends to this learner. Raises BoardError, also without a workshop."""
    joined = joined_workshop()
    return _post(f"{joined.url}/api/report", {"events": events}, joined.token)


def share(notebook: Path, exercise: str) -> None:
    """Sends the answer to one exercise, as it was saved last. Raises BoardError."""
    try:
        found = [text(cell) for cell in cells(parse(notebook.read_bytes())) if grade_id(cell) == exercise]
    except (OSError, Unreadable):
        raise BoardError(f"{notebook} cannot be read. Save it, then share the answer again.") from None
    if not found:
        raise BoardError(f"{notebook.name} has no answer to {exercise}.")
    tell([{"kind": "shared", "exercise": exercise, "code": found[0]}])


def answers(notebook: Path) -> list[str]:
    """Returns the ids of the exercises whose answers a saved notebook contains; none if it cannot be read."""
    try:
        found = [grade_id(cell) for cell in cells(parse(notebook.read_bytes())) if is_answer(cell)]
    except (OSError, Unreadable):
        return []
    return [name for name in found if name is not None]


class Reporter:
    """Sends reports from a thread, which starts with the first of them."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Membership, str, dict[str, Any]]] = queue.Queue(MOST_WAITING)
        self._delivered: tuple[Membership, str, dict[str, Any]] | None = None  # what the thread tries to send now
        self._away = False  # whether the board did not answer last
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._messages: list[str] = []
        self._seen: set[str] = set()

    def report(self, events: list[dict[str, Any]]) -> None:
        """Sends events soon, if a workshop was joined. Returns at once."""
        joined = membership() if events else None
        if joined is not None:
            self._put(joined, "report", {"events": events})

    def send_notebook(self, lesson: str, content: bytes) -> None:
        """Sends the code cells of a saved notebook soon, if the board of the workshop grades them. Returns at once."""
        joined = membership()
        if joined is None or not joined.judges:
            return
        with contextlib.suppress(Unreadable):
            notebook = parse(content)
            code = [{**cell, "outputs": []} for cell in cells(notebook) if cell.get("cell_type") == "code"]
            self._put(joined, "notebook", {"lesson": lesson, "notebook": json.dumps({**notebook, "cells": code})})

    def _put(self, joined: Membership, path: str, content: dict[str, Any]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="board", daemon=True)
                for earlier in _take_unsent(joined):
                    self._waiting.put_nowait((joined, *earlier))
                _prove_folder(joined)
                self._thread.start()
                atexit.register(self._end)
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait((joined, path, content))

    def finish(self) -> None:
        """Waits a short time for what has not been sent, and not at all while the board does not answer."""
        deadline = time.monotonic() + AT_EXIT_S
        while self._waiting.unfinished_tasks and not self._away and time.monotonic() < deadline:
            time.sleep(0.01)

    def _end(self) -> None:
        """Waits a short time for what has not been sent, and stores the rest."""
        self.finish()
        left = [self._delivered] if self._delivered is not None else []
        with contextlib.suppress(queue.Empty):
            while True:
                left.append(self._waiting.get_nowait())
        joined = membership()
        if joined is not None:
            _store_unsent(joined, [(path, content) for of, path, content in left if of == joined])

    def messages(self) -> list[str]:
        """Returns the lines that the board has sent and that this method has not returned before."""
        found, self._messages = self._messages, []
        return found

    def _send(self) -> None:
        while True:
            self._delivered = joined, path, content = self._waiting.get()
            try:
                news = self._deliver(joined, path, content)
            except BoardError:
                pass  # a workshop without its board is still a course
            else:
                for line in news_lines(news):
                    if line not in self._seen:
                        self._seen.add(line)
                        self._messages.append(line)
            finally:
                self._delivered = None
                self._waiting.task_done()

    def _deliver(self, joined: Membership, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Returns the board's reply, for which it waits as long as the learner is in this workshop. Raises BoardError
        if the board refuses the content."""
        pause = FIRST_PAUSE_S
        while membership() == joined:
            try:
                reply = _post(f"{joined.url}/api/{path}", content, joined.token)
            except BoardAway:
                self._away = True
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                self._away = False
                return reply
        return {}


def _store_unsent(joined: Membership, requests: list[tuple[str, dict[str, Any]]]) -> None:
    """Stores requests after those that are stored already. Of a lesson's notebooks, the last one counts."""
    if not requests:
        return
    kept: dict[object, tuple[str, dict[str, Any]]] = {}
    for place, (path, content) in enumerate([*_take_unsent(joined), *requests]):
        key = content.get("lesson") if path == "notebook" else place
        kept.pop(key, None)
        kept[key] = path, content
    text = json.dumps({"token": joined.token, "requests": list(kept.values())[-MOST_WAITING:]})
    with contextlib.suppress(OSError):
        files.write(unsent_path(), text)


def _take_unsent(joined: Membership) -> list[tuple[str, dict[str, Any]]]:
    """Returns the requests that are stored for this workshop, and removes them: no other process gets them too."""
    path = unsent_path()
    taken = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.rename(taken)
        text = taken.read_text(encoding="utf-8")
        taken.unlink()
        found = json.loads(text)
        if found["token"] != joined.token:
            return []
        return [(str(one), dict(content)) for one, content in found["requests"]][-MOST_WAITING:]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def news_lines(news: dict[str, Any]) -> list[str]:
    """Returns what the board sends to this learner, as lines to show."""
    hint, judged, lines = news.get("hint"), news.get("judged"), []
    if isinstance(hint, str) and hint:
        lines.append(legible(f"From your instructor: {hint}"))
    for one in judged if isinstance(judged, list) else ():
        match one:
            case [str(title), int() | float() as points, int() | float() as most]:
                text = f"{title}, {number(points)} of {number(most)} points"
                lines.append(legible(f"Graded by your instructor's machine: {text}."))
    return lines


reporter = Reporter()


def report_check(check: str | None, passed: bool) -> None:
    """Reports how a public check of a notebook ended; `check` is its cell's id, where the front end gives it."""
    if check is not None:
        reporter.report([{"kind": "check", "check": check, "outcome": "passed" if passed else "failed"}])


def report_result(result: Result) -> None:
    """Reports the points of each exercise that was graded and attempted, and the misconception that was named."""
    reporter.report(graded_events(result.checks))


def graded_events(checks: Iterable[CheckResult], kind: str = "graded") -> list[dict[str, Any]]:
    """Returns an event for each exercise that was attempted: its points, and the misconception that was named."""
    by_exercise: dict[str, list[CheckResult]] = {}
    for check in checks:
        by_exercise.setdefault(check.exercise, []).append(check)
    events = []
    for exercise, found in by_exercise.items():
        if any(check.status in ("passed", "failed") for check in found):
            named = next((check.misconception for check in found if check.misconception), None)
            points = sum(check.points for check in found)
            events.append({"kind": kind, "exercise": exercise, "points": points, "misconception": named})
    return events
