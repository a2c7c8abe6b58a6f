"""Limits of the board: code that is slow to lex, rates, connections, a full workshop, and learners who are removed."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from pygments.lexers import PythonLexer
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

from grader.board import board_server, connections
from grader.board.board_server import Board, RateLimit
from grader.board.event_log import EventLog
from grader.board.judge_queue import JudgeQueue
from grader.board.workshop import BoardExercise, BoardPrediction, Workshop
from grader.core import board_client
from grader.core.board_client import TOKEN, BoardError, Membership
from grader.core.result import CheckResult
from grader.core.text import MAX_LINE, trimmed_lines
from grader.course import Course

SLOW_CODE = "x" + " \n" * 1999  # the lexer looks at all lines that follow, at each of them
SHARED = {"kind": "shared", "exercise": "a", "code": "def f(x):\n    return x"}
SMALL = Path(__file__).parent / "courses" / "small"


@dataclass
class OpenBoard:
    """A board that listens in this process."""

    board: Board
    port: int

    async def post(self, path: str, content: object, token: str = "") -> tuple[int, dict[str, Any]]:
        url = f"http://127.0.0.1:{self.port}/api/{path}"
        request = HTTPRequest(url, "POST", {TOKEN: token}, json.dumps(content))
        reply = await AsyncHTTPClient().fetch(request, raise_error=False)
        return reply.code, json.loads(reply.body)

    async def join(self, name: str = "") -> tuple[int, dict[str, Any]]:
        return await self.post("join", {"code": self.board.code, "name": name})

    async def token(self, name: str) -> str:
        status, reply = await self.join(name)
        assert status == 200, reply
        return str(reply["token"])

    def names(self) -> list[str]:
        return [one.name for one in self.board.workshop.participants.values()]


def new_workshop() -> Workshop:
    exercise = BoardExercise("a", "First", "01_small", 3.0, frozenset({"a-one"}), frozenset({"Sums."}))
    return Workshop([exercise], [BoardPrediction("p", "01_small", "Which?", ("one", "two"), "B")])


@asynccontextmanager
async def listening(log: EventLog) -> AsyncIterator[OpenBoard]:
    board, port = Board(new_workshop(), log), free_port()
    server = board_server.listen(board, "127.0.0.1", port)
    try:
        yield OpenBoard(board, port)
    finally:
        server.stop()
        await server.close_all_connections()


@pytest.fixture
def visit(tmp_path: Path) -> Any:
    """Runs a coroutine function with an open board."""

    def run(act: Callable[[OpenBoard], Coroutine[Any, Any, None]]) -> None:
        log = EventLog(tmp_path / "workshop.sqlite3")

        async def main() -> None:
            async with listening(log) as board:
                await act(board)

        try:
            asyncio.run(asyncio.wait_for(main(), 20))
        finally:
            log.close()

    return run


def test_the_lexer_gets_no_spaces_at_the_ends_of_lines(
    visit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lexed = []
    original = PythonLexer.get_tokens_unprocessed

    def recorded(self: PythonLexer, text: str, *others: Any) -> Any:
        lexed.append(text)
        return original(self, text, *others)

    monkeypatch.setattr(PythonLexer, "get_tokens_unprocessed", recorded)

    async def share(board: OpenBoard) -> None:
        token = await board.token("Ada")
        assert (await board.post("report", {"events": [{**SHARED, "code": SLOW_CODE}]}, token))[0] == 200
        assert (await board.post("report", {"events": [{**SHARED, "code": "x" * 3_999}]}, token))[0] == 200

    visit(share)
    of_reports = len(lexed)
    log = EventLog(tmp_path / "workshop.sqlite3")
    Board(new_workshop(), log)
    log.close()
    assert len(lexed) > of_reports > 0, "the events are validated again when the board resumes"
    assert [text for text in lexed if text != trimmed_lines(text)] == []
    assert trimmed_lines(SLOW_CODE) == "x" + "\n" * 1999
    assert len(trimmed_lines("x" * 3_999)) == MAX_LINE


def test_answers_are_shared_at_a_rate_of_their_own(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def share(board: OpenBoard) -> None:
        board.board.shares = RateLimit(per_second=0.001, burst=2)
        token = await board.token("Ada")
        assert (await board.post("report", {"events": [SHARED] * 2}, token))[0] == 200
        status, reply = await board.post("report", {"events": [SHARED]}, token)
        assert (status, reply["error"]) == (
            429,
            "You have shared several answers. Wait a few seconds, then share again",
        )
        assert (await board.post("report", {"events": [{"kind": "help", "wanted": True}]}, token))[0] == 200
        assert (await board.post("report", {"events": [SHARED]}, await board.token("Grace")))[0] == 200
        joined = Membership(f"http://127.0.0.1:{board.port}", token, "Ada")
        monkeypatch.setattr(board_client, "membership", lambda: joined)
        with pytest.raises(
            BoardError, match=r"You have shared several answers\. Wait a few seconds, then share again\."
        ):
            await asyncio.to_thread(board_client.tell, [SHARED])

    visit(share)


def test_a_request_without_the_rest_of_its_body_is_closed(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_server, "BODY_S", 0.1)

    async def wait(board: OpenBoard) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", board.port)
        writer.write(b"POST /api/join HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert await reader.read() == b""
        writer.close()

    visit(wait)


def test_one_address_cannot_use_all_connections(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_server, "CONNECTIONS", 6)

    async def is_open(board: OpenBoard) -> asyncio.StreamWriter | None:
        reader, writer = await asyncio.open_connection("127.0.0.1", board.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            if await reader.read(8):
                return writer
        except ConnectionError:
            pass
        writer.close()
        return None

    async def connect(board: OpenBoard) -> None:
        page = await websocket_connect(f"ws://127.0.0.1:{board.port}/api/live")
        first, second = writers = [await is_open(board), await is_open(board)]
        assert first
        assert second
        assert await is_open(board) is None, "of 6 connections, one address has 3"
        for one in (page, first):
            one.close()
            while (again := await is_open(board)) is None:  # until the server has seen that it is closed
                await asyncio.sleep(0.01)
            writers.append(again)
        assert await is_open(board) is None, "a closed connection counts once"
        for writer in writers:
            writer.close()

    visit(connect)


def test_without_free_files_the_board_waits_and_logs_one_line(
    visit: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pause, failures, original = 0.05, list[float](), socket.socket.accept
    monkeypatch.setattr(connections, "ACCEPT_PAUSE_S", pause)

    def accept(self: socket.socket) -> Any:
        if len(failures) < 3:
            failures.append(time.monotonic())
            raise OSError(errno.EMFILE, "Too many open files")
        return original(self)

    async def connect(board: OpenBoard) -> None:
        monkeypatch.setattr(socket.socket, "accept", accept)
        assert (await board.join("Ada"))[0] == 200

    with caplog.at_level(logging.INFO):
        visit(connect)
    assert len(failures) == 3
    assert failures[2] - failures[0] >= pause, "the board does not accept again at once"
    [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "open files" in record.getMessage()
    assert record.exc_info is None


def test_joins_from_one_address_are_limited(visit: Any) -> None:
    async def join(board: OpenBoard) -> None:
        assert all(board.board.joins.allows("a class") for _ in range(200)), "behind one address"
        assert sum(board.board.joins.allows("a flood") for _ in range(2_000)) < 500
        board.board.joins = RateLimit(per_second=0.001, burst=2)
        assert (await board.post("join", {"code": "AAAAAAAA", "name": ""}))[0] == 403
        assert [(await board.join())[0] for _ in range(3)] == [200, 200, 429]
        assert (await board.join())[1]["error"] == "Too many joins from your network. Try again in a minute"

    visit(join)


def test_the_instructor_removes_a_learner(visit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_server, "MAX_LEARNERS", 2)

    async def remove(board: OpenBoard) -> None:
        ada, grace = await board.token("Ada"), await board.token("Grace")
        graded = {"kind": "graded", "exercise": "a", "points": 1, "misconception": "Sums."}
        events = [graded, SHARED, {"kind": "prediction", "prediction": "p", "choice": "A"}]
        assert (await board.post("report", {"events": events}, grace))[0] == 200
        assert (await board.post("report", {"events": events[2:]}, ada))[0] == 200
        assert (await board.join("Carl"))[0] == 503
        page = await websocket_connect(f"ws://127.0.0.1:{board.port}/api/live")
        await page.write_message(board.board.instructor)
        assert len(json.loads(str(await page.read_message()))["rows"]) == 2
        action = {"kind": "remove", "learner": 2}
        for token, status in ((ada, 403), (grace, 403), (board.board.projector, 403), ("", 401)):
            assert (await board.post("act", action, token))[0] == status
        for learner in (3, True, "2", None):
            assert (await board.post("act", {**action, "learner": learner}, board.board.instructor))[0] == 400
        assert (await board.post("act", action, board.board.instructor))[0] == 200
        while {"id": 2, "removed": True} not in json.loads(str(await page.read_message())).get("rows", ()):
            pass
        page.close()
        status, reply = await board.post("report", {"events": []}, grace)
        assert status == 401
        assert reply["error"] == "You are not in this workshop. Join it with the command on the projector"
        assert (await board.post("act", action, board.board.instructor))[0] == 400
        [column], [tally] = (board.board.workshop.summary(True)[one] for one in ("exercises", "predictions"))
        assert (column["misconceptions"], tally["answered"]) == ([], 1)
        board.board.judged(2, [CheckResult("a-one", "a", "t", "passed", 3.0, 3.0)])  # was graded at that time
        assert (await board.post("report", {"events": []}, await board.token("Grace")))[0] == 200, (
            "name and place are free"
        )
        assert sorted(board.board.workshop.participants) == [1, 3], "an id is not used again"

    visit(remove)
    log = EventLog(tmp_path / "workshop.sqlite3")
    resumed = Board(new_workshop(), log)
    assert [(one.id, one.name) for one in resumed.workshop.participants.values()] == [(1, "Ada"), (3, "Grace")]
    assert all(event.learner != 2 for event in log.events())
    log.close()


def test_no_notebook_of_a_removed_learner_is_graded(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "workshop.sqlite3")

    async def remove() -> None:
        queue = JudgeQueue(Course(SMALL), ["01_small"], log, jobs=1)
        board = Board(new_workshop(), log, queue)
        for name in ("Ada", "Grace"):
            board.join(name)
        for learner in (1, 2):
            queue.put(learner, "01_small", b"{}")
        queue.put(2, "other", b"{}")
        queue.waiting.pop((2, "other"))
        queue.busy.add((2, "other"))  # is graded now
        board.remove(2)
        assert list(queue.waiting) == [(1, "01_small")]
        assert sorted(queue.sizes) == [(1, "01_small"), (2, "other")], "the size of a running one is removed later"
        assert log.notebooks() == [(1, "01_small")]

    asyncio.run(remove())
    log.close()


def test_a_full_workshop_reuses_the_place_of_a_learner_who_reported_nothing(
    visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_server, "MAX_LEARNERS", 3)

    async def join(board: OpenBoard) -> None:
        tokens = [await board.token(name) for name in ("Ada", "Quiet", "Left")]
        assert (await board.post("report", {"events": [{"kind": "help", "wanted": True}]}, tokens[0]))[0] == 200
        assert (await board.post("report", {"events": [{"kind": "left"}]}, tokens[2]))[0] == 200
        assert (await board.join("Carl"))[0] == 503, "they have just joined"
        monkeypatch.setattr(board_server, "SILENT_S", 0.0)
        tokens.append(await board.token("Carl"))
        assert board.names() == ["Ada", "Quiet", "Carl"], "the last to join loses the place"
        for token in (tokens[1], tokens[3]):
            assert (await board.post("report", {"events": [SHARED]}, token))[0] == 200
        assert (await board.join("Dora"))[0] == 503, "all have reported something"
        assert (await board.post("report", {"events": []}, tokens[0]))[0] == 200
        assert (await board.post("report", {"events": []}, tokens[2]))[0] == 401

    visit(join)
