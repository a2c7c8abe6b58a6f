"""Plots of lessons: words for each, colours that hold up for who sees colours differently, one style."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from conftest import ROOT
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from grader.learning import plots

CELL = """\
from grader.learning import plots

_, axes = plots.subplots(height=2)
axes.plot([3, 2, 1], label="loss")
axes.legend()
plots.show('''The loss falls from 3 to 1
    in "three" steps; a < b.''')
"""
WORDS = 'The loss falls from 3 to 1 in "three" steps; a < b.'
# What a viewer without one kind of cones sees, in linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.
SEEN = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # sRGB, IEC 61966-2-1
TELLS_APART = 12.0  # CIE 1976 units; 2.3 is just noticeable side by side


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    folder = str(tmp_path_factory.mktemp("plots"))
    NotebookClient(made, timeout=60, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return made


def test_a_plot_is_shown_once_with_its_words(notebook: nbformat.NotebookNode) -> None:
    [output] = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"] == WORDS
    assert output.metadata["image/png"]["alt"] == WORDS
    assert 'alt="The loss falls from 3 to 1 in &quot;three&quot; steps; a &lt; b."' in output.data["text/html"]
    assert output.data["image/png"] in output.data["text/html"]
    assert 500 < output.metadata["image/png"]["width"] < 800


def test_the_words_stand_in_the_page_that_nbconvert_makes(notebook: nbformat.NotebookNode) -> None:
    page, _ = HTMLExporter().from_notebook_node(notebook)
    [picture] = BeautifulSoup(page, "html.parser").find_all("img")
    assert picture["alt"] == WORDS
    assert picture["src"].startswith("data:image/png;base64,")


def linear(colour: str) -> np.ndarray:
    coded = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(light, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", SEEN)
def test_colours_can_be_told_apart_whatever_cones_one_has(eyes: str) -> None:
    for palette in (plots.COLOURS, [fill for fill, _ in plots.FILLS]):
        seen = {colour: lab(np.asarray(SEEN[eyes]) @ linear(colour)) for colour in (*palette, plots.PAPER)}
        gaps = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in itertools.combinations(seen, 2)}
        assert min(gaps.values()) > TELLS_APART, min(gaps, key=gaps.__getitem__)


def test_colour_is_never_the_only_sign() -> None:
    assert len({str(dash) for dash in plots.DASHES}) == len(plots.DASHES) == len(plots.COLOURS)
    assert len({hatch for _, hatch in plots.FILLS}) == len(plots.FILLS)


def test_no_lesson_draws_without_it() -> None:
    """`plt.show()` and a figure that a cell leaves open would have no words."""
    for path in sorted(Path(ROOT / "notebooks").glob("*.py")):
        assert not re.search(r"\bplt\.", path.read_text(encoding="utf-8")), path.name
