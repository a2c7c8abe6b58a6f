"""Plots of lessons: words for each, colours that hold up for who sees colours differently, one style."""

from __future__ import annotations

import base64
import itertools
import re
import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from conftest import ROOT
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure
from nbconvert import HTMLExporter

from grader.checks import devices
from grader.checks.execute import execute
from grader.learning import plots

devices.start(8)
EIGHT = list(devices.mesh((8,), ("d",)).devices.flat)
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
    execute(made, tmp_path_factory.mktemp("plots"))
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


def mesh(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind,) * 2, devices=EIGHT)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The figure that was shown last and its alternative text."""
    seen: dict[str, Any] = {}

    def display(data: dict[str, str], **_: Any) -> None:
        seen.update(alt=data["text/plain"], picture=base64.b64decode(data["image/png"]))

    def close(figure: Figure) -> None:
        seen["figure"] = figure

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(plt, "close", close)
    return seen


def drawn(figure: Figure) -> list[dict[str, Any]]:
    """The title and caption of each array, and the numbers in each of its shards (left, top, right, bottom)."""
    found = []
    for axes in figure.axes:
        shards = {}
        for box in axes.patches:
            (left, top), right, bottom = box.get_xy(), box.get_x() + box.get_width(), box.get_y() + box.get_height()
            inside = [
                one for one in axes.texts
                if left < one.get_position()[0] < right and top < one.get_position()[1] < bottom
            ]  # fmt: skip
            shards[left, top, right, bottom] = [int(one.get_text()) for one in inside]
        found.append({"title": axes.get_title(), "caption": axes.get_xlabel(), "shards": shards})
    return found


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_each_shard_shows_the_devices_that_store_it(shown: dict[str, Any], kind: AxisType) -> None:
    grid = jax.device_put(jnp.zeros((8, 6)), NamedSharding(mesh(kind), P("a", "b")))
    plots.show_shardings({"the grid": grid, "rows": (NamedSharding(mesh(kind), P("a")), (8, 6))}, "Two layouts.")
    first, second = drawn(shown["figure"])
    assert first["title"] == "the grid"
    assert first["caption"] == "P('a', 'b')\nshards (2, 3)"
    assert first["shards"] == {
        (3 * column, 2 * row, 3 * column + 3, 2 * row + 2): [2 * row + column]
        for row in range(4)
        for column in range(2)
    }
    assert second["caption"] == "P('a')\nshards (2, 6), 2 copies"
    assert second["shards"] == {(0, 2 * row, 6, 2 * row + 2): [2 * row, 2 * row + 1] for row in range(4)}
    assert shown["alt"] == (
        "Two layouts. the grid, P('a', 'b'), shape (8, 6): 8 shards of shape (2, 3), each on one device. "
        "Devices row by row: 0 | 1 / 2 | 3 / 4 | 5 / 6 | 7. "
        "rows, P('a'), shape (8, 6): 4 shards of shape (2, 6), each on 2 devices. "
        "Devices row by row: 0 1 / 2 3 / 4 5 / 6 7."
    )


def test_arrays_of_one_axis_or_none_are_drawn_as_a_row(shown: dict[str, Any]) -> None:
    row = jax.device_put(jnp.zeros(16), NamedSharding(mesh(AxisType.Explicit), P("b")))
    alone = jax.device_put(jnp.zeros(16), EIGHT[3])
    number = jax.ShapeDtypeStruct((), "float32", sharding=NamedSharding(mesh(AxisType.Auto), P()))
    plots.show_shardings([row, alone, number])
    first, second, third = drawn(shown["figure"])
    assert (first["title"], first["caption"]) == ("P('b')", "shards (8,), 4 copies")
    assert first["shards"] == {(0, 0, 8, 1): [0, 2, 4, 6], (8, 0, 16, 1): [1, 3, 5, 7]}
    assert (second["caption"], second["shards"]) == ("on one device", {(0, 0, 16, 1): [3]})
    assert (third["caption"], third["shards"]) == ("not partitioned, 8 copies", {(0, 0, 1, 1): [*range(8)]})
    assert shown["alt"] == (
        "P('b'), shape (16,): 2 shards of shape (8,), each on 4 devices. Devices in order: 0 2 4 6 | 1 3 5 7. "
        "shape (16,): not partitioned, on one device, 3. "
        "P(), shape (): not partitioned, on 8 devices, 0 1 2 3 4 5 6 7."
    )


def test_a_shard_has_the_colour_of_its_one_device_and_copies_have_each_their_own(shown: dict[str, Any]) -> None:
    sharding = NamedSharding(mesh(AxisType.Auto), P("a", "b"))
    plots.show_shardings([(sharding, (8, 8)), (NamedSharding(mesh(AxisType.Auto), P()), (8, 8))])
    cut, whole = shown["figure"].axes
    colours = [plt.matplotlib.colors.to_hex(box.get_facecolor()) for box in cut.patches]
    assert sorted(colours) == sorted(plots.DEVICES)
    assert [plt.matplotlib.colors.to_hex(box.get_facecolor()) for box in whole.patches] == [plots.PAPER]
    copies = [plt.matplotlib.colors.to_hex(one.get_bbox_patch().get_facecolor()) for one in whole.texts]
    assert copies == list(plots.DEVICES)


@pytest.mark.parametrize("count", range(1, 10))
def test_no_words_or_numbers_of_a_figure_overlap(shown: dict[str, Any], count: int) -> None:
    specs = itertools.cycle([P("a", "b"), P(None, ("a", "b")), P(("a", "b")), P(None, "b"), P()])
    shapes = itertools.cycle([(4096, 64), (64, 4096), (1024, 1024)])
    layouts = [(NamedSharding(mesh(AxisType.Auto), next(specs)), next(shapes)) for _ in range(count)]
    plots.show_shardings({f"layer {number}": one for number, one in enumerate(layouts)})
    figure = shown["figure"]
    figure.draw_without_rendering()  # places everything for the figure's own resolution again
    shown_words = [
        one for axes in figure.axes if axes.axison
        for one in (*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.title, axes.xaxis.label)
    ]  # fmt: skip
    boxes = [(one.get_text(), one.get_window_extent()) for one in shown_words if one.get_text()]
    assert len(boxes) >= 5 * count
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), f"{one!r} and {other!r}"
    width = int.from_bytes(shown["picture"][16:20], "big") * plots.SHOWN // plots.DOTS
    assert width <= 700


def test_an_array_of_three_axes_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"at most two axes; the shape here is \(2, 3, 4\)"):
        plots.show_shardings([jnp.zeros((2, 3, 4))])


def test_devices_have_one_colour_in_plots_and_drawn_pictures() -> None:
    assert runpy.run_path(str(ROOT / "images/src/style.py"))["DEVICES"] == plots.DEVICES
    ink = luminance(plots.INK)
    assert min((luminance(fill) + 0.05) / (ink + 0.05) for fill in plots.DEVICES) > 4.5  # WCAG 2, level AA


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])
