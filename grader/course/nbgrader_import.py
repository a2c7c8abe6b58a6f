"""Import a source notebook of nbgrader's: its cells and their roles become the text of a lesson.

What changes on the way is listed in docs/importing.md. Before a text is written, it is built and released, and
compared with what nbgrader's own steps make of the notebook.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from grader.core import files, symbols
from grader.core.layout import COURSE_FILE, course_above
from grader.course import build, nbgrader_lesson, notebook_builder
from grader.course.nbgrader_lesson import HEADER, ROLES, ImportedText
from grader.course.percent import MARKER, CourseError
from grader.course.scaffold import quoted, write_course, write_secret
from grader.course.tree import LESSON_ID, MAX_DATA_BYTES, MAX_DATA_FILES, Course, is_data_path

# How a cell looked and how it ran. nbgrader sets the last two again for the cells that it knows.
LOOKS = ("collapsed", "scrolled", "ExecuteTime", "execution")
LOCKS = ("deletable", "editable")
# nbgrader's settings for the words around regions, spelt as it spells them, and the words that it has by default.
WORDS = {
    f"{step}.{end}_{words}_delimeter": f"{end.upper()} {text}"
    for step, words, text in (
        ("ClearSolutions", "solution", "SOLUTION"),
        ("ClearHiddenTests", "test", "HIDDEN TESTS"),
        ("ClearMarkScheme", "mark_scheme", "MARK SCHEME"),
    )
    for end in ("begin", "end")
}
STUBS = ("ClearSolutions.code_stub", "ClearSolutions.text_stub")
CONFIG = "nbgrader_config.py"
FRAMES = ("IncludeHeaderFooter.header", "IncludeHeaderFooter.footer")  # notebooks around each notebook
MAX_LEFT_OUT = 1_000  # files that are not copied, as in a home folder


class ImportRefused(Exception):
    """A notebook that cannot be imported: why, and what to do."""


@dataclass(frozen=True)
class ImportedNotebook:
    """What an import writes: `title` is the notebook's own or its file's name, `notes` are sentences for its author.
    `data` are the files beside the notebook, by their paths there."""

    lesson: ImportedText
    text: str
    title: str
    notes: tuple[str, ...]
    data: dict[str, bytes]


@dataclass(frozen=True)
class ImportTarget:
    """The lesson that a notebook becomes. `is_listed` tells whether course.toml lists it already."""

    root: Path
    lesson: str
    new_course: bool
    is_listed: bool

    @property
    def path(self) -> Path:
        return self.root / "solutions" / f"{self.lesson}.py"

    def write(self, imported: ImportedNotebook) -> list[str]:
        """Writes the text and enters the lesson in course.toml; returns a sentence about each other file."""
        # In an order that survives an interruption.
        notes = []
        if self.new_course:
            secret = write_secret(self.root)
            outline = f"name = {quoted(self.root.name or 'Course')}\n"
            made = [*write_course(self.root, outline, _slug(self.root.name)), *secret]
            notes.append(f"There was no course here: {self.root} is one now ({', '.join(made)}).")
        if not self.is_listed:
            listing = (self.root / COURSE_FILE).read_text(encoding="utf-8").rstrip("\n")
            entry = f'[[lesson]]\nid = "{self.lesson}"\ntitle = {quoted(imported.title)}\npart = "Imported"'
            files.write(self.root / COURSE_FILE, f"{listing}\n\n{entry}\n", mode=0o644)
            notes.append(f"{COURSE_FILE} lists it as {self.lesson}, its last lesson.")
        beside = nbgrader_lesson.attachments_path(self.path)
        if imported.lesson.attachments:
            text = json.dumps(imported.lesson.attachments, indent=1, ensure_ascii=False)
            files.write(beside, f"{text}\n", mode=0o644)
            notes.append(f"{beside.name} beside the text holds the pictures of its cells.")
        else:
            beside.unlink(missing_ok=True)
        notes += self._write_data(imported.data)
        files.write(self.path, imported.text, mode=0o644)
        if self.lesson not in Course(self.root).ids:
            notes.append(f"`lessons` in {COURSE_FILE} does not name it yet: add it there, or it is not offered.")
        return notes

    def _write_data(self, data: dict[str, bytes]) -> list[str]:
        """Writes the files of the notebook to the lesson's folder. A file there with other content is kept."""
        folder = self.path.with_suffix("")
        kept = [name for name, content in data.items() if (to := folder / name).exists() and to.read_bytes() != content]
        for name, content in data.items():
            if name not in kept:
                files.write(folder / name, content, mode=0o644)
        copied = ", ".join(name for name in data if name not in kept)
        notes = [f"Copied to solutions/{self.lesson}/, and released to learners: {copied}."] if copied else []
        if kept:
            why = "because other files have these names there"
            notes.append(f"Not copied to solutions/{self.lesson}/, {why}: {', '.join(kept)}.")
        return notes


def import_target(start: Path, notebook: Path, lesson: str | None, force: bool) -> ImportTarget:
    """Returns where `notebook` goes in the course that `start` is in, or in a new one there; `force` replaces a text.
    Raises ImportRefused, or CourseError if the course cannot be read."""
    root = course_above(start)
    course = Course(root) if root is not None else None
    below = set(course.base.ids) if course is not None and course.base is not None else set()
    listed = below | set(course.ids if course is not None else ())
    last = max((int(one[:2]) for one in listed), default=0)
    name = lesson or f"{last + 1:02}_{_slug(notebook.stem)}"
    if not LESSON_ID.fullmatch(name):
        raise ImportRefused(f"`{name}` is no legal id for a lesson. Name one with --lesson, as in --lesson 05_vmap.")
    if name not in listed and listed and int(name[:2]) <= last:
        text = f"{COURSE_FILE} lists lessons by number, up to {last:02}. Enter {name} there, or give a higher number."
        raise ImportRefused(text)
    if name in below:
        raise ImportRefused(f"{name} is a lesson of the course below. Give the notebook a lesson of its own.")
    target = ImportTarget(root or start, name, root is None, name in listed)
    if target.path.exists() and not force:
        raise ImportRefused(f"{target.path} is there already. Choose another --lesson, or replace it with --force.")
    return target


def _slug(stem: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", stem.lower())) or "notebook"


def import_notebook(path: Path, lesson_id: str) -> ImportedNotebook:
    """Returns the notebook in `path` as the text of that lesson. Raises ImportRefused."""
    notebook = _open(path)
    settings, notes = _settings(path)
    notes += _add_header_and_footer(notebook, settings)
    _simplify(notebook, {own: ("### " if own[0] == "#" else "") + WORDS[name] for name, own in settings.items() if own})
    text, attachments = _text(notebook, path.name)
    try:
        lesson = nbgrader_lesson.parse(text, attachments, Path(f"{lesson_id}.py"), path.name)
    except CourseError as error:
        raise ImportRefused(f"nbgrader could not release it. As a text it would be: {error}") from None
    _compare_releases(notebook, lesson)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    title = re.search(r"^# +(\S.*?) *$", prose, re.MULTILINE)
    whole = _whole_course(path.parent)
    data, left_out = _files_beside(path) if whole is None else ({}, [])
    if whole is not None:  # it may contain answers and submissions
        notes.append(
            f"No file beside the notebook was copied, because its folder is a whole course: it contains {whole}."
        )
    if left_out:
        more = f" and {len(left_out) - 10} more" if len(left_out) > 10 else ""
        notes.append(f"Not copied, because a lesson cannot release them: {', '.join(left_out[:10])}{more}.")
    return ImportedNotebook(lesson, text, title[1] if title else path.stem, tuple(notes), data)


def _whole_course(folder: Path) -> str | None:
    """The file that shows a folder to be a whole course, which contains answers: not an assignment's folder."""
    return next((one for one in (COURSE_FILE, CONFIG, "gradebook.db") if (folder / one).exists()), None)


def _files_beside(notebook: Path) -> tuple[dict[str, bytes], list[str]]:
    """The files that nbgrader releases beside a notebook, by path, and the names of those that a lesson cannot have.
    Other notebooks, hidden files and folders of whole courses are neither. It stops where a folder is too large for an
    assignment's."""
    found: dict[str, bytes] = {}
    left_out: list[str] = []
    size = 0
    for folder, folders, names in os.walk(notebook.parent):
        usual = (one for one in folders if not re.match(r"\.|__pycache__$", one))
        folders[:] = sorted(one for one in usual if _whole_course(Path(folder, one)) is None)
        for path in (Path(folder, name) for name in sorted(names)):
            if path.name.startswith(".") or path.suffix in (".ipynb", ".pyc"):
                continue
            if len(left_out) == MAX_LEFT_OUT:
                return found, [*left_out, "others"]
            name = path.relative_to(notebook.parent).as_posix()
            legal = is_data_path(name) and path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)
            if not legal or len(found) == MAX_DATA_FILES or size + path.stat().st_size > MAX_DATA_BYTES:
                left_out.append(name)
                continue
            found[name] = path.read_bytes()
            size += len(found[name])
    return found, left_out


def _open(path: Path) -> Any:
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
        why = str(problem).strip().split("\n")[0]
        raise ImportRefused(f"{path} is not a notebook that Jupyter can open ({why}). Pass the .ipynb file.") from None
    kernel, language_info = (notebook.metadata.get(key, {}) for key in ("kernelspec", "language_info"))
    language = kernel.get("language") or language_info.get("name", "python")
    if language.lower() != "python":
        raise ImportRefused(f"{path} is written in {language}. The grader runs Python only.")
    if all(_role(cell) == "cell" for cell in notebook.cells):
        fix = "`jupytext --to py:percent` makes it one; put that under notebooks/."
        raise ImportRefused(f"{path} has no cell that nbgrader would know: it is a lesson's text. {fix}")
    try:
        nbgraderformat.MetadataValidator().validate_nb(notebook)
    except nbgraderformat.SchemaTooNewError:
        raise ImportRefused(f"{path} was written by a newer nbgrader than the one that is installed.") from None
    except nbgraderformat.ValidationError as problem:
        raise ImportRefused(f"nbgrader refuses {path}: {str(problem).strip().splitlines()[0]}.") from None
    return notebook


def _role(cell: Any) -> str:
    flags = cell.metadata.get("nbgrader", {})
    if flags.get("task"):
        return "task"
    if flags.get("solution"):
        return "manual" if flags.get("grade") else "answer"
    return "check" if flags.get("grade") else "locked" if flags.get("locked") else "cell"


def _settings(path: Path) -> tuple[dict[str, str], list[str]]:
    """The words that the course's own configuration sets for regions, and notes about it. It is read, never run."""
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
        constant = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if constant and name in WORDS:
            found[name] = ast.literal_eval(node.value)
        elif constant and name in FRAMES:
            found[name] = str(config.parent / ast.literal_eval(node.value))
        elif name in (*WORDS, *STUBS, *FRAMES):
            notes.append(f"{config.name} sets {name}, which is not taken over: nbgrader's own stands in its place.")
    return found, notes


def _add_header_and_footer(notebook: Any, settings: dict[str, str]) -> list[str]:
    """Adds the cells that nbgrader adds to each notebook of the course, and returns sentences about them. Takes the
    paths out of `settings`."""
    notes = []
    for name, before in zip(FRAMES, (True, False), strict=True):
        path = settings.pop(name, None)
        if not path:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cells = nbformat.reads(Path(path).read_bytes().decode("utf-8-sig"), as_version=4).cells
        except (OSError, ValueError, KeyError, AttributeError, nbformat.ValidationError) as problem:
            notes.append(f"{CONFIG} sets {name} to {path}, which cannot be read ({str(problem).splitlines()[0]}).")
            continue
        notebook.cells = [*cells, *notebook.cells] if before else [*notebook.cells, *cells]
        notes.append(f"The text contains the cells of {path}, as {CONFIG} sets {name}.")
    return notes


def _simplify(notebook: Any, words: dict[str, str]) -> None:
    """Reduces the notebook to what a text keeps; replaces the course's own `words` around regions by nbgrader's."""
    notebook.metadata = {key: value for key, value in notebook.metadata.items() if key not in ("jaxercise", "widgets")}
    any_word = "|".join(re.escape(one) for one in sorted(words, key=len, reverse=True))
    for number, cell in enumerate(notebook.cells, 1):
        cell.source = cell.source.replace("\r\n", "\n").replace("\r", "\n")
        if words:
            cell.source = re.sub(any_word, lambda found: words[found[0]], cell.source)
        if cell.cell_type == "code" and "AUTOTEST" in cell.source:
            why = "has an AUTOTEST line, which nbgrader turns into tests by running the notebook"
            fix = "Import what `nbgrader generate_assignment --source_with_tests` writes."
            raise ImportRefused(f"Cell {number} {why}. {fix}")
        role = _role(cell)
        for key in (*LOOKS, *(LOCKS if role != "cell" else ())):
            cell.metadata.pop(key, None)
        own = cell.metadata.pop("nbgrader", None)
        if role != "cell":
            ids = {key: own[key] for key in ("grade_id", "schema_version")}
            flags = {key: key in ROLES[role] for key in ("grade", "locked", "solution", "task")}
            points = {"points": own.get("points", 0)} if role in ("check", "manual", "task") else {}
            cell.metadata["nbgrader"] = nbformat.from_dict({**ids, **flags, **points})


def _text(notebook: Any, name: str) -> tuple[str, dict[str, Any]]:
    """The text of the notebook called `name`, and the attachments of its cells by their names in it."""
    metadata = json.dumps(notebook.metadata, indent=1, ensure_ascii=False, sort_keys=True)
    attachments = {f"cell-{n}": cell.attachments for n, cell in enumerate(notebook.cells, 1) if cell.get("attachments")}
    cells = [_cell(cell, f"cell-{number}") for number, cell in enumerate(notebook.cells, 1)]
    return "\n\n".join([f"{HEADER}{quoted(name)}\n{_commented(metadata)}", *cells]) + "\n", attachments


def _cell(cell: Any, attachments: str) -> str:
    role, graded = _role(cell), cell.metadata.get("nbgrader", {})
    extra = {key: value for key, value in cell.metadata.items() if key != "nbgrader"}
    attributes = {role: graded["grade_id"]} if role != "cell" else {}
    if "points" in graded:
        attributes["points"] = graded["points"]
    if "tags" in extra and "]" not in "".join(extra["tags"]):
        attributes["tags"] = extra.pop("tags")
    if cell.get("attachments"):
        attributes["attachments"] = attachments
    if extra:
        attributes["metadata"] = json.dumps(extra, ensure_ascii=False, sort_keys=True)
    bare = cell.cell_type == "code" and _is_plain_code(cell.source)
    words = ["# %%", *([] if bare else [f"[{cell.cell_type}]"]), *(f"{k}={quoted(v)}" for k, v in attributes.items())]
    body = cell.source if bare else _commented(cell.source)
    return "\n".join([" ".join(words), *([body] if body else [])])


def _is_plain_code(source: str) -> bool:
    """Whether code can be in the text as it is: Python, without cell lines, without blank lines at its ends."""
    lines = source.split("\n")
    blank_end = bool(source) and not (lines[0].strip() and lines[-1].strip())
    return not blank_end and not any(map(MARKER.match, lines)) and symbols.syntax_error(source) is None


def _commented(source: str) -> str:
    return "\n".join(f"# {line}" if line else "#" for line in source.split("\n")) if source else ""


def _compare_releases(notebook: Any, lesson: ImportedText) -> None:
    """Raises ImportRefused unless the text is released as the notebook is, cell by cell."""
    try:
        theirs = build.release({**notebook, "nbformat_minor": 5})
    except (RuntimeError, ValueError) as problem:
        raise ImportRefused(f"nbgrader itself could not release it: {' '.join(str(problem).split())}") from None
    ours = build.release(notebook_builder.imported_notebook(lesson))
    for number, (one, other) in enumerate(zip(theirs["cells"], ours["cells"], strict=True), 1):
        for key in ("cell_type", "source", "metadata", "attachments"):
            if one.get(key) != other.get(key):
                raise ImportRefused(f"Cell {number} would not be released as nbgrader does: its {key} would differ.")
