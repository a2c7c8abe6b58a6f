"""Whatever a learner's process does or claims: grading ends with a record for every check, never with the grader."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import psutil
import pytest
from conftest import COURSES, handed_in
from fill import fill, write

from grader.checks import devices
from grader.core.faults import Fault
from grader.core.layout import EXAMINER
from grader.core.notebook import Submission, SubmittedCell, Unreadable, read_bytes, read_submission
from grader.core.result import STATUSES, Result
from grader.course import Course
from grader.course.build import exercises_path
from grader.grading import batch
from grader.grading.examiner import Examiner
from grader.grading.executors import CompileCache, ExecutorPrograms
from grader.grading.pool import Pool
from grader.grading.session import CheckRunner
from grader.grading.worker_pair import NotebookClock, WorkerPair
from grader.program.codec import decode
from grader.sandbox import confine_kernel as kernel
from grader.sandbox.process import Process, Zygote

devices.start(8)
LESSON = Course(COURSES / "small").lesson("01_small")
DOUBLE, MEAN, TOTAL = (exercise.id for exercise in LESSON.exercises)
RIGHT = {exercise.id: f"{exercise.reference}\n" for exercise in LESSON.exercises}


@pytest.fixture(scope="module")
def examiner(zygote: Zygote) -> Iterator[Examiner]:
    one = Examiner(LESSON, zygote, "secret")
    yield one
    one.close()


@pytest.fixture
def isolated(examiner: Examiner) -> Iterator[WorkerPair]:
    one = examiner.isolated()
    yield one
    one.drop()


# These submissions consist of cells of the learner's own, answers and checks.
NO_SETUP = "The setup cell is missing from the notebook. That of the course was run first."


def submission(*cells: str, learner: str = "someone", **answers: str) -> Submission:
    """Own cells, then each exercise with its checks: as in `answers` (double, mean, total), else right.

    What a check cell of the notebook contains is the learner's own text, and no check's.
    """
    own: list[tuple[str | None, str]] = [(None, cell) for cell in cells]
    sources = RIGHT | {f"small-{name}": source for name, source in answers.items()}
    for exercise in LESSON.exercises:
        own.append((exercise.id, sources[exercise.id]))
        own += [(check.id, "" if check.hidden else "# public") for check in exercise.checks]
    return handed_in(own, LESSON.id, learner)


def points(result: Result) -> dict[str, float]:
    return {
        exercise.id: sum(check.points for check in result.checks if check.exercise == exercise.id)
        for exercise in LESSON.exercises
    }


def assert_whole(result: Result) -> None:
    """A record for every check, none of them the grader's fault, all of it fit to print and to write."""
    assert result.problem is None
    assert [check.id for check in result.checks] == [c.id for e in LESSON.exercises for c in e.checks]
    for check in result.checks:
        assert check.status in set(STATUSES) - {"error"}, check
    for text in (*result.notes, *(check.message for check in result.checks)):
        assert all(c.isprintable() or c == "\n" for c in text), text
        assert len(text) < 5_000
    assert Result.from_json(json.loads(json.dumps(result.to_json()))).score == result.score


# What a process may do to itself. It may cost the exercise whose cell did it, and no other.

DOES = {
    "closes files": "import os\nos.closerange(0, 4096)\n",
    "forgets modules": "import sys\nfor name in ('jax', 'traceback', 'linecache'):\n    sys.modules[name] = None\n",
    "forgets ours": "import sys\nfor name in [n for n in sys.modules if 'grader' in n]:\n    del sys.modules[name]\n",
    "clears the environment": "import os\nos.environ.clear()\nos.environ['JAX_PLATFORMS'] = 'nowhere'\n",
    "clears caches": "jax.clear_caches()\n",
    "forks": "import os, warnings\nwarnings.simplefilter('ignore')\nos.fork()\n",
    "forks and goes": "import os, warnings\nwarnings.simplefilter('ignore')\nif os.fork():\n    os._exit(0)\n",
    "starts threads": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(30,)).start()\n"
        "threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()\n"
    ),
    "reads": "name = input('your name')\n",
    "writes": "print('x' * 5_000_000)\nimport os\nos.write(1, b'z' * 1_000_000)\n",
    "changes folder": "import os\nos.mkdir('deeper')\nos.chdir('deeper')\nopen('f', 'w').close()\nos.chmod('.', 0)\n",
    "other main": "import sys\nsys.modules['__main__'] = sys\n",
    "warnings as errors": "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('mine')\n",
    "broken exception": "class Odd(Exception):\n    def __str__(self):\n        raise self\nraise Odd\n",
    "exit hook": "import atexit, os\natexit.register(os._exit, 3)\nraise SystemExit\n",
    "alarm": "import signal\nsignal.alarm(1)\nwhile True:\n    pass\n",
    "terminal codes": "raise ValueError('\\x1b[2J\\x1b[32m✓ all right\\r\\u202e\\ud800')\n",
    "half a character": "x = '\ud800'\n",
    "NUL": "x = 1\0\n",
    "endless text": "raise ValueError('word ' * 1_000_000)\n",
    "builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda x: 0\n",
    "deletes setup": "del jnp, np, jax\n",
}  # fmt: skip


KEEPS = ["clears caches", "forks", "writes", "changes folder", "other main", "starts threads", "clears the environment"]


@pytest.mark.parametrize("name", DOES)
def test_a_cell_costs_nobody_else(examiner: Examiner, name: str) -> None:
    """And what harms nothing keeps its own points."""
    result = examiner.grade(submission(double=DOES[name] + RIGHT[DOUBLE]))
    assert_whole(result)
    earned = points(result)
    assert earned[MEAN] == earned[TOTAL] == 3
    assert earned[DOUBLE] == 3 or name not in KEEPS


def test_a_cell_that_spoils_the_interpreter_is_a_record(examiner: Examiner) -> None:
    assert_whole(examiner.grade(submission("import sys\nsys.setrecursionlimit(60)\n")))


# What a process may claim. The worker's own methods are in reach of any cell.

LIES: list[Any] = [
    None, {"status": ["ok"]}, {"status": "fine"}, {"status": "unattempted"}, {"status": "raised"},
    {"status": "ok", "binds": 3, "needs": None}, {"status": "ok", "binds": [[1]], "bound": [{}], "restored": [2]},
    {"status": "raised", "kind": 7, "text": {"a": 1}, "line": "x", "source": [1]},
    {"status": "raised", "kind": "K" * 9_999, "text": "T\x1b" * 9_999, "line": 9, "source": "S\ud800" * 9_999},
    {"status": "ok", "binds": ["\x1b[2J"] * 999, "needs": [], "restored": ["\x1b[2J"] * 999},
]  # fmt: skip


@pytest.mark.parametrize("method", ["read", "run", "prepare"])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: repr(lie)[:40])
def test_a_worker_that_lies_about_cells_is_a_record(examiner: Examiner, method: str, lie: Any) -> None:
    cell = f"import grader.sandbox.worker as w\nw.Worker.{method} = lambda self, *args, **kwargs: {lie!r}\n"
    assert_whole(examiner.grade(submission(cell)))


OK: list[str] = [
    "{}", "Slot(9)", "np.zeros((0, 0))", "float('nan')", "1 << 255", "'x' * 99_999", "{'nan': [float('nan')] * 1000}",
    "{'blob': np.zeros(3, 'u1'), 'parameters': (), 'donated': (), 'results': Slot(0)}",
    "{'blob': 'x', 'parameters': 3, 'donated': 'all', 'results': 7}",
    "{'blob': np.zeros(0, 'u1'), 'parameters': (1, 2), 'donated': (99,), 'results': None}",
    "{'blob': real(), 'parameters': (), 'donated': (99,), 'results': Slot(50)}",
    "{'blob': real(), 'parameters': (), 'donated': (), 'results': (Slot(50), ...)}",
]  # fmt: skip
REPLIES = [
    "b''", "b'x' * 99", "encode(None)", "encode([])", "encode({'status': 'ok'})", "encode({'status': 'raised'})",
    "encode({'status': 'unsendable', 'kind': 'K' * 99_999})", "encode({'status': 'refused', 'text': 3})",
    *(f"encode({{'status': 'ok', 'value': {value}}})" for value in OK),
]  # fmt: skip
FORGE = """
import grader.sandbox.worker as w
from grader.program.codec import Slot, encode
from grader.program.export import export
def real():
    return np.frombuffer(export(lambda: jnp.ones(2), ()).blob, np.uint8)
w.Worker.ask = lambda self, asked, payload, how: {}
"""


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply[:60])
def test_a_worker_that_lies_about_results_is_a_record(examiner: Examiner, reply: str) -> None:
    assert_whole(examiner.grade(submission(FORGE.format(reply))))


def test_a_flood_is_a_failed_check(examiner: Examiner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every status is a documented one."""
    # Not a question of time: a busy machine may copy 300 MiB for longer than an answer may compute.
    monkeypatch.setattr("grader.grading.session.ANSWER_S", 60.0)
    result = examiner.grade(submission(total="def loss(x):\n    return np.zeros(300 << 20, np.uint8)\n"))
    assert_whole(result)
    flooded = [check for check in result.checks if check.exercise == TOTAL]
    assert [check.status for check in flooded] == ["failed"] * 2
    assert flooded[0].message.startswith("Your answer returned too much: the reply has more than 268,435,456 bytes")
    assert points(result)[MEAN] == 3


def test_a_flood_from_a_cell_is_a_crash(examiner: Examiner) -> None:
    lie = "import grader.sandbox.wire as w, struct\nw.send = lambda s, frame: s.sendall(struct.pack('<Q', 1 << 40))\n"
    result = examiner.grade(submission(double=lie))
    assert_whole(result)
    assert [check.status for check in result.checks[:2]] == ["crashed"] * 2


# Replays.

# The clock is all that tells a replay from a first run.
ONCE = "import os, time\nif time.time() > {0}:\n    os._exit(1)\n"
LATER = "import os, time\ndef double(x):\n    time.sleep(max(0, {0} + 0.1 - time.time()))\n    os._exit(0)\n"


def test_a_cell_that_runs_only_once_costs_what_needs_it(examiner: Examiner) -> None:
    """It ends the process when it is run again after the fault in the first exercise."""
    soon = time.time() + 5
    cell, crash = ONCE.format(soon) + "helper = 2\n", LATER.format(soon)
    result = examiner.grade(
        submission(cell, double=crash, total="def loss(x):\n    return helper * (x**2).sum() / 2\n")
    )
    assert_whole(result)
    assert [check.status for check in result.checks[:2]] == ["crashed"] * 2
    assert points(result)[MEAN] == 3
    assert [check.status for check in result.checks[4:]] == ["failed"] * 2
    assert "name 'helper' is not defined" in result.checks[4].message


def test_a_replay_puts_back_what_was_put_back(examiner: Examiner) -> None:
    """After a fault in a check, the next check finds names and configuration as the first did."""
    leaves = RIGHT[DOUBLE] + 'jax.config.update("jax_enable_x64", True)\nSCALE = 9.0\n'
    crashes_once = (
        "import os\ndef loss(x):\n    if x.shape == (2,):\n        os._exit(1)\n    return (x**2).mean() * SCALE / 2\n"
    )
    result = examiner.grade(submission(double=leaves, mean=crashes_once))
    assert_whole(result)
    example, program = (check for check in result.checks if check.exercise == MEAN)
    assert (example.status, program.status, program.message) == ("crashed", "passed", "")
    assert points(result)[DOUBLE] == points(result)[TOTAL] == 3


def test_a_thread_that_ends_the_process_between_cells(examiner: Examiner) -> None:
    cell = "import os, threading\nthreading.Timer(0.05, os._exit, (1,)).start()\n"
    assert_whole(examiner.grade(submission(cell, double="import time\n" + RIGHT[DOUBLE])))


def test_a_notebook_has_so_much_time_as_a_whole(examiner: Examiner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "minutes", 0.02)
    result = examiner.grade(submission("import time\ntime.sleep(1.5)\n", "late = True\n"))
    assert_whole(result)
    assert {check.status for check in result.checks} == {"timeout"}
    assert "your notebook as a whole took longer than 0.02 minutes" in result.checks[0].message
    monkeypatch.undo()
    assert examiner.grade(submission()).score == LESSON.points


def test_a_notebooks_clock_stands_still_while_its_processes_stand_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an examiner alone may stand there for minutes. But it does not stand still for ever."""
    clock = NotebookClock(0.1 / 60)
    monkeypatch.setattr(Process, "in_line", Process.in_line + 60)
    time.sleep(0.2)
    clock.check()
    time.sleep(0.9)
    with pytest.raises(Fault, match="your notebook as a whole took longer than"):
        clock.check()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell how long one waits")
def test_what_a_worker_stands_in_line_is_counted(isolated: WorkerPair) -> None:
    """It shares one processor with another process that wants all of it."""
    isolated.run_cell("x = 1", "code cell 1")
    one = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for pid in (busy.pid, isolated.worker.pid):
                os.sched_setaffinity(pid, {one})
            before = Process.in_line
            isolated.run_cell("for _ in range(20_000_000):\n    pass", "code cell 2")
        finally:
            busy.kill()
    assert Process.in_line > before


def test_an_exception_of_the_graders_own_is_no_failed_check(
    examiner: Examiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when the answer was asked something before it."""
    exchange = Process.exchange

    def broken(self: Process, *frames: bytes, **limits: Any) -> bytes:
        reply = exchange(self, *frames, **limits)
        if decode(frames[0])["do"] == "ask":
            raise KeyError("of ours")
        return reply

    monkeypatch.setattr(Process, "exchange", broken)
    result = examiner.grade(submission())
    assert result.grader_failed
    assert {check.status for check in result.checks} == {"passed", "error"}
    assert {check.message for check in result.checks if check.status == "error"} == {
        "The check itself is at fault: KeyError in the grader."
    }


@pytest.mark.parametrize("request_kind", ["setup", "read", "run", "prepare", "ask", "export"])
def test_a_worker_that_is_killed_at_any_request_costs_nothing(
    examiner: Examiner, monkeypatch: pytest.MonkeyPatch, request_kind: str
) -> None:
    exchange, killed = Process.exchange, []

    def killing(self: Process, *frames: bytes, **limits: Any) -> bytes:
        if not killed and decode(frames[0])["do"] == request_kind:
            killed.append(self.pid)
            os.kill(self.pid, signal.SIGKILL)
        return exchange(self, *frames, **limits)

    monkeypatch.setattr(Process, "exchange", killing)
    result = examiner.grade(submission())
    assert len(killed) == 1
    assert_whole(result)
    assert (result.score, result.notes) == (result.max_score, (NO_SETUP,))


def test_a_setup_that_does_not_run_is_the_courses_fault(examiner: Examiner) -> None:
    from grader.checks.outcomes import CheckBroken

    broken = WorkerPair("1 / 0", {}, ExecutorPrograms(examiner.zygote, CompileCache()))
    with pytest.raises(CheckBroken, match="the course's setup raised ZeroDivisionError: division by zero"):
        broken.run_cell("x = 1", "code cell 1")
    broken.drop()


def test_a_worker_goes_back_and_runs_again_what_ran_up_to_a_place(examiner: Examiner) -> None:
    pair = WorkerPair("x = 1", {}, ExecutorPrograms(examiner.zygote, CompileCache()))
    pair.run_cell("y = x + 1", "code cell 1")
    place, first = pair.place, pair.worker.pid
    pair.run_cell("z = y + 1", "code cell 2")
    end = pair.place
    pair.rewind()
    assert pair.worker.pid != first
    pair.advance(place)
    assert pair.run_cell("assert y == 2 and 'z' not in globals()", "code cell 3").problem is None
    pair.rewind()
    pair.advance(end)
    assert pair.run_cell("assert z == 3", "code cell 4").problem is None
    pair.drop()


# What is defined, and what is not.


def test_what_a_failing_cell_defined_before_it_failed_counts(examiner: Examiner) -> None:
    """As in the notebook, where the check would pass."""
    result = examiner.grade(
        submission("def twice(x):\n    return 2 * x\n1 / 0", double="double = lambda x: twice(x)\n")
    )
    assert_whole(result)
    assert result.score == result.max_score
    assert result.notes == (NO_SETUP, "Your code cell 1 raised ZeroDivisionError on line 3.")


def test_the_answer_of_another_exercise_is_not_taken_for_a_broken_one(examiner: Examiner) -> None:
    """Both are called `loss`; the second does not even compile."""
    result = examiner.grade(submission(total="def loss(x:\n    return 0\n"))
    assert [check.status for check in result.checks] == ["passed"] * 4 + ["failed"] * 2
    public, hidden = result.checks[4:]
    assert public.message.startswith("Your answer cell has a syntax error on line 1")
    assert hidden.message == "", "the public check says it"


def test_display_works_as_in_a_notebook(examiner: Examiner) -> None:
    helper = "display(jnp.ones(2))\ndef twice(x):\n    return 2 * x\n"
    result = examiner.grade(submission(helper, double="def double(x):\n    return twice(x)\ndisplay(double(1))\n"))
    assert (result.score, result.notes) == (result.max_score, (NO_SETUP,))


def test_a_helper_below_the_checks_is_named(examiner: Examiner) -> None:
    handed = submission("unused = 1", double="def double(x):\n    return twice(x)")
    below = (SubmittedCell(None, "def twice(x):\n    return 2 * x", 90), SubmittedCell(None, "def twice(x): ...", 91))
    result = examiner.grade(replace(handed, cells=handed.cells + below))
    assert [note for note in result.notes if "twice" in note] == [
        "The answer of small-double needs `twice`, which your code cell 90 defines below the checks. In a notebook "
        "that runs from top to bottom it comes too late. Move that cell above them."
    ]


def test_what_a_process_claims_to_have_bound_decides_no_note(examiner: Examiner) -> None:
    """It may have seen hidden checks by then, and could tell of them by which notes there are."""
    notes = []
    for claims in ("1", "globals().update(twice=lambda x: 3 * x)"):
        handed = submission(claims, double="def double(x):\n    return twice(x)")
        below = SubmittedCell(None, "def twice(x):\n    return 2 * x", 90)
        result = examiner.grade(replace(handed, cells=(*handed.cells, below)))
        notes.append([note for note in result.notes if "twice" in note])
    assert notes[0] == notes[1] != []


# What is sent where.


def test_nothing_of_a_hidden_check_but_its_probe_reaches_the_learners_process(
    examiner: Examiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, bytes]] = []
    exchange = Process.exchange

    def recorded(self: Process, *frames: bytes, **limits: Any) -> bytes:
        sent.extend((self.pid, frame) for frame in frames)
        return exchange(self, *frames, **limits)

    monkeypatch.setattr(Process, "exchange", recorded)
    unknown = "def loss(x):\n    return jnp.mean(x * x * 1.0)\n"
    examiner.grade(submission(learner="the-learner", mean=unknown))
    everything = b"".join(frame for _, frame in sent)
    assert b"return SCALE * x" in everything, "the answer itself is there"
    assert b"lambda: SCALE" in everything, "and the probe"
    for secret in (b"secret", b"the-learner", b"compare(", b"require(", b"inputs.rng", b"Is right for any array"):
        assert secret not in everything
    requests = [decode(frame) for _, frame in sent if b'"do"' in frame]
    assert {request["do"] for request in requests} == {
        "begin", "setup", "read", "run", "prepare", "ask", "export", "load",
    }  # fmt: skip


def test_seeds_differ_between_learners_cells_and_checks_and_repeat(
    examiner: Examiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grader.checks import inputs

    for exercise in LESSON.exercises:
        examiner.note(exercise)
    grades: list[list[str]] = []
    begin = inputs.begin
    monkeypatch.setattr(inputs, "begin", lambda seed: grades[-1].append(seed) or begin(seed))
    for one in (submission(), submission(), submission(learner="other"), submission("x = 1")):
        grades.append([])
        examiner.grade(one)
    assert grades[0] == grades[1]
    assert [len({*begun}) for begun in grades] == [6] * 4
    assert len({seed for begun in grades for seed in begun}) == 18


def test_what_a_hidden_check_says_holds_nothing_of_its_inputs(examiner: Examiner) -> None:
    """A learner's exception, class name, keys and strings may all carry an input."""
    carriers = [
        "raise ValueError(str(x))",
        "raise type('seen_' + str(float(x[0])).replace('.', 'p'), (Exception,), {})",
        "return type('seen_' + str(float(x[0])), (), {})()",
        "return {'seen ' + str(float(x[0])): 1}",
        "return 'seen ' + str(x)",
        "return [float(v) for v in x]",
    ]
    for line in carriers:
        answer = f"def double(x):\n    if x.shape == (2,):\n        return 2 * x\n    x = np.asarray(x)\n    {line}\n"
        [hidden] = [c for c in examiner.grade(submission(double=answer)).checks if c.id == "small-double-values"]
        assert hidden.status == "failed"
        assert not any(word in hidden.message for word in ("seen", "0.", "p0", "-")), hidden.message


PROBES = {
    "keyword default": "def probe(x, *, n=2):\n    return n * x\ncompare(ask(probe, 3), 6)",
    "default": "def probe(x, n=SCALE):\n    return n * x\ncompare(ask(probe, 3), 6.0)",
    "recursion": "def probe(n):\n    return 1 if n < 1 else n * probe(n - 1)\ncompare(ask(probe, 4), 24)",
    "inner": "def probe(n):\n    def inner(m):\n        return m + n\n    return inner(1)\ncompare(ask(probe, 4), 5)",
    "text": 'def probe():\n    """Doc\n    ument."""\n    return """a\n  b"""\ncompare(ask(probe), "a\\n  b")',
    "compiled": "def probe(x):\n    return jax.jit(lambda y: y + 1)(x)\ncompare(ask(probe, 4.0), np.float32(5))",
    "lambda": "compare(ask(lambda x, *rest, n=3: x + n + len(rest), 1, 2), 5)",
}  # fmt: skip


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_is_the_function_that_its_text_says(isolated: WorkerPair, name: str) -> None:
    """As in a kernel, where the check's cell defines it; it binds no name beside the answer."""
    one, check = room("", f"{PROBES[name]}\ncompare(ask(lambda: 'probe' in globals()), False)")
    ended = one.run(check, LESSON.exercises[0], isolated, "seed")
    assert (ended.status, ended.message) == ("passed", "")


# The examiners themselves.


def room(setup: str, check: str) -> tuple[CheckRunner, Any]:
    """A room of a lesson with more setup, and one check with this text."""
    return CheckRunner(replace(LESSON, setup=f"{LESSON.setup}\n{setup}")), replace(
        LESSON.exercises[0].checks[0], source=check
    )


def test_a_lessons_configuration_stays_in_its_checks(isolated: WorkerPair) -> None:
    """One process examines several lessons, and a check may leave something on."""
    wide, asks_wide = room(
        'jax.config.update("jax_enable_x64", True)', "require(jnp.arange(2.0).dtype == 'float64', 'wide')"
    )
    plain, asks_plain = room("", "require(jnp.arange(2.0).dtype == 'float32', 'plain')")
    careless, leaves_on = room(
        "", 'jax.config.update("jax_enable_x64", True)\njax.set_mesh(jax.make_mesh((8,), ("d",)))'
    )
    for one, check in (
        (wide, asks_wide),
        (plain, asks_plain),
        (careless, leaves_on),
        (careless, asks_plain),
        (wide, asks_wide),
    ):
        assert one.run(check, LESSON.exercises[0], isolated, "seed").status == "passed"
    assert not jax.config.jax_enable_x64
    assert jax.sharding.get_mesh().empty


def test_a_check_that_writes_into_the_setups_arrays_is_at_fault(isolated: WorkerPair) -> None:
    """Else the next submission would meet other data."""
    one, check = room("DATA = np.zeros(2, 'f')", "DATA += 1")
    ended = one.run(check, LESSON.exercises[0], isolated, "seed")
    assert (ended.status, one.setup["DATA"].sum()) == ("error", 0)
    assert "read-only" in ended.message


def test_an_examiner_that_ends_costs_no_notebook(tmp_path: Path, moments: random.Random) -> None:
    notebook = tmp_path / f"{LESSON.id}.ipynb"
    notebook.write_text('{"cells": []}')
    one = {"path": str(notebook), "learner": "someone", "lesson": LESSON.id}
    with Pool("grader.grading.server:serve", {"home": str(COURSES / "small"), "secret": "s"}, 1) as pool:
        time.sleep(moments.uniform(0, 1))
        os.kill(pool.processes[0].pid, signal.SIGKILL)
        assert [Result.from_json(reply).max_score for reply in pool.map([one] * 3)] == [9.0] * 3


def test_examiners_that_all_end_are_a_fault(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They cannot open the course. Nobody waits for ever."""
    with Pool("grader.grading.server:serve", {"home": str(tmp_path), "secret": "s"}, 1) as pool:
        [lost] = pool.map([{"path": "x", "learner": "someone", "lesson": LESSON.id}])
    assert isinstance(lost, Fault)
    assert "course.toml" in capfd.readouterr().err


def test_a_zygote_that_ends_by_itself_is_started_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Here it cannot import what it is told to. Another would end in the same way, and print the same."""
    pool = Pool(EXAMINER, {"home": str(COURSES / "small"), "secret": "s"}, 2, [".nowhere"])
    with pytest.raises(Fault, match="ended with status 1"), pool:
        pass
    assert pool.ask(0, {}).kind == "refused"
    assert capfd.readouterr().err.count("Traceback") == 1


def test_a_patient_examiner_gives_way_with_all_that_it_starts(built: Callable[[str], Path], tmp_path: Path) -> None:
    course = Course(built("small"))
    asks = "import os\nraise ValueError(os.getpriority(os.PRIO_PROCESS, 0))"
    levels = [os.getpriority(os.PRIO_PROCESS, 0), kernel.PATIENCE]
    notebook = write(fill(exercises_path(course, LESSON.id), {DOUBLE: asks}), tmp_path / f"{LESSON.id}.ipynb")
    one = {"path": str(notebook), "learner": "someone", "lesson": LESSON.id, "only": DOUBLE}
    with Pool("grader.grading.server:serve", {"home": str(course.root), "secret": "s"}, 2, patient=1) as pool:
        said = [Result.from_json(pool.ask(place, one)).checks[0].message for place in (0, 1)]
        assert [psutil.Process(one.pid).nice() for one in pool.processes] == levels
        shares = [Path(f"/proc/{one.pid}/autogroup") for one in pool.processes]
        if all(share.exists() for share in shares):
            assert [share.read_text().split()[1:] for share in shares] == [["nice", "0"], ["nice", "19"]]
    assert [text.splitlines()[0].partition("line 2: ")[2] for text in said] == [str(level) for level in levels], said


# Names and files.


@pytest.mark.parametrize("name", ["a\n[bold]b[/]", "ü – 𝕁 \x1b[2J", os.fsdecode(b"\xff\xfe")], ids=ascii)
def test_any_name_of_a_learner_is_graded(examiner: Examiner, name: str) -> None:
    result = examiner.grade(submission(learner=name))
    assert_whole(result)
    assert (result.learner, result.score) == (name, result.max_score)


def test_a_folder_without_its_notebook_is_told_and_not_passed_over(tmp_path: Path) -> None:
    """A copy under another name is what learners hand in; nobody would miss the row in the table."""
    course = Course(COURSES / "small")
    for name in (
        "one/01_small/01_small.ipynb",
        "two/01_small/01_small-Copy1.ipynb",
        "cy/99_other/99_other.ipynb",
        "notes.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"cells": []}')
    found = batch.find(tmp_path, course)
    assert [(entry.learner, entry.lesson) for entry in found] == [("one", "01_small"), ("two", "01_small")]
    with pytest.raises(Unreadable, match=r"There is no 01_small\.ipynb"):
        read_submission(read_bytes(found[1].path), "two", "01_small")
    with pytest.raises(batch.NothingToGrade):
        batch.find(tmp_path / "cy", course)


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    """A pipe would be waited for, and a link may lead to another learner's work or out of the folder."""
    other = tmp_path / "other.ipynb"
    other.write_text('{"cells": []}')
    makers: dict[str, Callable[[Path], object]] = {
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to(other),
        "folder": Path.mkdir,
        "nowhere": lambda path: path.symlink_to(tmp_path / "none"),
    }
    for name, make in makers.items():
        make(tmp_path / name)
        with pytest.raises(Unreadable):
            read_submission(read_bytes(tmp_path / name), "someone", "01_small")
    assert read_submission(read_bytes(other), "someone", "01_small").cells == ()
