"""The shell of a worker: how faults are reported, what a cell has bound, and what it leaves and starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from grader.core.layout import WORKER
from grader.program.codec import decode, encode
from grader.sandbox.process import Process, Zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    one = Zygote.start([])
    yield one
    one.stop()


@pytest.fixture
def worker(zygote: Zygote) -> Iterator[Process]:
    process = zygote.fork(WORKER)
    tell(process, "setup", source="import math\nSCALE = 2\n")
    yield process
    process.kill()


def tell(process: Process, what: str, seconds: float = 20.0, **request: Any) -> dict[str, Any]:
    reply = decode(process.exchange(encode({"do": what, **request}), seconds=seconds))
    assert isinstance(reply, dict)
    return reply


def run(process: Process, source: str, **more: Any) -> dict[str, Any]:
    return tell(process, "run", source=source, **more)


def ask(process: Process, probe: str, name: str = "") -> Any:
    asked, payload = encode({"do": "ask", "probe": probe, "name": name}), encode({"args": (), "mesh": None})
    reply = decode(process.exchange(asked, payload, seconds=20))
    assert isinstance(reply, dict)
    return reply.get("value", reply)


# What a cell raises: the class, and the line and its text as the learner sees them.
RAISES: dict[str, tuple[str, int | None, str]] = {
    "x = 1\n1 / 0": ("ZeroDivisionError", 2, "1 / 0"),
    "def f():\n    return g()\n\n\nf()": ("NameError", 2, "return g()"),
    "%matplotlib inline\n1 / 0": ("ZeroDivisionError", 2, "1 / 0"),
    "%%time\nx = 1\n1 / 0": ("ZeroDivisionError", 3, "1 / 0"),
    "%%time\n\n\n1 / 0": ("ZeroDivisionError", 4, "1 / 0"),
    "import sys\nsys.exit(3)": ("SystemExit", 2, "sys.exit(3)"),
    "raise KeyboardInterrupt": ("KeyboardInterrupt", 1, "raise KeyboardInterrupt"),
    "import asyncio\nawait asyncio.sleep(0)\nraise ValueError": ("ValueError", 3, "raise ValueError"),
    "input('name')": ("StdinNotImplementedError", 1, "input('name')"),
    "raise ExceptionGroup('', [OSError()])": ("ExceptionGroup", 1, "raise ExceptionGroup('', [OSError()])"),
    "class Odd(Exception):\n    def __str__(self):\n        1 / 0\n\n\nraise Odd": ("Odd", 6, "raise Odd"),
    "if 1:\n    raise NotImplementedError('later')": ("NotImplementedError", 2, "raise NotImplementedError('later')"),
}  # fmt: skip


@pytest.mark.parametrize("source", RAISES)
def test_a_cell_that_raises_is_told_with_its_line(worker: Process, source: str) -> None:
    reply = run(worker, source)
    assert reply["status"] == "raised"
    assert (reply["kind"], reply["line"], reply["source"]) == RAISES[source]
    assert run(worker, "1")["status"] == "ok", "and the next one runs"


def test_a_stub_is_not_attempted(worker: Process) -> None:
    assert run(worker, "class Stub:\n    # YOUR CODE HERE\n    raise NotImplementedError()")["status"] == "unattempted"


NO_PYTHON = ["def f(", "x = 'open\n", "\0", "x = \ud800", "(" * 300, "%%time\ndef f(", "if x:\n", "return 3", "{x y}"]


@pytest.mark.parametrize("source", NO_PYTHON, ids=lambda source: repr(source)[:20])
def test_text_that_is_not_python_is_a_syntax_error(worker: Process, source: str) -> None:
    assert source == "return 3" or tell(worker, "read", source=source)["status"] == "raised"
    assert run(worker, source)["status"] == "raised"
    assert run(worker, "1")["status"] == "ok"


BINDS = {
    "x = 1": ["x"],
    "SCALE = 3": ["SCALE"],
    "SCALE = SCALE": ["SCALE"],
    "%%capture out\nx = 1": ["out", "x"],
    "%%time\nx = 1": ["x"],
    "x = %timeit -o -q -n 1 -r 1 1": ["x"],
    "%%bash --out said\necho 1": ["said"],
    "files = !ls": ["files"],
    "globals()['made'] = 1": ["made"],
    "get_ipython().push({'pushed': 1})": ["pushed"],
    "%%writefile a.py\nfrom_file = 1": [],
    "1 + 1": [],
    "x = 1\n1 / 0": ["x"],
    "1 / 0\nx = 1": [],
}


@pytest.mark.parametrize("source", BINDS)
def test_the_names_that_a_cell_came_to_bind(worker: Process, source: str) -> None:
    assert run(worker, source)["bound"] == BINDS[source]


def test_a_script_that_is_run_binds_its_names(worker: Process) -> None:
    run(worker, "%%writefile a.py\nfrom_file = 1")
    assert run(worker, "%run a.py")["bound"] == ["from_file"]


def test_nothing_is_kept_on_disk_and_no_thread_is_started(worker: Process) -> None:
    before = ask(worker, "lambda: __import__('os').listdir('.')")
    for source in ("1", "x = 1\nx", "%timeit -n 1 -r 1 1", "display(1)", "1 / 0", "def f(:", "%history"):
        run(worker, source)
    assert ask(worker, "lambda: [__import__('os').listdir('.'), __import__('threading').active_count()]") == [before, 1]


@pytest.mark.parametrize(
    "magic",
    ["pip install x", "conda install x", "tensorboard --logdir x", "debug", "pdb", "edit", "connect_info", "qtconsole"],
)
def test_a_magic_that_reaches_out_or_waits_does_nothing(worker: Process, magic: str) -> None:
    reply = run(worker, f"%load_ext tensorboard\n%{magic}\nx = 1")
    assert (reply["status"], reply["bound"]) == ("ok", ["x"])
    assert reply == run(worker, f"%{magic}\nx = 1")


def test_what_the_learners_machine_has_and_this_one_has_not_is_passed_over(worker: Process) -> None:
    reply = run(worker, "%load_ext of_mine\n%my_magic 3\n%config MyThing.x = 1\nx = 1")
    assert (reply["status"], reply["bound"]) == ("ok", ["x"])
    assert run(worker, "%%my_cell_magic\nany text")["status"] == "ok"


def test_pip_fails_at_once(worker: Process) -> None:
    run(worker, "import time\nbegan = time.monotonic()\n!pip install nothing-of-that-name-0\nended = time.monotonic()")
    assert ask(worker, "lambda: _exit_code") != 0
    assert ask(worker, "lambda: ended - began") < 15


def test_timeit_runs_once_a_repeat_unless_told(worker: Process) -> None:
    run(worker, "import time\na = %timeit -o -q time.sleep(0.01)\nb = %timeit -o -q -n 3 -r 2 1")
    assert ask(worker, "lambda: [a.loops, a.repeat, b.loops, b.repeat]") == [1, 7, 3, 2]


def test_what_a_task_does_is_done_in_the_time_of_cells_and_questions(worker: Process) -> None:
    """Not between them, where nobody counts."""
    run(worker, "import asyncio\nsteps = 0\nasync def count():\n    global steps\n    while True:\n        steps += 1\n"
                "        await asyncio.sleep(0)\ntask = asyncio.create_task(count())\n")  # fmt: skip
    first = ask(worker, "lambda: steps")
    run(worker, "import time; time.sleep(0.5)")
    assert 0 < first < 200
    assert ask(worker, "lambda: steps") - first < 200


def test_what_a_context_holds_stays(worker: Process) -> None:
    run(worker, "import numpy as np\nold = np.seterr(all='raise')")
    assert run(worker, "np.float32(1) / np.float32(0)")["kind"] == "FloatingPointError"
    assert ask(worker, "lambda: np.geterr()['divide']") == "raise"


def test_a_changed_setup_runs_what_it_adds_on_top_of_the_courses(worker: Process) -> None:
    run(worker, "SCALE = 7\nmath = None")
    reply = run(worker, "import math\nSCALE = 2\nmore = SCALE + 1\nSCALE = 5\n", setup=True)
    assert reply["bound"] == ["SCALE", "math", "more"]
    assert ask(worker, "lambda: [SCALE, more, math.pi > 3]") == [5, 3, True]


@pytest.mark.parametrize(
    ("probe", "name"),
    [
        ("lambda: [str(n) for n in sum([[1], [2]], [])]", ""),
        ("def probe():\n    return list(map(str, (1, 2)))", "probe"),
    ],
)
def test_a_probe_has_pythons_builtins_where_a_cell_has_rebound_them(worker: Process, probe: str, name: str) -> None:
    run(worker, "str, sum, list = 'abc', 0, None\ndef letters():\n    return str")
    assert ask(worker, probe, name) == ["1", "2"]
    assert ask(worker, "lambda: [letters(), str(1)]") == ["abc", "1"]
    tell(worker, "prepare", answers=["str"])  # the answer itself, in an exercise that asks for this name
    assert ask(worker, "lambda: str") == "abc"


CHECK = "def ask(value):\n    return value\n\n\nfound = ask(41)"


def test_cells_that_ran_elsewhere_count_and_run_where_their_names_are_used(worker: Process) -> None:
    run(worker, "3", passed=["# one", "", CHECK])
    assert ask(worker, "lambda: [list(Out), In[2], 'found' in globals()]") == [[3], CHECK, False]
    run(worker, "later = found + 1")
    assert ask(worker, "lambda: [later, len(In)]") == [42, 5]


def test_a_fresh_start_knows_nothing_of_what_was_run(worker: Process) -> None:
    run(worker, "from __future__ import annotations\nx = 1\nx")
    assert run(worker, "def f(a: Unknown): pass")["status"] == "ok"
    tell(worker, "fresh")
    known = ask(worker, "lambda: [len(In), len(Out), _, 'x' in globals(), SCALE]")
    assert known == [1, 0, "", False, 2]
    assert run(worker, "def f(a: Unknown): pass")["kind"] == "NameError"
