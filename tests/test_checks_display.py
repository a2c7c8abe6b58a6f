"""What stands under a check in a notebook, beside its verdict: hints, the why, tables, pictures, long messages."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar

import jax
import nbformat
import numpy as np
import pytest
from conftest import ROOT
from jax.sharding import PartitionSpec as P

from grader.checks import drawings
from grader.checks.execute import execute
from grader.checks.failure import UNKNOWN, CheckEvaluator
from grader.checks.outcomes import CheckFailed

pytestmark = pytest.mark.usefixtures("forked_kernels")

SETUP = """
from grader.checks import ask, case, compare, devices, program, require
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

devices.start(4)
called = []


def noted(x):
    called.append(x)
    return x
"""
STUB = "def double(x):\n    raise NotImplementedError()"
WRONG = "def double(x):\n    return x + 3"
WORSE = "def double(x):\n    return x + 4"
RIGHT = "def double(x):\n    return 2 * x"
CHECK = '"""Twice <each> number."""\ncompare(ask(double, np.float32([1, 2])), np.float32([2, 4]))'
OTHER = '"""Twice a scalar."""\nrequire(ask(double, 3) == 6, "Not twice 3.")'
HIDDEN = "# Hidden check, 1 point: twice more.\n# It runs only when the notebook is graded."
HINTS = {
    "Hint 1 · a question": "What is `2 * x`?",
    "Hint 2 · a nudge": "Not **plus**.",
    "Hint 3 · nearly": "Times two.",
}
WHY = "Two of *each* are its double."
Output = dict[str, Any]


def cell(kind: str, grade_id: str, source: str, **said: Any) -> dict[str, Any]:
    flags = {"schema_version": 3, "grade": False, "locked": True, "solution": False, "task": False}
    made = {"cell_type": kind, "id": grade_id, "metadata": {"nbgrader": {**flags, "grade_id": grade_id, **said}}}
    return {**made, "source": source, **({"outputs": [], "execution_count": None} if kind == "code" else {})}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """An exercise's notebook as the builder makes it."""
    folds = "\n".join(f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" for title, text in HINTS.items())
    cells = [
        cell("code", "setup", SETUP.strip("\n")),
        cell("markdown", "tiny-double-task", f"## Double\n**Goal.** Double.\n\n{folds}"),
        cell("code", "tiny-double", STUB, solution=True, locked=False),
        cell("code", "tiny-double-values", CHECK, grade=True, points=1),
        cell("code", "tiny-double-scalar", OTHER, grade=True, points=1),
        cell("code", "tiny-double-more", HIDDEN, grade=True, points=1),
        cell("markdown", "tiny-double-why", f"<details><summary>After it passes</summary>\n\n{WHY}\n\n</details>"),
    ]
    path = tmp_path / "tiny.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def run(*cells: str, saved: Path | None = None, vscode: bool = False) -> list[list[Output]]:
    """The outputs of each cell after the setup, in a kernel that was told which notebook it belongs to."""
    told = [f"__vsc_ipynb_file__ = {str(saved)!r}"] if vscode else []
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(one.strip("\n")) for one in (SETUP, *told, *cells)]
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST", "JPY_SESSION_NAME")}
    if saved is not None and not vscode:
        environment["JPY_SESSION_NAME"] = str(saved)
    execute(notebook, allow_errors=True, env=environment | {"PYTHONPATH": str(ROOT)})
    return [one.outputs for one in notebook.cells[1 + len(told) :]]


def plain(outputs: list[Output]) -> list[str]:
    """What a front end without HTML shows, one text for each output."""
    texts = [
        "\n".join(one["traceback"]) if one["output_type"] == "error"
        else one["text"] if one["output_type"] == "stream"
        else one["data"]["text/plain"]
        for one in outputs
    ]  # fmt: skip
    return [re.sub(r"\x1b\[\d*m", "", text) for text in texts]


def rich(outputs: list[Output], kind: str) -> str:
    """The HTML or Markdown under a check."""
    return "\n".join(one["data"].get(f"text/{kind}", "") for one in outputs if "data" in one)


def words(html: str) -> str:
    """The text of HTML, its cells apart."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).strip()


def test_each_new_answer_that_fails_opens_one_hint_more(saved: Path) -> None:
    tries = [STUB, WRONG, WRONG, WORSE, WRONG, RIGHT.replace("2", "3"), RIGHT.replace("2", "5")]
    shown = run(*(one for answer in tries for one in (answer, CHECK)), saved=saved)[1::2]
    assert [len(outputs) for outputs in shown] == [1, 2, 2, 2, 2, 2, 2], "not attempted is no failure"
    told = [plain(outputs)[-1] for outputs in shown[1:]]
    assert [text.split()[1] for text in told] == ["1", "1", "2", "2", "3", "3"]
    assert told[0] == "Hint 1 is in the task above."
    first, second = rich(shown[1], "markdown"), rich(shown[3], "markdown")
    assert first == "<details><summary>Hint 1 · a question</summary>\n\nWhat is `2 * x`?\n\n</details>"
    assert second == (
        "<details><summary>Hint 2 · a nudge</summary>\n\nNot **plus**.\n\n"
        "**Hint 1 · a question**\n\nWhat is `2 * x`?\n\n</details>"
    )


def test_an_answer_is_also_what_it_calls(saved: Path) -> None:
    """Another helper is another answer; another cell beside it is not."""
    calls = "def double(x):\n    return helper(x)"
    helper = "def helper(x):\n    return x + {}"
    cells = [calls, helper.format(3), CHECK, "beside = 1", CHECK, helper.format(4), CHECK]
    shown = run(*cells, saved=saved)
    assert [plain(outputs)[-1].split()[1] for outputs in shown if outputs] == ["1", "1", "2"]


def test_an_answer_in_two_cells_is_one_answer_to_checks_of_either(saved: Path) -> None:
    other = OTHER.replace("double, 3) == 6", "triple, 3) == 9").replace("Not twice", "Not thrice")
    saved.write_text(saved.read_text().replace(json.dumps(OTHER), json.dumps(other)))
    triple = "def triple(x):\n    return 3 * x"
    wrong = triple.replace("3", "4")
    *_, one, two, _, passed, failed, _, all_pass = run(
        WRONG, wrong, CHECK, other, RIGHT, CHECK, other, triple, other, saved=saved
    )
    assert [plain(outputs)[-1].split()[1] for outputs in (one, two, failed)] == ["1", "1", "2"]
    assert plain(passed) == ["✓ Twice <each> number."]
    assert plain(all_pass) == ["✓ Twice a scalar."], "the first has not passed with this answer"
    assert len(run(RIGHT, triple, CHECK, other, saved=saved)[-1]) == 2


def test_the_why_opens_when_all_checks_that_are_here_pass(saved: Path) -> None:
    half = "def double(x):\n    return 2 * x if np.ndim(x) else 5"
    cells = [RIGHT, CHECK, OTHER, half, CHECK, OTHER, RIGHT, CHECK, OTHER, CHECK]
    _, one, both, _, _, missed, _, again, all_of_them, still = run(*cells, saved=saved)
    assert plain(one) == plain(again) == ["✓ Twice <each> number."], "the other check has not passed with this answer"
    assert plain(both) == plain(all_of_them) == ["✓ Twice a scalar.", "The explanation is below the checks."]
    title = "Why it works, once the hidden checks pass too"
    assert rich(both, "markdown").strip() == f"<details><summary>{title}</summary>\n\n{WHY}\n\n</details>"
    assert plain(missed)[0].startswith("✗ Twice a scalar.")
    assert plain(still) == ["✓ Twice <each> number.", "The explanation is below the checks."]


def test_without_hidden_checks_the_why_is_without_an_if(saved: Path) -> None:
    cells = json.loads(saved.read_text())
    cells["cells"] = [one for one in cells["cells"] if one["source"] != HIDDEN]
    saved.write_text(json.dumps(cells))
    assert (
        rich(run(RIGHT, CHECK, OTHER, saved=saved)[2], "markdown")
        .strip()
        .startswith("<details><summary>Why it works</")
    )


def test_vs_code_tells_the_notebook_in_its_own_way(saved: Path) -> None:
    assert plain(run(WRONG, CHECK, saved=saved, vscode=True)[1])[-1] == "Hint 1 is in the task above."


def test_without_a_notebook_there_is_no_fold_and_no_noise(saved: Path) -> None:
    """None told; one that is not there; one whose text is cut off; one that is something else."""
    texts = [saved.read_text()[:900], "[]", '{"cells": [7, {"source": 1, "metadata": []}]}', "[" * 100_000]
    saved.unlink()
    tries = [WRONG, CHECK, RIGHT, CHECK]
    written = [f"import pathlib\n_ = pathlib.Path({str(saved)!r}).write_text({text!r})" for text in texts]
    shown = run(*tries, *(one for each in written for one in (each, *tries)), saved=saved) + run(*tries)
    said = [plain(outputs) for outputs in shown if outputs]
    assert said[1::2] == [["✓ Twice <each> number."]] * 6
    assert [len(outputs) for outputs in said[::2]] == [1] * 6


def test_a_notebook_that_was_renamed_is_found_where_it_is_alone(saved: Path) -> None:
    told = saved.rename(saved.with_name("mine.ipynb")).with_name("tiny.ipynb")
    assert plain(run(WRONG, CHECK, saved=told)[1])[-1] == "Hint 1 is in the task above."


def test_a_notebook_that_goes_away_is_remembered(saved: Path) -> None:
    """Deleted, or half-written by an editor that is just saving: what was read before stands."""
    cut = f"import pathlib\n_ = pathlib.Path({str(saved)!r}).write_text('{{\"cells\": [')"
    gone = f"pathlib.Path({str(saved)!r}).unlink()"
    shown = run(WRONG, CHECK, cut, WORSE, CHECK, gone, RIGHT.replace("2", "3"), CHECK, saved=saved)
    assert [plain(shown[i])[-1].split()[1] for i in (1, 4, 7)] == ["1", "2", "3"]


def test_a_long_message_is_cut_and_whole_in_a_fold() -> None:
    long = "def double(x):\n    raise ValueError('<b>no</b> ' + 'x' * 300 + '\\n' + 'more \\x1b[31m' * 900)"
    error, fold = run(long, CHECK)[1]
    lines = plain([error])[0].splitlines()
    assert len(lines) == 4
    assert lines[0] == "✗ Twice <each> number."
    assert lines[1].startswith("  `double` raised ValueError: <b>no</b> xxx")
    assert re.fullmatch(r"  … \d+ more lines below\.", lines[2])
    assert lines[3].startswith("  In line 2 of your cell: raise ValueError(")
    assert max(map(len, lines)) <= 78
    html = fold["data"]["text/html"]
    assert html.startswith("<details><summary>Full message</summary><pre")
    assert "&lt;b&gt;no&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "\x1b" not in html + json.dumps(error["traceback"][1:], ensure_ascii=False)
    assert len(html) < 8_000
    assert fold["data"]["text/plain"] == "Full message: import sys; print(sys.last_value)"


def test_a_long_title_is_shortened_before_a_message_is() -> None:
    title = "A title that goes on and on, " + "and on, " * 8 + "and ends."
    text = "One sentence that says what is wrong, and another one that says where, so that two lines are full of it."
    head, below, left_out = CheckFailed(text, kind="property").glance(title)
    assert [len(head), len(below), left_out] == [2, 2, 0]
    head, below, left_out = CheckFailed(f"{text}\nMore.", kind="property").glance(title)
    assert [len(head), len(below), left_out] == [1, 3, 0]
    assert head[0].endswith(" …")
    head, below, left_out = CheckFailed(f"{text}\nMore.\nAnd more.", kind="property").glance(title)
    assert [len(head), len(below), left_out] == [1, 3, 2]
    assert below[-1] == "  … 2 more lines below."


DECIDES = """
def double(x):
    if x.sum() > 0:
        return 2 * x
    return x + x
"""
ADDS = "def double(x):\n    return jax.vmap(lambda a, b: a + b)(x, x[1:])"
STORES = "def double(x):\n    x = jnp.asarray(x)\n    x[0] = 2 * x[0]\n    return x"
COMPILED = CHECK.replace(
    "ask(double, np.float32([1, 2]))", "program(double, np.float32([1, 2])).run(np.float32([1, 2]))"
)


def test_an_error_of_jax_is_said_in_our_words_first_and_in_its_own_in_a_fold() -> None:
    decides, adds, stores = run(DECIDES, COMPILED, ADDS, COMPILED, STORES, COMPILED)[1::2]
    said = plain(decides)
    assert said[0].splitlines() == [
        "✗ Twice <each> number.",
        "  `if`, `while` or `and` needs a value that is only known at run time. Use",
        "  `jnp.where`, `lax.cond`, `while_loop` or, where possible, a static argument.",
        "  In line 2 of your cell: if x.sum() > 0:",
    ]
    assert said[1:] == ["Full error message: import sys; print(sys.last_value.details)"]
    html = decides[1]["data"]["text/html"]
    assert html.startswith("<details><summary>Full error message</summary><pre")
    assert ">TracerBoolConversionError: Attempted boolean conversion of traced array with shape bool[].\n" in html
    assert "https://docs.jax.dev/en/latest/errors.html" in html, "all of it"
    *_, place, rest = plain(adds)[0].splitlines()
    assert place == "  In line 2 of your cell: return jax.vmap(lambda a, b: a + b)(x, x[1:])"
    assert rest.startswith("  ValueError: … * one axis had size 2: axis 0 of argument a of type"), "what we do not say"
    assert "axis 0 of argument b of type float32[1]" in adds[1]["data"]["text/html"]
    assert plain(stores)[0].splitlines()[1:] == [
        "  JAX arrays are immutable. `x = x.at[i].set(y)` creates a changed copy.",
        "  In line 3 of your cell: x[0] = 2 * x[0]",
        "  TypeError: … Instead of x[idx] = y, use x = x.at[idx].set(y) or another …",
    ]
    assert all(len(plain(outputs)[0].splitlines()) < 5 for outputs in (decides, adds, stores))


SENDS = """
def double(x):
    mesh = devices.mesh((4,), ("d",))
    return jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
"""
PROGRAM = '''
"""Nothing travels."""
x = jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(devices.mesh((4,), ("d",)), P("d")))
made = program(double, x)
{}
'''


def test_what_was_found_in_a_program_stands_beside_what_was_wanted() -> None:
    asked = [
        'require(made.count("all-reduce") == 0, "Something travels.")',
        'sent = made.elements("all-reduce")\nrequire(made.loops == 0 and sent < 1 + 1, "Too much travels.")',
        'require(9 >= made.argument_bytes + made.output_bytes, "Too many bytes.")',
        'require(made.loops == 1, "No loop.")',
        'require(made.loops == 0, "A loop.")\ncompare(1, 2)',
    ]
    shown = run(SENDS, *(PROGRAM.format(one) for one in asked))[1:]
    tables = [words(rich(outputs, "html")) for outputs in shown]
    assert len(shown.pop()) == 1, "what holds, and has been judged, says nothing of what fails"
    assert tables[0].startswith(
        "in the program found expected ✗ all-reduce operations 1 0 all-reduce 1 (2 elements) loops 0"
    )
    assert tables[1].startswith("in the program found expected ✗ elements of all-reduce 2 less than 2 all-reduce 1 (2")
    assert "✗ made.argument_bytes + made.output_bytes 16 at most 9" in tables[2]
    assert tables[3].startswith(
        "in the program found expected ✗ loops 0 1 all-reduce 1 (2 elements) argument bytes per device 8"
    )
    assert plain(shown[0])[1].splitlines() == [
        "  all-reduce operations: found 1; expected 0.",
        "  In the program: all-reduce: 1 (2 elements); loops: 0; argument bytes per",
        "  device: 8; output bytes per device: 8; temporary bytes per device: 0.",
    ]


def test_two_programs_are_told_apart() -> None:
    grows = "def double(xs):\n    return sum(x * 2 for x in xs)"
    check = '''
"""Its size does not grow."""
few, many = (program(double, np.zeros(n, np.float32)) for n in (2, 5))
require(many.operations == few.operations, "It grows.")
'''
    table = words(rich(run(grows, check)[1], "html"))
    assert re.search(r"✗ operations of many \d+ (\d+), as in few ", table), table


def test_nothing_that_could_run_code_is_evaluated_again() -> None:
    check = '"""Once."""\nrequire(noted(ask(double, 1)) == noted(3), "Not 3.")'
    odd = "class Odd(int):\n    def __eq__(self, other):\n        called.append('eq')\n        return False"
    other = '"""An object."""\nx, y = Odd(1), Odd(2)\nask(double, 1)\nrequire(x == y, "Not the same.")'
    shown = run(WORSE, check, "called", odd, "called.clear()", other, "called")
    assert plain(shown[1]) == ["✗ Once.\n  Not 3."]
    assert plain(shown[2]) == ["[5, 3]"]
    assert plain(shown[5]) == ["✗ An object.\n  Not the same."]
    assert plain(shown[6]) == ["['eq']"]


class Spy:
    """An object that records whatever is called on it."""

    called: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        self.called.append(name)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        self.called.append("shape")
        return (1,)

    def __call__(self, *args: Any) -> Any:
        self.called.append("call")
        return self

    __getitem__ = __add__ = __radd__ = __neg__ = __eq__ = __lt__ = __contains__ = __call__  # type: ignore[assignment]
    __len__ = __hash__ = __bool__ = __index__ = lambda self: self.called.append("number") or 1  # type: ignore


class SpyArray(np.ndarray):
    size = shape = ndim = Spy.shape  # type: ignore[assignment]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "spy.size",
            "spy.shape",
            "spy.other.one",
            "spy()",
            "spy[0]",
            "spy + 1",
            "1 + spy",
            "-spy",
            "spy == 1",
            "1 == spy",
        ),
        *("spy < 1", "1 in spy", "spy in [2]", "len(spy)", "[spy] == [spy]", "{spy: 1}", "{1: 2}[spy]", "[3][spy]"),
        *(
            "sorted([spy, spy])",
            "max([spy], [spy])",
            "sum([spy])",
            "array.shape",
            "array.size",
            "spy and spy",
            "not spy",
        ),
    ],
)
def test_an_evaluator_calls_nothing_of_a_value(text: str) -> None:
    Spy.called.clear()
    names = {"spy": Spy(), "array": np.zeros(2).view(SpyArray), "len": len, "sorted": sorted, "max": max, "sum": sum}
    assert CheckEvaluator(names).get(ast.parse(text, mode="eval").body) is UNKNOWN
    assert Spy.called == []


def test_an_evaluator_reads_arrays_and_plain_data() -> None:
    names = {"x": np.zeros((2, 3)), "s": jax.ShapeDtypeStruct((4,), "float32"), "P": P, "len": len, "d": {"a": [1, 2]}}
    texts = {"x.shape": (2, 3), "x.nbytes // 2 + s.size": 28, "len(d['a']) == 2": True, "P('a', None)": P("a", None)}
    for text, value in texts.items():
        assert CheckEvaluator(names).get(ast.parse(text, mode="eval").body) == value


def test_two_sides_are_shown_where_the_message_does_not_say_them() -> None:
    check = '"""A list."""\ngot = ask(lambda: [double(1)] * 4)\nrequire(got == [2] * 4, {!r})'
    silent, told = run(WORSE, check.format("Others."), check.format("Each is 5; expected 2."))[1:]
    assert words(rich(silent, "html")) == "found expected ✗ got [5] * 4 [2] * 4"
    assert plain(silent)[1] == "  `got`: found [5] * 4; expected [2] * 4."
    assert len(told) == 1


def test_shapes_are_drawn_with_the_difference_in_words() -> None:
    check = '"""A table."""\nmade = program(double, np.zeros((2, 3), np.float32)).run(np.zeros((2, 3), np.float32))\n{}'
    by_compare = check.format('compare(made, np.zeros((2, 3), np.float32), label="the <table>")')
    by_require = check.format('require(made.shape == (2, 3), "Not that shape.")')
    sums = "def double(x):\n    return x.sum(1)"
    for error, picture in run(sums, by_compare, by_require)[1:]:
        assert plain([error])[0].startswith("✗ A table.\n")
        html = picture["data"]["text/html"]
        assert html.count("&nbsp;") == 2 + 2 * 3
        assert words(html.replace("&nbsp;", "")).endswith("got (2,) expected (2, 3) Axis 1, of size 3, is missing.")
        assert picture["data"]["text/plain"].endswith("  Axis 1, of size 3, is missing.")


@pytest.mark.parametrize(
    ("got", "wanted", "said"),
    [
        ((3, 2), (2, 3), "The same sizes in a different order."),
        ((2, 4, 5), (2, 3, 5), "Axis 1 has 4, expected 3."),
        ((1, 2), (3, 4), "Axis 0 has 1, expected 3; axis 1 has 2, expected 4."),
        ((2, 1), (2,), "Axis 1, of size 1, is one too many."),
        ((4,), (4, 4), "An axis of size 4 is missing."),
        ((2, 3), (6, 1, 1, 1), "The same number of entries in different axes."),
        ((2, 3), (7, 1, 1, 1), ""),
        ((), (2,), "Axis 0, of size 2, is missing."),
    ],
)
def test_the_difference_of_two_shapes(got: tuple[int, ...], wanted: tuple[int, ...], said: str) -> None:
    assert drawings.difference(got, wanted) == said
    assert f"<code>{wanted}</code>" in drawings.shapes(got, wanted)[0]


PLACED = '''
"""Rows are cut."""
mesh = devices.mesh((2, 2), ("a", "b"))
x = np.zeros((4, 6), np.float32)
placed = ask(double, mesh, x)
found = [shard.data.nbytes for shard in placed.addressable_shards]
require(found == [48] * 4, "Each device holds something else.")
'''
DICTS = '''
"""Each device holds its rows."""
parts = lambda spec: {
    device.id: tuple(one.indices(size)[:2] for one, size in zip(index, (4, 6), strict=True))
    for device, index in NamedSharding(mesh, spec).devices_indices_map((4, 6)).items()
}
mesh = devices.mesh((2, 2), ("a", "b"))
found, wanted = parts(ask(lambda: double(mesh, None).sharding.spec)), parts(P("a"))
for device in mesh.devices.flat:
    got, want = found.get(device.id), wanted[device.id]
    require(got == want, "It holds something else.")
'''


def test_layouts_are_drawn_beside_each_other() -> None:
    answer = """
def double(mesh, x):
    return jax.device_put(np.zeros((4, 6), np.float32), NamedSharding(mesh, P("b", "a")))
"""
    placed, dicts = run(answer, PLACED, DICTS)[1:]
    grid = "axis 0 in 2 and axis 1 in 2 0:3 3:6 0:2 0 2 2:4 1 3"
    said = "Each cell lists the devices that store this shard."
    assert words(rich(placed, "html")).endswith(f"got: {grid} {said}")
    assert words(rich(dicts, "html")).endswith(f"got: {grid} expected: axis 0 in 2 0:2 0 1 2:4 2 3 {said}")
    assert plain(dicts)[1].splitlines()[-2:] == [
        "  got: axis 0 in 2 and axis 1 in 2; devices 0 | 2 / 1 | 3",
        "  expected: axis 0 in 2; devices 0 1 / 2 3",
    ]


def test_a_check_that_stumbles_over_a_result_says_so_in_words(saved: Path) -> None:
    """As in grading; a fault of the check's own, before it has asked anything, stays a traceback."""
    unpacks = '"""Two."""\nwith case("when x is 1"):\n    one, two = ask(double, 1)'
    asserts = '"""Twice."""\nassert ask(double, 1) == 2'
    broken = '"""Broken."""\nnothing = 1 / 0\nask(double, 1)'
    in_words, empty, own = run(WRONG, unpacks, asserts, broken)[1:]
    said = "`double` returned an int, which this check cannot judge"
    said = f"When x is 1: {said} (TypeError: cannot unpack non-iterable int object)."
    assert in_words[0]["evalue"] == said
    assert plain(in_words)[0].splitlines()[0] == "✗ Two."
    assert plain(empty) == ["✗ Twice.\n  Your answer does not meet this condition."]
    assert own[0]["ename"] == "ZeroDivisionError"
    assert "nothing = 1 / 0" in plain(own)[0]


def test_a_hidden_check_shows_what_it_always_did(saved: Path) -> None:
    """Only who wrote the course runs one in a kernel, and stock nbgrader, whose feedback shows what stands there."""
    long = "\n".join(f"Line {i}." for i in range(9))
    hidden = f'### BEGIN HIDDEN TESTS\n"""Hidden."""\nrequire(ask(double, 1) == 2, {long!r})\n### END HIDDEN TESTS'
    [outputs] = run(WRONG, hidden, saved=saved)[1:]
    assert plain(outputs) == ["✗ Hidden.\n" + "\n".join(f"  {line}" for line in long.splitlines())]
