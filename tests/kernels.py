"""Plain notebook kernels: a submission run from top to bottom with the course's own checks, hidden ones among them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from conftest import ROOT
from jupyter_client.manager import KernelManager

from grader.checks.execute import execute, unix_sockets
from grader.course import Lesson

Cell = dict[str, Any]


@contextmanager
def started(env: dict[str, str], folder: Path | None = None) -> Iterator[tuple[KernelManager, Any]]:
    """A kernel that is ready, as its manager and its client; it ends with the block."""
    with unix_sockets() as config:
        manager = KernelManager(kernel_name="python3", config=config)
        manager.start_kernel(env=env, **({} if folder is None else {"cwd": str(folder)}))
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=60)
            yield manager, client
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def name_of(cell: Cell) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id") or ""


def with_checks(cells: list[Cell], lesson: Lesson) -> list[Cell]:
    """The code cells of a notebook with the course's text in its check cells, as nbgrader puts it there.

    A check that is missing comes after the one before it, or after the last cell that defines what it asks.
    """
    cells = [{**cell, "source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"]
    for exercise in lesson.exercises:
        defines = re.compile(rf"^(def |class |){exercise.names[0]}\b", re.M)
        last = max(i for i, cell in enumerate(cells) if defines.search(cell["source"]))
        for check in exercise.checks:
            found = [i for i, cell in enumerate(cells) if check.id == name_of(cell)]
            found = found or [i for i, cell in enumerate(cells) if cell["source"] == check.source]
            if not found:
                found = [last + 1]
                cells.insert(found[0], {"metadata": {}})
            last = found[-1]
            for place in found:
                cells[place] = {**cells[place], "source": check.source}
            cells[last] = {**cells[last], "check": check.id}
    return cells


def verdicts(cells: list[Cell], folder: Path) -> dict[str, str]:
    """How each check ends in a kernel that runs these cells: "passed", or the error."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell["source"]) for cell in cells])
    folder.mkdir()
    execute(notebook, folder, allow_errors=True)
    ended = {}
    for cell, ran in zip(cells, notebook.cells, strict=True):
        if "check" in cell:
            errors = [f"{one.ename}: {one.evalue}" for one in ran.outputs if one.output_type == "error"]
            ended[cell["check"]] = errors[0] if errors else "passed"
    return ended


def run_all(paths: dict[str, Path], lesson: Lesson, base: Path) -> dict[str, dict[str, str]]:
    """`verdicts` of many submissions, by name, two at a time; what one compiles the others find compiled."""
    shared = {"JAX_COMPILATION_CACHE_DIR": str(base / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    shared |= {"PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1", "IPYTHONDIR": str(base / "ipython")}
    shared["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # as `grader lab`
    before = dict(os.environ)
    os.environ.update(shared)
    try:
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            cells = {name: with_checks(json.loads(path.read_bytes())["cells"], lesson) for name, path in paths.items()}
            ran = {name: pool.submit(verdicts, cells[name], base / name) for name in paths}
            return {name: one.result() for name, one in ran.items()}
    finally:
        os.environ.clear()
        os.environ.update(before)
