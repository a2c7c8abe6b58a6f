"""Times check cells in a notebook's kernel, with and without the work of the checks: `make bench`.

One check of each of four exercises runs in a kernel, as JupyterLab starts it, with a right and with a wrong answer. The
baseline is the same cell with plain calls instead of the verbs. `ask` calls the answer, `program` compiles it once with
`jax.jit`, nothing is compared, and the cell ends where the check ends. The overhead is the difference of the two
medians. It includes copies, the export, the inspection of the program, comparisons and the display.

The two variants run alternately, and the first run of each does not count. Before each run of a check that inspects a
program, all compiled code is discarded, as for a new answer. The check compiles without the slowest optimizations, so
its overhead can be negative. On a busy machine, read the processor time, which includes all threads of the kernel.
"""

from __future__ import annotations

import ast
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import results
from benchmarks.others import ROOT
from grader.course import Check, Course

TITLE = "The overhead of checks in a notebook"
EXERCISES = {"05_vmap": ("vmap-axes", "vmap-pairwise"), "16_sharding": ("sharding-place-batch",),
             "18_data_parallel": ("dp-fsdp",)}  # fmt: skip
RUNS = 9
BARS_MS = {"values": 50, "a program": 500}
# In the kernel: the verbs as plain calls, and how to forget what was compiled.
PLAIN = """
import jax as _jax
from grader.checks import verbs as _verbs
from grader.program.export import parameters as _parameters


class _Made:
    def __init__(self, function, data):
        arrays, rebuild = _parameters(data)
        self.compiled = _jax.jit(lambda *arrays: function(*rebuild(arrays))).lower(*arrays).compile()

    def run(self, *data):
        return _jax.block_until_ready(self.compiled(*_parameters(data)[0]))

    def __getattr__(self, name):
        return 0


class _Ended(Exception):
    pass


def _bare(text, until=None):
    # With the verbs as plain calls, up to the judgement of this number.
    done = []

    def judge(*given, **named):
        done.append(given)
        if len(done) == until:
            raise _Ended

    ask = lambda function, *data: _jax.block_until_ready(function(*data))
    verbs = {"ask": ask, "program": lambda function, *data: _Made(function, data), "compare": judge, "require": judge}
    try:
        exec(text, {**globals(), **verbs})
    except _Ended:
        pass


def _judgements(text):
    # How many the check makes; the last one is what it fails by.
    made = []
    counting = lambda verb: lambda *given, **named: (made.append(verb), verb(*given, **named))
    try:
        exec(text, {**globals(), "compare": counting(compare), "require": counting(require)})
    except Exception:
        pass
    return len(made)


def _forget():
    _jax.clear_caches()
    _verbs.in_process._loaded.clear(), _verbs.in_process._replies.clear()
"""


class Kernel:
    """A kernel of a lesson's exercise notebook, with its setup run; cells are timed from here."""

    def __init__(self, lesson: str) -> None:
        from jupyter_client.manager import start_new_kernel

        notebook = ROOT / "exercises" / lesson / f"{lesson}.ipynb"
        told = {**os.environ, "PYTHONPATH": str(ROOT), "JPY_SESSION_NAME": str(notebook)}
        self.manager, self.client = start_new_kernel(kernel_name="python3", env=told)

    def run(self, source: str) -> tuple[float, float, str]:
        """Milliseconds from asking for it until the kernel is done with it, those of a processor, how it ended."""
        spent, began = self._processor(), time.perf_counter()
        reply = self.client.execute_interactive(source, timeout=300, output_hook=lambda message: None)
        waited = 1000 * (time.perf_counter() - began)
        return waited, self._processor() - spent, str(reply["content"]["status"])

    def _processor(self) -> float:
        """Milliseconds of a processor that the kernel has used, in all of its threads."""
        asked = {"spent": "__import__('time').process_time()"}
        reply = self.client.execute_interactive("", timeout=300, user_expressions=asked, silent=True)
        return 1000 * float(reply["content"]["user_expressions"]["spent"]["data"]["text/plain"])

    def close(self) -> None:
        """End it."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def kernel(lesson: str) -> Iterator[Kernel]:
    """A lesson's kernel, ended in any case."""
    made = Kernel(lesson)
    try:
        yield made
    finally:
        made.close()


def bare(check: Check) -> str:
    """The check's text without its title: what the answer itself takes, and what gets it its inputs."""
    return ast.unparse(ast.Module(ast.parse(check.source).body[1:], []))


def row(running: Kernel, check: Check, answer: str) -> str:
    """A line of the table: what the answer and the check take, and what the check adds; medians."""
    asks = "a program" if "program(" in check.source else "values"
    running.run(answer)
    running.run(f"_until = _judgements({bare(check)!r})")
    own: list[list[float]] = []
    whole: list[list[float]] = []
    ended = ""
    for _ in range(RUNS + 1):
        for text, times in ((f"_bare({bare(check)!r}, _until)", own), (check.source, whole)):
            if asks == "a program":
                running.run("_forget()")
            *spent, ended = running.run(text)
            times.append(spent)
    (own_ms, own_cpu), (ms, cpu) = (
        [statistics.median(column) for column in zip(*times[1:], strict=True)] for times in (own, whole)
    )
    how = "right" if ended == "ok" else "wrong"
    return (
        f"| `{check.id}` | {asks} | {how} | {own_ms:.0f} | {ms:.0f} | {ms - own_ms:.0f} | {cpu - own_cpu:.0f} "
        f"| {BARS_MS[asks]} |"
    )


def measure() -> list[str]:
    """The lines of the report."""
    course = Course(ROOT)
    lines = [
        "| check | inspects | answer | baseline, ms | check, ms | overhead, ms | overhead, processor ms | target, ms |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for lesson_id, names in EXERCISES.items():
        lesson = course.lesson(lesson_id)
        with kernel(lesson_id) as running:
            for source in (lesson.setup, PLAIN):
                running.run(source)
            for exercise in (one for one in lesson.exercises if one.id in names):
                check = next(one for one in exercise.checks if not one.hidden)
                lines += [row(running, check, one) for one in (exercise.reference, exercise.wrong[0].source)]
    return lines


def main() -> None:
    """Measure, print the table, and write it down."""
    lines = measure()
    print("\n".join(lines))
    results.report(TITLE, __doc__, lines)


if __name__ == "__main__":
    main()
