"""Publishes files to learners: as a folder, a zip or a commit, and never with hidden text of the course in them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from grader.core import files as files_module
from grader.core.layout import PACKAGE, learner_files
from grader.course import Cell, Course, build, exercises
from grader.course.rules import telling
from grader.lms import git

LIST = ".bundle"  # what lies in a folder of ours: paths and hashes
PROGRAMS = frozenset({"setup.sh", "run_autograder"})
WORD = re.compile(r"\w+")
HIDDEN = frozenset({"hidden", "wrong", "right"})


class NoBundle(Exception):
    """A bundle cannot be made; the text says why and what to do."""


def write_zip(files: Mapping[str, bytes], path: Path, top: str = "") -> None:
    """Writes a zip, whole or not at all. Not compressed: every machine then writes the same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{top}{name}")  # dated 1980
            entry.create_system = 3
            entry.external_attr = (0o100755 if name in PROGRAMS else 0o100644) << 16
            archive.writestr(entry, content)
    _put(path, stream.getvalue())


def write_folder(files: Mapping[str, bytes], folder: Path) -> list[str]:
    """Writes files into a folder, and removes those of an earlier bundle that are no longer among them.

    Returns:
        The paths that were removed. Files that no bundle wrote are left alone.

    Raises:
        NoBundle: one of the bundle's files was changed there, or another file is in its place.
    """
    before = _listed(folder)
    strangers = [path for path, digest in before.items() if _digest(folder / path) not in (digest, None)]
    strangers += [path for path in files if path not in before and os.path.lexists(folder / path)]
    if strangers:
        raise NoBundle(f"{folder} holds files that no bundle wrote: {', '.join(strangers[:5])}. Move them away first.")
    for path in before.keys() - files.keys():
        (folder / path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (folder / path).parent.rmdir()
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    for path, content in files.items():
        if before.get(path) != digests[path] or not (folder / path).is_file():
            _put(folder / path, content)
    _put(folder / LIST, (json.dumps(digests, indent=1) + "\n").encode())
    return sorted(before.keys() - files.keys())


def commit(course: Course, files: Mapping[str, bytes], folder: Path) -> str:
    """Writes the folder and commits what changed, in a repository of its own: a new one has no other object.

    Returns:
        The commit's id; "" if nothing changed.

    Raises:
        NoBundle: it cannot be written, or the history of the repository shows what is hidden.
    """
    gone = write_folder(files, folder)
    try:
        if not (folder / ".git").exists():
            git.run(folder, "init", "--quiet", "--template=", "--initial-branch=main")
        _refuse_history(course, folder)
        git.run(folder, "add", "--force", "--", *files, LIST)
        if gone:
            git.run(folder, "rm", "--quiet", "--cached", "--ignore-unmatch", "--", *gone)
        changed = _staged(folder) & {*files, LIST, *gone}
        if not changed:
            return ""
        words = ["commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", f"{course.name}: lessons and exercises"]
        git.run(folder, *_identity(folder, course), *words, "--only", "--", *sorted(changed))
        _refuse_history(course, folder)
        return git.run(folder, "rev-parse", "HEAD").decode().strip()
    except git.GitFailed as problem:
        raise NoBundle(f"git could not commit in {folder}: {problem}.") from None


def _staged(folder: Path) -> set[str]:
    """What is staged and differs from the last commit, if there is one."""
    lines = git.run(folder, "status", "--porcelain", "--untracked-files=no", "--no-renames", "-z").decode().split("\0")
    return {line[3:] for line in lines if line and line[0] in "AMD"}


def _refuse_history(course: Course, folder: Path) -> None:
    """Looks at every object of the repository, reachable or not."""
    listed = git.run(folder, "cat-file", "--batch-all-objects", "--batch-check").split(b"\n")
    ids = [line.split()[0].decode() for line in listed if line and line.split()[1] != b"tree"]
    contents = {one: git.run(folder, "cat-file", "-p", one) for one in ids}
    named = {f"{one}.ipynb" if _is_notebook(text) else one: text for one, text in contents.items()}
    if found := leaks(course, named):
        raise NoBundle(f"The history of {folder} shows what is hidden, so begin a new one. {found[0]}")


def _is_notebook(content: bytes) -> bool:
    return content.lstrip()[:1] == b"{" and b'"cells"' in content


def _identity(folder: Path, course: Course) -> list[str]:
    """Whose commit it is: the person's, where git knows one."""
    try:
        git.run(folder, "var", "GIT_COMMITTER_IDENT")
        return []
    except git.GitFailed:
        return ["-c", f"user.name={course.name}", "-c", "user.email=grader@localhost"]


def _listed(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / LIST).read_text(encoding="utf-8"))
        inside = {path for path in found if not Path(path).is_absolute() and ".." not in Path(path).parts}
        return {path: str(found[path]) for path in inside}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _put(path: Path, content: bytes) -> None:
    try:
        files_module.write(path, content, mode=0o644, alone=True)
    except OSError as problem:
        raise NoBundle(f"{path} cannot be written: {problem.strerror}.") from None


class CellText(NamedTuple):
    """The text of a cell that learners are given, the text that they are not, and whose that is."""

    public: str
    hidden: str = ""
    owner: str = ""


def leaks(course: Course, files: Mapping[str, bytes]) -> list[str]:
    """Returns a sentence for each hidden line in a file. Lines that public text contains too are no secret."""
    texts = [text for one in (course, course.base) if one is not None for text in _texts(one)]
    package = [(PACKAGE / path).read_text(encoding="utf-8") for path in learner_files()]
    public = SearchableText("\n".join([*(text.public for text in texts), *package]))
    lines = {line: text.owner for text in texts for line in telling(text.hidden.split("\n"))}
    hidden = {line: owner for line, owner in lines.items() if not public.contains(line)}
    found = []
    for path, content in files.items():
        shown = SearchableText(_readable(path, content))
        found += [f"{path} holds `{line}` of {owner}." for line, owner in hidden.items() if shown.contains(line)]
    return found


class SearchableText:
    """A text that is searched for many lines: most are ruled out by two words that never follow one another in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pairs = set(pairwise(WORD.findall(text)))

    def contains(self, line: str) -> bool:
        """Returns whether the line is in the text, also within longer words."""
        return self.pairs.issuperset(pairwise(WORD.findall(line)[1:-1])) and line in self.text


def _readable(path: str, content: bytes) -> str:
    """The text in a file; of a notebook, all its strings as they are meant, without JSON's escapes."""
    if path.endswith(".ipynb"):
        return "\n".join(_strings(json.loads(content)))
    return content.decode("utf-8", "ignore")


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _strings(value)
    elif isinstance(data, list) and data and all(isinstance(line, str) for line in data):
        yield "".join(data)
    elif isinstance(data, list):
        for value in data:
            yield from _strings(value)


def _texts(course: Course) -> Iterator[CellText]:
    """Every text of the course; the base of an overlay has texts of its own, also those that are left out."""
    for lesson in course.text_ids:
        yield from (CellText(cell.source) for cell in course.text(lesson))
    for lesson in course.lesson_ids:
        if course.adopted(lesson) is None:
            yield from map(_text, course.lesson(lesson).cells)
        else:
            before = build.source(course, lesson)
            for cell, released in zip(before["cells"], build.release(before)["cells"], strict=True):
                yield CellText(released["source"], cell["source"], f"a cell of {lesson}")


def _text(cell: Cell) -> CellText:
    if cell.kind == "answer":
        solution = "\n".join(exercises.solution(cell.source))
        return CellText(exercises.stub(cell.source), solution, f"the answer of {cell.id}")
    if cell.kind in HIDDEN:
        title = exercises.title_of_check(cell.source) if cell.kind == "hidden" else None
        because = cell.attributes.get("because", "")
        return CellText(title or "", f"{cell.source}\n{because}", f"a {cell.kind} cell of {cell.id}")
    return CellText(cell.source)
