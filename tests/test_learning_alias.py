"""Notebooks released under the older name `grader.lessons`: their imports, predictions and grading cells still work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT

from grader.checks.execute import execute

pytestmark = pytest.mark.usefixtures("forked_kernels")

# As released notebooks have them.
CELLS = (
    "from grader.lessons import grade\n\ngrade()",
    "import grader.lessons\n\ngrader.lessons.predict('none'), grader.lessons.course_map()",
    "from grader.lessons import plots",
    "from grader.lessons import digits, plots",
    "import grader.lessons.digits\nfound = grader.lessons.digits.get()\nprint(found.says[:0], end='')",
    "from grader.lessons.digits import get\nassert get().source == 'embedded'",
    "from grader.lessons.loaders import SAYS, DataLoader, MNIST, numpy_collate, seed\nseed(0)",
)


@pytest.mark.parametrize("cell", CELLS)
def test_a_released_cell_runs(cell: str, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT), "JAXERCISE_DIGITS": "embedded", "XDG_CACHE_HOME": str(tmp_path), "PATH": ""}
    command = [sys.executable, "-W", "error", "-c", cell]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("", "Nothing is graded here. Run in a terminal: grader check NN_topic\n")


def test_a_released_prediction_is_shown_and_kept(built: Callable[[str], Path], tmp_path: Path) -> None:
    notebook = nbformat.read(built("course_tiny") / "notebooks" / "01_first.ipynb", as_version=4)
    path = tmp_path / "01_first.ipynb"
    nbformat.write(notebook, path)
    [cell] = [cell for cell in notebook.cells if cell.id == "choose-first-sum"]
    cell.source = cell.source.replace("grader.learning", "grader.lessons").replace('")', '", "B")')
    assert cell.source.count("grader.lessons") == 2
    execute(notebook, tmp_path)
    assert "Your prediction: B." in cell.outputs[0].data["text/plain"]
    assert json.loads((tmp_path / ".jaxercise.json").read_text())["predictions"]["first-sum"]["choice"] == "B"
