"""Memory, start-up and latency of a JupyterHub with simulated learners on one machine: `python -m benchmarks.hub`.

Each learner has a JupyterLab server, which JupyterHub starts, and a kernel with eight devices for the exercises of
lesson 16. All learners log in at once. Then each of them solves one exercise after another for some minutes: the
learner waits for a random time with a given mean, and then runs the answer cell and its public checks. The latency is
the time from the request until the kernel is done with all of these cells, as a browser sees it through JupyterHub's
proxy. Memory is the proportional set size (PSS), which counts pages that processes share only once. `grader watch`
runs for a few of the learners only, because it needs as much memory as a kernel.

With `--shared`, kernels read compiled code from a folder that one kernel filled before, and none of them writes to it.
JupyterHub and its proxy are installed into `build/bench/hub` with pip and npm. Everything listens on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

from benchmarks import results
from benchmarks.others import ROOT, run
from grader.course import Course, Exercise
from tools.fill import fill, write

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]  # what tests drive
import desk  # noqa: E402
import watching  # noqa: E402
from ports import free_port  # noqa: E402

TITLE = "A JupyterHub for a class"
LESSON = "16_sharding"
JUPYTERHUB, PROXY = "jupyterhub==5.*", "configurable-http-proxy@5"
WATCHED = 3
TOKEN = uuid.uuid4().hex
CONFIG = """\
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {homes!r} + "/{{username}}"
# Kernels that start at the same time can take one another's TCP ports. Sockets in files have no such collisions.
c.Spawner.cmd = [{single!r}, "--allow-root", "--ServerApp.log_level=ERROR", "--KernelManager.transport=ipc"]
c.Spawner.environment = {environment!r}
c.Spawner.start_timeout = c.Spawner.http_timeout = 300
c.JupyterHub.concurrent_spawn_limit = 0
c.JupyterHub.log_level = "ERROR"
c.JupyterHub.services = [dict(name="class", api_token={token!r})]
SCOPES = ["admin:users", "admin:servers", "access:servers"]
c.JupyterHub.load_roles = [dict(name="class", services=["class"], scopes=SCOPES)]
"""


def hub_command(place: Path) -> Path:
    """Returns the folder of commands of an environment with JupyterHub and JupyterLab, which is created if missing."""
    if not (place / "env" / "bin" / "jupyterhub").exists():
        print(f"Installing JupyterHub under {place} ...", flush=True)
        run([sys.executable, "-m", "venv", str(place / "env")], ROOT)
        packages = [JUPYTERHUB, f"jupyterlab=={version('jupyterlab')}"]
        run([str(place / "env" / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages], ROOT)
    if not (place / "node_modules").exists():
        run(["npm", "install", "--silent", "--prefix", str(place), PROXY], place)
    return place / "env" / "bin"


@contextmanager
def running_hub(folder: Path, variables: dict[str, str]) -> Iterator[tuple[str, psutil.Process]]:
    """Yields the address of a hub whose kernels are this environment's, and its process."""
    place = ROOT / "build" / "bench" / "hub"
    place.mkdir(parents=True, exist_ok=True)
    commands = hub_command(place)
    kernel = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
        "env": {"PYTHONPATH": str(ROOT), **variables},
    }
    spec = folder / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps(kernel))
    port = free_port()
    (folder / "h").mkdir()  # learners' homes: a short name, because the path of a socket has at most 107 characters
    (folder / "hub.py").write_text(
        CONFIG.format(
            port=port,
            hub=free_port(),
            api=free_port(),
            proxy=str(place / "node_modules" / ".bin" / "configurable-http-proxy"),
            homes=str(folder / "h"),
            single=str(commands / "jupyterhub-singleuser"),
            environment={"JUPYTER_PATH": str(folder), "PATH": f"{commands}:{os.environ['PATH']}"},
            token=TOKEN,
        )
    )
    with (folder / "hub.log").open("w") as log:
        command = [str(commands / "jupyterhub"), "--config", str(folder / "hub.py")]
        started = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}", psutil.Process(started.pid)
    finally:
        children = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        started.wait(60)
        for child in children:
            if child.is_running():
                child.kill()


class SimulatedLearner:
    """A learner with a server and a kernel. Cells run through the hub's proxy, as a browser runs them."""

    def __init__(self, hub: str, name: str, home: Path) -> None:
        self.hub, self.name, self.home = hub, name, home
        self.latencies: list[float] = []
        self.failures: list[str] = []
        self._socket: WebSocketClientConnection

    async def _api(self, method: str, path: str, content: dict[str, Any] | None = None) -> Any:
        body = json.dumps(content or {}) if method == "POST" else None
        headers = {"Authorization": f"token {TOKEN}"}
        request = HTTPRequest(f"{self.hub}{path}", method, headers, body, connect_timeout=300, request_timeout=300)
        return json.loads((await AsyncHTTPClient().fetch(request)).body or b"null")

    async def log_in(self) -> float:
        """Starts the server; returns the seconds until it answers."""
        began = time.perf_counter()
        await self._api("POST", f"/hub/api/users/{self.name}")
        await self._api("POST", f"/hub/api/users/{self.name}/server")
        while not (await self._api("GET", f"/hub/api/users/{self.name}"))["servers"].get("", {}).get("ready"):
            await asyncio.sleep(0.2)
        await self._api("GET", f"/user/{self.name}/api/status")
        return time.perf_counter() - began

    async def open_notebook(self, setup: str) -> float:
        """Starts a kernel and runs the setup; returns the seconds that both take."""
        began = time.perf_counter()
        session = {"name": LESSON, "path": f"{LESSON}.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
        made = await self._api("POST", f"/user/{self.name}/api/sessions", session)
        address = f"{self.hub}/user/{self.name}/api/kernels/{made['kernel']['id']}/channels".replace("http", "ws", 1)
        headers = {"Authorization": f"token {TOKEN}"}
        request = HTTPRequest(address, headers=headers, connect_timeout=300, request_timeout=300)
        while True:
            try:
                self._socket = await websocket_connect(request, max_message_size=1 << 26)
                await self.run_cells([setup])
                break
            except WebSocketClosedError:  # a server that is slow to start closes it, and JupyterLab connects again
                await asyncio.sleep(1)
        return time.perf_counter() - began

    async def run_cells(self, sources: list[str]) -> None:
        """Runs cells one after another, and waits for each."""
        for source in sources:
            message = uuid.uuid4().hex
            header = {"msg_id": message, "msg_type": "execute_request", "session": self.name, "username": self.name,
                      "date": "2026-01-01T00:00:00Z", "version": "5.3"}  # fmt: skip
            content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
            sent = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
            await self._socket.write_message(json.dumps(sent))
            while True:
                received = await self._socket.read_message()
                if not isinstance(received, str):
                    raise WebSocketClosedError
                reply = json.loads(received)
                if reply["parent_header"].get("msg_id") != message:
                    continue
                if reply["msg_type"] == "error":
                    self.failures.append(str(reply["content"]["evalue"]))
                shown = reply["content"].get("data", {}).get("text/plain", "✓")
                if reply["msg_type"] == "display_data" and not shown.startswith("✓"):
                    self.failures.append(shown)
                if reply["msg_type"] == "execute_reply":
                    break

    async def work(self, exercises: list[list[str]], until: float, pause: float) -> None:
        """Solves the exercises in turn until a time."""
        draw = random.Random(self.name)
        number = 0
        while True:
            await asyncio.sleep(draw.expovariate(1 / pause))
            if time.perf_counter() > until:
                return
            answer, *checks = exercises[number % len(exercises)]
            cells = [f"{answer}\n# attempt {number}", *checks]
            began = time.perf_counter()
            await self.run_cells(cells)
            self.latencies.append(time.perf_counter() - began)
            number += 1


def solved_cells(exercise: Exercise) -> list[str]:
    """Returns the answer and the public checks."""
    return [exercise.reference, *(check.source for check in exercise.checks if not check.hidden)]


def megabytes(processes: list[psutil.Process]) -> float:
    """Returns the proportional set size of processes that still run."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 1e6


def by_kind(hub: psutil.Process) -> dict[str, tuple[int, float]]:
    """Returns the number of processes of each kind, and their memory in MB."""
    kinds: dict[str, list[psutil.Process]] = defaultdict(list)
    for process in [hub, *hub.children(recursive=True)]:
        words = " ".join(process.cmdline())
        named = (("ipykernel_launcher", "kernel"), ("jupyterhub-singleuser", "server"), ("configurable-http", "proxy"))
        kinds[next((kind for text, kind in named if text in words), "hub")].append(process)
    return {kind: (len(processes), megabytes(processes)) for kind, processes in kinds.items()}


def processor_s(hub: psutil.Process) -> float:
    """Returns the seconds of a processor that the hub and its processes have used."""
    times = [process.cpu_times() for process in [hub, *hub.children(recursive=True)] if process.is_running()]
    return sum(one.user + one.system for one in times)


def p95(values: list[float]) -> float:
    """Returns the 95th percentile."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


async def teach(hub: str, process: psutil.Process, homes: Path, count: int, minutes: float, pause: float) -> list[str]:
    """Runs the class; returns the lines of the report."""
    course = Course(ROOT)
    lesson = course.lesson(LESSON)
    notebook = fill(ROOT / "exercises" / LESSON / f"{LESSON}.ipynb", {})
    exercises = [solved_cells(exercise) for exercise in lesson.exercises]
    learners = []
    for number in range(count):
        home = homes / f"learner{number}"
        write(notebook, home / f"{LESSON}.ipynb")
        learners.append(SimulatedLearner(hub, home.name, home))
    for _ in range(300):
        try:
            await learners[0]._api("GET", "/hub/api/")
            break
        except (OSError, HTTPClientError):
            await asyncio.sleep(0.2)
    logins = await asyncio.gather(*(one.log_in() for one in learners))
    servers = by_kind(process)
    opened = await asyncio.gather(*(one.open_notebook(lesson.setup) for one in learners))
    idle = by_kind(process)
    before, began = processor_s(process), time.perf_counter()
    await asyncio.gather(*(one.work(exercises, began + 60 * minutes, pause) for one in learners))
    seconds = time.perf_counter() - began
    used, worked = processor_s(process) - before, by_kind(process)
    failures = [failure for one in learners for failure in one.failures]
    assert not failures, failures[:3]
    latencies = [latency for one in learners for latency in one.latencies]
    all_gb = sum(memory for _, memory in worked.values()) / 1e3
    times = (statistics.median(logins), max(logins), statistics.median(opened), max(opened))
    return [
        "| process | number | after the start, MB each | with the setup, MB each | after the work, MB each |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {kind} | {worked[kind][0]} | {_each(servers, kind)} | {_each(idle, kind)} | {_each(worked, kind)} |"
            for kind in ("hub", "proxy", "server", "kernel")
        ),
        "",
        f"- {count} learners log in at once. Median and longest time until JupyterLab answers: {times[0]:.0f} and "
        f"{times[1]:.0f} s, and then until a kernel has run the setup: {times[2]:.0f} and {times[3]:.0f} s.",
        f"- {len(latencies)} exercises in {seconds / 60:.0f} minutes. From the request to the last verdict: median "
        f"{statistics.median(latencies):.2f} s, 95th percentile {p95(latencies):.2f} s, longest "
        f"{max(latencies):.2f} s. Processor: {used / seconds:.2f} of {os.cpu_count()} cores.",
        f"- All processes together have {all_gb:.1f} GB. "
        f"{psutil.virtual_memory().available / 1e9:.1f} of {psutil.virtual_memory().total / 1e9:.1f} GB are free.",
    ]


def _each(kinds: dict[str, tuple[int, float]], kind: str) -> str:
    number, memory = kinds.get(kind, (0, 0.0))
    return f"{memory / number:.0f}" if number else ""


def watch_memory(folder: Path) -> list[str]:
    """Starts `grader watch` for some learners; returns a line with its memory before and after a save."""
    found: list[tuple[float, float]] = []
    for number in range(WATCHED):
        course = Course(desk.copy_course(folder / f"watch{number}"))
        subprocess.run(
            [sys.executable, "-m", "grader", "--course", str(course.root), "lab", "--no-open"], check=True, cwd=ROOT
        )
        lesson = course.lesson(LESSON)
        learner = watching.Desk(course.root, folder / f"watch{number}")
        with learner.on_terminal(100, 40) as terminal:
            terminal.shows(" q quit")
            time.sleep(3)
            before = megabytes([psutil.Process(pid) for pid in terminal.pids()])
            solved = fill(
                ROOT / "exercises" / LESSON / f"{LESSON}.ipynb", {e.id: e.reference for e in lesson.exercises}
            )
            draft = write(solved, course.root / "draft.ipynb")
            draft.replace(course.root / "work" / LESSON / f"{LESSON}.ipynb")
            most, until = before, time.perf_counter() + 20
            while time.perf_counter() < until:
                most = max(most, megabytes([psutil.Process(pid) for pid in terminal.pids()]))
                time.sleep(0.1)
            found.append((before, most))
            terminal.press("q")
            terminal.ends(0)
    before, most = (statistics.median(column) for column in zip(*found, strict=True))
    return [
        f"- `grader watch` has {before:.0f} MB before the first save, and at most {most:.0f} MB while it grades "
        f"(median of {WATCHED})."
    ]


def fill_cache(cache: Path, folder: Path) -> None:
    """Compiles everything that the lesson's own answers and public checks compile, into a folder."""
    from jupyter_client.manager import start_new_kernel

    lesson = Course(ROOT).lesson(LESSON)
    cells = [lesson.setup, *(cell for exercise in lesson.exercises for cell in solved_cells(exercise))]
    notebook = write(fill(ROOT / "exercises" / LESSON / f"{LESSON}.ipynb", {}), folder / f"{LESSON}.ipynb")
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JPY_SESSION_NAME": str(notebook),
        **cache_variables(cache, "0"),
    }
    manager, client = start_new_kernel(kernel_name="python3", env=variables)
    try:
        for cell in cells:
            client.execute_interactive(cell, timeout=300, output_hook=lambda message: None)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def cache_variables(cache: Path, least: str) -> dict[str, str]:
    """Returns the variables with which JAX reads a cache, and writes programs that took `least` seconds to compile."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": least,
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


def measure(count: int, minutes: float, pause: float, shared: bool) -> list[str]:
    """Returns the lines of the report for one class."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        variables = {}
        if shared:
            fill_cache(folder / "compiled", folder / "first")
            variables = cache_variables(folder / "compiled", "inf")
        with running_hub(folder, variables) as (hub, process):
            return asyncio.run(teach(hub, process, folder / "h", count, minutes, pause))


def main() -> None:
    """Measure, print the lines, and write them down with `--report`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--pause", type=float, default=30, help="mean seconds between two exercises of a learner")
    parser.add_argument("--shared", action="store_true", help="only the class with the shared folder of compiled code")
    parser.add_argument("--report", action="store_true", help="replace the section of RESULTS.md")
    options = parser.parse_args()
    AsyncHTTPClient.configure(None, max_clients=10 * options.learners)  # learners do not wait for one another here
    if shutil.which("npm") is None:
        sys.exit("npm is required, to install JupyterHub's proxy.")
    lines = []
    for shared in (True,) if options.shared else (False, True):
        lines += [f"### {'With' if shared else 'Without'} shared compiled code", ""]
        lines += [*measure(options.learners, options.minutes, options.pause, shared), ""]
    with tempfile.TemporaryDirectory() as temporary:
        lines += watch_memory(Path(temporary))
    print("\n".join(lines))
    if options.report:
        results.report(TITLE, __doc__, lines)


if __name__ == "__main__":
    main()
