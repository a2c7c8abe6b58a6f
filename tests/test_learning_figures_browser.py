"""Interactive figures in a browser: JupyterLab and a page of the book, by keyboard, at three sizes and in both themes."""

from __future__ import annotations

import shutil
from pathlib import Path

import desk
import nbformat
import pytest
from conftest import COURSES, SCREENSHOTS, needs_browser

from grader.course import Course, build

pytestmark = pytest.mark.thorough
WIDTHS = (1280, 768, 390)  # pixels

SETUP = """
from grader.checks import devices

devices.start(8)

import jax, jax.numpy as jnp, numpy as np
from grader.learning import figures
"""
TRACE = """
def decay(x):
    print("x is", x)
    for _ in range(2):
        x = jnp.sin(x)
    return 2 * x

figures.trace_stepper(decay, jnp.ones(3))
"""
CELLS = {"trace": TRACE}


def notebook(path: Path) -> Path:
    """A notebook with one cell for each figure."""
    cells = [nbformat.v4.new_code_cell(source.strip(), id=name) for name, source in {"setup": SETUP, **CELLS}.items()]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    return path


@needs_browser
@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_figures_in_jupyterlab(theme: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(COURSES / "course_tiny", tmp_path / "course", ignore=shutil.ignore_patterns("build")))
    build.build(Course(root))
    with desk.lab(root, theme) as address, desk.page(address) as page:
        desk.Notebook.front(page, "lessons/01_first.ipynb")
        notebook(root / "work" / "lessons" / "figures.ipynb")
        opened = desk.Notebook.open(page, "lessons/figures.ipynb")
        assert opened.run_all()
        opened.save()
        for name in CELLS:
            figure = opened.show(name)
            figure.wait_for_selector(".jaxercise-figure")
            page.screenshot(path=SCREENSHOTS / f"figure_{name}.png")
        page.evaluate("jupyterapp.commands.execute('kernelmenu:shutdown').then(()=>null)")
        page.evaluate("jupyterapp.shell.currentWidget.close()")
        page.wait_for_timeout(2000)
        page.reload()
        page.wait_for_function("window.jupyterapp !== undefined")
        page.evaluate("jupyterapp.restored.then(() => null)")
        opened = desk.Notebook.open(page, "lessons/figures.ipynb")
        page.wait_for_timeout(4000)
        page.screenshot(path=SCREENSHOTS / "figure_reopened.png")
        print(opened.output("trace")[:300])
