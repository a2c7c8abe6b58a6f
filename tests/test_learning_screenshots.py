"""A learner's desk as it looks, light and dark, wide and narrow: nothing that a check or a plot shows is cut off."""

from __future__ import annotations

import json
import re
from pathlib import Path

import desk
import pytest
from conftest import SCREENSHOTS, needs_browser

from grader.course import Course, Exercise

pytestmark = pytest.mark.thorough
WIDTHS = (1280, 800)  # pixels
LESSONS = {"05_vmap": "vmap-pairwise", "18_data_parallel": "dp-step"}  # a shape is wrong; a collective is missing
PLOTS = "09_training"
# In the page: what of a cell's outputs lies beyond their right edge, or in a box that hides or scrolls sideways.
CUT_OFF = """id => {
    const panel = jupyterapp.shell.currentWidget, edge = panel.node.getBoundingClientRect().right;
    const cell = panel.content.widgets.find(one => one.model.id === id);
    const found = [];
    for (const one of cell.outputArea.node.querySelectorAll('.jp-OutputArea-output, .jp-OutputArea-output *')) {
        const box = one.getBoundingClientRect();
        const wide = one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== 'visible';
        if (box.width && (box.right > edge + 1 || (wide && one.clientWidth)))
            found.push(`${one.tagName}.${one.className}: ${one.textContent.trim().slice(0, 60)}`);
    }
    return found;
}"""


@needs_browser
@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_nothing_is_cut_off(theme: str, tmp_path: Path) -> None:
    course = desk.copy_course(tmp_path)
    with desk.lab(course, theme) as address, desk.page(address) as page:
        desk.Notebook.front(page, desk.lab_path(address))
        for lesson, name in LESSONS.items():
            exercise = Course(course).lesson(lesson).exercise(name)
            notebook = desk.Notebook.open(page, f"{lesson}/{lesson}.ipynb")
            notebook.run("setup")
            _wrong(notebook, exercise)
            check = next(check.id for check in exercise.checks if not check.hidden)
            assert notebook.run(check).startswith("✗ ")
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            _look(notebook, check, f"{theme.split()[1].lower()}_{name}")
        _plot(desk.Notebook.open(page, f"lessons/{PLOTS}.ipynb"), course, f"{theme.split()[1].lower()}_plot")


def _wrong(notebook: desk.Notebook, exercise: Exercise) -> None:
    notebook.type(exercise.id, exercise.wrong[0].source)
    assert notebook.run(exercise.id) == ""


def _plot(notebook: desk.Notebook, course: Path, name: str) -> None:
    """Run a lesson up to its first plot; that is there, with its words."""
    cells = json.loads((course / "work" / "lessons" / f"{PLOTS}.ipynb").read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            notebook.run(cell["id"])
            if re.search(r"^plots\.show\(", "".join(cell["source"]), re.MULTILINE):
                break
    picture = notebook.show(cell["id"]).wait_for_selector("img[alt]")
    assert picture is not None
    assert len((picture.get_attribute("alt") or "").split()) > 15
    assert picture.evaluate("one => one.complete && one.naturalWidth > 0")
    _look(notebook, cell["id"], name)


def _look(notebook: desk.Notebook, cell: str, name: str) -> None:
    for width in WIDTHS:
        notebook.page.set_viewport_size({"width": width, "height": 900})
        notebook.show(cell)
        notebook.page.wait_for_timeout(300)  # JupyterLab lays out anew
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        notebook.page.screenshot(path=SCREENSHOTS / f"looks_{name}_{width}.png")
        assert notebook.page.evaluate(CUT_OFF, cell) == [], f"{name} at {width} pixels"
