"""Interactive figures in JupyterLab and on a page of the book: by keyboard, at three sizes, in both themes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import desk
import nbformat
import pytest
from conftest import COURSES, ROOT, SCREENSHOTS, needs_browser

from grader.course import Course, build

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.thorough
WIDTHS = (1280, 768, 390)  # pixels

CELLS = {
    "setup": """
from grader.checks import devices

devices.start(8)

import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from grader.learning import figures
""",
    "trace": """
def decay(x):
    print("x is", x)
    for _ in range(2):
        x = jnp.sin(x)
    return 2 * x

figures.trace_stepper(decay, jnp.ones(3))
""",
    "axes": """
def weigh(x, weights):
    return x * weights

figures.axis_mover(weigh, jnp.ones((3, 4)), jnp.ones(4), in_axes=(0, None))
""",
    "pipeline": "figures.pipeline(stages=4, micro_batches=6)",
    "collectives": """
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
line = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
shardings = [NamedSharding(mesh, P("a", "b")), NamedSharding(mesh, P("b")), NamedSharding(line, P("d"))]
figures.collectives({"sum(0)": lambda x: x.sum(0), "transpose": jnp.transpose}, shardings)
""",
    "memory": """
def loss(weights, x, layer=lambda w, x: jnp.tanh(x @ w)):
    for w in weights:
        x = layer(w, x)
    return x.sum()

remat = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))
losses = {"stored": loss, "recomputed": lambda weights, x: loss(weights, x, remat)}
figures.backward_memory(losses, [jnp.ones((8, 8))] * 3, jnp.ones((16, 8)))
""",
    "widget": "figures.pipeline(stages=2, micro_batches=2).widget()",
}
FIGURES = [name for name in CELLS if name not in ("setup", "widget")]

# What overflows the figure, or the page, sideways. Parts that scroll by themselves may be wider inside.
TOO_WIDE = """figure => {
    const edge = figure.getBoundingClientRect();
    const found = edge.right > innerWidth + 1 || edge.left < -1 ? ['the figure'] : [];
    for (const one of figure.querySelectorAll('*')) {
        const scrolls = one.closest('.scroll'), box = one.getBoundingClientRect();
        if (box.width && box.right > edge.right + 1 && !(scrolls && scrolls !== one))
            found.push(`${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`);
    }
    return found;
}"""
# The smallest contrast between a text and what lies under it, over the texts of a figure that are fully visible.
CONTRAST = """figure => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgba = colour => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    let least = 99, where = '';
    for (const one of figure.querySelectorAll('*')) {
        const own = [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
        if (!own || !one.getClientRects().length || one.closest('.later, :disabled')) continue;
        let under = one;
        while (under && rgba(getComputedStyle(under).backgroundColor)[3] < 255) under = under.parentElement;
        const a = light(rgba(getComputedStyle(one).color));
        const b = light(rgba(under ? getComputedStyle(under).backgroundColor : 'white'));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < least) [least, where] = [ratio, `${one.className} ${one.textContent.slice(0, 40)}`];
    }
    return [least, where];
}"""


def read(figure: Locator) -> str:
    """The text of the figure that a screen reader announces."""
    return figure.locator(".live").inner_text()


def press(figure: Locator, *keys: str) -> str:
    """Presses keys in the element that has the focus; returns what is announced."""
    for key in keys:
        figure.page.keyboard.press(key)
    return read(figure)


def trace(figure: Locator) -> None:
    figure.locator("input[type=range]").focus()
    assert "Nothing is recorded yet" in press(figure, "Home")
    assert "Python prints" in press(figure, "ArrowRight")
    assert "x is JitTracer(float32[3])" in figure.inner_text()
    assert "adds 1 equation: b:f32[3] = sin a." in press(figure, "ArrowRight", "ArrowRight")
    assert "The program is complete, with 3 equations" in press(figure, "End")
    assert figure.locator(".now").count() == 2, "the line and its equation"
    assert "adds no equation" in press(figure, "ArrowLeft")


def axes(figure: Locator) -> None:
    figure.locator("input[type=range]").focus()
    assert "Example 1 receives index 1 along axis 0 of x, shape (4,)" in press(figure, "Home", "ArrowRight")
    assert figure.locator(".chosen").count() == 4 + 4 + 4
    press(figure, "Tab", "Tab")  # past the button
    assert figure.evaluate("node => document.activeElement.type") == "radio"
    assert "vmap raises" not in read(figure)
    assert "index 1 along axis 1 of x, shape (3,)" in press(figure, "ArrowRight") or "raises" in read(figure)
    press(figure, "ArrowLeft")
    figure.get_by_role("radio", name="1").last.focus()
    assert "The results of 3 examples have shape (4, 3)" in press(figure, "Space")
    figure.get_by_role("group", name="out_axes").get_by_text("0").click()
    assert "have shape (3, 4)" in read(figure)
    drag(figure.get_by_role("group", name="in_axes of weights"), "None", "0")
    assert "vmap raises ValueError" in read(figure)
    drag(figure.get_by_role("group", name="in_axes of x"), "0", "1")
    assert "index 0 along axis 1 of x, shape (3,); index 0 along axis 0 of weights, shape ()" in read(figure)


def drag(row: Locator, start: str, end: str) -> None:
    """Drags the mark of a row of choices from one to another."""
    row.scroll_into_view_if_needed()
    mouse = row.page.mouse
    for text, then in ((start, mouse.down), (end, mouse.up)):
        box = row.locator(".chip", has_text=re.compile(f"^{text}$")).bounding_box()
        mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
        then()


def pipeline(figure: Locator) -> None:
    figure.locator("input[type=range]").focus()
    assert "The bubble is 36 of 108 steps, 33.3%" in press(figure, "End")
    assert "Time 0" in press(figure, "Home")
    assert "stage 0 forward pass of 1, stage 1 forward pass of 0, stage 2 idle" in press(
        figure, "ArrowRight", "ArrowRight"
    )
    figure.get_by_role("radio", name="GPipe").focus()
    assert "1F1B with 4 stages and 6 micro-batches ends at time 27" in press(figure, "ArrowRight")
    assert press(figure, "ArrowLeft").startswith("GPipe")
    figure.get_by_role("group", name="micro-batches").get_by_role("radio", name="16").focus()
    assert "The bubble is 36 of 228 steps, 15.8%" in press(figure, "Space")


def collectives(figure: Locator) -> None:
    figure.locator("input[type=range]").focus()
    text = press(figure, "Home", "ArrowRight")
    assert "all-reduce along a" in text
    assert "Step 1 of 6: each device sends 4 bytes" in text
    assert "one device sent 24 bytes" in press(figure, "End")
    figure.get_by_role("radio", name="sum(0)").focus()
    assert "transpose with P('a', 'b'): no collective" in press(figure, "ArrowRight")
    press(figure, "ArrowLeft")
    figure.get_by_role("radio", name="d: 8").focus()
    assert "all-reduce along d" in press(figure, "Space")
    assert "14" in figure.locator(".count").inner_text()


def memory(figure: Locator) -> None:
    figure.locator("input[type=range]").focus()
    before = press(figure, "Home")
    assert "Equation 0, dot_general, forward pass: 512 bytes are stored" in before
    press(figure, *["ArrowRight"] * 5)
    assert read(figure) != before
    figure.get_by_role("radio", name="stored").focus()
    assert "of them residuals" in press(figure, "ArrowRight")
    assert "residual" in figure.locator("table").inner_text()


STEPS: dict[str, Callable[[Locator], None]] = {
    "trace": trace, "axes": axes, "pipeline": pipeline, "collectives": collectives, "memory": memory
}  # fmt: skip


def look(page: Page, figure: Locator, name: str, widths: tuple[int, ...] = WIDTHS) -> None:
    """The figure fits each width, its texts are legible, and its screenshot is kept."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(300)  # the page is laid out again
        figure.scroll_into_view_if_needed()
        figure.screenshot(path=SCREENSHOTS / f"figure_{name}_{width}.png")
        assert figure.evaluate(TOO_WIDE) == [], f"{name} at {width} pixels"
        least, where = figure.evaluate(CONTRAST)
        assert least >= 4.5, f"{name}: contrast {least:.1f} of {where}"


@needs_browser
@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_figures_in_jupyterlab(theme: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(COURSES / "course_tiny", tmp_path / "course", ignore=shutil.ignore_patterns("build")))
    build.build(Course(root))
    cells = [nbformat.v4.new_code_cell(source.strip(), id=name) for name, source in CELLS.items()]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    with desk.lab(root, theme) as address, desk.page(address) as page:
        desk.Notebook.front(page, "lessons/01_first.ipynb")
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), root / "work/lessons/figures.ipynb")
        notebook = desk.Notebook.open(page, "lessons/figures.ipynb")
        assert notebook.run_all(), notebook.output("setup")
        page.evaluate("jupyterapp.shell.collapseLeft()")  # a phone has no room for it
        for place, name in enumerate(FIGURES, 1):
            notebook.show(name)
            node = notebook.node(name)
            page.wait_for_function("node => node.querySelector('.jaxercise-figure .live')?.textContent", arg=node)
            node.query_selector(".jaxercise-figure").evaluate("(node, name) => (node.id = `figure-${name}`)", name)
            figure = page.locator(f"#figure-{name}")
            page.set_viewport_size({"width": 1280, "height": 900})
            STEPS[name](figure)
            assert page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex") == place
            assert page.evaluate("jupyterapp.shell.currentWidget.content.widgets.length") == len(CELLS)
            look(page, figure, f"lab_{theme.split()[1].lower()}_{name}")
        page.set_viewport_size({"width": 1280, "height": 900})
        notebook.show("widget")
        node = notebook.node("widget")
        page.wait_for_function("node => node.querySelector('.jaxercise-figure .live')?.textContent", arg=node)
        assert "ends at time 9" in node.inner_text()
        notebook.save()
        page.evaluate("jupyterapp.shell.currentWidget.close()")
        page.wait_for_selector(".jaxercise-figure", state="detached")
        opening = "jupyterapp.commands.execute('docmanager:open', {path: 'lessons/figures.ipynb'}).then(() => null)"
        page.evaluate(opening)
        drawn = "document.querySelector('.jaxercise-figure .live')?.textContent"
        assert page.wait_for_function(drawn), "no cell has run since it was opened"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    lessons = [word for name in ("00_start_here", *PAGES) for word in ("--lesson", name)]
    command = [sys.executable, "tools/book.py", *lessons, "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html" / "notebooks"


PAGES = ("02_tracing", "05_vmap")
TITLES = {"02_tracing": "Tracing describe", "05_vmap": "vmap of weigh"}


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_in_the_book(book: Path, scheme: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=desk.CHROMIUM, args=[*desk.SWITCHES, *desk.OFFLINE])
        context = browser.new_context(color_scheme=scheme, reduced_motion="reduce", offline=True)
        for lesson in PAGES:
            page, errors = context.new_page(), []
            page.on("pageerror", lambda error, seen=errors: seen.append(str(error)))
            address = (book / f"{lesson}.html").as_uri()
            page.goto(address)
            figure = page.locator(".jaxercise-figure")
            figure.wait_for()
            assert TITLES[lesson] in figure.inner_text()
            before = read(figure)
            figure.locator("input[type=range]").focus()
            assert press(figure, "ArrowRight", "ArrowRight") != before
            assert page.url == address, "an arrow key turned the page"
            assert re.search(r"\d", figure.locator(".count").inner_text())
            look(page, figure, f"book_{scheme}_{lesson}")
            assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[-1]
            assert errors == []
            page.close()
        without = browser.new_context(java_script_enabled=False, offline=True)
        page = without.new_page()
        page.goto((book / f"{PAGES[0]}.html").as_uri())
        picture = page.locator("img[src^='data:image/svg']").first
        assert len((picture.get_attribute("alt") or "").split()) > 15
        picture.scroll_into_view_if_needed()
        picture.screenshot(path=SCREENSHOTS / "figure_without_script.png")
        browser.close()
