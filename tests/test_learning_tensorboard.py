"""Lesson 14 in a real JupyterLab: the TensorBoard that it starts shows the trace that it wrote, and ends with it."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import desk
import psutil
import pytest
from conftest import SCREENSHOTS, needs_browser

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

pytestmark = pytest.mark.thorough
LESSON = "lessons/14_profiling.ipynb"
# What the trace viewer has drawn: the titles of its bars. It reads the events into a model before it draws.
BARS = """() => {
    const view = document.querySelector('tr-ui-timeline-view');
    return view?.model ? [...view.model.getDescendantEvents()].map(event => event.title) : [];
}"""


@needs_browser
@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard_plugin_profile") is None,
    reason="no TensorBoard profile page (`tensorboard-plugin-profile`) on this machine",
)
def test_the_profile_page_shows_the_run(tmp_path: Path) -> None:
    course = desk.copy_course(tmp_path)
    with desk.lab(course) as address, desk.page(address) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        desk.Notebook.front(page, desk.lab_path(address))  # what `grader lab` opens by itself
        lesson = desk.Notebook.open(page, LESSON)
        code = [
            cell for cell in json.loads((course / "work" / LESSON).read_text())["cells"] if cell["cell_type"] == "code"
        ]
        start = next(i for i, cell in enumerate(code) if "show_trace(logs" in "".join(cell["source"]))
        stop = next(cell["id"] for cell in code if "tensorboard.terminate()" in "".join(cell["source"]))
        try:
            for cell in code[:start]:
                lesson.run(cell["id"])
            first = _started(lesson.run(code[start]["id"]))
            _shows_the_run(page, first)
            lesson.show(code[start]["id"])
            page.screenshot(path=_screenshot("shown"))
            assert "TensorBoard ended with 0" in lesson.run(stop)
            assert not _listens(first)
            second = _started(lesson.run(code[start]["id"]))
            assert _listens(second)
            page.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
            page.wait_for_function("jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'")
        except BaseException:
            page.screenshot(path=_screenshot("where_it_failed"))
            raise
        assert not _listens(second), "TensorBoard outlived the kernel that started it"
    assert any(url.startswith(first) for url in asked)
    assert not [process for process in psutil.process_iter() if str(tmp_path) in " ".join(_words(process))]


def _started(output: str) -> str:
    """The address that the cell prints: this computer's own, and nobody else's."""
    found = re.search(r"http://127\.0\.0\.1:\d+/", output)
    assert found, output
    return found[0]


def _shows_the_run(page: Page, address: str) -> None:
    """The page within the notebook names the run and its tool, and draws the bars of our annotations."""
    shell = _frame(page, address, "/data/plugin/profile/trace_viewer@")
    shell.get_by_text("Sessions (1)").wait_for()
    shell.get_by_text(re.compile(r"^first/\d{4}(_\d\d){5}$")).first.wait_for()
    shell.get_by_text("Trace Viewer").first.wait_for()
    backdrop = shell.locator(".mat-drawer-backdrop.mat-drawer-shown")
    if backdrop.count():  # in a narrow frame the settings lie over the timeline, until a click beside them
        backdrop.click(position={"x": 600, "y": 400})
    viewer = _frame(page, address, "/data/plugin/profile/trace_viewer_index.html")
    viewer.wait_for_function(f"({BARS})().length > 100")
    bars: list[Any] = viewer.evaluate(BARS)
    assert [bars.count(f"train {i}") for i in range(4)] == [1, 1, 1, 0]
    assert [bars.count(name) for name in ("load", "call", "read loss")] == [3, 3, 3]


def _frame(page: Page, address: str, path: str) -> Frame:
    """The frame on the page that shows `path` of the TensorBoard at `address`."""
    wanted = address.rstrip("/") + path
    for _ in range(int(desk.PATIENCE_S * 4)):
        for frame in page.frames:
            if frame.url.startswith(wanted):
                return frame
        page.wait_for_timeout(250)
    raise AssertionError(f"no frame shows {wanted}; there are {[frame.url for frame in page.frames]}")


def _listens(address: str) -> bool:
    """Whether anybody answers there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(address.rstrip("/").rpartition(":")[2]))) == 0


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _screenshot(name: str) -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS / f"tensorboard_{name}.png"
