"""The board of a workshop: the real command, learners' reports, roles, limits, a killed board, and its page."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import desk
import kernels
import pytest
from ports import free_port
from tornado.websocket import websocket_connect

from grader.board import board_server
from grader.board.board_server import MAX_NAME, Board, RateLimit, clean_name
from grader.board.event_kinds import BadEvent, checked_event
from grader.board.event_log import DATABASE, EventLog
from grader.board.workshop import BoardExercise, BoardPrediction, Workshop
from grader.core import board_client
from grader.core.result import CheckResult, Result

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/#(\S+)")


@dataclass
class RunningBoard:
    """A `grader board` process and what it has printed."""

    url: str
    instructor: str
    projector: str
    code: str
    process: subprocess.Popen[str]

    def post(self, path: str, content: object, token: str = "") -> tuple[int, dict[str, Any]]:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.url}{path}", body, {"X-Board-Token": token})
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, json.loads(problem.read() or b"{}")

    def join(self, name: str = "") -> tuple[str, str]:
        status, reply = self.post("api/join", {"code": self.code, "name": name})
        assert status == 200, reply
        return reply["name"], reply["token"]

    def report(self, token: str, *events: object) -> tuple[int, dict[str, Any]]:
        return self.post("api/report", {"events": list(events)}, token)


def grader(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grader", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@contextmanager
def running(course: Path, *options: str, port: int | None = 0) -> Iterator[RunningBoard]:
    """Starts the board of a course, and kills it at the end. Port 0 is a free one, and None that of the workshop."""
    command = [sys.executable, "-u", "-m", "grader", "--course", str(course), "board", *options]
    command += [] if port is None else ["--port", str(port or free_port())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "grader join" in line:
                break
        tokens = ADDRESS.findall("".join(lines))
        assert len(tokens) == 2, lines
        *_, url, code = lines[-1].split()
        yield RunningBoard(url, *tokens, code, process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A course of one small lesson with three exercises."""
    folder = tmp_path / "course"
    folder.mkdir()
    for name in ("course.toml", "notebooks", "solutions", "images"):
        source = ROOT / "tests" / "courses" / "small" / name
        if source.exists():
            subprocess.run(["cp", "-r", source, folder], check=True)
    return folder


@pytest.fixture
def workshop() -> Workshop:
    return Workshop(
        [
            BoardExercise("a", "First", "01_small", 3.0, frozenset({"a-one", "a-two"}), frozenset({"Sums."})),
            BoardExercise("b", "Second", "01_small", 2.0, frozenset({"b-one"}), frozenset()),
        ],
        [BoardPrediction("p", "01_small", "Which?", ("one", "two"), "B")],
    )


def happen(workshop: Workshop, at: float, learner: int | None, **content: object) -> None:
    workshop.apply(at, learner, checked_event(workshop, content, "instructor" if learner is None else "learner"))


def test_an_exercise_goes_from_open_to_done(workshop: Workshop) -> None:
    workshop.join(1, "One", 0.0)
    states = []
    for at, event in enumerate(
        [
            {"kind": "check", "check": "a-one", "outcome": "failed"},
            {"kind": "check", "check": "a-one", "outcome": "passed"},
            {"kind": "check", "check": "a-two", "outcome": "passed"},
            {"kind": "graded", "exercise": "a", "points": 2, "misconception": "Sums."},
            {"kind": "graded", "exercise": "a", "points": 3, "misconception": None},
            {"kind": "check", "check": "a-one", "outcome": "failed"},
        ]
    ):
        happen(workshop, 60.0 * (at + 1), 1, **event)
        states.append(workshop.row(1)["cells"]["a"]["status"])
    assert states == ["trying", "trying", "passing", "passing", "done", "done"]
    assert workshop.summary(instructor=False)["exercises"][0]["misconceptions"] == [], "one person is not anonymous"
    column = workshop.summary(instructor=True)["exercises"][0]
    assert (column["minutes"], column["counts"], column["misconceptions"]) == (4.0, {"done": 1}, [("Sums.", 1)])
    assert workshop.row(1)["progressed"] == 300.0
    assert workshop.table()[1] == ("One", "01_small", "a", "done", 3, 3.0, 3, 4.0)


def test_shared_wrong_answers_are_grouped_without_names_from_three_people_on(workshop: Workshop) -> None:
    codes = ["def f(x):\n    # Ada\n    return g(x)", "def f(y):\n    return g( y )", "def f(x):\n    return h(x) + 1"]
    for learner, code in enumerate(codes, 1):
        assert workshop.groups() == {}
        workshop.join(learner, f"Learner {learner}", 0.0)
        happen(workshop, 1.0, learner, kind="shared", exercise="a", code=code)
    groups = workshop.groups()["a"]
    assert [one["count"] for one in groups] == [2, 1]
    assert "Ada" not in json.dumps(groups)
    assert workshop.summary(instructor=False)["display"] is None
    happen(workshop, 2.0, None, kind="show", exercise="a", group=groups[0]["group"])
    assert workshop.summary(instructor=False)["display"]["count"] == 2
    workshop.join(4, "Solved", 0.0)
    happen(workshop, 3.0, 4, kind="graded", exercise="a", points=3, misconception=None)
    happen(workshop, 4.0, 4, kind="shared", exercise="a", code="def f(x):\n    return right(x)")
    assert "right" not in json.dumps(workshop.groups())


def test_the_projector_gets_a_tally_only_when_everyone_has_answered(workshop: Workshop) -> None:
    for learner in (1, 2):
        workshop.join(learner, str(learner), 0.0)
    happen(workshop, 1.0, 1, kind="prediction", prediction="p", choice="A")
    [hidden], [shown] = (workshop.summary(instructor=one)["predictions"] for one in (False, True))
    assert (hidden["answered"], hidden["counts"], hidden["right"]) == (1, None, None)
    assert (shown["counts"], shown["right"]) == ({"A": 1}, "B")
    happen(workshop, 2.0, None, kind="hide", hidden=False)
    assert workshop.summary(instructor=False)["predictions"][0]["counts"] == {"A": 1}
    happen(workshop, 3.0, None, kind="hide", hidden=True)
    happen(workshop, 4.0, 2, kind="prediction", prediction="p", choice="B")
    assert workshop.summary(instructor=False)["predictions"][0]["right"] == "B"


def test_a_break_counts_for_nobody(workshop: Workshop) -> None:
    for learner in (1, 2):
        workshop.join(learner, str(learner), 0.0)
        happen(workshop, 60.0, learner, kind="check", check="a-one", outcome="passed")
    assert workshop.clock(100.0) - workshop.row(1)["progressed"] == 40.0
    happen(workshop, 100.0, None, kind="break", paused=True)
    happen(workshop, 150.0, None, kind="break", paused=True)  # a second click
    assert workshop.summary(instructor=False)["paused"] is True
    assert workshop.clock(1_000.0) - workshop.row(1)["progressed"] == 40.0
    happen(workshop, 2_000.0, 2, kind="check", check="a-two", outcome="passed")  # works through the break
    happen(workshop, 3_700.0, None, kind="break", paused=False)
    happen(workshop, 3_700.0, None, kind="break", paused=False)
    assert workshop.clock(3_720.0) - workshop.row(1)["progressed"] == 60.0
    assert workshop.clock(3_720.0) - workshop.row(2)["progressed"] == 20.0
    happen(workshop, 3_760.0, 1, kind="graded", exercise="a", points=3, misconception=None)
    assert workshop.median_gap == 60.0, "of 60, 60, 40 and 100 s"
    assert workshop.summary(instructor=True)["exercises"][0]["minutes"] == 1.7, "100 s, without the hour"
    with pytest.raises(BadEvent):
        checked_event(workshop, {"kind": "break", "paused": 1}, "instructor")


def test_a_learner_who_has_left_no_longer_counts(workshop: Workshop) -> None:
    for learner in (1, 2):
        workshop.join(learner, f"Learner {learner}", 0.0)
        happen(workshop, 1.0, learner, kind="check", check="a-one", outcome="failed")
    happen(workshop, 2.0, 1, kind="prediction", prediction="p", choice="A")
    happen(workshop, 3.0, 2, kind="help", wanted=True)
    happen(workshop, 4.0, 2, kind="left")
    summary = workshop.summary(instructor=False)
    assert (summary["learners"], summary["exercises"][0]["counts"]) == (1, {"trying": 1})
    assert summary["predictions"][0]["right"] == "B", "everyone who is left has answered"
    assert (workshop.row(2)["left"], workshop.row(2)["help"]) == (True, False)
    assert [row[0] for row in workshop.table()[1:]] == ["Learner 1", "Learner 2"]
    workshop.apply(4.5, 2, {"kind": "judged", "exercise": "a", "points": 1, "misconception": None})
    assert workshop.row(2)["left"], "a notebook that was graded later is no return"
    happen(workshop, 5.0, 2, kind="help", wanted=False)  # for instance from another notebook
    assert workshop.summary(instructor=False)["learners"] == 2


def test_an_answer_that_is_still_the_stub_is_not_shared(workshop: Workshop) -> None:
    stub = "def f(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
    workshop.exercises["a"] = replace(workshop.exercises["a"], stub=stub)
    with pytest.raises(BadEvent, match="contains no answer yet"):
        checked_event(workshop, {"kind": "shared", "exercise": "a", "code": f"# mine\n{stub}"})
    assert checked_event(workshop, {"kind": "shared", "exercise": "a", "code": "def f(x):\n    return x"})


def test_a_board_that_judges_ignores_the_points_that_learners_report(workshop: Workshop) -> None:
    workshop.judges = True
    workshop.join(1, "One", 0.0)
    happen(workshop, 1.0, 1, kind="graded", exercise="a", points=3, misconception=None)
    assert workshop.row(1)["cells"]["a"] == {"status": "trying", "earned": 0.0, "failures": 0}
    judged = {"kind": "judged", "exercise": "a", "points": 3, "misconception": None}
    with pytest.raises(BadEvent):
        checked_event(workshop, judged)
    workshop.apply(2.0, 1, checked_event(workshop, judged, "judge"))
    assert workshop.row(1)["cells"]["a"]["status"] == "done"
    assert workshop.news(1)["judged"] == [["First", 3, 3.0]]


def test_who_counts_as_stuck_depends_on_the_pace_of_the_workshop(workshop: Workshop) -> None:
    workshop.join(1, "One", 0.0)
    workshop.join(2, "Two", 0.0)
    assert workshop.stuck_after == 300.0
    happen(workshop, 600.0, 1, kind="check", check="a-one", outcome="passed")
    happen(workshop, 1800.0, 2, kind="check", check="a-one", outcome="passed")
    assert workshop.stuck_after == 2 * 1200.0  # the median of 600 s and 1,800 s, twice


@pytest.mark.parametrize(
    "event",
    [
        None, [], {}, {"kind": []}, {"kind": "open", "exercise": "a"}, {"kind": "hint", "text": "for everyone"},
        {"kind": "check", "check": "other", "outcome": "passed"}, {"kind": "check", "check": ["a-one"], "outcome": "x"},
        {"kind": "check", "check": "a-one", "outcome": "<b>"},
        {"kind": "graded", "exercise": "a", "points": 4, "misconception": None},
        {"kind": "graded", "exercise": "a", "points": float("nan"), "misconception": None},
        {"kind": "graded", "exercise": "a", "points": True, "misconception": None},
        {"kind": "graded", "exercise": "a", "points": 1, "misconception": "Learner's own text"},
        {"kind": "graded", "exercise": "a", "points": 1, "misconception": ["Sums."]},
        {"kind": "prediction", "prediction": "<b>" * 30, "choice": "A"},
        {"kind": "prediction", "prediction": "p", "choice": "C"}, {"kind": "help", "wanted": 1},
        {"kind": "prediction", "prediction": "p", "choice": "AB"}, {"kind": "judged", "exercise": "a", "points": 1},
        {"kind": "shared", "exercise": "a", "code": " "}, {"kind": "shared", "exercise": "a", "code": "x" * 5_000},
        {"kind": "shared", "exercise": "other", "code": "x"}, {"kind": "show", "exercise": None},
        {"kind": "hide", "hidden": False}, {"kind": "break", "paused": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_event_is_refused(workshop: Workshop, event: object) -> None:
    with pytest.raises(BadEvent):
        checked_event(workshop, event)


def test_names_are_one_line_of_bounded_text() -> None:
    assert clean_name("  Ada\n\tLovelace ") == "Ada Lovelace"
    assert "\u202e" not in clean_name("abc\u202edef")
    assert len(clean_name("é" * 500)) <= MAX_NAME


def test_a_rate_limit_allows_a_burst_and_then_refuses() -> None:
    limit = RateLimit(per_second=0.001, burst=3, most=2)
    assert [limit.allows("x") for _ in range(5)] == [True, True, True, False, False]
    assert limit.allows("y")


def test_a_connection_without_a_token_is_closed_and_keeps_no_page_away(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_server, "MAX_UNAUTHENTICATED", 3)
    monkeypatch.setattr(board_server, "TOKEN_S", 1.0)
    log, port = EventLog(tmp_path / "workshop.sqlite3"), free_port()

    async def visit() -> None:
        board = Board(workshop, log)
        server = board_server.listen(board, "127.0.0.1", port)
        url = f"ws://127.0.0.1:{port}/api/live"
        first, *others = [await websocket_connect(url) for _ in range(4)]
        assert await first.read_message() is None, "the oldest is closed at once"
        page = await websocket_connect(url)
        await page.write_message(board.instructor)
        assert json.loads(str(await page.read_message()))["role"] == "instructor"
        assert [await one.read_message() for one in others] == [None] * 3, "the others are closed later"
        board.schedule()
        assert "summary" in json.loads(str(await page.read_message())), "a page with a token stays open"
        assert board.unauthenticated == {}
        for one in (first, *others, page):
            one.close()
        server.stop()
        await server.close_all_connections()

    asyncio.run(asyncio.wait_for(visit(), 20))
    log.close()


def test_a_workshop_with_two_learners_through_the_real_commands(course: Path, tmp_path: Path) -> None:
    home = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    with running(course, "01_small") as board:
        assert grader("raise-hand", env=home).returncode == 2
        joined = grader("join", board.url, board.code.lower(), "--name", "Ada", env=home)
        assert joined.returncode == 0, joined.stderr
        assert 'joined the workshop as "Ada"' in joined.stdout
        assert "Your instructor can see that you ask for help." in grader("raise-hand", env=home).stdout
        stored = tmp_path / "data" / "jaxercise" / "workshop.json"
        assert stored.stat().st_mode & 0o077 == 0
        token = json.loads(stored.read_text())["token"]
        second, other = board.join("Ada")
        drawn, _ = board.join()
        assert second == "Ada 2"
        assert re.fullmatch(r"[a-z]+ [a-z]+( \d+)?", drawn)
        # A learner reads no other learner, takes no action, and is no instructor; nobody acts without a token.
        for path in ("api/act", "api/report"):
            assert board.post(path, {"kind": "hint", "text": "x"}, "")[0] == 401
        assert board.post("api/act", {"kind": "hint", "text": "x"}, token)[0] == 403
        assert board.post("api/act", {"kind": "hint", "text": "x"}, board.projector)[0] == 403
        assert board.report(board.instructor)[0] == 403
        assert board.post("api/act", {"kind": "hint", "text": "Look at the shapes."}, board.instructor)[0] == 200
        status, news = board.report(other)
        assert status == 200
        assert news["hint"] == "Look at the shapes."
        assert "Ada" not in json.dumps(news)
        assert "Look at the shapes." in grader("raise-hand", "--lower", env=home).stdout
        assert grader("join", "--leave", env=home).returncode == 0
        assert not stored.exists()


def accepted(board: RunningBoard, body: bytes, token: str) -> bool:
    """Whether the board takes a report with this body; it may also close the connection."""
    try:
        return board.post("api/report", body, token)[0] == 200
    except (OSError, ValueError):
        return False


def test_requests_are_bounded_in_size_and_rate(course: Path) -> None:
    with running(course, "01_small") as board:
        _, token = board.join()
        assert board.post("api/report", b"{", token)[0] == 400
        assert board.post("api/report", [], token)[0] == 400
        assert board.report(token, *[{"kind": "help", "wanted": True}] * 51)[0] == 400
        assert not accepted(board, b"x" * 100_000, token)
        assert not accepted(board, b'{"events": [' + b"[" * 5_000, token)
        found = [board.report(token)[0] for _ in range(120)]
        assert found[0] == 200
        assert 429 in found
        assert board.post("api/join", {"code": "\ud800", "name": ""})[0] == 403
        assert board.join("half \ud800")[0] == r"half \ud800"
        guesses = [board.post("api/join", {"code": "AAAAAAAA", "name": ""})[0] for _ in range(40)]
        assert guesses[0] == 403
        assert guesses[-1] == 429
        assert board.join("Someone")[0] == "Someone"  # the right code is never refused


def test_a_killed_board_resumes_with_everything_and_a_closed_one_leaves_nothing(course: Path, tmp_path: Path) -> None:
    with running(course, "01_small") as board:
        name, token = board.join("Grace")
        exercise = next(iter(Workshop.of(open_course(course), ["01_small"]).exercises.values()))
        event = {"kind": "graded", "exercise": exercise.id, "points": exercise.points, "misconception": None}
        assert board.report(token, event)[0] == 200
        board.process.send_signal(signal.SIGKILL)
        board.process.wait()
        first = (board.instructor, board.projector, board.code)
    refused = grader("--course", course, "personal-data", "--learner", name)
    assert refused.returncode == 0, refused.stderr
    assert "workshop" in refused.stdout
    table, port = tmp_path / "workshop.csv", board.url
    with running(course, "--export", str(table), port=None) as board:
        assert (board.instructor, board.projector, board.code) == first
        assert board.url == port, "without --port, the address is that of the workshop"
        assert board.report(token)[0] == 200
        for options in ((), ("--close",)):
            refused = grader("--course", course, "board", *options)
            assert refused.returncode == 2
            assert "The board of this workshop is running. Stop it with Ctrl-C first." in " ".join(
                refused.stderr.split()
            )
        assert board.report(token)[0] == 200
        board.process.terminate()
        assert board.process.wait(30) == 0
    assert table.read_text().splitlines()[1].startswith("Grace,"), "SIGTERM stops the board as Ctrl-C does"
    table.unlink()
    closed = grader("--course", course, "board", "--close", "--export", table)
    assert closed.returncode == 0, closed.stderr
    assert table.read_text().splitlines()[1].startswith(f"Grace,01_small,{exercise.id},done,")
    assert list((course / "build" / "board").iterdir()) == []
    assert grader("--course", course, "board", "--close").returncode == 2
    assert grader("--course", course, "board").returncode == 2


def open_course(folder: Path) -> Any:
    from grader.course import Course

    return Course(folder)


def test_results_are_reported_by_a_thread_and_only_after_joining(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    exercise = next(iter(Workshop.of(open_course(course), ["01_small"]).exercises.values()))
    checks = (CheckResult(f"{exercise.id}-x", exercise.id, "t", "passed", exercise.points, exercise.points),)
    reporter = board_client.Reporter()
    monkeypatch.setattr(board_client, "reporter", reporter)
    board_client.report_result(Result("me", "01_small", checks, exercise.points))
    assert reporter._thread is None  # nothing was joined
    with running(course, "01_small", "--export", str(tmp_path / "out.csv")) as board:
        board_client.join(board.url, board.code, "Me")
        board_client.report_result(Result("me", "01_small", checks, exercise.points))
        reporter.finish()
        board.process.send_signal(signal.SIGINT)
        assert board.process.wait(20) == 0
    assert f"Me,01_small,{exercise.id},done," in (tmp_path / "out.csv").read_text()
    began = time.monotonic()
    help_wanted = [{"kind": "help", "wanted": True}]
    reporter.report(help_wanted)  # the board is gone
    assert time.monotonic() - began < 1.0
    with pytest.raises(board_client.BoardError, match="No board answers at http://127"):
        board_client.tell([])
    while not reporter._away and time.monotonic() - began < 20:
        time.sleep(0.01)
    assert reporter._away
    began = time.monotonic()
    reporter.finish()
    assert time.monotonic() - began < 1.0, "a command does not wait for a board that is gone"
    with running(course, port=None):
        assert wait_for(course, "help", 1) == [{"kind": "help", "wanted": True}], "a board that is back gets the report"
        board_client.leave()
        assert wait_for(course, "left", 1) == [{"kind": "left"}]
    reporter.report(help_wanted)
    assert not reporter._waiting.unfinished_tasks, "nothing is sent after leaving"


def test_a_report_from_a_folder_that_is_gone_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    joined = {"url": "http://127.0.0.1:9", "token": "t", "name": "Me", "watches": True}
    (tmp_path / "jaxercise").mkdir()
    (tmp_path / "jaxercise" / "workshop.json").write_text(json.dumps(joined))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    board_client.Reporter().report([{"kind": "help", "wanted": True}])
    board_client.leave()
    assert board_client.membership() is None


def test_what_a_command_could_not_send_is_sent_by_the_next_one(course: Path, tmp_path: Path) -> None:
    around = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path)}

    def report(wanted: bool) -> None:
        script = (
            f"from grader.core.board_client import reporter; reporter.report([{{'kind': 'help', 'wanted': {wanted}}}])"
        )
        subprocess.run([sys.executable, "-c", script], env=around, check=True)

    with running(course, "01_small") as board:
        token = board.join("Me")[1]
        joined = {"url": board.url.rstrip("/"), "token": token, "name": "Me", "judges": True}
        (tmp_path / "jaxercise").mkdir()
        (tmp_path / "jaxercise" / "workshop.json").write_text(json.dumps(joined))
        board.process.kill()
        board.process.wait()
    report(True)
    report(False)
    stored = json.loads((tmp_path / "jaxercise" / "unsent.json").read_text())
    assert [content["events"][0]["wanted"] for _, content in stored["requests"]] == [True, False]
    with running(course, port=None):
        report(True)
        assert [one["wanted"] for one in wait_for(course, "help", 3)] == [True, False, True]
    assert not list((tmp_path / "jaxercise").glob("unsent*"))


def test_a_check_cell_reports_its_outcome_and_a_stub_reports_nothing(course: Path, tmp_path: Path) -> None:
    check = next(iter(next(iter(Workshop.of(open_course(course), ["01_small"]).exercises.values())).public))
    source = '"""Twice."""\ncompare(ask(double, 3), 6)'
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    environment |= {"PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path / "data")}
    with running(course, "01_small", "--export", str(tmp_path / "out.csv")) as board:
        assert grader("join", board.url, board.code, "--name", "Me", env=environment).returncode == 0
        with kernels.started(environment) as (_, client):
            cells = [
                ("setup", "from grader.checks import ask, compare"),
                ("double", "def double(x):\n    raise NotImplementedError()"),
                (check, source),
                ("double", "def double(x):\n    return x"),
                (check, source),
                ("double", "def double(x):\n    return 2 * x"),
                (check, source),
            ]
            found = [execute_cell(client, *cell) for cell in cells]
        assert found == ["ok", "ok", "error", "ok", "error", "ok", "ok"]
        deadline = time.monotonic() + 20
        while not board_has(course, 2) and time.monotonic() < deadline:
            time.sleep(0.1)
    contents = board_has(course, 2)
    assert [(one["check"], one["outcome"]) for one in contents] == [(check, "failed"), (check, "passed")]


def board_has(course: Path, count: int) -> list[dict[str, Any]]:
    """The reports of check cells that the board has stored, if there are so many."""
    log = EventLog(course / "build" / "board" / DATABASE, alone=False)
    try:
        found = [event.content for event in log.events() if event.content["kind"] == "check"]
        return found if len(found) == count else []
    finally:
        log.close()


def execute_cell(client: Any, cell_id: str, source: str) -> str:
    """Executes a cell as JupyterLab does, with its id; returns the status."""
    content = {"code": source, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    message = client.session.msg("execute_request", {**content, "stop_on_error": False}, metadata={"cellId": cell_id})
    client.shell_channel.send(message)
    while True:
        reply = client.get_shell_msg(timeout=120)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return str(reply["content"]["status"])


def test_grader_check_reports_each_exercise(course: Path, tmp_path: Path) -> None:
    home = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    for words in (["build"], ["lab", "--no-open"], ["solution", "01_small"]):
        done = grader("--course", course, *words, env=home)
        assert done.returncode == 0, done.stdout + done.stderr
    solutions = course / "work" / "answers" / "01_small.ipynb"
    notebook = course / "work" / "01_small" / "01_small.ipynb"
    notebook.write_bytes(solutions.read_bytes())
    with running(course, "01_small", "--export", str(tmp_path / "out.csv")) as board:
        assert grader("join", board.url, board.code, "--name", "Me", env=home).returncode == 0
        checked = grader("--course", course, "check", notebook, env=home)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        board.process.send_signal(signal.SIGINT)
        assert board.process.wait(20) == 0
    rows = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert [row.split(",")[3] for row in rows] == ["done"] * len(open_course(course).lesson("01_small").exercises)


def answered(course: Path, folder: Path) -> Path:
    """Writes the solutions of the small lesson where a learner keeps the notebook; returns its path."""
    for words in (["build"], ["lab", "--no-open"], ["solution", "01_small"]):
        done = grader("--course", course, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    path = folder / "work" / "01_small" / "01_small.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((course / "work" / "answers" / "01_small.ipynb").read_bytes())
    return path


def wait_for(course: Path, kind: str, count: int) -> list[dict[str, Any]]:
    """Waits until the board's database has so many events of a kind, and returns them."""
    deadline = time.monotonic() + 90
    while True:
        log = EventLog(course / "build" / "board" / DATABASE, alone=False)
        found = [event.content for event in log.events() if event.content["kind"] == kind]
        waiting = log.notebooks()
        log.close()
        if (len(found) >= count and not waiting) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def test_a_board_grades_the_notebooks_that_are_sent_also_after_it_was_killed(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    content = answered(course, course).read_bytes()
    points = {one.id: one.points for one in open_course(course).lesson("01_small").exercises}
    with running(course, "01_small", "--judge") as board:
        _, liar = board.join("Liar")
        first = next(iter(points))
        board.report(liar, {"kind": "graded", "exercise": first, "points": points[first], "misconception": None})
        assert board_client.join(board.url, board.code, "Me").judges
        assert board.post("api/notebook", {"lesson": "other", "notebook": "{}"}, liar)[0] == 400
        assert board.post("api/notebook", {"lesson": "01_small", "notebook": "{}"}, board.projector)[0] == 403
        reporter = board_client.Reporter()
        reporter.send_notebook("01_small", content)
        reporter.finish()
        board.process.kill()  # before it has graded the notebook, or after that
        board.process.wait()
    with running(course) as board:
        judged = wait_for(course, "judged", len(points))
        assert {one["exercise"]: one["points"] for one in judged} == points
        lines = board_client.news_lines(board.report(own_token(tmp_path))[1])
        assert sum("Graded by your instructor's machine" in line for line in lines) == len(points)
        status, _ = board.post("api/notebook", {"lesson": "01_small", "notebook": "x" * 1_100_000}, own_token(tmp_path))
        assert status == 413
        board.process.send_signal(signal.SIGINT)
        assert board.process.wait(30) == 0
    table = tmp_path / "workshop.csv"
    assert grader("--course", course, "board", "--close", "--export", table).returncode == 0
    rows = [row.split(",") for row in table.read_text().splitlines()[1:]]
    assert [row[3] for row in rows if row[0] == "Liar"] == ["trying"]
    assert [row[3] for row in rows if row[0] == "Me"] == ["done"] * len(points)


def own_token(data: Path) -> str:
    """The token of the membership under `data`."""
    return str(json.loads((data / "jaxercise" / "workshop.json").read_text())["token"])


def test_a_learner_who_joins_from_a_watched_folder_is_shown_once(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = {name: tmp_path / "home" / name / "course" for name in ("ada", "thief")}
    for home in homes.values():
        answered(course, home)
        shutil.copy(course / "course.toml", home)
    count = len(open_course(course).lesson("01_small").exercises)
    with running(course, "01_small", "--watch", str(tmp_path / "home" / "*" / "course")) as board:
        assert wait_for(course, "judged", 2 * count)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        monkeypatch.chdir(homes["ada"] / "work" / "01_small")
        assert board_client.join(board.url, board.code, "Ada L").watches
        proof = homes["ada"] / board_client.PROOF
        (homes["thief"] / "build").mkdir()
        shutil.copy(proof, homes["thief"] / board_client.PROOF)  # proves nothing there
        assert wait_for(course, "folder", 1) == [{"kind": "folder", "replaced": True}]
        assert len(wait_for(course, "judged", 3 * count)) == 3 * count
        assert {name for name, *_ in table_of(board)} == {"Ada L", "thief"}
        board_client.leave()
        assert wait_for(course, "folder", 2)[-1] == {"kind": "folder", "replaced": False}
        assert {name for name, *_ in table_of(board)} == {"ada", "Ada L", "thief"}
        board.process.send_signal(signal.SIGINT)
        assert board.process.wait(30) == 0


def table_of(board: RunningBoard) -> list[list[str]]:
    """The rows of the exercises that are solved, as the board exports them."""
    request = urllib.request.Request(f"{board.url}api/act?form=csv", headers={"X-Board-Token": board.instructor})
    with urllib.request.urlopen(request, timeout=20) as reply:
        rows = [row.split(",") for row in reply.read().decode().splitlines()[1:]]
    return [row for row in rows if row[3] == "done"]


def test_a_board_grades_the_notebooks_of_watched_folders(course: Path, tmp_path: Path) -> None:
    answered(course, tmp_path / "home" / "ada" / "course")
    with running(course, "01_small", "--watch", str(tmp_path / "home" / "*" / "course")) as board:
        assert wait_for(course, "judged", len(open_course(course).lesson("01_small").exercises))
        report = tmp_path / "report.html"
        assert board.post("api/report", {"events": []}, "folder ada")[0] == 401
        board.process.send_signal(signal.SIGINT)
        assert board.process.wait(30) == 0
    assert grader("--course", course, "board", "--close", "--export", report).returncode == 0
    assert "<td>ada</td>" in report.read_text()


def test_an_answer_is_shared_by_its_command_alone(course: Path, tmp_path: Path) -> None:
    home = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    path = answered(course, course)  # without the ids of answer cells
    path.write_bytes((course / "exercises" / "01_small" / "01_small.ipynb").read_bytes())
    with running(course, "01_small") as board:
        refused = grader("--course", course, "share", "01_small", "small-double", env=home)
        assert refused.returncode == 2
        assert "have not joined" in " ".join(refused.stderr.split())
        assert grader("join", board.url, board.code, "--name", "Me", env=home).returncode == 0
        assert grader("--course", course, "check", "01_small", env=home).returncode == 1
        assert wait_for(course, "shared", 0) == []
        stub = grader("--course", course, "share", "01_small", "small-double", env=home)
        assert "this cell contains no answer yet" in " ".join(stub.stderr.split())
        path.write_text(path.read_text().replace("raise NotImplementedError()", "return x + x"))
        done = grader("--course", course, "share", "01_small", "small-double", env=home)
        assert done.returncode == 0, done.stderr
        [shared] = wait_for(course, "shared", 1)
    assert (shared["exercise"], "def double" in shared["code"]) == ("small-double", True)


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (1366, 768), (390, 844)])
def test_the_page_shows_the_workshop_and_never_markup(course: Path, width: int, height: int) -> None:
    from playwright.sync_api import sync_playwright

    with running(course, "01_small") as board, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=desk.CHROMIUM, args=[*desk.SWITCHES, *desk.OFFLINE])
        try:
            _, token = board.join('<img src=x onerror="document.title=1">')
            page = browser.new_page(viewport={"width": width, "height": height})
            errors: list[str] = []
            page.on("pageerror", lambda problem: errors.append(str(problem)))
            page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
            page.goto(f"{board.url}#{board.instructor}")
            page.get_by_text("1 learner", exact=True).wait_for()
            board.report(token, {"kind": "help", "wanted": True})
            for number in range(3):
                code = f"def double(x):\n    return <b>x + {number}</b>"
                board.report(board.join()[1], {"kind": "shared", "exercise": "small-double", "code": code})
            helped = page.get_by_role("button", name="asks for help")
            helped.wait_for()
            page.get_by_role("img", name="Double. a check failed: 3").wait_for()
            assert page.locator("img").count() == 0
            page.get_by_role("button", name="Show this answer to Double on the projector").first.press("Enter")
            page.get_by_role("button", name="Remove from the projector").wait_for()
            # By keyboard alone: help is given, a hint is sent.
            helped.focus()
            page.keyboard.press("Enter")
            helped.wait_for(state="detached")
            page.get_by_label("Hint for everyone").focus()
            page.keyboard.type("Look at the shapes.")
            page.keyboard.press("Enter")
            page.locator("#hint-shown", has_text="Look at the shapes.").wait_for()
            page.get_by_label("Break: waiting times stand still").focus()
            page.keyboard.press("Space")
            page.get_by_text("4 learners, break", exact=True).wait_for()
            page.keyboard.press("Space")
            page.get_by_text("4 learners", exact=True).wait_for()
            page.once("dialog", lambda dialog: dialog.accept())
            page.get_by_role("button", name="Remove <img src=x onerror").press("Enter")
            page.get_by_text("3 learners", exact=True).wait_for()
            assert page.get_by_role("button", name="from the workshop").count() == 3
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            projector = browser.new_page(viewport={"width": width, "height": height})
            projector.goto(f"{board.url}#{board.projector}")
            projector.get_by_text("Correct answer").wait_for()
            assert projector.locator("pre", has_text="<b>x + ").count() == 1
            assert projector.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert "onerror" not in projector.content()
            assert not projector.locator("#actions").is_visible()
            stranger = browser.new_page()
            stranger.goto(f"{board.url}#nobody")
            stranger.get_by_text("no valid token").wait_for()
            assert errors == []
        finally:
            browser.close()


@pytest.mark.thorough
def test_the_page_works_below_the_prefix_of_jupyter_server_proxy(course: Path, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    port, errors = free_port(), []
    options = (
        "token=secret",
        "base_url=/user/ada/",
        "jpserver_extensions=jupyter_server_proxy=True",
        "allow_root=True",
    )
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--ServerApp.{option}" for option in (*options, f"root_dir={tmp_path}")]
    folders = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    log = (tmp_path / "log").open("w")
    with log, subprocess.Popen(command, env=os.environ | folders, stdout=log, stderr=log) as server:
        try:
            with running(course, "01_small") as board, sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=desk.CHROMIUM, args=[*desk.SWITCHES, *desk.OFFLINE]
                )
                page = browser.new_page()
                page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
                server_url = f"http://127.0.0.1:{port}/user/ada/"
                until = time.monotonic() + 60
                while "Serving notebooks" not in (tmp_path / "log").read_text() and time.monotonic() < until:
                    time.sleep(0.1)
                page.goto(f"{server_url}api/status?token=secret")  # the browser keeps the server's cookie
                page.goto(f"{server_url}proxy/{board.url.split(':')[2]}#{board.instructor}")
                board.join("Ada")
                page.get_by_text("1 learner", exact=True).wait_for()
                page.get_by_label("Hint for everyone").fill("Look at the shapes.")
                page.keyboard.press("Enter")
                page.locator("#hint-shown", has_text="Look at the shapes.").wait_for()
                browser.close()
        finally:
            server.terminate()
    assert errors == []
