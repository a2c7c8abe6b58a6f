"""Notebook files: the one reader, the limits it reads under, and what the metadata of a cell state about it.

A notebook may come from anyone: reading runs nothing in it, and everything that cannot be read is `Unreadable` with a
sentence for its author. Cells stay dicts as the file contains them, since most readers write them back.

A learner's copy states itself which of the course's cells each cell came from: nbgrader's metadata contain a checksum
of each cell's text as it was released, and cells without such metadata get a mark of ours when they are copied. Both
survive JupyterLab, and an older Jupyter, which drops the ids of cells.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import hashlib
import io
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grader.core.own_files import FILE, NO_FILES, OwnFiles
from grader.core.text import legible

Notebook = dict[str, Any]
NotebookCell = dict[str, Any]

MAX_BYTES = 20 << 20
LINK = "It is a link or not a regular file. Submit the notebook file itself."
# To open what is in a folder; where the system has O_PATH, the folder itself need not be readable.
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
MAX_OWN_BYTES = 200 << 20  # of a notebook of one's own that is copied, whose outputs may be large
MAX_CELLS = 2_000
MAX_SOURCE = 200_000  # characters of a code cell
MAX_LISTED, MAX_NAME = 1_000, 80  # files of a folder, and characters of the name of one
CONFLICT = re.compile(rb"^(?:<{7} |>{7} |={7}\r?$)", re.MULTILINE)
KINDS = ("code", "markdown", "raw")
BUILT_ID = re.compile(r"(?:text|predict|choose)-.+|(?:code|markdown|raw)-(?P<hash>[0-9a-f]{8})(?:-\d+)?")
HINT = re.compile(r"<details[^>]*>\s*<summary>\s*(Hint\b.*?)</summary>(.*?)</details>", re.DOTALL)


class Unreadable(Exception):
    """A file that is not a notebook that can be graded; the text is one sentence for its author."""


@dataclass(frozen=True)
class SubmittedCell:
    """One code cell: the course's id of it (None for a learner's own), its text, its number among code cells from 1.

    Markdown cells do not count: a process is told the number, and may tell no two files with the same code apart by it.
    """

    grade_id: str | None
    source: str
    number: int


@dataclass(frozen=True)
class Submission:
    """A learner's notebook of one lesson: its code cells, and the SHA-256 digest of all that was submitted.

    `not_code` are the course's ids of its Markdown and raw cells, `own` the files that were submitted beside it.
    """

    learner: str
    lesson: str
    cells: tuple[SubmittedCell, ...]
    digest: str
    not_code: frozenset[str] = frozenset()
    own: OwnFiles = NO_FILES

    def seed(self, secret: str) -> str:
        """Returns what the inputs of its checks are drawn from; nobody can work it out without the course's secret.
        Every byte counts: whatever differs between two submissions, they meet different inputs."""
        return "/".join((secret, self.lesson, self.learner, self.digest))


def read_bytes(path: Path, folders: int = 2) -> bytes:
    """Returns the bytes of a notebook file. Neither the file nor the `folders` nearest folders above it may be links.

    The learner may replace them at any time, so each is opened from the one above, and checked once it is open.

    Raises:
        Unreadable: one of them is a link, or the file is missing, not a regular file, not readable or too large.
    """
    try:
        with _opened(path, folders) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise Unreadable(LINK)
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise Unreadable(f"There is no {path.name} in the submitted folder.{_renamed(path)}") from None
    except OSError as problem:
        text = LINK if problem.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO) else None
        raise Unreadable(text or f"The file cannot be read: {problem.strerror}.") from None
    if len(content) > MAX_BYTES:
        fix = "Clear its outputs (Edit > Clear Outputs of All Cells), save it and submit it again."
        most = f"at most {MAX_BYTES / 1e6:,.0f} MB are read"
        raise Unreadable(f"The notebook has {about.st_size / 1e6:,.0f} MB, but {most}. {fix}")
    return content


@contextlib.contextmanager
def _opened(path: Path, folders: int) -> Iterator[io.BufferedReader]:
    with contextlib.ExitStack() as open_folders:
        inside: int | None = None
        for folder in reversed(path.parents[:folders]):
            inside = os.open(folder if inside is None else folder.name, FOLDER, dir_fd=inside)
            open_folders.callback(os.close, inside)
        with open(os.open(path if inside is None else path.name, FILE, dir_fd=inside), "rb") as file:
            yield file


def _renamed(path: Path) -> str:
    """What the folder contains in the place of a missing notebook, such as a copy that a browser has renamed."""
    names, stem = list[str](), path.stem.casefold()
    if not any(one.is_symlink() for one in path.parents[:2]):
        with contextlib.suppress(OSError), os.scandir(path.parent) as found:
            for one in itertools.islice(found, MAX_LISTED):
                like, inside = one.name.casefold(), Path(one.path, path.name)
                if one.is_file(follow_symlinks=False) and (like.startswith(stem) or like.endswith(".ipynb")):
                    names.append(one.name)
                elif one.is_dir(follow_symlinks=False) and inside.is_file():
                    names.append(f"{one.name}/{path.name}")
    names = sorted(name for name in names if not name.startswith("."))
    if not names:
        return ""
    more = len(names) - 1
    first, *second = (legible(name, MAX_NAME).replace("\n", " ") for name in names[:2])
    others = f" and {more} others" if more > 1 else "".join(f" and {name}" for name in second)
    return f" It contains {first}{others}. Submit the notebook as {path.name} in this folder."


def parse(content: bytes) -> Notebook:
    """Returns a notebook of format 4; any item of its "cells" may be malformed. Raises `Unreadable` for other bytes."""
    if not content.strip():
        raise Unreadable("The file is empty. Save the notebook again and submit it.")
    try:
        notebook = json.loads(content)
    except RecursionError:
        raise Unreadable("The file is nested too deeply to be a notebook.") from None
    except ValueError as problem:
        conflict = CONFLICT.search(content)
        if conflict:
            line = content.count(b"\n", 0, conflict.start()) + 1
            text = f"The file contains the marks of a merge conflict on line {line}. Resolve it and submit it again."
        elif isinstance(problem, UnicodeDecodeError) and content.lstrip().startswith(b"{"):
            text = "The file is not UTF-8 text, so it is not a notebook. Save it as UTF-8 and submit it again."
        else:
            text = "The file is not a notebook: it is not JSON. Submit the .ipynb file itself."
        raise Unreadable(text) from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        text = "The file is JSON but not a notebook of format 4. Open it in JupyterLab, save it and submit it again."
        raise Unreadable(text)
    if len(notebook["cells"]) > MAX_CELLS:
        raise Unreadable(f"The notebook has {len(notebook['cells']):,} cells, but at most {MAX_CELLS:,} are read.")
    return notebook


def cells(notebook: Notebook) -> list[NotebookCell]:
    """Returns the cells that are dicts, in order; others are no cells to anyone."""
    return [cell for cell in notebook["cells"] if isinstance(cell, dict)]


def read_complete(path: Path) -> Notebook:
    """Returns a notebook that is to be written back: every cell has a type, text and metadata. Raises OSError, and
    `Unreadable` with a clause, such as "its cell 3 is malformed"."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable("it is not a regular file")  # a pipe would be waited for
    if found.st_size > MAX_OWN_BYTES:
        raise Unreadable(f"it has more than {MAX_OWN_BYTES >> 20} MB")
    try:
        notebook = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise Unreadable("it is not JSON") from None
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise Unreadable("it is not a notebook of format 4")
    for number, cell in enumerate(notebook["cells"], 1):
        sound = isinstance(cell, dict) and cell.get("cell_type") in KINDS and isinstance(cell.get("metadata"), dict)
        if not sound or _source(cell) is None:
            raise Unreadable(f"its cell {number} is malformed")
    return notebook


def read_submission(content: bytes, learner: str, lesson: str, own: OwnFiles = NO_FILES) -> Submission:
    """Returns the submission in these bytes, and in the files `own` beside it. Raises `Unreadable` for anything that
    cannot be graded."""
    found: list[SubmittedCell] = []
    not_code: set[str] = set()
    for cell in cells(parse(content)):
        if cell.get("cell_type") != "code":
            not_code |= {name for name in [grade_id(cell)] if name is not None}
            continue
        number, source = len(found) + 1, _source({"source": "", **cell})
        if source is None:
            raise Unreadable(f"Code cell {number} has no text. Save the notebook again and submit it.")
        if len(source) > MAX_SOURCE:
            raise Unreadable(f"Code cell {number} has {len(source):,} characters, but at most {MAX_SOURCE:,} are read.")
        found.append(SubmittedCell(grade_id(cell), source, number))
    digest = hashlib.sha256(content).hexdigest() + own.digest
    return Submission(learner, lesson, tuple(found), digest, frozenset(not_code), own)


def _source(cell: NotebookCell) -> str | None:
    source = cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    return source if isinstance(source, str) else None


def text(cell: NotebookCell) -> str:
    """Returns a cell's text, which files contain as one string or as lines; "" where it has none."""
    return _source(cell) or ""


def nbgrader(cell: NotebookCell) -> dict[str, Any]:
    """Returns nbgrader's metadata of a cell; empty where it has none."""
    return part(cell.get("metadata"), "nbgrader")


def part(of: Any, name: str) -> dict[str, Any]:
    """Returns the dict `of[name]`; empty where `of` is no dict, or has no dict there."""
    found = of.get(name) if isinstance(of, Mapping) else None
    return found if isinstance(found, dict) else {}


def grade_id(cell: NotebookCell) -> str | None:
    """Returns the course's id of a cell; None for a cell of the learner's own."""
    found = nbgrader(cell).get("grade_id")
    return found if isinstance(found, str) else None


def is_answer(cell: NotebookCell) -> bool:
    """Returns whether the learner writes an answer into this cell."""
    return bool(nbgrader(cell).get("solution"))


def is_check(cell: NotebookCell) -> bool:
    """Returns whether this is a check cell, hidden or not: a graded code cell that is no answer."""
    return cell.get("cell_type") == "code" and nbgrader(cell).get("grade") is True and not is_answer(cell)


def is_public_check(cell: NotebookCell) -> bool:
    """Returns whether this is a check that runs in the learner's notebook, where a hidden one is comments alone."""
    if not is_check(cell):
        return False
    try:
        return bool(ast.parse(text(cell)).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def is_locked(cell: NotebookCell) -> bool:
    """Returns whether the text is the course's alone. As nbgrader has it: an answer never, what is graded always."""
    said = nbgrader(cell)
    return not is_answer(cell) and bool(said.get("grade") or said.get("locked"))


def checksum(cell: NotebookCell, source: str | None = None) -> str:
    """Returns nbgrader's checksum of a cell (`compute_checksum` in its utils.py), or of one with the text `source`.

    A cell without nbgrader's metadata gets a checksum over its text and type. Importing nbgrader takes two seconds.
    """
    said = nbgrader(cell)
    parts: list[Any] = [text(cell) if source is None else source, cell.get("cell_type")]
    if said:
        parts += [said.get("grade", False), is_answer(cell), is_locked(cell), said.get("grade_id")]
        points = said.get("points")
        if said.get("grade") and isinstance(points, int | float):
            with contextlib.suppress(OverflowError):
                parts.append(float(points))
    return hashlib.md5("".join(map(str, parts)).encode(errors="replace"), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class CellOrigin:
    """The course's name of a cell, and the checksum of its text when it was released (None where nothing states it)."""

    name: str
    checksum: str | None


def origin_of(cell: NotebookCell) -> CellOrigin | None:
    """Returns which of the course's cells this is; None for a cell of the learner's own."""
    said = nbgrader(cell)
    if isinstance(said.get("grade_id"), str):
        found = said.get("checksum")
        return CellOrigin(said["grade_id"], found if isinstance(found, str) else None)
    mark = part(part(cell["metadata"], "jaxercise"), "given")
    if isinstance(mark.get("cell"), str) and isinstance(mark.get("sum"), str):
        return CellOrigin(mark["cell"], mark["sum"])
    # Before cells were marked, only their ids told, most of which contain a hash of the text that was built. Links in
    # lesson prose were changed since, so its text is trusted.
    built = BUILT_ID.fullmatch(cell["id"]) if isinstance(cell.get("id"), str) else None
    if built is None:
        return None
    own = hashlib.sha256(text(cell).encode(errors="replace")).hexdigest()[:8]
    return CellOrigin(cell["id"], checksum(cell) if built["hash"] in (None, own) else None)


def cells_by_name(cells: Iterable[NotebookCell]) -> dict[str, NotebookCell]:
    """Returns the course's cells by name; of pieces that share a name, the first."""
    found: dict[str, NotebookCell] = {}
    for cell in cells:
        origin = origin_of(cell)
        if origin is not None:
            found.setdefault(origin.name, cell)
    return found


def is_unchanged(cell: NotebookCell) -> bool:
    """Returns whether a cell of the course's still has the text that it was released with."""
    origin = origin_of(cell)
    return origin is not None and origin.checksum == checksum(cell)


def sign(cell: NotebookCell) -> None:
    """Stores in a cell of the course's what its text is now: its checksum, or a mark where nbgrader has no metadata."""
    said = nbgrader(cell)
    if not said:
        mark = {"cell": cell["id"], "sum": checksum(cell)}
        cell["metadata"]["jaxercise"] = part(cell["metadata"], "jaxercise") | {"given": mark}
    elif "checksum" in said:
        said["checksum"] = checksum(cell)


class Hint(NamedTuple):
    """A hint in a task: the title on its fold, and the Markdown in it."""

    title: str
    text: str


def hints(task: str) -> tuple[Hint, ...]:
    """Returns the hints in a task's Markdown, from a question to almost the answer; an imported task may have none."""
    return tuple(Hint(title.strip(), content.strip()) for title, content in HINT.findall(task))
