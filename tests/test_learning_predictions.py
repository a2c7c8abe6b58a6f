"""Predictions in a running notebook: buttons or a letter, kept on disk, and the reason beside the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from grader.checks.execute import execute
from grader.learning.course_map import change_state, read_state, state_path

pytestmark = pytest.mark.usefixtures("forked_kernels")

LESSON = "01_first"
WRONG = "✗ You predicted A, an error. Tempting: `max([])` does raise."
RIGHT = "It is B, `0`. Right: the sum of nothing is 0 < 1, which is where adding begins."


@pytest.fixture
def lesson(built: Callable[[str], Path], tmp_path: Path) -> Path:
    """A built lesson in a folder of its own, as `make lab` lays it out."""
    copy = tmp_path / f"{LESSON}.ipynb"
    copy.write_bytes((built("course_tiny") / "notebooks" / copy.name).read_bytes())
    return copy


def run(path: Path, choice: str | None = None) -> dict[str, list[Any]]:
    """Run a lesson from top to bottom, choosing a letter where it asks; the outputs of each cell."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if choice is not None and cell.id == "choose-first-sum":
            cell.source = cell.source.replace('")', f'", "{choice}")')
    execute(notebook, path.parent)
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def after(outputs: dict[str, list[Any]]) -> str:
    """What stands under the result of the cell that follows the question, of ours."""
    names = list(outputs)
    result = outputs[names[names.index("choose-first-sum") + 1]]
    return "\n".join(out.data["text/plain"] for out in result if "text/markdown" in out.get("data", {}))


def test_what_is_chosen_stands_beside_the_result_and_is_kept(lesson: Path) -> None:
    assert after(run(lesson)) == "", "nothing was predicted, so nothing is said"
    assert after(run(lesson, "a")) == f"{WRONG}\n\n{RIGHT}"
    assert read_state("predictions") == {}, "not in this process' folder"
    [own] = lesson.parent.glob(".jaxercise.json")
    assert json.loads(own.read_text())["predictions"]["first-sum"] == {"choice": "A", "text": "an error"}
    assert after(run(lesson)) == f"{WRONG}\n\n{RIGHT}", "remembered on the next day"
    own.write_text("{ damaged")
    assert after(run(lesson)) == ""
    assert after(run(lesson, "B")).startswith("✓ You predicted B, `0`. Right:")


def test_a_question_whose_words_changed_is_asked_again(lesson: Path) -> None:
    run(lesson, "B")
    lesson.write_text(lesson.read_text().replace('"text": "`0`"', '"text": "`0.0`"'))
    assert after(run(lesson)) == ""


def test_there_are_buttons_and_words_for_where_there_are_none(lesson: Path) -> None:
    [shown] = run(lesson)["choose-first-sum"]
    assert "application/vnd.jupyter.widget-view+json" in shown.data
    assert (
        shown.data["text/plain"] == 'Your prediction: not chosen. To choose: grader.learning.predict("first-sum", "A")'
    )


def test_a_notebook_that_is_elsewhere_runs_on(lesson: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    notebook = nbformat.read(lesson, as_version=4)
    execute(notebook, away)
    assert not [out for cell in notebook.cells for out in cell.get("outputs", []) if "choose" in cell.id]


@pytest.mark.parametrize("content", [None, "", "[]", '{"version": 9, "predictions": {"a": 1}}', "\udcff", "{" * 9])
def test_what_is_kept_survives_anything(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        state_path().write_text(content, errors="surrogateescape")
    assert read_state("predictions") == {}
    with change_state("predictions") as entries:
        entries["a"] = {"choice": "A"}
    with change_state("predictions") as entries:
        entries["b"] = {"choice": "B"}
    with change_state("progress") as entries:
        entries["c"] = 1
    assert read_state("predictions") == {"a": {"choice": "A"}, "b": {"choice": "B"}}
    assert [path.name for path in tmp_path.iterdir()] == [".jaxercise.json"], "no draft is left"


def test_in_a_course_it_lies_with_the_learners_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "course.toml").touch()
    (tmp_path / "work" / "lessons").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "lessons")
    assert state_path() == tmp_path / "work" / ".jaxercise.json"
