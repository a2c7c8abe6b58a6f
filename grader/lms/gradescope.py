"""Gradescope: the autograder zip of a lesson, and the run that grades one submission inside its container.

`python -m grader.lms.gradescope ROOT`, where ROOT holds source/, submission/ and results/, grades the submission and
writes results.json whatever happens. With `--rehearse` it grades the course's own answers instead, when the image is
made: that fails where grading would, and what it caches makes the first learner's grading faster. What is printed is
for instructors (`stdout_visibility` is "hidden").
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import stat
import sys
import tempfile
import traceback
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeVar

from grader.core import files as files_module
from grader.core.faults import UnconfinedError
from grader.core.layout import PACKAGE
from grader.core.notebook import MAX_BYTES, Unreadable, read_submission
from grader.core.own_files import MAX_FILES as MAX_OWN_FILES
from grader.core.own_files import NO_ROOM, can_be_own
from grader.core.points import number
from grader.core.result import Result
from grader.core.text import legible
from grader.course import Course
from grader.course.tree import MAX_DATA_BYTES
from grader.grading import batch
from grader.reports import forms

Found = TypeVar("Found")
SETTINGS = "autograder.json"
COURSE_FILES = ("course.toml", ".secret", "solutions/*.py", "solutions/*/**/*", "notebooks/*.py")
EXTENDS = re.compile(rb"^\s*extends\s*=.*$", re.MULTILINE)
MAX_FILES, MAX_DEPTH, MAX_ZIPS = 5_000, 50, 5
MAX_NOTEBOOKS, MAX_NOTEBOOK_BYTES = 200, 5 * MAX_BYTES  # of all that are looked into
MAX_ZIP_LIST = 2 << 20  # bytes of a zip's list of its files, which Python reads as a whole
MAX_RATIO = 1_100  # more than deflate can pack
UNREADABLE = (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError, zlib.error)
NOT_LEARNERS = frozenset({".ipynb_checkpoints", "__MACOSX", ".git", ".venv"})
FAULT = "Your submission was not graded: {}. This is not a verdict on your work. Please contact your instructor."
UNCONFINED = (
    "Nothing was graded in this container. docs/gradescope.md lists the requirements, and explains how to grade anyway "
    "if you trust every submission."
)


# --- the zip, on the instructor's machine ----------------------------------------------------------------------------


def files(course: Course, lesson: str, allow_unsandboxed: bool = False) -> dict[str, bytes]:
    """Returns the zip's files by path. It holds hidden checks, answers and the secret: it is for the instructor alone.

    Raises NoBundle where the grader was installed without its checkout.
    """
    from grader.lms.bundle import LOCK, checkout_file  # brings nbformat, which takes a second of every submission

    scripts = Path(__file__).parent / "for_gradescope"
    package = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    settings = {"lesson": lesson, "allow_unsandboxed": allow_unsandboxed}
    # All lessons, since an exercise may name skills of another lesson; beside an overlay, the course it extends.
    copied = {
        f"{folder}/{path.relative_to(one.root).as_posix()}": path.read_bytes()
        for folder, one in (("course", course), ("below", course.base))
        if one is not None
        for pattern in COURSE_FILES
        for path in sorted(one.root.glob(pattern))
        if path.is_file()
    }
    if course.base is not None:
        copied["course/course.toml"] = EXTENDS.sub(b'extends = "../below"', copied["course/course.toml"])
    return {
        **{name: (scripts / name).read_bytes() for name in ("setup.sh", "run_autograder")},
        SETTINGS: (json.dumps(settings, indent=1) + "\n").encode(),
        LOCK: checkout_file(LOCK),
        **{f"package/{name}": checkout_file(name) for name in ("pyproject.toml", "README.md", "LICENSE")},
        **{f"package/grader/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes() for path in sorted(package)},
        **copied,
    }


# --- the run, in the container ---------------------------------------------------------------------------------------


class Autograder:
    """The autograder that was unpacked in `root`. Raises CourseError for a course that cannot be read."""

    def __init__(self, root: Path) -> None:
        settings = json.loads((root / "source" / SETTINGS).read_text())
        self.allow_unsandboxed = settings["allow_unsandboxed"]
        self.course = Course(root / "source" / "course")
        self.lesson = self.course.lesson(settings["lesson"])

    def grade(self, notebook: bytes, learner: str, beside: Mapping[str, bytes | None] = MappingProxyType({})) -> Result:
        """Grades these bytes as `learner`'s notebook, with the files `beside` it (see `submitted_notebook`). Raises
        UnconfinedError."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "learner", self.lesson.id, f"{self.lesson.id}.ipynb")
            path.parent.mkdir(parents=True)
            path.write_bytes(notebook)
            for name, content in beside.items():
                with contextlib.suppress(*NO_ROOM):
                    if content is None:
                        files_module.write_hollow(path.parent / name, self.lesson.own_files_bytes + 1)
                    else:
                        files_module.write(path.parent / name, content)
            entry = batch.Entry(path, learner, self.lesson.id)
            print_level = lambda found: print(f"Learners' processes are confined: {found.level}. {found.refused or ''}")
            allowed = self.allow_unsandboxed
            return batch.grade(self.course, [entry], jobs=1, on_confined=print_level, allow_unsandboxed=allowed)[0]

    def rehearse(self) -> str | None:
        """Grades the course's own answers; returns what is wrong with that, or None."""
        cells = [
            {"cell_type": "code", "source": exercise.reference, "metadata": {"nbgrader": {"grade_id": exercise.id}}}
            for exercise in self.lesson.exercises
        ]
        try:
            result = self.grade(json.dumps({"cells": cells}).encode(), "rehearsal")
        except UnconfinedError as problem:
            return f"{problem} {UNCONFINED} (Found while the image was built. A submission may have more.)"
        if result.problem is not None:
            return result.problem
        print(f"{self.lesson.id}: {_points(result)} for the course's own answers.")
        lost = [f"{check.id} ({check.status}): {check.message}" for check in result.checks if check.status != "passed"]
        return "\n".join(["The course's own answers lose points here.", *lost]) if lost else None


def _points(result: Result) -> str:
    return f"{number(result.score)} of {number(result.max_score)} points"


def examine(root: Path) -> Result:
    """Returns the result for what lies in submission/. Every fault becomes a result; its reason is printed."""
    lesson = ""
    try:
        autograder = Autograder(root)
        lesson, ids = autograder.lesson.id, {exercise.id for exercise in autograder.lesson.exercises}
        most = autograder.lesson.own_files_bytes
        notebook, beside = submitted_notebook(root / "submission", ids, lesson, most)
        result = autograder.grade(notebook, learner(root), beside)
    except NotOneNotebook as problem:
        return Result("", lesson, problem=str(problem), fault="submission")
    except UnconfinedError as problem:
        print(f"{problem} {UNCONFINED}")
        reason = "this autograder cannot run learners' code safely"
    except BaseException as problem:
        traceback.print_exc()
        reason = f"the autograder failed ({type(problem).__name__})"
    else:
        if not result.grader_failed:
            return result
        print(result.fault_text)  # for instructors: an exception's may hold anything
        reason = "the autograder failed"
    return Result("", lesson, problem=FAULT.format(reason), fault="grader")


def learner(root: Path) -> str:
    """Returns the learner from Gradescope's metadata, since inputs differ for each; "learner" without metadata."""
    try:
        users = json.loads((root / "submission_metadata.json").read_text())["users"]
        return "+".join(sorted(str(user["id"]) for user in users))[:200] or "learner"
    except (OSError, ValueError, KeyError, TypeError):
        return "learner"


# --- which of the submitted files is the notebook --------------------------------------------------------------------


class NotOneNotebook(Exception):
    """No notebook, or several of which none is meant; the text tells the learner what to submit."""


@dataclass(frozen=True)
class _Source:
    """A file that may be the notebook: its size as the file system or the zip states it, and how to open it."""

    size: int
    open: Callable[[], Any]  # to a binary stream


def submitted_notebook(
    folder: Path, ids: Collection[str], lesson: str, own_files_bytes: int = 0
) -> tuple[bytes, dict[str, bytes | None]]:
    """Returns the bytes of the notebook in `folder`, under any name, in a subfolder or in a zip, and the learner's own
    files beside it by their paths from there. Raises NotOneNotebook.

    Of several notebooks, it is the one that has cells with these `ids`. Links are not followed. Numbers and sizes are
    checked before anything is read. A file that makes the learner's own larger than `own_files_bytes`, with as much
    again for copies of the course's files, has None instead of its bytes.
    """
    files = _files(folder)
    with contextlib.ExitStack() as stack:
        every = {name: _Source(path.stat().st_size, partial(open, path, "rb")) for name, path in files.items()}
        found = dict(_named(every, ".ipynb"))
        if not found:
            zips = _named(files, ".zip")
            _limit(len(zips) > MAX_ZIPS, f"more than {MAX_ZIPS} zips")
            for name, path in zips:
                every |= _zipped(name, path, stack)
            found = dict(_named(every, ".ipynb"))
        if not found:
            raise NotOneNotebook(f"Your submission contains no notebook. Submit {lesson}.ipynb.")
        small = sum(one.size for one in found.values() if one.size <= MAX_BYTES)  # larger ones are never read
        _limit(len(found) > MAX_NOTEBOOKS, f"more than {MAX_NOTEBOOKS} notebooks")
        _limit(small > MAX_NOTEBOOK_BYTES, f"more than {MAX_NOTEBOOK_BYTES >> 20} MB of notebooks")
        meant = list(found) if len(found) == 1 else [name for name, one in found.items() if _has_cells(name, one, ids)]
        if len(meant) != 1:
            names = legible(", ".join(sorted(found)[:6]), 300)
            which = "several of them are" if meant else "none of them is"
            raise NotOneNotebook(
                f"Your submission contains {len(found)} notebooks ({names}), and {which} of {lesson}. "
                f"Submit only {lesson}.ipynb."
            )
        beside = _beside(meant[0], every, own_files_bytes + MAX_DATA_BYTES) if own_files_bytes else {}
        return _read(meant[0], found[meant[0]]), beside


def _beside(notebook: str, sources: dict[str, _Source], room: int) -> dict[str, bytes | None]:
    """Files that may be the learner's own, by their paths from the notebook; None for those without room."""
    folder = notebook.removesuffix(notebook.rpartition("/")[2])
    found: dict[str, bytes | None] = {}
    for path, source in sorted(sources.items()):
        name = path.removeprefix(folder)
        if path.startswith(folder) and can_be_own(name) and len(found) <= 2 * MAX_OWN_FILES:
            content = None
            if source.size <= room:
                with contextlib.suppress(*UNREADABLE), source.open() as stream:
                    content = stream.read(room + 1)
            found[name] = content if content is not None and len(content) <= room else None
            room -= len(found[name] or b"")
    return found


def _limit(exceeded: bool, what: str) -> None:
    if exceeded:
        raise NotOneNotebook(f"You submitted {what}. Submit only the notebook.")


def _has_cells(name: str, source: _Source, ids: Collection[str]) -> bool:
    try:
        return any(cell.grade_id in ids for cell in read_submission(_read(name, source), "", "").cells)
    except (NotOneNotebook, Unreadable):
        return False


def _files(folder: Path) -> dict[str, Path]:
    """Regular files by their paths in the folder."""
    found: list[Path] = []
    for count, (place, folders, names) in enumerate(os.walk(folder)):
        _limit(count > MAX_FILES, f"more than {MAX_FILES:,} folders")
        folders[:] = sorted(name for name in folders if name not in NOT_LEARNERS)
        found += [Path(place, name) for name in sorted(names)]
        _limit(len(found) > MAX_FILES, f"more than {MAX_FILES:,} files")
        _limit(len(Path(place).relative_to(folder).parts) > MAX_DEPTH, f"folders more than {MAX_DEPTH} deep")
    return {str(path.relative_to(folder)): path for path in found if stat.S_ISREG(path.lstat().st_mode)}


def _named(files: dict[str, Found], suffix: str) -> list[tuple[str, Found]]:
    return [(name, path) for name, path in files.items() if name.lower().endswith(suffix)]


class _Zip(io.FileIO):
    """A zip file. While `listed` is False, a read of more than `MAX_ZIP_LIST` bytes is refused: Python reads the list
    of a zip's files at once, before anyone can count them."""

    listed = False

    def read(self, size: int | None = -1) -> bytes:
        _limit(not self.listed and (size or 0) > MAX_ZIP_LIST, f"a zip of more than {MAX_FILES:,} files")
        return super().read(size) or b""


def _zipped(name: str, path: Path, stack: contextlib.ExitStack) -> dict[str, _Source]:
    """Files in a zip, which stays open as long as `stack`; a zip in it is not looked into."""
    try:
        file = stack.enter_context(_Zip(path))
        archive = stack.enter_context(zipfile.ZipFile(file))
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError):
        text = f"{legible(name, 100)} is not a readable zip. Submit only the notebook."
        raise NotOneNotebook(text) from None
    file.listed = True
    entries = [entry for entry in archive.infolist() if not NOT_LEARNERS & set(entry.filename.split("/"))]
    _limit(len(entries) > MAX_FILES, f"a zip of more than {MAX_FILES:,} files")
    found = {}
    for entry in entries:
        inside = f"{name}/{entry.filename}"
        _limit(entry.filename.count("/") > MAX_DEPTH, f"folders more than {MAX_DEPTH} deep")
        if not entry.is_dir():
            twice = inside in found and inside.lower().endswith(".ipynb")
            _limit(twice, f"a zip with two files of the same name ({legible(entry.filename, 100)})")
            found[inside] = _Source(entry.file_size, partial(_unzipped, archive, entry))
    return found


def _unzipped(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    # Only what everyone's zip program writes: Python unpacks the other kinds without a bound.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError
    if entry.file_size > MAX_RATIO * max(entry.compress_size, 1):
        raise zipfile.BadZipFile
    return archive.open(entry)


def _read(name: str, source: _Source) -> bytes:
    """Reads one file, at most as much as is read of any notebook, whatever a zip says about its size."""
    shown = legible(name, 100)
    content = b""
    if source.size <= MAX_BYTES:
        try:
            with source.open() as stream:
                content = stream.read(MAX_BYTES + 1)
        except UNREADABLE as problem:
            kind = "locked" if "password" in str(problem) else "damaged, or compressed in an unsupported way"
            raise NotOneNotebook(f"{shown} is {kind}. Submit only the notebook.") from None
    if max(source.size, len(content)) > MAX_BYTES:
        text = f"is larger than {MAX_BYTES >> 20} MB. Clear its outputs, save it and submit it again."
        raise NotOneNotebook(f"{shown} {text}")
    return content


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m grader.lms.gradescope")
    parser.add_argument("root", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args()
    if given.rehearse:
        problem = Autograder(given.root).rehearse()
        if problem is not None:
            print(problem, file=sys.stderr)
        return problem is not None
    result = examine(given.root)
    # Whole or not at all: until it is in place, what run_autograder wrote there before stays.
    path = given.root / "results" / "results.json"
    files_module.write(path, forms.gradescope(result), mode=0o644)
    print(f"{_points(result)} in {result.duration_s:.1f} s. {result.problem or ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
