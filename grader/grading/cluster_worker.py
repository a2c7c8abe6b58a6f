"""Tasks that run in a worker of a cluster: prove that it has the same course, secret and grader, and grade a batch.

Notebooks are graded in an examiner as on one machine (`grader.grading.server`), which the worker starts for the first
batch and keeps for later ones. The worker itself runs nothing that a learner wrote.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grader.core.faults import Fault
from grader.core.layout import EXAMINER
from grader.course import Course, CourseError
from grader.grading.batch import imports, private_folders, secret
from grader.grading.cache import Parts, environment_fingerprint, lesson_fingerprint
from grader.grading.pool import Pool
from grader.sandbox.accelerators import ON_CPUS

COURSE = "GRADER_COURSE"  # in a worker's environment: the folder of its course; else the one that it was started in
Reply = dict[str, Any]


class Refused(Exception):
    """This worker may not grade for this run; the text is a clause that says why."""


def fingerprint(course: Course, lessons: list[str]) -> Parts:
    """Returns what a worker and the command that uses it must have in common; the secret is proved separately."""
    return {
        "around": environment_fingerprint(),
        "lessons": {one: lesson_fingerprint(course.lesson(one)) for one in lessons},
    }


def differences(ours: Parts, theirs: Parts) -> str:
    """Returns what of a worker differs from the command that uses it, as a clause; "" if nothing does."""
    found = []
    for name, version in ours["around"].items():
        if theirs["around"].get(name) != version:
            readable = not name.startswith("the ")
            found.append(f"{name} (here {version}, there {theirs['around'].get(name)})" if readable else name)
    found += [one for one, text in ours["lessons"].items() if theirs["lessons"].get(one) != text]
    return f"has another version of {', '.join(found)}" if found else ""


def seal(key: str, nonce: str, content: Any) -> str:
    """Returns a digest of `content` that only a process with the course's secret can make; `nonce` is used once."""
    return hmac.digest(key.encode(), json.dumps([nonce, content], sort_keys=True).encode(), "sha256").hex()


class WorkerCourse:
    """The course of this worker as it was opened for one run: its text, its secret, and its examiners.

    `wanted` is the `fingerprint` of the command. A later run with another one opens the course again.
    """

    def __init__(self, wanted: Parts, hidden: list[str]) -> None:
        home = os.environ.get(COURSE)
        try:
            self.course = Course.find(Path(home) if home else None)
            lessons = [one for one in wanted["lessons"] if one in self.course.lesson_ids]
            self.found = fingerprint(self.course, lessons)
        except (CourseError, OSError) as problem:
            raise Refused(f"cannot open its course ({str(problem).splitlines()[0]})") from None
        self.wanted, self.hidden, self.key = wanted, hidden, secret(self.course)
        if different := differences(wanted, self.found):
            raise Refused(different)
        opening = {"home": str(self.course.home), "secret": self.key, "machine": asdict(ON_CPUS)}
        folders = private_folders(self.course, ()) | set(hidden)
        self._pool = lambda: Pool(EXAMINER, opening, 1, imports(self.course, lessons), hidden=folders)
        self._free: list[Pool] = []

    @contextlib.contextmanager
    def pool(self) -> Iterator[Pool]:
        """A pool of one examiner, for one task at a time; it is kept for the next task."""
        if environment_fingerprint() != self.wanted["around"]:
            raise Refused("was updated during the run")
        try:
            one = self._free.pop()
        except IndexError:
            one = self._pool()
            try:
                one.__enter__()
            except (OSError, Fault) as problem:
                raise Refused(f"cannot start processes for submissions ({problem})") from None
        try:
            yield one
        except BaseException:
            one.__exit__(Fault, None, None)
            raise
        self._free.append(one)

    def close(self) -> None:
        """End the examiners that are free."""
        while self._free:
            self._free.pop().__exit__(None, None, None)


def silence_dask() -> None:
    """Have Dask log nothing in this process: the command reports what is lost."""
    for name in [one for one in logging.root.manager.loggerDict if one.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def dask_setup(worker: object) -> None:
    """Leave Ctrl-C and all messages to the command that started this worker; Dask calls this in workers that preload
    this module. When the command ends first, a worker would otherwise print that it lost its scheduler."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    silence_dask()


_lock = threading.Lock()
_open: WorkerCourse | None = None


def _opened(request: Reply) -> WorkerCourse:
    """The course as the last run used it, or opened for this one. A run that needs more lessons opens them too."""
    global _open
    wanted, hidden = request["wanted"], request["hidden"]
    with _lock:
        known = _open.wanted["lessons"] if _open is not None else {}
        same = _open is not None and (_open.wanted["around"], _open.hidden) == (wanted["around"], hidden)
        if _open is None or not same or secret(_open.course) != _open.key:
            known = {}
        if _open is None or not wanted["lessons"].items() <= known.items():
            close()
            _open = WorkerCourse({**wanted, "lessons": {**known, **wanted["lessons"]}}, hidden)
        return _open


def close() -> None:
    """End the examiners that are kept for later batches."""
    global _open
    if _open is not None:
        _open.close()
    _open = None


def release() -> None:
    """End what this run has left in the worker, without keeping the worker's event loop waiting."""
    threading.Thread(target=close, daemon=True).start()


def identify(request: Reply) -> Reply:
    """Returns this worker's confinement level and a proof that it has the secret, or why it may not grade.

    Args:
        request: "wanted", the fingerprint of the command; "hidden", folders that no submission may read; "nonce".
    """
    try:
        opened = _opened(request)
        with opened.pool() as pool:
            content = {"confinement": asdict(pool.confined)}
    except Refused as refused:
        return {"refused": str(refused)}
    return content | {"seal": seal(opened.key, request["nonce"], content)}


def grade_batch(request: Reply, notebooks: list[tuple[str, str, bytes, dict[str, Any]]]) -> Reply:
    """Returns the results of notebooks (learner, lesson, bytes, files beside it as JSON), in their order, with a proof
    as `identify` does."""
    try:
        opened = _opened(request)
        with opened.pool() as pool:
            level, results = pool.confined.level, []
            if level not in request["levels"]:
                raise Refused(f"now confines submissions at the level {level}")
            for learner, lesson, notebook, beside in notebooks:
                content = base64.b64encode(notebook).decode()
                asked = {"notebook": content, "beside": beside, "learner": learner, "lesson": lesson}
                reply = pool.ask(0, asked | {"text": opened.wanted["lessons"][lesson]})
                results.append({"fault": reply.message} if isinstance(reply, Fault) else reply)
    except Refused as refused:
        return {"refused": str(refused)}
    return {"results": results, "seal": seal(opened.key, request["nonce"], results)}
