"""Runs a notebook in a kernel of its own and says which of the checks in it pass: `python -m grader.checks NOTEBOOK`.

For learners, and for CI in a learner's own repository: what it says is what the notebook would show. It is no grade:
whoever owns the notebook owns this run too. Ends with 0 when every check passes (or is skipped), with 1 when one does
not, with 2 when there is nothing to run.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from grader.checks.kernel import check_title
from grader.core.layout import SOURCE

CELL_S = 120  # seconds for one cell, compiling included
MOST = 2_000  # characters of a message
MARKS = {"NotAttempted": "○", "NotDefined": "○", "Skipped": "–"}
PASSED = "✓"
STATUS = {PASSED: "passed", "✗": "failed", "○": "not attempted", "–": "skipped"}
LATER = "It runs when the notebook is graded."
# Where a notebook is that is worked on; a kernel of our own is at none, whatever started us.
FRONT_END = "JPY_SESSION_NAME"
EDITED = "This check was edited. Grading puts the given one in its place."


class NothingToRun(Exception):
    """No notebook with checks; the text says what was looked for."""


def find(asked: str) -> Path:
    """The notebook at a path, or of a lesson's id where learners keep it. Raises NothingToRun."""
    places = [Path(asked)]
    if not asked.endswith(".ipynb"):
        places = [Path(folder) / asked / f"{asked}.ipynb" for folder in ("work", "exercises")]
    for place in places:
        if place.is_file():
            return place
    raise NothingToRun(f"There is no notebook {' or '.join(map(str, places))}.")


def read(path: Path) -> Any:
    """The notebook, with at least one check in it. Raises NothingToRun."""
    import nbformat

    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except Exception as problem:  # nbformat's own errors have no common class
        raise NothingToRun(f"{path} is no notebook: {str(problem).splitlines()[0][:200]}") from None
    if not any(_is_check(cell) for cell in notebook.cells):
        raise NothingToRun(f"{path} has no check in it.")
    return notebook


def run(notebook: Any, folder: Path) -> str:
    """Run every cell in order, on and on past errors; what ended the run early, or nothing. Outputs are filled in."""
    import nbclient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    package = str(SOURCE)
    os.environ.pop(FRONT_END, None)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_S,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute()
    except CellTimeoutError:
        return f"An earlier cell ran for more than {CELL_S} s, and the notebook was stopped there."
    except DeadKernelError:
        return "An earlier cell ended the kernel."
    return ""


def verdict(cell: Any, ended: str) -> tuple[str, str]:
    """A mark, and what the check said: nothing where it passed."""
    if _is_edited(cell):
        return "✗", EDITED
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors:
        kind, text = errors[0].ename, errors[0].evalue
        ours = kind in MARKS or kind == "CheckFailed"
        return MARKS.get(kind, "✗"), text if ours else f"{kind}: {text}"
    if cell.execution_count is None:
        return "✗", ended or "It did not run."
    return PASSED, ""


def _is_check(cell: Any) -> bool:
    return cell.cell_type == "code" and _graded(cell) and _says_something(cell.source)


def _graded(cell: Any) -> bool:
    said = cell.metadata.get("nbgrader", {})
    return bool(said.get("grade")) and not said.get("solution")


def _says_something(source: str) -> bool:
    """A hidden check is comments alone in a learner's notebook."""
    try:
        return bool(ast.parse(source).body)
    except (SyntaxError, ValueError):
        return True


def _is_edited(cell: Any) -> bool:
    """Whether the text is not the one that nbgrader's checksum was made of (nbgrader.utils.compute_checksum)."""
    said = cell.metadata["nbgrader"]
    parts = [cell.source, cell.cell_type, said.get("grade"), said.get("solution"), said.get("locked")]
    parts += [said.get("grade_id"), float(said.get("points", 0))]
    summed = hashlib.md5("".join(map(str, parts)).encode(errors="replace"), usedforsecurity=False).hexdigest()
    return bool(said.get("checksum", summed) != summed)


def tell(notebook: Any, ended: str, name: str) -> bool:
    """Print a line for each check and what it said; whether all pass."""
    passed = total = 0
    for cell in filter(_is_check, notebook.cells):
        mark, said = verdict(cell, ended)
        total += 1
        passed += mark in (PASSED, MARKS["Skipped"])
        print(f"{mark} {cell.metadata['nbgrader'].get('grade_id', '')}: {check_title(cell.source) or ''}".rstrip(": "))
        for line in said[:MOST].splitlines():
            print(f"    {line if line.isprintable() else ascii(line)}")
    hidden = sum(cell.cell_type == "code" and _graded(cell) and not _is_check(cell) for cell in notebook.cells)
    print(f"{name}: {passed} of {total} checks pass." + (f" {hidden} more run when it is graded." if hidden else ""))
    return passed == total


def document(notebook: Any, ended: str, name: str, duration_s: float) -> dict[str, Any]:
    """What docs/results.md describes; what is hidden here is skipped."""
    checks, exercise = [], ""
    for cell in notebook.cells:
        said = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and said.get("solution"):
            exercise = said.get("grade_id", "")
        if cell.cell_type != "code" or not _graded(cell):
            continue
        hidden = not _is_check(cell)
        mark, message = (MARKS["Skipped"], LATER) if hidden else verdict(cell, ended)
        most = said.get("points", 0)
        check = {
            "id": said.get("grade_id", ""),
            "exercise": exercise,
            "title": "Hidden check" if hidden else check_title(cell.source) or "",
            "status": STATUS[mark],
            "points": most if mark == PASSED else 0,
            "max_points": most,
            "message": message[:MOST],
        }
        checks.append({**check, "misconception": None, "evidence": [], "hidden": hidden})
    result = {
        "learner": "you",
        "lesson": name,
        "score": sum(check["points"] for check in checks),
        "max_score": sum(check["max_points"] for check in checks),
        "confinement": "none",
        "platform": None,
        "duration_s": round(duration_s, 3),
        "notes": [ended] if ended else [],
        "problem": None,
        "checks": checks,
    }
    return {"version": 1, "results": [result]}


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m grader.checks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", help="a notebook, or a lesson's id: 05_vmap is exercises/05_vmap/05_vmap.ipynb")
    parser.add_argument("--json", metavar="FILE", help="write what is found here too, in the form of docs/results.md")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know no tick
    try:
        asked = parser.parse_args()
        path = find(asked.notebook)
        notebook = read(path)
    except NothingToRun as problem:
        print(problem, file=sys.stderr)
        return 2
    began = time.monotonic()
    ended = run(notebook, path.parent)
    if asked.json:
        found = document(notebook, ended, path.stem, time.monotonic() - began)
        Path(asked.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if tell(notebook, ended, path.stem) else 1


if __name__ == "__main__":
    sys.exit(main())
