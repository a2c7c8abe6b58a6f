"""The board's web server: an API for learners' machines, and pages that show the workshop while it happens.

Three roles have a token each. A learner's token, issued when they join, only reports that learner's own events. The
projector's token reads counts of everyone. The instructor's token also reads names and sends actions. Tokens are sent
in a header, or as the first message of a WebSocket, so that no other page of a browser can use them. Everything that a
learner sends is validated (`checked_event`), bounded in size and rate, and shown as text. With a `JudgeQueue`, the
board also takes saved notebooks, and adds the results of their hidden checks to the events.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import random
import re
import resource
import secrets
import socket
import sqlite3
import time
from collections import OrderedDict
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import psutil
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from grader.board.connections import ListeningSocket
from grader.board.event_kinds import KINDS, BadEvent, checked_event, known_learner
from grader.board.event_log import Event, EventLog
from grader.board.judge_queue import MAX_NOTEBOOK, JudgeQueue, QueueFull, WatchedNotebook
from grader.board.workshop import Workshop
from grader.core.board_client import TOKEN, folder_proof, graded_events, token_digest
from grader.core.notebook import Unreadable
from grader.core.result import CheckResult
from grader.core.text import legible
from grader.reports import html
from grader.reports.forms import csv_text

PAGE = Path(__file__).with_name("page")
MAX_BODY = 16 * 1024
MAX_EVENTS = 50  # in one request
MAX_LEARNERS = 2_000
SILENT_S = 900.0  # since joining, without a report, after which a full workshop reuses a place
MAX_VIEWERS = 50
MAX_UNAUTHENTICATED = 200  # connections that have not sent a token yet; one more closes the oldest of them
TOKEN_S = 10.0  # in which a connection sends its token
BODY_S = 30.0  # in which a request is received after its header, such as a notebook over a slow network
MAX_NAME = 40
CONNECTIONS = 4_096  # open at once, as far as the system allows; half of them from one address, as that of a proxy
UPDATE_S = 0.25  # between two updates of a page
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without letters and digits that look alike
CODE_LENGTH = 8
COLOURS = "amber azure coral golden green indigo ivory jade lilac olive orange pearl ruby scarlet silver teal".split()
ANIMALS = (
    "badger crane dolphin falcon finch fox heron ibex lark lynx otter owl puffin raven seal stork swift wren".split()
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' ws: wss:; "
    "base-uri 'none'; form-action 'none'"
)


class RateLimit:
    """A token bucket for each key: `burst` at once, then `per_second`. Stores the keys that were used last."""

    def __init__(self, per_second: float, burst: float, most: int = 10_000) -> None:
        self.per_second, self.burst, self.most = per_second, burst, most
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def allows(self, key: object) -> bool:
        """Takes one from the key's bucket; returns whether there was one."""
        now = time.monotonic()
        left, when = self._buckets.pop(key, (self.burst, now))
        left = min(self.burst, left + (now - when) * self.per_second)
        self._buckets[key] = (left - 1 if left >= 1 else left), now
        while len(self._buckets) > self.most:
            self._buckets.popitem(last=False)
        return left >= 1


def clean_name(typed: str) -> str:
    """Returns a name as it is shown: printable characters on one line, at most `MAX_NAME` of them."""
    return " ".join(legible(typed[:MAX_NAME]).split())[:MAX_NAME].strip()


class Board:
    """One workshop with its database, its tokens and the pages that are open."""

    def __init__(
        self, workshop: Workshop, log: EventLog, judge: JudgeQueue | None = None, watches: bool = False
    ) -> None:
        self.workshop, self.log, self.judge, self.watches = workshop, log, judge, watches
        self.address = ""  # with which learners join
        if judge is not None:
            judge.on_result = self.judged
        draw = random.SystemRandom()
        self.instructor = log.setting("instructor", secrets.token_urlsafe(24))
        self.projector = log.setting("projector", secrets.token_urlsafe(24))
        self.code = log.setting("code", "".join(draw.choices(CODE_LETTERS, k=CODE_LENGTH)))
        self.learners: dict[str, int] = {}  # by the digest of their token
        self.viewers: set[Live] = set()
        self.unauthenticated: dict[Live, asyncio.TimerHandle] = {}
        self.events = RateLimit(per_second=5, burst=60)
        self.shares = RateLimit(per_second=0.2, burst=5)  # of answers, which are split into tokens
        self.notebooks = RateLimit(per_second=0.5, burst=10)
        self.attempts = RateLimit(per_second=0.2, burst=20)  # of one address to guess a code or a token
        self.joins = RateLimit(per_second=1, burst=300)  # from one address, as that of a whole class
        self._update: asyncio.TimerHandle | None = None
        for learner, name, digest in log.learners():
            self.learners[digest] = learner
            workshop.join(learner, name, time.time())
        for event in log.events():
            if event.content["kind"] == "joined":
                assert event.learner is not None
                workshop.join(event.learner, workshop.participants[event.learner].name, event.at)
                continue
            with contextlib.suppress(BadEvent):  # the course has changed since
                sender = "judge" if event.content["kind"] in KINDS["judge"] else "learner"
                content = checked_event(workshop, event.content, "instructor" if event.learner is None else sender)
                workshop.apply(event.at, event.learner, content)

    def role(self, token: str) -> str | int | None:
        """Returns "instructor", "projector", a learner's id, or None."""
        for role in ("instructor", "projector"):
            if hmac.compare_digest(token.encode(errors="replace"), getattr(self, role).encode()):
                return role
        return self.learners.get(token_digest(token))

    def join(self, name: str) -> tuple[str, str]:
        """Adds a learner; returns their name, which is drawn where they gave none, and their token."""
        if len(self.learners) >= MAX_LEARNERS:
            silent = self.workshop.last_silent(time.time() - SILENT_S)
            if silent is None:
                raise HTTPError(503, reason="The workshop is full. Ask your instructor to remove learners who are away")
            self.remove(silent)
        token, wanted = secrets.token_urlsafe(24), clean_name(name)
        return self._add(wanted, token_digest(token)), token

    def _add(self, wanted: str, digest: str) -> str:
        """Adds a learner under a name, or a similar one where it is taken; returns the name."""
        now = time.time()
        for number in range(1, MAX_LEARNERS + 2):
            drawn = f"{secrets.choice(COLOURS)} {secrets.choice(ANIMALS)}"
            one = (wanted or drawn) if number == 1 else f"{wanted or drawn} {number}"
            with contextlib.suppress(sqlite3.IntegrityError):
                learner = self.log.add_learner(one, digest)
                break
        self.log.add([Event(now, learner, {"kind": "joined"})])
        self.learners[digest] = learner
        self.workshop.join(learner, one, now)
        self.schedule()
        return one

    def remove(self, learner: int) -> None:
        """Removes a learner and all their reports. Their token is invalid from now on, and their name is free."""
        self.learners = {digest: one for digest, one in self.learners.items() if one != learner}
        if self.judge is not None:
            self.judge.remove(learner)
        self.log.remove_learner(learner)
        self.workshop.remove(learner)
        self.schedule()

    def saved_in_folder(self, saved: WatchedNotebook) -> None:
        """Takes a notebook of a watched folder. It is that of the learner who has joined from there, and otherwise of
        one who is added with the first notebook."""
        digest = f"folder {saved.name}"  # no digest of any token, so no token reports as this learner
        joined = self._joined_from(saved)
        if joined is None and digest not in self.learners:
            self._add(clean_name(saved.name), digest)
        earlier = self.learners.get(digest)
        if earlier is not None and self.workshop.participants[earlier].replaced != (joined is not None):
            self.take(earlier, [{"kind": "folder", "replaced": joined is not None}], "judge")
        learner = earlier if joined is None else joined
        assert self.judge is not None
        assert learner is not None
        with contextlib.suppress(Unreadable, QueueFull):
            self.judge.put(learner, saved.lesson, saved.content)
        self.schedule()

    def _joined_from(self, saved: WatchedNotebook) -> int | None:
        """The learner who has proved that this folder is theirs; of several, the last to join."""
        proved = (
            learner
            for digest, learner in reversed(self.learners.items())
            if saved.proof and hmac.compare_digest(saved.proof, folder_proof(digest, saved.folder))
        )
        return next(proved, None)

    def judged(self, learner: int, checks: list[CheckResult]) -> None:
        """Takes the results of a learner's notebook from the queue, unless the learner was removed in the meantime."""
        if learner in self.workshop.participants:
            self.take(learner, graded_events(checks, kind="judged"), "judge")

    def take(self, learner: int | None, sent: list[Any], sender: str) -> None:
        """Validates, stores and applies events. Raises BadEvent, and takes none of them, if one is malformed."""
        now = time.time()
        events = [Event(now, learner, checked_event(self.workshop, one, sender)) for one in sent]
        self.log.add(events)
        for event in events:
            self.workshop.apply(*event)
        self.schedule()

    def schedule(self) -> None:
        """Updates the open pages soon, once for all events until then."""
        if self._update is None:
            self._update = asyncio.get_running_loop().call_later(UPDATE_S, self.update)

    def update(self) -> None:
        """Sends the open pages what changed."""
        self._update = None
        rows, groups = self.workshop.take_changes(), self.workshop.take_groups()
        found = {viewer.role for viewer in self.viewers}
        texts = {role: self._update_text(role, rows, groups) for role in found}
        for viewer in list(self.viewers):
            viewer.send(texts[viewer.role])

    def _update_text(self, role: str, rows: list[dict[str, Any]], groups: dict[str, Any] | None) -> str:
        now, summary = time.time(), self.workshop.summary(role == "instructor")
        content: dict[str, Any] = {"summary": summary, "now": now, "clock": self.workshop.clock(now)}
        if role == "instructor":
            content |= {"rows": rows, "queue": self.queue()} | ({} if groups is None else {"groups": groups})
        return json.dumps(content)

    def queue(self) -> dict[str, Any] | None:
        """Returns the state of the judge's queue, None without a judge: how many notebooks wait and are graded, and the
        median and the largest of the last waiting times in seconds."""
        if self.judge is None:
            return None
        last = sorted(self.judge.seconds)
        times = {"median": last[len(last) // 2], "longest": last[-1]} if last else {}
        return {"waiting": len(self.judge.waiting), "busy": len(self.judge.busy), **times}

    def everything(self, role: str) -> str:
        """Returns the first message to a page."""
        workshop = self.workshop
        rows = [workshop.row(learner) for learner in sorted(workshop.participants)]
        start = {"role": role, "code": self.code, "address": self.address, "outline": workshop.outline()}
        return json.dumps({**start, **json.loads(self._update_text(role, rows, workshop.groups()))})

    def report(self, form: str) -> str:
        """Returns what an export contains, with all names: a table ("csv") or a page ("html")."""
        workshop = self.workshop
        if form == "csv":
            return csv_text(workshop.table())
        outline = workshop.outline()
        exercises = [
            {**about, **now, "groups": workshop.groups().get(about["id"], [])}
            for about, now in zip(outline["exercises"], workshop.summary(True)["exercises"], strict=True)
        ]
        predictions = [
            {**workshop.predictions[one["id"]].__dict__, **one} for one in workshop.summary(True)["predictions"]
        ]
        day = date.fromtimestamp(workshop.began or time.time())
        learners = len(workshop.present)
        return html.workshop(day, exercises, predictions, learners, workshop.judges, workshop.table())


class Handler(RequestHandler):
    """What all handlers share: the board, security headers, short errors in JSON."""

    @property
    def board(self) -> Board:
        return self.application.settings["board"]

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")

    def write_error(self, status_code: int, **_: Any) -> None:
        self.finish({"error": self._reason})

    def role_of_token(self) -> str | int:
        """Returns the role of the request's token. Raises HTTPError 401, and 429 after many wrong ones."""
        role = self.board.role(self.request.headers.get(TOKEN, ""))
        if role is None:
            self.refuse_guessing()
            raise HTTPError(401, reason="You are not in this workshop. Join it with the command on the projector")
        return role

    def learner(self) -> int:
        """Returns the id of the learner whose token the request has. Raises HTTPError."""
        learner = self.role_of_token()
        if not isinstance(learner, int):
            raise HTTPError(403, reason="Only learners report events")
        return learner

    def refuse_guessing(self) -> None:
        if not self.board.attempts.allows(self.request.remote_ip):
            raise HTTPError(429, reason="Too many attempts. Wait a minute")

    def body(self, most: int = MAX_BODY) -> dict[str, Any]:
        if len(self.request.body) > most:
            raise HTTPError(413, reason=f"A request has at most {most:,} bytes")
        try:
            content = json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise HTTPError(400, reason="The request is not JSON") from None
        if not isinstance(content, dict):
            raise HTTPError(400, reason="The request is not an object")
        return content

    def take(self, learner: int | None, sent: object, sender: str) -> None:
        if not isinstance(sent, list) or len(sent) > MAX_EVENTS:
            raise HTTPError(400, reason=f"A request contains a list of at most {MAX_EVENTS} events")
        try:
            self.board.take(learner, sent, sender)
        except BadEvent as problem:
            raise HTTPError(400, reason=str(problem)) from None


class Join(Handler):
    """A learner joins with the code, under a name of their choice or one that is drawn."""

    def post(self) -> None:
        content = self.body()
        code, name = content.get("code"), content.get("name", "")
        if not isinstance(code, str) or not isinstance(name, str):
            raise HTTPError(400, reason="A code and a name are texts")
        if not hmac.compare_digest(
            re.sub(r"[\s-]", "", code).upper().encode(errors="replace"), self.board.code.encode()
        ):
            self.refuse_guessing()
            raise HTTPError(403, reason="The code is wrong. Copy it from the projector")
        if not self.board.joins.allows(self.request.remote_ip):
            raise HTTPError(429, reason="Too many joins from your network. Try again in a minute")
        name, token = self.board.join(name)
        self.finish(
            {"name": name, "token": token, "judges": self.board.judge is not None, "watches": self.board.watches}
        )


class Report(Handler):
    """A learner's machine reports events, and receives what the instructor sends to everyone."""

    def post(self) -> None:
        learner = self.learner()
        if not self.board.events.allows(learner):
            raise HTTPError(429, reason="Too many reports. Wait a few seconds")
        sent = self.body().get("events")
        kinds = [one.get("kind") for one in sent if isinstance(one, dict)] if isinstance(sent, list) else []
        if not all(self.board.shares.allows(learner) for kind in kinds if kind == "shared"):
            raise HTTPError(429, reason="You have shared several answers. Wait a few seconds, then share again")
        self.take(learner, sent, "learner")
        self.finish(self.board.workshop.news(learner))


class NotebookUpload(Handler):
    """A learner's machine sends a saved notebook, which waits to be graded."""

    def post(self) -> None:
        learner, judge = self.learner(), self.board.judge
        if judge is None:
            raise HTTPError(403, reason="This board grades no notebooks")
        if not self.board.notebooks.allows(learner):
            raise HTTPError(429, reason="Too many notebooks. Wait a few seconds")
        content = self.body(2 * MAX_NOTEBOOK)
        lesson, notebook = content.get("lesson"), content.get("notebook")
        if lesson not in judge.lessons or not isinstance(notebook, str):
            raise HTTPError(400, reason="A notebook is a text, of a lesson of this workshop")
        try:
            judge.put(learner, lesson, notebook.encode(errors="replace"))
        except (Unreadable, QueueFull) as problem:
            raise HTTPError(413 if isinstance(problem, Unreadable) else 503, reason=str(problem)) from None
        self.board.schedule()
        self.finish(self.board.workshop.news(learner))


class Act(Handler):
    """The instructor acts: opens an exercise, sets a timer, sends a hint, shows an answer, removes a learner, or
    exports the workshop."""

    def post(self) -> None:
        self.instructor_only()
        content = self.body()
        if content.get("kind") == "remove":  # no event: it deletes the events of a learner
            self.remove(content)
        else:
            self.take(None, [content], "instructor")
        self.finish({})

    def get(self) -> None:
        self.instructor_only()
        form = self.get_query_argument("form", "")
        if form not in ("csv", "html"):
            raise HTTPError(400, reason="An export is a csv or an html file")
        self.set_header("Content-Type", f"text/{form}; charset=utf-8")
        self.finish(self.board.report(form))

    def remove(self, content: dict[str, Any]) -> None:
        try:
            self.board.remove(known_learner(self.board.workshop, content))
        except BadEvent as problem:
            raise HTTPError(400, reason=str(problem)) from None

    def instructor_only(self) -> None:
        if self.role_of_token() != "instructor":
            raise HTTPError(403, reason="Only the instructor may do this")


class Live(WebSocketHandler):
    """A page that shows the board. Its first message is its token."""

    role = ""
    behind = False
    sending: asyncio.Task[None] | None = None

    def check_origin(self, origin: str) -> bool:
        return True  # a token is in no cookie: another site's page has none to send

    def open(self, *_: str) -> None:
        self.board: Board = self.application.settings["board"]
        if len(self.board.viewers) >= MAX_VIEWERS:
            self.close(1013, "too many pages")
            return
        late = asyncio.get_running_loop().call_later(TOKEN_S, self.close, 1008, "no token")
        self.board.unauthenticated[self] = late
        if len(self.board.unauthenticated) > MAX_UNAUTHENTICATED:
            oldest = next(iter(self.board.unauthenticated))
            oldest.end_wait_for_token()  # now: a client that does not answer is only closed after seconds
            oldest.close(1013, "too many connections")

    def on_message(self, message: str | bytes) -> None:
        if self.role or not isinstance(message, str):
            return
        role = self.board.role(message)
        if role not in ("instructor", "projector"):
            allowed = self.board.attempts.allows(self.request.remote_ip)
            self.close(4401 if allowed else 4429, "no such token")
            return
        self.role = str(role)
        self.end_wait_for_token()
        self.board.viewers.add(self)
        self.send(self.board.everything(self.role))

    def send(self, text: str) -> None:
        """Sends an update. A page that has not yet received the last one gets everything once it has."""
        self.behind = self.sending is not None
        if self.sending is None:
            self.sending = asyncio.get_running_loop().create_task(self._send(text))

    async def _send(self, text: str) -> None:
        with contextlib.suppress(WebSocketClosedError):
            await self.write_message(text)
            while self.behind:
                self.behind = False
                await self.write_message(self.board.everything(self.role))
        self.sending = None

    def on_close(self) -> None:
        self.end_wait_for_token()
        self.board.viewers.discard(self)

    def end_wait_for_token(self) -> None:
        """From now on, this connection does not count as one that has not sent a token."""
        late = self.board.unauthenticated.pop(self, None)
        if late is not None:
            late.cancel()


class Page(Handler):
    """The page and its two files. They are the same for everyone: what they show depends on the token."""

    TYPES: ClassVar[dict[str, str]] = {
        "board.html": "text/html",
        "board.js": "text/javascript",
        "board.css": "text/css",
    }

    def get(self, name: str = "") -> None:
        name = name or "board.html"
        self.set_header("Content-Type", f"{self.TYPES[name]}; charset=utf-8")
        self.finish((PAGE / name).read_bytes())


def application(board: Board) -> Application:
    """Returns the application. Its pages use relative addresses only, so that it also works behind a proxy's prefix."""
    routes = [
        (r"/api/join", Join),
        (r"/api/report", Report),
        (r"/api/notebook", NotebookUpload),
        (r"/api/act", Act),
        (r"/api/live", Live),
        (r"/(board\.html|board\.js|board\.css)?", Page),
    ]
    return Application(
        routes, board=board, websocket_max_message_size=1_024, websocket_ping_interval=20, log_function=lambda _: None
    )


def listen(board: Board, address: str, port: int) -> HTTPServer:
    """Returns the running server. Raises OSError, for instance where the port is in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = CONNECTIONS if hard == resource.RLIM_INFINITY else min(CONNECTIONS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    largest = MAX_BODY if board.judge is None else 2 * MAX_NOTEBOOK
    limits = {"max_body_size": largest, "max_header_size": 8_192, "idle_connection_timeout": 60, "body_timeout": BODY_S}
    server = HTTPServer(application(board), **limits)
    server.add_sockets([ListeningSocket(one, server, per_address=most // 2) for one in bind_sockets(port, address)])
    return server


def lan_address() -> str:
    """Returns an address of this machine in its network; that of this machine alone if it is in none."""
    found = [
        one.address
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for one in addresses
        if one.family == socket.AF_INET and not one.address.startswith(("127.", "169.254.")) and "docker" not in name
    ]
    return found[0] if found else "127.0.0.1"
