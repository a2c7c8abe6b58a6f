"""Loads the board of a workshop with simulated learners: `python -m benchmarks.board`.

200 learners report an event every 5 s, and a page of the instructor is open. The latency of an update is the time from
sending an event until this page has received it. Then 1,000 connections are open at the same time, and the board still
answers. Last, a board with `--judge` gets a notebook of 40 learners every 30 s, in which one answer has changed. The
time to a verdict is the time from sending a notebook until the page has received the points.

The processor time of the board is that of its process, and with `--judge` also of all processes that it has started.
Targets: an update within 1 s and a verdict within 5 s (95th percentile), 30% of a core and 500 MB for the first board.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

from benchmarks.results import report
from grader.board.judge_queue import READY
from grader.board.workshop import Workshop
from grader.core.board_client import TOKEN
from grader.course import Course

ROOT = Path(__file__).parents[1]
LESSON = "05_vmap"
LEARNERS, EVERY_S = 200, 5.0
JUDGED, SAVES_S = 40, 30.0
CONNECTIONS = 1_000
PORT = 18_300


class LoadedBoard:
    """A running `grader board` and the page of its instructor."""

    def __init__(self, process: subprocess.Popen[str], instructor: str, code: str) -> None:
        self.url, self.instructor, self.code = f"http://127.0.0.1:{PORT}/", instructor, code
        self.process, self.client = psutil.Process(process.pid), AsyncHTTPClient(max_clients=200)
        self.received: Callable[[dict[str, Any]], None] = lambda message: None

    async def post(self, path: str, content: object, token: str = "") -> dict[str, Any]:
        """Sends a request. Raises HTTPClientError."""
        request = HTTPRequest(f"{self.url}api/{path}", "POST", {TOKEN: token}, json.dumps(content), request_timeout=60)
        return dict(json.loads((await self.client.fetch(request)).body))

    async def join(self, count: int) -> list[str]:
        """Returns the tokens of new learners, whose ids are 1, 2 and so on."""
        return [(await self.post("join", {"code": self.code, "name": ""}))["token"] for _ in range(count)]

    async def read_page(self) -> None:
        """Passes on what the instructor's page receives, until it is cancelled."""
        page = await websocket_connect(f"ws{self.url[4:]}api/live")
        await page.write_message(self.instructor)
        while (message := await page.read_message()) is not None:
            self.received(json.loads(message))

    def processor_s(self, family: bool = False) -> float:
        """Processor time of the board so far, of its running descendants too if `family`."""
        used = 0.0
        for one in (self.process, *(self.process.children(recursive=True) if family else ())):
            try:
                times = one.cpu_times()
            except psutil.Error:
                continue
            used += times.user + times.system + (times.children_user + times.children_system if family else 0.0)
        return used


@asynccontextmanager
async def running(course: Path, *options: str) -> AsyncIterator[LoadedBoard]:
    """Starts a board, and ends it with everything that it has started."""
    command = [sys.executable, "-u", "-m", "grader", "--course", str(course), "board", LESSON, "--port", str(PORT)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    text, last = "", READY if options else "grader join"
    for line in process.stdout:
        text += line
        if last in line:
            break
    board = LoadedBoard(process, re.findall(r"#(\S+)", text)[0], re.findall(r"grader join \S+ (\S+)", text)[0])
    reading = asyncio.create_task(board.read_page())
    try:
        yield board
    finally:
        reading.cancel()
        process.terminate()
        process.wait()
        process.stdout.close()


async def every(count: int, seconds: float, period: float, act: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """For so many seconds, calls `act(i)` once per period for each of `count` learners, at evenly spread moments."""
    began, tasks = time.monotonic(), set[asyncio.Task[None]]()
    for number in range(int(seconds / period * count)):
        await asyncio.sleep(max(0.0, began + number * period / count - time.monotonic()))
        tasks.add(asyncio.create_task(act(number % count)))
    await asyncio.gather(*tasks)


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


async def events(course: Path, seconds: float) -> list[str]:
    """The load of reports, and then of connections."""
    exercises = list(Workshop.of(Course(ROOT), [LESSON]).exercises.values())
    chance, sent, latencies = random.Random(1), dict[int, float](), list[float]()

    def received(message: dict[str, Any]) -> None:
        for row in message.get("rows", ()):
            if row["id"] in sent:
                latencies.append(time.monotonic() - sent.pop(row["id"]))

    async with running(course) as board:
        tokens = await board.join(LEARNERS)
        board.received = received

        async def act(learner: int) -> None:
            check = chance.choice(sorted(chance.choice(exercises).public))
            event = {"kind": "check", "check": check, "outcome": chance.choice(["passed", "failed"])}
            sent.setdefault(learner + 1, time.monotonic())
            await board.post("report", {"events": [event]}, tokens[learner])

        before, began = board.processor_s(), time.monotonic()
        await every(LEARNERS, seconds, EVERY_S, act)
        share = (board.processor_s() - before) / (time.monotonic() - began)
        await asyncio.sleep(2)
        streams = [await asyncio.open_connection("127.0.0.1", PORT) for _ in range(CONNECTIONS)]
        await board.post("report", {"events": []}, tokens[0])
        memory = board.process.memory_info().rss / 1e6
        for _, writer in streams:
            writer.close()
        await board.post("report", {"events": []}, tokens[1])
    return [
        f"- {LEARNERS} learners, {len(latencies)} updates in {seconds:.0f} s, not shown: {len(sent)}. Latency: median "
        f"{statistics.median(latencies):.2f} s, 95th percentile {p95(latencies):.2f} s. {share:.1%} of a core.",
        f"- {CONNECTIONS:,} connections at the same time: the board answers, and uses {memory:.0f} MB.",
    ]


async def notebooks(course: Path, seconds: float) -> list[str]:
    """The load of saved notebooks."""
    lesson = Course(ROOT).lesson(LESSON)
    released = json.loads((ROOT / "exercises" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    answers = {one.id: [one.reference, *(v.source for v in (*one.right, *one.wrong))] for one in lesson.exercises}
    chance, sent, times = random.Random(1), dict[int, float](), list[float]()

    def received(message: dict[str, Any]) -> None:
        for row in message.get("rows", ()):
            if row["id"] in sent:
                times.append(time.monotonic() - sent.pop(row["id"]))

    code = [{**cell, "outputs": []} for cell in released["cells"] if cell["cell_type"] == "code"]
    written: list[dict[str, str]] = [{} for _ in range(JUDGED)]

    def notebook(learner: int) -> str:
        exercise = chance.choice(list(answers))
        written[learner][exercise] = f"{chance.choice(answers[exercise])}\n# {chance.random()}\n"
        named = [(cell["metadata"].get("nbgrader", {}).get("grade_id"), cell) for cell in code]
        filled = [{**cell, "source": written[learner].get(name, cell["source"])} for name, cell in named]
        return json.dumps({**released, "cells": filled})

    async with running(course, "--judge") as board:
        tokens = await board.join(JUDGED)
        await asyncio.sleep(1)
        board.received = received

        async def save(learner: int) -> None:
            sent.setdefault(learner + 1, time.monotonic())
            await board.post("notebook", {"lesson": LESSON, "notebook": notebook(learner)}, tokens[learner])

        before, began = board.processor_s(family=True), time.monotonic()
        await every(JUDGED, seconds, SAVES_S, save)
        end = time.monotonic() + 30
        while sent and time.monotonic() < end:
            await asyncio.sleep(0.1)
        share = (board.processor_s(family=True) - before) / (time.monotonic() - began)
    return [
        f"- `--judge`, {JUDGED} learners, {len(times)} notebooks in {seconds:.0f} s, without a verdict: {len(sent)}. "
        f"Time to the verdict: median {statistics.median(times):.1f} s, 95th percentile {p95(times):.1f} s. "
        f"{share:.2f} cores."
    ]


def main() -> None:
    """Run both loads, and print or report what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each of the two loads takes")
    parser.add_argument("--report", action="store_true", help="write the section of benchmarks/RESULTS.md")
    asked = parser.parse_args()
    lines = []
    for load in (events, notebooks):
        with tempfile.TemporaryDirectory() as folder:
            course = Path(folder)
            for name in ("course.toml", "notebooks", "solutions", "exercises", "images"):
                os.symlink(ROOT / name, course / name)
            lines += asyncio.run(load(course, asked.seconds))
            shutil.rmtree(course / "build", ignore_errors=True)
    print("\n".join(lines))
    if asked.report:
        report("The board of a workshop", __doc__, [f"Load of the machine: {os.getloadavg()[0]:.1f}.", "", *lines])


if __name__ == "__main__":
    main()
