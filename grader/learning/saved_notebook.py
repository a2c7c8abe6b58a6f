"""The notebook that this kernel belongs to as it lies on disk, and what was run since and is not in it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.core.layout import course_above

MOST_BYTES = 20 << 20  # as in grading


class NotSaved(Exception):
    """There is no whole notebook to grade; the text says what was found, and what to do."""


@dataclass(frozen=True)
class SavedNotebook:
    """A notebook file as it was read: its cells, and when it was written, in seconds since the epoch."""

    path: Path
    when: float
    cells: tuple[dict[str, Any], ...]

    @property
    def shown(self) -> str:
        """Its path, seen from the top of the course."""
        root = course_above(self.path.parent)
        return str(self.path.relative_to(root) if root is not None else self.path.name)

    def again(self) -> bool:
        """Whether another one has been saved since."""
        try:
            return self.path.stat().st_mtime != self.when
        except OSError:
            return True


def path() -> Path | None:
    """Where the front end says that this kernel's notebook is; None where none does.

    JupyterLab and Jupyter Notebook say it in the kernel's environment, VS Code in its namespace. nbclient, nbconvert
    and nbgrader say nothing; nbgrader, run by a kernel, would have what that one was told.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or "NBGRADER_EXECUTION" in os.environ:
        return None
    said = shell.user_ns.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME", "")
    return Path(said).absolute() if isinstance(said, str) and said.endswith(".ipynb") else None


def read(path: Path) -> SavedNotebook:
    """The notebook there. Raises NotSaved."""
    try:
        when = path.stat().st_mtime
        if path.stat().st_size > MOST_BYTES:
            raise NotSaved(
                f"{path.name} has {path.stat().st_size / 1e6:,.0f} MB; at most {MOST_BYTES / 1e6:,.0f} MB are graded. "
                "Clear its outputs (Edit > Clear Outputs of All Cells), save it, then run this cell again."
            )
        notebook = json.loads(path.read_text(encoding="utf-8"))
        found = SavedNotebook(path, when, tuple(cell for cell in notebook["cells"] if isinstance(cell, dict)))
        lesson = notebook.get("metadata", {}).get("jaxercise", {}).get("lesson", path.stem)
    except FileNotFoundError:
        raise NotSaved(
            f"There is no {path} any more. If you renamed or moved the notebook, give it back its name; if it was "
            "never saved, save it (Ctrl+S). Then run this cell again."
        ) from None
    except OSError as problem:
        raise NotSaved(f"{path} cannot be read: {problem.strerror}. Mend that, then run this cell again.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotSaved(
            f"{path.name} is not a whole notebook on disk: it may have been read while it was written. Save it "
            "(Ctrl+S), then run this cell again."
        ) from None
    if lesson != path.stem:
        raise NotSaved(
            f"This notebook is called {path.name}, and only {lesson}.ipynb is graded. Put your answers there, or give "
            "this one that name, shut down its kernel and open it again."
        )
    return found


def text(cell: dict[str, Any]) -> str:
    """A cell's source."""
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def said(cell: dict[str, Any]) -> dict[str, Any]:
    """What nbgrader's metadata say of a cell; nothing of one that is the learner's own."""
    metadata = cell.get("metadata")
    found = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def unsaved(notebook: SavedNotebook) -> list[str]:
    """A name for each cell that was run after the notebook was saved, with another text than was saved; in that order.

    A cell is known by its id where the front end tells it, else by the names that it binds. Cells of the course do not
    count, as grading has its own, and a cell that binds nothing only if it was saved under its id.
    """
    if "grader.checks" not in sys.modules:
        return []  # no setup has run in this kernel, so nothing that belongs to the notebook
    from grader.checks.cell_state import runs_since
    from grader.core.symbols import notebook_cell_names

    code = [cell for cell in notebook.cells if cell.get("cell_type") == "code"]
    texts = {text(cell).strip() for cell in code}
    by_id = {cell.get("id"): cell for cell in code}
    of_their_own = [(notebook_cell_names(text(cell)).binds, cell) for cell in code if not said(cell).get("locked")]
    found: list[str] = []
    newer: set[str] = set()  # names bound by later runs than the one that is looked at
    for run in runs_since(notebook.when):
        binds = notebook_cell_names(run.source).binds
        own = by_id.get(run.cell_id) if run.cell_id is not None else None
        if own is None and binds <= newer:
            continue
        newer |= binds
        if run.source.strip() in (texts if own is None else {text(own).strip()}):
            continue
        if own is None:
            alike = [cell for bound, cell in of_their_own if bound & binds]
            own = alike[0] if len(alike) == 1 else None
        if own is None:
            found.append(f"the cell that binds `{min(binds)}`")
        elif not said(own).get("locked"):
            found.append(str(said(own).get("grade_id") or f"the cell that begins `{_begins(text(own))}`"))
    return list(dict.fromkeys(reversed(found)))


def _begins(source: str) -> str:
    return next((line.strip()[:40] for line in source.splitlines() if line.strip()), "")
