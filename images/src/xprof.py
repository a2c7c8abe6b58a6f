"""Takes lesson 14's picture of XProf, images/xprof.png: the trace viewer with a trace that the lesson records.

Needs Chromium and playwright, as tests/test_learning_tensorboard.py does. Run it again when XProf looks different.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Frame, Page, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
import desk  # noqa: E402
from first_look import few_colours  # noqa: E402

from grader.learning.inspection import trace_viewer_path  # noqa: E402

START = "show_trace(logs"  # in the lesson's cell that starts TensorBoard
WIDTH, HEIGHT, SCALE = 1120, 800, 1.5  # in pixels of the page
ROW = 18  # height of a row of bars
READY = """() => {
    const view = document.querySelector('tr-ui-timeline-view');
    return view?.model && [...view.model.getDescendantEvents()].length > 100;
}"""


def lesson() -> tuple[dict[str, Any], str]:
    """The variables of lesson 14 after its cell that starts TensorBoard, and what its cells printed."""
    cells = json.loads((ROOT / "notebooks/14_profiling.ipynb").read_text())["cells"]
    variables: dict[str, Any] = {"__name__": "lesson"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for source in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
            exec(compile(source, "14_profiling.py", "exec"), variables)
            if START in source:
                return variables, printed.getvalue()
    raise AssertionError(f"no cell contains {START}")


def frame(page: Page, path: str) -> Frame:
    """The frame on the page that shows `path`, once it is there."""
    for _ in range(240):
        for one in page.frames:
            if path in one.url:
                return one
        page.wait_for_timeout(250)
    raise AssertionError([one.url for one in page.frames])


def shoot(address: str) -> Image.Image:
    """The viewer with its menus on the left, and an event that is selected."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=desk.CHROMIUM, args=[*desk.SWITCHES, *desk.OFFLINE])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        page.set_default_timeout(desk.PATIENCE_S * 1000)
        page.goto(address)
        frame(page, "trace_viewer@").get_by_text("Sessions (1)").wait_for()
        viewer = frame(page, "trace_viewer_index.html")
        viewer.wait_for_function(READY)
        page.wait_for_timeout(2_000)
        tools = viewer.locator("tr-ui-b-mouse-mode-selector").bounding_box()
        python = viewer.get_by_text("python", exact=True).bounding_box()
        assert tools
        assert python
        page.mouse.move(tools["x"] + tools["width"] / 2, tools["y"] + 6)  # its handle
        page.mouse.down()
        page.mouse.move(WIDTH - tools["width"] / 2 - 4, python["y"] - 40, steps=5)  # away from the bars
        page.mouse.up()
        page.mouse.click(840, python["y"] + 2.5 * ROW)  # "read loss" of the second iteration
        page.mouse.move(600, python["y"] + 9 * ROW)  # a pointer on a bar would show its name over the others
        page.wait_for_timeout(1_000)
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def main() -> None:
    """Ends TensorBoard also if no picture was taken."""
    variables, printed = lesson()
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+/", printed)
        assert found, printed
        shot = shoot(found[0] + trace_viewer_path(variables["logs"], "first"))
    finally:
        variables["tensorboard"].terminate()
        variables["tensorboard"].wait(20)
    few_colours(shot).save(ROOT / "images" / "xprof.png", optimize=True)


if __name__ == "__main__":
    main()
