"""Takes over a source notebook of nbgrader's: its cells and their roles become an imported text.

What changes on the way is listed in docs/importing.md. Before a text is handed out, it is built and released, and
held against what nbgrader's own steps make of the notebook.
"""

from __future__ import annotations

import ast
import json
import logging
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from grader.core import symbols
from grader.course import nbgrader_source, notebook_builder, release
from grader.course.nbgrader_source import HEADER, ROLES, ImportedText
from grader.course.percent import MARKER
from grader.course.problems import CourseError

# How a cell looked and how it ran. nbgrader sets the last two anew for the cells that it knows.
LOOKS = ("collapsed", "scrolled", "ExecuteTime", "execution")
LOCKS = ("deletable", "editable")
# nbgrader's settings for the words around regions, spelt as it spells them, and the words that it has by default.
WORDS = {
    "ClearSolutions.begin_solution_delimeter": "BEGIN SOLUTION",
    "ClearSolutions.end_solution_delimeter": "END SOLUTION",
    "ClearHiddenTests.begin_test_delimeter": "BEGIN HIDDEN TESTS",
    "ClearHiddenTests.end_test_delimeter": "END HIDDEN TESTS",
    "ClearMarkScheme.begin_mark_scheme_delimeter": "BEGIN MARK SCHEME",
    "ClearMarkScheme.end_mark_scheme_delimeter": "END MARK SCHEME",
}
STUBS = ("ClearSolutions.code_stub", "ClearSolutions.text_stub")
CONFIG = "nbgrader_config.py"


class ImportRefused(Exception):
    """A notebook that cannot be imported: why, and what to do."""


@dataclass(frozen=True)
class ImportedNotebook:
    """What an import writes: `title` is the notebook's own or its file's name, `notes` are sentences for its author."""

    lesson: ImportedText
    text: str
    title: str
    notes: tuple[str, ...]


def take(path: Path, lesson_id: str) -> ImportedNotebook:
    """The notebook in `path` as the text of that lesson. Raises NotTaken."""
    notebook = _opened(path)
    settings, notes = _settings(path)
    _plain(notebook, {own: ("### " if own[0] == "#" else "") + WORDS[name] for name, own in settings.items() if own})
    text, attachments = _text(notebook, path.name)
    try:
        lesson = nbgrader_source.parse(text, attachments, Path(f"{lesson_id}.py"), path.name)
    except CourseError as error:
        raise ImportRefused(f"nbgrader could not release it. As a text it would be: {error}") from None
    _prove_same(notebook, lesson)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.search(r"^# +(\S.*?) *$", prose, re.MULTILINE)
    beside = sorted(
        one.name for one in path.parent.iterdir() if one.is_file() and one.suffix != ".ipynb" and one.name != CONFIG
    )
    if beside:
        notes.append(f"Not copied, and perhaps needed in exercises/{lesson_id}/: {', '.join(beside)}.")
    return ImportedNotebook(lesson, text, found[1] if found else path.stem, tuple(notes))


def _opened(path: Path) -> Any:
    """The notebook, in today's formats of Jupyter and of nbgrader."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbformat's about ids that older notebooks have not; ours replace them
            from nbgrader import nbgraderformat

            logging.getLogger("traitlets").setLevel(logging.CRITICAL)  # what it would log is raised below
            notebook = nbformat.reads(content, as_version=4)
            nbformat.validate(notebook)
            notebook = nbgraderformat.MetadataValidator().upgrade_notebook_metadata(notebook)
    except OSError as problem:
        raise ImportRefused(f"{path} cannot be read: {problem.strerror}.") from None
    except (ValueError, KeyError, AttributeError, TypeError, nbformat.ValidationError) as problem:
        said = str(problem).strip().split("\n")[0]
        raise ImportRefused(f"{path} is no notebook that Jupyter could open ({said}). Name the .ipynb file.") from None
    language = notebook.metadata.get("kernelspec", {}).get("language") or notebook.metadata.get(
        "language_info", {}
    ).get("name", "python")
    if language.lower() != "python":
        raise ImportRefused(f"{path} is written in {language}. The grader runs Python only.")
    if all(_role(cell) == "cell" for cell in notebook.cells):
        raise ImportRefused(
            f"{path} has no cell that nbgrader would know: it is a lesson's text. "
            "`jupytext --to py:percent` makes it one; put that under notebooks/."
        )
    _ids(notebook, path)
    try:
        nbgraderformat.MetadataValidator().validate_nb(notebook)
    except nbgraderformat.SchemaTooNewError:
        raise ImportRefused(f"{path} was written by a newer nbgrader than the one that is installed.") from None
    except nbgraderformat.ValidationError as problem:
        raise ImportRefused(f"nbgrader refuses {path}: {str(problem).strip().splitlines()[0]}.") from None
    return notebook


def _ids(notebook: Any, path: Path) -> None:
    seen: dict[str, int] = {}
    for number, cell in enumerate(notebook.cells, 1):
        if _role(cell) == "cell":
            continue
        grade_id = cell.metadata.nbgrader.get("grade_id")
        if not grade_id:
            raise ImportRefused(
                f"Cell {number} of {path} has no grade id. Give it one in nbgrader's Create Assignment."
            )
        if grade_id in seen:
            raise ImportRefused(
                f"Cells {seen[grade_id]} and {number} of {path} have the same grade id `{grade_id}`. Rename one."
            )
        seen[grade_id] = number


def _role(cell: Any) -> str:
    said = cell.metadata.get("nbgrader", {})
    if said.get("task"):
        return "task"
    if said.get("solution"):
        return "manual" if said.get("grade") else "answer"
    return "check" if said.get("grade") else "locked" if said.get("locked") else "cell"


def _settings(path: Path) -> tuple[dict[str, str], list[str]]:
    """What the course's own configuration says of regions, and notes about it. It is read, never run."""
    config = next((folder / CONFIG for folder in path.resolve().parents if (folder / CONFIG).is_file()), None)
    if config is None:
        return {}, []
    try:
        tree = ast.parse(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return {}, [f"{config} could not be read: nbgrader's own words for solutions and hidden tests were taken."]
    found: dict[str, str] = {}
    notes = []
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        name = ast.unparse(node.targets[0]).partition(".")[2]
        if name in WORDS and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found[name] = node.value.value
        elif name in WORDS or name in STUBS:
            notes.append(f"{config.name} sets {name}, which is not taken over: nbgrader's own stands in its place.")
    return found, notes


def _plain(notebook: Any, words: dict[str, str]) -> None:
    """Leaves of the notebook what a text keeps."""
    notebook.metadata = {key: value for key, value in notebook.metadata.items() if key not in ("jaxercise", "widgets")}
    for number, cell in enumerate(notebook.cells, 1):
        cell.source = cell.source.replace("\r\n", "\n").replace("\r", "\n")
        if words:
            anyone = "|".join(re.escape(one) for one in sorted(words, key=len, reverse=True))
            cell.source = re.sub(anyone, lambda found: words[found[0]], cell.source)
        if cell.cell_type == "code" and "AUTOTEST" in cell.source:
            raise ImportRefused(
                f"Cell {number} has an AUTOTEST line, which nbgrader turns into tests by running the notebook. Import "
                "what `nbgrader generate_assignment --source_with_tests` writes."
            )
        role = _role(cell)
        for key in (*LOOKS, *(LOCKS if role != "cell" else ())):
            cell.metadata.pop(key, None)
        said = cell.metadata.pop("nbgrader", None)
        if role != "cell":
            kept = {key: said[key] for key in ("grade_id", "schema_version")}
            flags = {key: key in ROLES[role] for key in ("grade", "locked", "solution", "task")}
            points = {"points": said.get("points", 0)} if role in ("check", "manual", "task") else {}
            cell.metadata["nbgrader"] = nbformat.from_dict({**kept, **flags, **points})


def _text(notebook: Any, name: str) -> tuple[str, dict[str, Any]]:
    metadata = json.dumps(notebook.metadata, indent=1, ensure_ascii=False, sort_keys=True)
    cells, attachments = [f"{HEADER}{_quoted(name)}\n{_commented(metadata)}"], {}
    for number, cell in enumerate(notebook.cells, 1):
        said = {}
        if cell.get("attachments"):
            said["attachments"] = f"cell-{number}"
            attachments[f"cell-{number}"] = cell.attachments
        cells.append(_cell(cell, said))
    return "\n\n".join(cells) + "\n", attachments


def _cell(cell: Any, said: dict[str, Any]) -> str:
    extra = {key: value for key, value in cell.metadata.items() if key != "nbgrader"}
    if "tags" in extra and "]" not in "".join(extra["tags"]):
        said = {"tags": extra.pop("tags"), **said}
    if extra:
        said["metadata"] = json.dumps(extra, ensure_ascii=False, sort_keys=True)
    role, graded = _role(cell), cell.metadata.get("nbgrader", {})
    if "points" in graded:
        said = {"points": graded["points"], **said}
    if role != "cell":
        said = {role: graded["grade_id"], **said}
    bare = cell.cell_type == "code" and _stands(cell.source)
    words = ["# %%", *([] if bare else [f"[{cell.cell_type}]"]), *(f"{key}={_quoted(said[key])}" for key in said)]
    body = cell.source if bare else _commented(cell.source)
    return "\n".join([" ".join(words), *([body] if body else [])])


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _stands(source: str) -> bool:
    """Whether code can stand in the text as it is: Python, without cell lines, without blank lines at its ends."""
    lines = source.split("\n")
    if any(MARKER.match(line) for line in lines) or symbols.syntax_error(source) is not None:
        return False
    return not source or (bool(lines[0].strip()) and bool(lines[-1].strip()))


def _commented(source: str) -> str:
    return "\n".join(f"# {line}" if line else "#" for line in source.split("\n")) if source else ""


def _prove_same(notebook: Any, lesson: ImportedText) -> None:
    """Raises NotTaken unless the text is released as the notebook is, cell by cell."""
    plain = {**notebook, "nbformat_minor": 5}
    try:
        theirs = release.release(plain)
    except (RuntimeError, ValueError) as problem:
        raise ImportRefused(f"nbgrader itself could not release it: {' '.join(str(problem).split())}") from None
    ours = release.release(notebook_builder.adopted_notebook(lesson))
    for number, (one, other) in enumerate(zip(theirs.cells, ours.cells, strict=True), 1):
        for key in ("cell_type", "source", "metadata", "attachments"):
            if one.get(key) != other.get(key):
                raise ImportRefused(f"Cell {number} would not be released as nbgrader does: its {key} would differ.")
