"""`grader reset` and `grader solution`: a fresh notebook, the answers beside it, and nothing of the learner's lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT, Grader

from grader.checks.execute import execute

LESSON = "01_small"


def own(course: Path) -> Path:
    return course / "work" / LESSON / f"{LESSON}.ipynb"


def kept(said: str, course: Path) -> Path:
    """The notebook that the command says it has kept."""
    return course / re.findall(r"old one is now (\S+)\.\n", said)[0]


def test_begun_anew_nothing_is_lost(course: Path, grader: Grader) -> None:
    fresh = own(course).read_bytes()
    for mine in ("my first try", "my second try"):
        own(course).write_text(mine)
        done = grader("--course", course, "reset", LESSON)
        assert done.returncode == 0, done.stderr
        assert own(course).read_bytes() == fresh
        assert kept(done.stdout, course).read_text() == mine
        assert "File > Reload Notebook from Disk" in done.stdout, "JupyterLab would write the old one back"
    assert len(list((course / "work" / "earlier").iterdir())) == 2


def test_without_a_notebook_there_is_nothing_to_keep(course: Path, grader: Grader) -> None:
    own(course).unlink()
    done = grader("--course", course, "reset", LESSON)
    assert (done.returncode, done.stdout) == (0, f"The new notebook is work/{LESSON}/{LESSON}.ipynb.\n")
    assert not (course / "work" / "earlier").exists()


@pytest.mark.parametrize("verb", ["reset", "solution"])
def test_a_lesson_that_is_none_is_refused(course: Path, grader: Grader, verb: str) -> None:
    done = grader("--course", course, verb, "07_nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"There is no lesson 07_nowhere. Lessons with exercises: {LESSON}.\n"


def test_what_is_not_built_is_told(course: Path, grader: Grader) -> None:
    (course / "exercises" / LESSON / f"{LESSON}.ipynb").unlink()
    mine = own(course).read_bytes()
    done = grader("--course", course, "reset", LESSON)
    assert done.returncode == 2
    assert "`grader build 01_small` creates it" in done.stderr
    assert own(course).read_bytes() == mine


def test_the_answers_run_from_top_to_bottom(course: Path, grader: Grader) -> None:
    done = grader("--course", course, "solution", LESSON)
    assert (done.returncode, done.stdout) == (0, f"The solutions are in work/answers/{LESSON}.ipynb.\n")
    path = course / "work" / "answers" / f"{LESSON}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "Squares: right for two alone." in prose
    assert "return (2 * x).sum()" in prose
    assert "**Why it works.** Two times x is x plus x." in prose
    assert not any("hidden" in json.dumps(cell.metadata) for cell in notebook.cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        execute(notebook, path.parent)
    ticks = [
        o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs if "✓" in str(o.get("data"))
    ]
    assert len(ticks) == sum("ask(" in cell.source for cell in notebook.cells if cell.cell_type == "code") > 0

    nbformat.write(notebook, path)  # it was run, which is no note of the learner's
    ran = path.read_bytes()
    assert "kept" not in grader("--course", course, "solution", LESSON).stdout
    assert path.read_bytes() == ran
    notebook.cells[2].source += "\n\nMy note."
    nbformat.write(notebook, path)
    noted = path.read_bytes()
    assert kept(grader("--course", course, "solution", LESSON).stdout, course).read_bytes() == noted
    assert b"My note" not in path.read_bytes()
