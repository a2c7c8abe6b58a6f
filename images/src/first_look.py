"""Takes README's picture, images/first_look.png: a check that fails, then passes, in the real JupyterLab.

Needs Chromium and playwright, as tests/test_learning_browser.py does. Run it again when a notebook looks different.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import desk  # noqa: E402

from grader.course import Course  # noqa: E402

LESSON, EXERCISE = "05_vmap", "vmap-pairwise"
TRY = """\
def pairwise_l1(l1, xs, ys):
    def one_to_all(x, ys):
        return {}

    return jax.vmap(one_to_all, in_axes=(0, None))(xs, ys)"""
TRIES = ("l1(x, ys)", "jax.vmap(l1, in_axes=(None, 0))(x, ys)")
WIDTH, HEIGHT, GAP = 900, 1000, 12  # in pixels of the page
SCALE = 14 / 9


def shoot(page: desk.Page, top: float, bottom: float) -> Image.Image:
    """The page between two heights."""
    taken = page.screenshot(clip={"x": 0, "y": top, "width": WIDTH, "height": bottom - top})
    return Image.open(io.BytesIO(taken)).convert("RGB")


def bounds(notebook: desk.Notebook, cell: str) -> tuple[float, float]:
    """Where on the page a cell begins and ends."""
    box = notebook.node(cell).bounding_box()
    assert box is not None
    return box["y"], box["y"] + box["height"]


def uncluttered(page: desk.Page) -> None:
    """Without the bars at the sides."""
    for command, how in (("toggle-left-area", {}), *(("toggle-side-tabbar", {"side": s}) for s in ("left", "right"))):
        page.evaluate(
            "([command, how]) => jupyterapp.commands.execute(`application:${command}`, how).then(() => null)",
            [command, how],
        )


def shots(course: Path) -> list[Image.Image]:
    """The exercise with its task, a mistake that many make and its check; then the answer and the same check."""
    exercise = Course(course).lesson(LESSON).exercise(EXERCISE)
    check = next(check for check in exercise.checks if not check.hidden)
    taken: list[Image.Image] = []
    with desk.lab(course) as address, desk.page(address, WIDTH, HEIGHT, SCALE) as page:
        desk.Notebook.front(page, desk.lab_path(address))
        uncluttered(page)
        notebook = desk.Notebook.open(page, f"{LESSON}/{LESSON}.ipynb")
        notebook.run("setup")
        for expression in TRIES:
            notebook.type(exercise.id, TRY.format(expression))
            notebook.run(exercise.id)
            notebook.run(check.id)
            notebook.show("setup")  # so that no cell in the picture is marked
            notebook.node(f"{exercise.id}-task").evaluate("node => node.scrollIntoView({block: 'start'})")
            top = bounds(notebook, exercise.id)[0] if taken else 0.0
            taken.append(shoot(page, top, bounds(notebook, check.id)[1]))
    return taken


def few_colours(picture: Image.Image) -> Image.Image:
    """With the 256 colours that it has most of: a third of the size, and no tint."""
    colours, counts = np.unique(np.asarray(picture).reshape(-1, 3), axis=0, return_counts=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours[np.argsort(-counts)[:256]].ravel().tolist())
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def main() -> None:
    """Both shots, one above the other."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = shots(desk.copy_course(Path(folder)))
    below = first.height + round(GAP * SCALE)
    picture = Image.new("RGB", (first.width, below + second.height), "white")
    picture.paste(first, (0, 0))
    picture.paste(second, (0, below))
    few_colours(picture).save(ROOT / "images" / "first_look.png", optimize=True)


if __name__ == "__main__":
    main()
