"""A class of small submissions, each with one behaviour, through the real `grader grade`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fill
import pytest

from grader.core.faults import Fault, UnconfinedError
from grader.course import Course
from grader.grading import batch
from grader.grading.pool import Pool
from grader.sandbox.process import AT_MOST, ConfinementReport

LESSON = "01_small"
Notebook = dict[str, Any]

DOUBLE = "def double(x):\n    return 2 * x\n"


def code(source: str, **metadata: Any) -> dict[str, Any]:
    """A code cell of the learner's own."""
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": [], "execution_count": None}


def place(notebook: Notebook, grade_id: str) -> int:
    return next(
        i for i, c in enumerate(notebook["cells"]) if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id
    )


def before(grade_id: str, *cells: dict[str, Any]) -> Callable[[Notebook], None]:
    def edit(notebook: Notebook) -> None:
        at = place(notebook, grade_id)
        notebook["cells"][at:at] = cells

    return edit


def without(*grade_ids: str) -> Callable[[Notebook], None]:
    def edit(notebook: Notebook) -> None:
        for grade_id in grade_ids:
            del notebook["cells"][place(notebook, grade_id)]

    return edit


def again(grade_id: str, source: str) -> Callable[[Notebook], None]:
    """A second cell with the same id, as JupyterLab makes one when a cell is split or copied."""

    def edit(notebook: Notebook) -> None:
        at = place(notebook, grade_id)
        copy = json.loads(json.dumps(notebook["cells"][at]))
        notebook["cells"].insert(at + 1, {**copy, "source": source})

    return edit


def edited(grade_id: str, source: str) -> Callable[[Notebook], None]:
    def edit(notebook: Notebook) -> None:
        notebook["cells"][place(notebook, grade_id)]["source"] = source

    return edit


NOISY = """\
import sys, warnings
warnings.warn("careful")
print("hello", file=sys.stderr)
def double(x):
    jax.debug.print("x is {}", x)
    print("traced")
    return 2 * x
%timeit double(jnp.ones(2))
"""
# name -> (answers besides the references, edit of the notebook)
CASES: dict[str, tuple[dict[str, str], Callable[[Notebook], None] | None]] = {
    "all-right": ({}, None),
    "noise": ({"small-double": NOISY}, None),
    "helper-cells": (
        {"small-double": "def double(x):\n    return twice(x)\n"},
        before(
            "small-double",
            code("import functools\ndef twice(x):\n    return 2 * x\n"),
            code("%matplotlib inline\n!true"),
        ),
    ),
    "helper-after-answer": (
        {"small-double": "def double(x):\n    return twice(x)\n"},
        before("small-double-example", code("def twice(x):\n    return 2 * x\n")),
    ),
    "helper-that-fails": (
        {"small-double": "def double(x):\n    return twice(x)\n"},
        before("small-double", code("missing()\ndef twice(x):\n    return 2 * x\n")),
    ),
    "extra-cell-that-fails": ({}, before("small-mean", code("1 / 0"))),
    "split-answer": ({"small-double": "def double(x):\n"}, again("small-double", "    return 2 * x\n")),
    "answer-twice-one-untouched": ({"small-double": DOUBLE}, again("small-double", "{stub}")),
    "answer-twice": ({"small-double": DOUBLE}, again("small-double", "def double(x):\n    return x + x\n")),
    "answer-missing": ({}, without("small-double")),
    "checks-deleted": ({}, without("small-double-example", "small-double-values")),
    "check-edited": (
        {"small-double": "def double(x):\n    return x\n"},
        edited("small-double-example", "print('fine')"),
    ),
    "syntax-error": ({"small-double": "def double(x:\n    return 2 * x\n"}, None),
    "raises-at-its-end": ({"small-double": DOUBLE + "double('a' + 1)\n"}, None),
    "raises-when-called": ({"small-double": "def double(x):\n    return 2 * x[7, 7]\n"}, None),
    "other-name": ({"small-double": "def dubble(x):\n    return 2 * x\n"}, None),
    "name-not-defined": ({"small-double": "def double(x):\n    return factor * x\n"}, None),
    "wrong-type": ({"small-double": "def double(x):\n    return {'result': 2 * x}\n"}, None),
    "not-data": ({"small-double": "def double(x):\n    return lambda: 2 * x\n"}, None),
    "nan": ({"small-double": "def double(x):\n    return 2 * x * jnp.nan\n"}, None),
    "wrong-shape": ({"small-double": "def double(x):\n    return (2 * x)[None]\n"}, None),
    "wrong-dtype": ({"small-double": "def double(x):\n    return (2 * x).astype(jnp.float16)\n"}, None),
    "misconception": ({"small-double": "def double(x):\n    two = 2\n    return x + two\n"}, None),
    "exits": ({"small-double": "import os\ndef double(x):\n    os._exit(0)\n"}, None),
    "cell-exits": ({"small-double": "import os\nos._exit(0)\n"}, None),
    "system-exit": ({"small-double": "def double(x):\n    raise SystemExit(0)\n"}, None),
    "endless": ({"small-double": "def double(x):\n    while True:\n        pass\n"}, None),
    "endless-in-xla": (
        {"small-double": "def double(x):\n    return jax.lax.while_loop(lambda y: y[0] < 9, lambda y: x, x)\n"},
        None,
    ),
    "rebinds-setup": ({"small-mean": "SCALE = 3.0\ndef loss(x):\n    return (x**2).mean()\n"}, None),
    "leaves-x64-on": (
        {"small-mean": 'jax.config.update("jax_enable_x64", True)\ndef loss(x):\n    return (x**2).mean()\n'},
        None,
    ),
    "leaves-a-mesh": (
        {"small-mean": 'jax.set_mesh(jax.make_mesh((8,), ("d",)))\ndef loss(x):\n    return (x**2).mean()\n'},
        None,
    ),
    "stub-body": ({"small-double": 'def double(x):\n    """Mine."""\n    raise NotImplementedError()\n'}, None),
}
FILES: dict[str, bytes] = {
    "not-json": b"# my notebook\n",
    "not-a-notebook": b'{"a": 1}',
    "empty-file": b"",
    "deep-json": b"[" * 200_000,
    "binary": bytes(range(256)),
}


@pytest.fixture(scope="module")
def results(built, grader, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """Grade all cases in one class; each learner's result."""
    root = built("small")
    folder = tmp_path_factory.mktemp("class")
    lesson = Course(root).lesson(LESSON)
    references = {exercise.id: exercise.reference for exercise in lesson.exercises}
    released = root / "exercises" / LESSON / f"{LESSON}.ipynb"
    for name, (answers, edit) in CASES.items():
        notebook = fill.fill(released, {**references, **answers})
        if edit:
            edit(notebook)
        text = json.dumps(notebook).replace('"{stub}"', json.dumps(lesson.exercises[0].stub))
        fill.write(json.loads(text), folder / name / LESSON / f"{LESSON}.ipynb")
    fill.write(fill.fill(released, {}), folder / "untouched" / LESSON / f"{LESSON}.ipynb")
    for name, content in FILES.items():
        path = folder / name / LESSON / f"{LESSON}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    huge = folder / "huge" / LESSON / f"{LESSON}.ipynb"
    huge.parent.mkdir(parents=True)
    with huge.open("wb") as stream:
        stream.truncate(200 << 20)
    done = grader("--course", root, "grade", folder, "--json", folder / "results.json")
    assert done.returncode == 1, done.stderr  # some files cannot be graded, and are named
    for name in (*FILES, "huge"):
        assert f"{name}/{LESSON}" in done.stderr
    document = json.loads((folder / "results.json").read_text())
    assert document["version"] == 1
    return {result["learner"]: result for result in document["results"]}


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """What a golden keeps of a result: everything but times, titles and points that follow from the status."""
    checks = {
        c["id"]: [c["status"], c["message"], *([c["misconception"]] if c["misconception"] else [])]
        for c in result["checks"]
    }
    kept = {"score": result["score"], "problem": result["problem"], "notes": result["notes"]}
    return kept | {"checks": {name: seen for name, seen in checks.items() if seen != ["passed", ""]}}


def test_every_case_ends_as_expected(results, golden) -> None:
    golden("courses/small/expected.json", {name: brief(result) for name, result in sorted(results.items())})


FULL = [
    "all-right",
    "noise",
    "helper-cells",
    "helper-after-answer",
    "extra-cell-that-fails",
    "split-answer",
    "checks-deleted",
]
FULL += [
    "answer-twice-one-untouched",
    "answer-twice",
    "raises-at-its-end",
    "rebinds-setup",
    "leaves-x64-on",
    "leaves-a-mesh",
]


@pytest.mark.parametrize("name", FULL)
def test_honest_oddities_keep_every_point(results, name: str) -> None:
    assert results[name]["score"] == results[name]["max_score"] == 9.0


@pytest.mark.parametrize("name", sorted(set(CASES) - set(FULL)))
def test_a_fault_costs_its_own_exercise_only(results, name: str) -> None:
    lost = {check["exercise"] for check in results[name]["checks"] if check["points"] < check["max_points"]}
    assert lost == {"small-double"}


def test_a_hidden_check_tells_no_value(results) -> None:
    for result in results.values():
        for check in result["checks"]:
            if check["hidden"] and check["status"] == "failed":
                assert (
                    "expected" not in check["message"]
                    or "shape" in check["message"]
                    or "dict" in check["message"]
                    or "dtype" in check["message"]
                )
                assert "double(x)" not in check["message"]


def test_unusable_arguments_end_with_two(grader, built, tmp_path: Path) -> None:
    for words in (
        ["grade", tmp_path / "none"],
        ["grade", tmp_path],
        ["grade", tmp_path, "--lesson", "99_none"],
        ["grade"],
    ):
        done = grader("--course", built("small"), *words)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


def test_results_that_cannot_be_written_are_told_before_grading(grader, built, tmp_path: Path) -> None:
    done = grader("--course", built("small"), "grade", tmp_path, "--json", tmp_path)
    assert done.returncode == 2
    assert "Choose a file" in done.stderr


def test_limits_alone_are_refused_by_the_function_that_opens_a_batch(
    built: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever calls it; and nothing is graded first."""
    monkeypatch.setenv(AT_MOST, "limits")
    course, seen = Course(built("small")), []
    released = course.root / "exercises" / LESSON / f"{LESSON}.ipynb"
    fill.write(fill.fill(released, {}), tmp_path / "one" / LESSON / f"{LESSON}.ipynb")
    entries = batch.find(tmp_path, course)
    with pytest.raises(UnconfinedError, match="confines learners' code by resource limits alone"):
        batch.grade(course, entries, 1, lambda entry, result: seen.append(result), on_confined=seen.append)
    assert seen == []
    [result] = batch.grade(course, entries, 1, allow_unsandboxed=True)
    assert (result.confinement, result.problem, result.score) == ("limits", None, 0)


@pytest.mark.parametrize("reply", [None, {}, {"learner": "one"}, [], Fault("crashed", "it ended")], ids=repr)
def test_an_examiner_that_does_not_reply_with_a_result_is_the_graders_fault(
    built: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: object
) -> None:
    monkeypatch.setattr(Pool, "__enter__", lambda self: self)
    monkeypatch.setattr(Pool, "__exit__", lambda self, *exception: None)
    monkeypatch.setattr(Pool, "confined", ConfinementReport("full", {}), raising=False)
    monkeypatch.setattr(Pool, "ask", lambda self, place, request, on_news: reply)
    [result] = batch.grade(Course(built("small")), [batch.Entry(tmp_path / "none.ipynb", "one", LESSON)], 1)
    assert (result.fault, result.grader_failed) == ("grader", True)
    assert (result.problem or "").startswith("The grader itself failed: ")


def test_check_grades_my_own_notebook(grader, built, tmp_path: Path) -> None:
    root = built("small")
    released = root / "exercises" / LESSON / f"{LESSON}.ipynb"
    lesson = Course(root).lesson(LESSON)
    notebook = tmp_path / f"{LESSON}.ipynb"
    fill.write(fill.fill(released, {}), notebook)
    done = grader("--course", root, "check", notebook)
    assert done.returncode == 1
    assert "Not attempted" in done.stdout
    fill.write(fill.fill(released, {e.id: e.reference for e in lesson.exercises}), notebook)
    done = grader("--course", root, "check", notebook)
    assert done.returncode == 0, done.stdout
    assert "9 of 9 points" in done.stdout
    assert "saved on" in done.stdout
    assert lesson.exercises[0].why.split(".")[0] not in done.stdout, "it stands in the notebook"
