"""Lesson 11 without torch: the same cells, the stand-ins named, and digits that are read."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT

from grader.checks.execute import execute

pytestmark = pytest.mark.thorough
NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, *where):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
"""


def test_it_trains_without_torch_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXERCISE_DIGITS", "embedded")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "course.toml").touch()
    notebook = nbformat.read(ROOT / "notebooks" / "11_mnist.ipynb", as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(NO_TORCH))
    execute(notebook, tmp_path, cell_s=240)
    said = "".join(
        out.text for cell in notebook.cells for out in cell.get("outputs", []) if out.get("name") == "stdout"
    )
    assert "torch is not installed: MNIST and DataLoader are stand-ins of this course" in said
    assert "JAXERCISE_DIGITS=embedded. These are the handwritten digits that come with scikit-learn" in said
    assert re.search(r"in two workers\s+8 batches of \{\(128, 28, 28\)\}", said)
    [share] = re.findall(r"test accuracy, every image: ([\d.]+)%", said)
    assert float(share) >= 97, "of embedded digits, with the small network"
