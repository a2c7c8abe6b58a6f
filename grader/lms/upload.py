"""Finds the one notebook in what a learner uploaded: under any name, in a subfolder, in a zip."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path, PurePath

from grader.core.notebook import MAX_BYTES, Unreadable, read_submission
from grader.core.text import legible

MOST_FILES = 5_000
OURS_ALONE = frozenset({".ipynb_checkpoints", "__MACOSX", ".git", ".venv"})
TOO_LARGE = f"is larger than {MAX_BYTES >> 20} MB. Clear its outputs, save it and hand it in again."


class NotOneNotebook(Exception):
    """No notebook, or several of which none is meant; the text tells the learner what to hand in."""


def notebook(folder: Path, ids: Collection[str], lesson: str) -> bytes:
    """The bytes of the notebook that was handed in. Of several, the one that has cells with these `ids`.

    Links are not followed. Raises NotOneNotebook.
    """
    found = dict(_files(folder, ".ipynb")) or dict(_zipped(folder))
    if not found:
        raise NotOneNotebook(f"There is no notebook in what you handed in. Hand in {lesson}.ipynb.")
    if len(found) == 1:
        return next(iter(found.values()))()
    meant = [read for name, read in found.items() if _is_of(read, ids)]
    if len(meant) != 1:
        names = legible(", ".join(sorted(found)[:6]), 300)
        which = "several of them are" if meant else "none of them is"
        raise NotOneNotebook(
            f"There are {len(found)} notebooks in what you handed in ({names}), and {which} of {lesson}. "
            f"Hand in {lesson}.ipynb alone."
        )
    return meant[0]()


def _is_of(read: Callable[[], bytes], ids: Collection[str]) -> bool:
    try:
        return any(cell.grade_id in ids for cell in read_submission(read(), "", "").cells)
    except (NotOneNotebook, Unreadable):
        return False


def _files(folder: Path, ending: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Regular files with this ending: their names from `folder`, and how to read them."""
    seen = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in OURS_ALONE)
        for name in sorted(names):
            seen += 1
            if seen > MOST_FILES:
                raise NotOneNotebook(f"You handed in more than {MOST_FILES:,} files. Hand in the notebook alone.")
            path = Path(place, name)
            if name.lower().endswith(ending) and stat.S_ISREG(path.lstat().st_mode):
                yield str(path.relative_to(folder)), partial(_read, path)


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        return _bounded(stream.read(MAX_BYTES + 1), path.name)


def _zipped(folder: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Notebooks in the zips; a zip in a zip is not looked into."""
    for name, _ in _files(folder, ".zip"):
        try:
            with zipfile.ZipFile(folder / name) as archive:
                entries = archive.infolist()[:MOST_FILES]
        except (zipfile.BadZipFile, OSError, NotImplementedError):
            raise NotOneNotebook(
                f"{legible(name, 100)} is no zip that can be read. Hand in the notebook alone."
            ) from None
        for entry in entries:
            inside = PurePath(entry.filename)
            if inside.suffix.lower() == ".ipynb" and not OURS_ALONE & set(inside.parts):
                yield f"{name}/{inside}", partial(_unzipped, folder / name, entry)


def _unzipped(path: Path, entry: zipfile.ZipInfo) -> bytes:
    """At most as much as is read of any notebook, whatever the zip says of its size."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(entry) as stream:
            return _bounded(stream.read(MAX_BYTES + 1), PurePath(entry.filename).name)
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError, zlib.error) as problem:
        kind = "locked" if "password" in str(problem) else "damaged"
        raise NotOneNotebook(f"{legible(path.name, 100)} is {kind}. Hand in the notebook alone.") from None


def _bounded(content: bytes, name: str) -> bytes:
    if len(content) > MAX_BYTES:
        raise NotOneNotebook(f"{legible(name, 100)} {TOO_LARGE}")
    return content
