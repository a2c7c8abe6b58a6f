"""The grading cell of an exercise notebook: grades the notebook as it was saved, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from grader.core.layout import SOURCE, course_above, session_notebook
from grader.core.notebook import (
    MAX_BYTES,
    NotebookCell,
    Unreadable,
    cells,
    grade_id,
    is_check,
    nbgrader,
    parse,
    part,
    text,
)
from grader.core.result import NoResults, Result, read_document
from grader.core.symbols import notebook_cell_names
from grader.learning import cloud
from grader.learning.result_view import view

TICK_S = 1.0
PATIENCE_S = 10.0  # that a command gets to end in good order
REFUSED = 2  # the exit status of a command that did not begin
HAS_COMMAND = importlib.util.find_spec("grader.cli") is not None
LONGEST = 300  # characters of a line that a command prints
NOT_INHERITED = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "JPY_SESSION_NAME", "GITHUB_ACTIONS")
EXERCISE_LINE = re.compile(r"[^\w\s] \S+  \S+ of \S+")  # as `grader check --json` prints each exercise


class NotGradable(Exception):
    """Nothing was graded; the text says why, and what to do."""


class SavedNotebook(NamedTuple):
    """A notebook file as it was read: its cells, and when it was written, in seconds since the epoch."""

    when: float
    cells: list[NotebookCell]


def grade() -> None:
    """Grade the notebook that this runs in, as it was saved last, and show what each exercise earned.

    Where the course is available, hidden checks run too, confined, as `grader check` does; else only the checks in the
    notebook. On a platform that keeps the notebook elsewhere, such as Colab, the answers that ran in this kernel are
    graded. Where nothing says which notebook this is (nbclient, nbconvert, nbgrader, a script), one line says how it is
    graded, and nothing is started. Interrupting the kernel ends all that was started. Raises nothing.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    nbgraders = "NBGRADER_EXECUTION" in os.environ  # nbgrader, run by a kernel, inherits its environment
    path = None if shell is None or nbgraders else session_notebook(shell.user_ns)
    ran = cloud.save_answers(shell) if path is None and not nbgraders else None
    if ran is not None:
        path = ran.path
    if path is None:
        here = Path.cwd()
        lesson = here.name if (here / f"{here.name}.ipynb").is_file() else "NN_topic"
        command = "grader check" if HAS_COMMAND else "python -m grader.checks"
        print(f"Nothing is graded here. Run in a terminal: {command} {lesson}")
        return
    from IPython.display import display

    shown = display({"text/plain": f"Grading {path.stem} ..."}, raw=True, display_id=True)
    try:
        bundle = _graded(path, lambda text: shown.update({"text/plain": text}, raw=True), ran.remarks if ran else ())
    except NotGradable as problem:
        bundle = {"text/plain": str(problem)}
    except KeyboardInterrupt:
        bundle = {"text/plain": "Stopped. Nothing was graded. Run this cell again to grade."}
    except OSError as problem:  # no process, no folder for what it writes
        bundle = {"text/plain": f"Nothing was graded: {problem.strerror}. Fix this problem, then run this cell again."}
    shown.update(bundle, raw=True)


def _graded(path: Path, show: Callable[[str], None], said: Iterable[str]) -> dict[str, str]:
    notebook = read_saved(path)
    unsaved, began = unsaved_cells(notebook), time.time()
    at = time.strftime("%H:%M:%S", time.localtime(notebook.when))

    def tell(exercises: str) -> None:
        show(f"Grading {path.stem} as saved at {at} ... {time.time() - began:.0f} s\n{exercises}".strip())

    result, public_only, refusal = _grade_file(path, tell)
    course = course_above(path.parent)
    name = path.relative_to(course) if course is not None else path.name
    unchanged = path.is_file() and path.stat().st_mtime == notebook.when
    again = "" if unchanged else " It has been saved again since. Run this cell again."
    remarks = [*said, *([f"Hidden checks did not run here: {refusal}"] if refusal else [])]
    known = {check.id for check in result.checks}
    absent = [] if result.problem else [grade_id(one) for one in notebook.cells if is_check(one)]
    if absent := [name for name in absent if name not in known]:
        were = "check of this notebook was" if len(absent) == 1 else "checks of this notebook were"
        remarks.append(
            f"{len(absent)} {were} not run, because this course does not contain {', '.join(map(str, absent[:3]))}"
            f"{' and others' if len(absent) > 3 else ''}. Your instructor's course does."
        )
    remarks.append(f"Graded: {name}, saved at {at}, {_ago(began - notebook.when)} before.{again}")
    shown = view(result, notebook.cells, unsaved, remarks, public_only)
    return {"text/html": shown.html(), "text/plain": shown.plain()}


def _ago(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"


def read_saved(path: Path) -> SavedNotebook:
    """Returns the notebook in a file. Raises NotGradable where there is none that can be graded."""
    try:
        found = path.stat()
        if found.st_size > MAX_BYTES:
            size = f"{found.st_size / 1e6:,.0f} MB, and at most {MAX_BYTES / 1e6:,.0f} MB are graded"
            fix = "Clear its outputs (Edit > Clear Outputs of All Cells), save it, then run this cell again."
            raise NotGradable(f"{path.name} has {size}. {fix}")
        notebook = parse(path.read_bytes())
    except FileNotFoundError:
        fix = "If you renamed or moved it, restore its name. If it was never saved, save it (Ctrl+S)."
        raise NotGradable(f"{path} does not exist. {fix} Then run this cell again.") from None
    except OSError as problem:
        raise NotGradable(
            f"{path} cannot be read: {problem.strerror}. Fix this problem, then run this cell again."
        ) from None
    except Unreadable:
        why = "is incomplete on disk, perhaps because it was being written"
        raise NotGradable(f"{path.name} {why}. Save it (Ctrl+S), then run this cell again.") from None
    lesson = part(notebook.get("metadata"), "jaxercise").get("lesson", path.stem)
    if lesson != path.stem:
        fix = "Put your answers there, or rename this one, shut down its kernel and open it again."
        raise NotGradable(f"This notebook is called {path.name}, but only {lesson}.ipynb is graded. {fix}")
    return SavedNotebook(found.st_mtime, cells(notebook))


def unsaved_cells(notebook: SavedNotebook) -> list[str]:
    """Returns a name for each cell that was run after the notebook was saved, with a text that was not saved.

    A cell is recognised by its id where the front end sends it, else by the names that it binds. The course's own cells
    do not count, as grading has its own, and a cell that binds nothing only if it was saved under its id.
    """
    if "grader.checks" not in sys.modules:
        return []  # no setup has run in this kernel, so nothing that belongs to the notebook
    from grader.checks.outcomes import runs_since

    code = [cell for cell in notebook.cells if cell.get("cell_type") == "code"]
    texts = {text(cell).strip() for cell in code}
    by_id = {cell.get("id"): cell for cell in code}
    learners = [(notebook_cell_names(text(cell)).binds, cell) for cell in code if not nbgrader(cell).get("locked")]
    found, newer = list[str](), set[str]()  # `newer` are names that later runs bind
    for run in runs_since(notebook.when):
        binds = notebook_cell_names(run.source).binds
        cell = by_id.get(run.cell_id) if run.cell_id is not None else None
        if cell is None and binds <= newer:
            continue
        newer |= binds
        if run.source.strip() in (texts if cell is None else {text(cell).strip()}):
            continue
        if cell is None:
            alike = [one for bound, one in learners if bound & binds]
            cell = alike[0] if len(alike) == 1 else None
        if cell is None:
            found.append(f"the cell that binds `{min(binds)}`")
        elif not nbgrader(cell).get("locked"):
            begin = next((line.strip()[:40] for line in text(cell).splitlines() if line.strip()), "")
            found.append(grade_id(cell) or f"the cell that begins `{begin}`")
    return list(dict.fromkeys(reversed(found)))


def _grade_file(path: Path, tell: Callable[[str], None]) -> tuple[Result, bool, str]:
    """Returns the result, whether it is of public checks alone, and why `grader check` could not begin."""
    refusal = ""
    if HAS_COMMAND and course_above(path.parent) is not None:
        result, refusal = _run("grader check", path, tell)
        if result is not None:
            return result, False, ""
    result, last = _run("python -m grader.checks", path, tell)
    if result is None:
        raise NotGradable(f"Nothing was graded: {last}")
    return result, True, refusal


def _run(command: str, path: Path, tell: Callable[[str], None]) -> tuple[Result | None, str]:
    """Runs a grading command; returns the result that it wrote, None where it did not begin, and its last message.
    Raises NotGradable where it began and wrote no result; after KeyboardInterrupt nothing is left running."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    package = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="grade-") as folder:
        written, log = Path(folder) / "result.json", Path(folder) / "stderr"

        def lines() -> list[str]:
            return [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]

        with log.open("wb") as stream:
            # -P: a file beside the notebook may have the name of a module of Python's.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", *command.removeprefix("python -m ").split(), path, "--json", written],
                cwd=path.parent, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream,
                env={**inherited, "PYTHONPATH": package, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"},
            )  # fmt: skip
        try:
            while process.poll() is None:
                tell("\n".join(filter(EXERCISE_LINE.fullmatch, lines())))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(TICK_S)
        finally:
            _end(process)
        last = next((line[:LONGEST] for line in reversed(lines()) if not EXERCISE_LINE.fullmatch(line)), "")
        with contextlib.suppress(NoResults, IndexError):
            return read_document(written)[0], last
    if process.returncode == REFUSED:
        return None, last
    why = last or f"status {process.returncode}"
    terminal = f"Run it in a terminal for details: {command} {path.stem}"
    raise NotGradable(f"`{command}` ended without a result: {why}. {terminal}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends it if it has not ended: in good order, so that it ends what it started, else at once."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(PATIENCE_S)
    if process.poll() is None:
        process.kill()
        process.wait()
