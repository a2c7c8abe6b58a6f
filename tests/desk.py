"""A learner's desk, for tests and pictures: a copy of the course, the JupyterLab that `grader lab` opens, a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import ElementHandle, Page

ROOT = Path(__file__).parents[1]
CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
SWITCHES = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
OFFLINE = ("--disable-background-networking", "--disable-component-update")
DERIVED = shutil.ignore_patterns(".git", ".venv", "build", "work", "__pycache__", "*.egg-info", ".*_cache")
PATIENCE_S = 90.0


def copy_course(folder: Path) -> Path:
    """The course as it lies here, without what is derived and without anybody's work."""
    return Path(shutil.copytree(ROOT, folder / "course", ignore=DERIVED))


def environment(course: Path) -> dict[str, str]:
    """Variables under which the copy's own grader runs and JupyterLab finds nobody's settings."""
    own = course / "build" / "jupyter"
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    made = {variable: str(own / name) for variable, name in folders.items()}
    package = course if (course / "grader").is_dir() else ROOT
    return {**os.environ, **made, "PYTHONPATH": str(package), "COLUMNS": "160", "NO_COLOR": "1"}


def grader(course: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The copy's own `grader` command, run at its top."""
    command = [sys.executable, "-m", "grader", *words]
    return subprocess.run(
        command, cwd=course, env=environment(course), capture_output=True, text=True, timeout=300, check=False
    )


@contextmanager
def lab(
    course: Path, theme: str = "JupyterLab Light", verb: str = "lab", command: list[str] | None = None
) -> Iterator[str]:
    """Run the real `grader lab`, `grader instructor`, or another command that opens JupyterLab; yields the address that
    it opens. Ends all that it started."""
    own = course / "build" / "jupyter"
    opened = own / "opened"
    _configure(own, theme)
    opened.unlink(missing_ok=True)
    browser = own / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}.new" && mv "{opened}.new" "{opened}"\n')
    browser.chmod(0o755)
    with (own / "log").open("wb") as log:
        server = subprocess.Popen(
            command or [sys.executable, "-m", "grader", verb],
            cwd=course,
            env={**environment(course), "BROWSER": f"{browser} %s"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield _address(opened, server, own / "log")
        finally:
            _end(server)


def _configure(own: Path, theme: str) -> None:
    """What a test needs that is not the learner's: a port of its own, root in a container, no question about news."""
    port = free_port()
    server = {"ip": "127.0.0.1", "port": port, "allow_root": True, "use_redirect_file": False}
    settings = {
        "config/jupyter_server_config.json": {"ServerApp": server, "LabApp": {"expose_app_in_browser": True}},
        "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings": {
            "fetchNews": "false",
            "checkForUpdates": False,
        },
        "settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings": {"theme": theme},
    }
    for name, content in settings.items():
        path = own / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def _address(opened: Path, server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not opened.is_file():
        if server.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"JupyterLab opened no page:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.05)
    return opened.read_text()


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server as Ctrl-C and yes would, and by their ids what kernels of its own it left."""
    try:
        started = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    for process in psutil.wait_procs(started, timeout=5)[1]:
        process.kill()


@contextmanager
def page(address: str, width: int = 1280, height: int = 900, scale: float = 1) -> Iterator[Page]:
    """A page of headless Chromium on `address`, with JupyterLab ready in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*SWITCHES, *OFFLINE])
        try:
            opened = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=scale)
            opened.set_default_timeout(PATIENCE_S * 1000)
            opened.goto(address)
            opened.wait_for_function("window.jupyterapp !== undefined")
            opened.evaluate("jupyterapp.restored.then(() => null)")
            yield opened
        finally:
            browser.close()


# In the page: the notebook in front, and a cell of it by its id.
_CELL = """
const panel = jupyterapp.shell.currentWidget, notebook = panel.content;
const cell = notebook.widgets.find(one => one.model.id === id);
"""
_READY = """path => {
    const panel = jupyterapp.shell.currentWidget;
    return panel?.context?.path === path && panel.context.isReady && panel.content.widgets.length
        && panel.sessionContext.session?.kernel?.status === 'idle';
}"""
_SETTLED = """() => {
    const panel = jupyterapp.shell.currentWidget;
    return panel.sessionContext.session.kernel.status === 'idle'
        && panel.content.widgets.every(one => one.model.executionState !== 'running');
}"""


@dataclass(frozen=True)
class Notebook:
    """The notebook in front, worked with mouse and keyboard; its cells are named by their ids."""

    page: Page

    @classmethod
    def open(cls, page: Page, path: str) -> Notebook:
        """Open the file at `path`, seen from JupyterLab's root, and wait for its kernel."""
        page.evaluate("path => jupyterapp.commands.execute('docmanager:open', {path}).then(() => null)", path)
        return cls.front(page, path)

    @classmethod
    def front(cls, page: Page, path: str) -> Notebook:
        """The notebook at `path`, once it is in front and its kernel is idle."""
        page.wait_for_function(_READY, arg=path)
        return cls(page)

    def show(self, cell: str) -> ElementHandle:
        """Make it the active cell and bring it into sight."""
        self.page.evaluate(
            f"""async id => {{ {_CELL}
                notebook.activeCellIndex = notebook.widgets.indexOf(cell);
                await notebook.scrollToItem(notebook.activeCellIndex, 'center');
            }}""",
            cell,
        )
        node = self.node(cell)
        node.scroll_into_view_if_needed()
        return node

    def node(self, cell: str) -> ElementHandle:
        """The cell on the page."""
        node = self.page.evaluate_handle(f"id => {{ {_CELL} return cell?.node; }}", cell).as_element()
        assert node is not None, f"no cell {cell}"
        return node

    def type(self, cell: str, source: str) -> None:
        """Click into the cell and type `source` in place of what is in it."""
        editor = self.show(cell).wait_for_selector(".cm-content")
        assert editor is not None
        editor.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(source)
        assert self._of(cell, "cell.model.sharedModel.getSource()") == source

    def run(self, cell: str) -> str:
        """Run the cell with Ctrl+Enter; the text that then stands under it."""
        self.show(cell)
        before = self._of(cell, "(notebook.node.focus(), cell.model.executionCount)")
        self.page.keyboard.press("Control+Enter")
        again = f"cell.model.executionCount !== null && cell.model.executionCount !== {json.dumps(before)}"
        self.page.wait_for_function(f"id => {{ {_CELL} return {again}; }}", arg=cell)
        self.page.wait_for_function(_SETTLED)
        return self.output(cell)

    def run_all(self) -> bool:
        """Run > Run All Cells; whether all of them ran without an error."""
        done = self.page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
        self.page.wait_for_function(_SETTLED)
        return bool(done)

    def output(self, cell: str) -> str:
        """The text under the cell, as it stands on the page."""
        return "\n".join(self.outputs(cell))

    def outputs(self, cell: str) -> list[str]:
        """The text of each output under the cell, folded text too."""
        outputs = "[...cell.outputArea.node.querySelectorAll('.jp-OutputArea-output')]"
        return list(self._of(cell, f"{outputs}.map(one => one.textContent.trim())"))

    def save(self) -> None:
        """Save with Ctrl+S, and wait until nothing is unsaved."""
        self.page.keyboard.press("ControlOrMeta+s")
        self.page.wait_for_function("!jupyterapp.shell.currentWidget.context.model.dirty")

    def _of(self, cell: str, expression: str) -> Any:
        return self.page.evaluate(f"id => {{ {_CELL} return {expression}; }}", cell)


def lab_path(address: str) -> str:
    """The notebook that an address of JupyterLab opens, seen from its root."""
    found = re.search(r"/lab/tree/([^?]*)", address)
    assert found, f"{address} opens no notebook"
    return found[1]
