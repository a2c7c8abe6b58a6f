"""What a learner sees under a notebook's cells, through a real kernel: ticks, short messages, nothing on stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT
from kernels import started
from nbclient.exceptions import CellExecutionError

from grader.checks.execute import execute

pytestmark = pytest.mark.usefixtures("forked_kernels")

SETUP = """
from grader.checks import ask, compare, devices, error, program, require
import jax
import jax.numpy as jnp
import numpy as np

devices.start(2)


def given(x):
    return x + 1
"""
CHOSEN = "2 x simulated CPU devices\n"  # what that setup says
STUB = "def double(x):\n    raise NotImplementedError()"
RIGHT = "def double(x):\n    return 2 * x"
WRONG = "def double(x):\n    return x + 3"
CHECK = '''
"""Twice <each> number."""
x = np.arange(3, dtype=np.float32)
compare(program(double, x).run(x), 2 * x)
'''
TITLE = "Twice <each> number."
Output = dict[str, Any]


def environment() -> dict[str, str]:
    """With this grader; and as outside pytest, where a kernel catches what is written to file descriptors too."""
    return {**{k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}, "PYTHONPATH": str(ROOT)}


def run(*cells: str, allow_errors: bool = True) -> list[list[Output]]:
    """The outputs of each cell, run in order in one kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip("\n")) for cell in cells])
    execute(notebook, allow_errors=allow_errors, env=environment())
    return [cell.outputs for cell in notebook.cells]


def plain(outputs: list[Output]) -> str:
    """All that one cell shows, as plain text."""
    shown = []
    for output in outputs:
        if output["output_type"] == "error":
            shown.append("\n".join(output["traceback"]))
        elif output["output_type"] == "stream":
            shown.append(f"{output['name']}: {output['text']}")
        else:
            shown.append(output["data"]["text/plain"])
    return re.sub(r"\x1b\[\d*m", "", "\n".join(shown)).strip()


def test_from_the_stub_to_the_tick() -> None:
    setup, early, stub, untouched, wrong, failed, broken, raised, right, passed = run(
        SETUP, CHECK, STUB, CHECK, WRONG, CHECK, "def double(x):\n    return jnp.dot(x, y)", CHECK, RIGHT, CHECK
    )
    assert [output["text"] for output in setup] == [CHOSEN]
    assert stub == wrong == broken == right == []
    assert plain(early) == f"✗ {TITLE}\n  `double` is not defined yet.\n  Run your answer's cell, then this one again."
    assert plain(untouched) == (
        f"○ {TITLE}\n  Not attempted yet: `double` still raises NotImplementedError.\n"
        "  Write your answer, run its cell, then run this one again."
    )
    assert plain(failed) == f"✗ {TITLE}\n  3 of 3 values differ. The first, at [0] of the result, is 3; expected 0."
    assert plain(raised) == (
        f"✗ {TITLE}\n  `double` raised NameError: name 'y' is not defined\n"
        "  In line 2 of your cell: return jnp.dot(x, y)"
    )
    [tick] = passed
    assert tick["output_type"] == "display_data"
    assert tick["data"]["text/plain"] == f"✓ {TITLE}"
    assert re.fullmatch(r'<div style="color: .*">✓ Twice &lt;each&gt; number.</div>', tick["data"]["text/html"])


def test_a_failed_check_is_an_error_without_a_traceback() -> None:
    with pytest.raises(CellExecutionError) as caught:
        run(SETUP, WRONG, CHECK, allow_errors=False)
    assert caught.value.ename == "CheckFailed"
    assert caught.value.evalue == "3 of 3 values differ. The first, at [0] of the result, is 3; expected 0."
    _, shown = caught.value.traceback.split("------------------\n\n")
    assert shown.strip("\n") == f"\x1b[1m✗ {TITLE}\x1b[0m\n  {caught.value.evalue}"


def test_long_messages_break_between_words_and_quoted_code_keeps_its_indent() -> None:
    long = "The program runs a loop over the rows, one after the other, which is as slow as it looks."
    said = f"{long}\n    return jnp.stack([x for x in xs])"
    check = f'"""No loop."""\nrequire(ask(double, 1) == 2, {said!r})'
    shown = plain(run(SETUP, WRONG, check)[2])
    assert shown.splitlines() == [
        "✗ No loop.",
        "  The program runs a loop over the rows, one after the other, which is as slow",
        "  as it looks.",
        "      return jnp.stack([x for x in xs])",
    ]


def test_a_class_whose_stub_raises_and_a_cell_that_fails() -> None:
    check = '"""It counts."""\nask(lambda: Counter().next())'
    stub, one, failing, other = run(
        SETUP, "class Counter:\n    raise NotImplementedError()", check, "class Counter:\n    step = 1 / 0", check
    )[1:]
    assert plain(one) == (
        "○ It counts.\n  Not attempted yet: `Counter` still raises NotImplementedError.\n"
        "  Write your answer, run its cell, then run this one again."
    )
    assert "ZeroDivisionError" in plain(failing)
    assert (
        plain(other)
        == "✗ It counts.\n  `Counter` is not defined because its cell ended with ZeroDivisionError.\n  Fix that cell."
    )
    assert stub[0]["ename"] == "NotImplementedError"


def test_a_setup_name_that_was_rebound_is_put_back_with_a_word() -> None:
    check = '"""One more than twice."""\nrequire(ask(lambda x: given(double(x)), 4) == 9, "no")'
    first, second = run(SETUP, RIGHT, "given = np = None", check, check)[3:]
    assert plain(first) == (
        "stdout: Note: `given`, `np` changed after the setup. The checks and your answers use the setup's values."
        "\n\n✓ One more than twice."
    )
    assert plain(second) == "✓ One more than twice."


def test_a_check_has_pythons_builtins_where_a_cell_has_rebound_them() -> None:
    title = '"""Python\'s own."""\n'
    check = title + 'require(sum(map(int, ("1", "2"))) == 3 and ask(lambda x: str(double(x)), 2) == "4", "no")'
    mine = title + 'require(ask(max, 3) == 4 and ask(lambda x: max(x), 3) == 4, "no")'
    shadow = "from numpy import sum\nstr, int = 'abc', 3\nmap = None\ndef max(x):\n    return x + 1"
    ran = run(SETUP, RIGHT, shadow, check, mine, "assert [str, int, map, sum([1])] == ['abc', 3, None, 1]")
    assert [plain(shown) for shown in ran[3:]] == ["✓ Python's own.", "✓ Python's own.", ""]


X64 = 'jax.config.update("jax_enable_x64", True)\n'
MESH = 'jax.set_mesh(devices.mesh((2,), ("data",)))\n'
TRIPLE = "def triple(x):\n    return 3 * x"
DTYPE = '"""Which dtype."""\nrequire(ask(lambda: str(double(jnp.zeros(1) + 0.5).dtype)) == "{}", "the other")'
AXES = '"""Which axes."""\nrequire(ask(lambda: (double(0), jax.sharding.get_mesh().axis_names)[1]) == {}, "others")'


def test_what_another_cell_left_on_does_not_reach_a_check() -> None:
    """x64 and a global mesh."""
    cells = [SETUP, RIGHT, X64 + MESH + TRIPLE, DTYPE.format("float32"), AXES.format("()"), CHECK]
    assert [plain(shown) for shown in run(*cells)[3:]] == ["✓ Which dtype.", "✓ Which axes.", f"✓ {TITLE}"]


def test_a_context_that_another_cell_left_open_does_not_reach_a_check() -> None:
    opened = "import contextlib\nopened = contextlib.ExitStack()\nopened.enter_context(jax.enable_x64(True))"
    seen = "assert [jax.config.jax_enable_x64, jnp.zeros(1).dtype.name] == [{}, '{}']"
    cells = [SETUP, RIGHT, opened, seen.format(True, "float64"), DTYPE.format("float32"), CHECK]
    after = [seen.format(False, "float32"), X64 + seen.format(True, "float64"), "opened.close()"]
    assert [plain(shown) for shown in run(*cells, *after)[3:]] == ["", "✓ Which dtype.", f"✓ {TITLE}", "", "", ""]


def test_what_its_own_cell_set_is_part_of_an_answer() -> None:
    cells = [SETUP, X64 + MESH + RIGHT, TRIPLE, DTYPE.format("float64"), AXES.format("('data',)")]
    assert [plain(shown) for shown in run(*cells)[3:]] == ["✓ Which dtype.", "✓ Which axes."]
    timed = [SETUP, "%%time\n" + X64 + RIGHT, DTYPE.format("float64")]
    assert plain(run(*timed)[2]) == "✓ Which dtype."


def test_what_an_answer_set_outlasts_the_checks_and_cells_of_others() -> None:
    other = DTYPE.replace("double", "triple")
    cells = [SETUP, X64 + RIGHT, TRIPLE, other.format("float32"), "mine = 1", DTYPE.format("float64")]
    assert plain(run(*cells)[-1]) == "✓ Which dtype."


def test_two_answers_may_set_the_same_thing() -> None:
    """Each keeps what it set itself: the second did not change it, and the third turns it off again."""
    off = X64.replace("True", "False")
    cells = [SETUP, X64 + TRIPLE, X64 + RIGHT, DTYPE.format("float64"), off + "def other(x):\n    return x"]
    *_, second, _, first = run(*cells, DTYPE.format("float64"))
    assert plain(second) == plain(first) == "✓ Which dtype."


def test_setup_run_again_starts_afresh() -> None:
    """What answers left on does not become the setup's."""
    cells = [SETUP, X64 + TRIPLE, RIGHT, SETUP, DTYPE.format("float32"), "given = None", CHECK]
    *_, again, dtype, rebound, check = run(*cells)
    assert again == rebound == []
    assert plain(dtype) == "✓ Which dtype."
    assert plain(check).endswith(f"✓ {TITLE}")
    assert "Note: `given`" in plain(check)


def test_magics_and_half_typed_cells_do_not_break_the_hooks() -> None:
    cells = ["%timeit -n1 -r1 1 + 1", "!true", "%%bash\ntrue", "x = !true", "1 +", "given?", "return", "%%nonsense\n1"]
    shown = run(SETUP, RIGHT, *(part for cell in cells for part in (cell, CHECK)))
    assert "Error in callback" not in str(shown)
    assert [plain(outputs) for outputs in shown[3::2]] == [f"✓ {TITLE}"] * len(cells)


def test_nothing_reaches_stderr_under_a_check() -> None:
    """Stock nbgrader gives 0 for any text there, whatever the check says; elsewhere stderr is the learner's own."""
    answer = """
import logging, os, sys, warnings

def double(x):
    warnings.warn("mind the step")
    print("to stderr", file=sys.stderr)
    logging.warning("logged")
    os.write(2, b"to the descriptor\\n")
    os.system("echo from a child >&2")
    return 2 * x
"""
    *_, check, later = run(SETUP, answer, CHECK, "print('mine', file=sys.stderr)\n_ = os.write(2, b'too')")
    assert {output.get("name") for output in check} == {"stdout", None}
    for written in ("mind the step", "to stderr", "logged", "to the descriptor", "from a child", f"✓ {TITLE}"):
        assert written in plain(check)
    assert {(output["name"], output["text"].strip()) for output in later} <= {
        ("stderr", "mine\ntoo"),
        ("stderr", "mine"),
        ("stderr", "too"),
    }
    assert "mine" in plain(later)


def test_an_answer_that_imports_a_verb_is_no_setup_where_cells_have_ids() -> None:
    """JupyterLab tells the kernel each cell's id: what is the setup then does not hang on what a cell imports."""
    with started(environment()) as (_, client):
        answer = "from grader.checks import program\n"
        cells = [("setup", SETUP), ("double", answer + WRONG), ("double", RIGHT), ("double-values", CHECK)]
        assert [_execute(client, cell_id, source) for cell_id, source in cells] == ["ok"] * 4


def test_an_earlier_answer_is_not_judged_where_its_cell_defines_others_now() -> None:
    with started(environment()) as (_, client):
        for cell in (("setup", SETUP), ("double", RIGHT), ("double-values", CHECK)):
            assert _execute(client, *cell) == "ok"
        assert _execute(client, "double", RIGHT.replace("double", "twice")) == "ok"
        assert _execute(client, "double-values", CHECK) == "error"
        assert _execute(client, "double", "def double(x) 2 * x") == "error"
        assert _execute(client, "double", RIGHT.replace("double", "twice")) == "ok"
        assert _execute(client, "double-values", CHECK) == "error"
        assert _execute(client, "another", RIGHT) == "ok"  # answers may move to another cell
        assert _execute(client, "double-values", CHECK) == "ok"


def test_an_earlier_answer_is_not_judged_where_its_cell_is_no_python() -> None:
    typo = "def double(x):\n    return (2 * x"
    early, late, mended = (run(SETUP, typo, CHECK, STUB, typo, CHECK, RIGHT, CHECK)[place] for place in (2, 5, 7))
    assert (
        plain(early)
        == f"✗ {TITLE}\n  `double` is not defined because its cell ended with SyntaxError.\n  Fix that cell."
    )
    assert (
        plain(late)
        == f"✗ {TITLE}\n  `double` is from an earlier run because its cell ended with SyntaxError.\n  Fix that cell."
    )
    assert plain(mended) == f"✓ {TITLE}"


def _execute(client: Any, cell_id: str, source: str) -> str:
    content = {
        "code": source,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,  # or a request that arrives soon after an error is aborted
    }
    message = client.session.msg("execute_request", content, metadata={"cellId": cell_id})
    client.shell_channel.send(message)
    while True:
        reply = client.get_shell_msg(timeout=120)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return str(reply["content"]["status"])


def test_in_a_script_a_failed_check_is_an_ordinary_exception(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(f"{SETUP}\n{WRONG}\n{CHECK}")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 1
    assert done.stdout == CHOSEN
    assert done.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert done.stderr.splitlines()[-1].endswith(
        "CheckFailed: 3 of 3 values differ. The first, at [0] of the result, is 3; expected 0."
    )


def test_the_runner_writes_results_by_the_schema() -> None:
    """`python -m grader.checks --json`: hidden checks are skipped, and a fault of the check's is no failure."""
    import jsonschema

    from grader.checks.__main__ import result_of, show
    from grader.core.result import SCHEMA, document

    def cell(name: str, source: str, ename: str = "", **said: Any) -> Any:
        error = {"output_type": "error", "ename": ename, "evalue": "why \x1b[1m", "traceback": []}
        metadata = {"nbgrader": {"grade_id": name, "grade": True, "solution": False, "points": 0.1, **said}}
        outputs = [error] if ename else []
        made = {
            "id": name,
            "cell_type": "code",
            "source": source,
            "metadata": metadata,
            "outputs": outputs,
            "execution_count": 1,
        }
        return nbformat.from_dict(made)

    ends = ("", "CheckFailed", "NotAttempted", "Skipped", "CheckBroken", "KeyError")
    checks = [cell(f"double-{end or 'passes'}", CHECK, end) for end in ends]
    edited, hidden = cell("double-edited", CHECK, checksum="other"), cell("double-more", "# Hidden check.")
    answer = cell("double", RIGHT, grade=False, solution=True)
    notebook = nbformat.v4.new_notebook(cells=[answer, *checks, edited, hidden])
    result = result_of(notebook, "", "05_vmap", 1.0)
    jsonschema.validate(json.loads(document([result])), json.loads(SCHEMA.read_text()))
    statuses = ["passed", "failed", "not attempted", "skipped", "error", "failed", "failed", "skipped"]
    assert [check.status for check in result.checks] == statuses
    assert {check.exercise for check in result.checks} == {"double"}
    assert (result.score, result.max_score, result.platform, result.checks[-1].hidden) == (0.1, 0.8, "cpu", True)
    assert result.checks[5].message == r"KeyError: why \x1b[1m"
    assert not show(result)
    assert show(result_of(nbformat.v4.new_notebook(cells=[answer, checks[0], checks[3], hidden]), "", "x", 1.0))
