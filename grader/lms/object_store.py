"""Submissions and results in an object store, such as `s3://bucket/submitted`, through fsspec."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.core import files
from grader.core.notebook import MAX_BYTES
from grader.core.own_files import MAX_FILES, NO_ROOM, can_be_own
from grader.course import Course
from grader.grading.cache import digest

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
# What the file systems of fsspec call the version of a file; each has some of these.
VERSION_KEYS = "ETag etag md5Hash content_md5 mtime LastModified last_modified updated created".split()
INDEX = ".index.json"  # in a local copy: what each file was when it was copied


class StoreError(Exception):
    """An object store cannot be used; the text says what happened and what to do."""


def is_url(text: str) -> bool:
    """Returns whether this names an object store rather than a path."""
    return URL.match(text) is not None


@contextlib.contextmanager
def _reporting(url: str, action: str) -> Iterator[None]:
    """Turns what the many libraries behind fsspec raise into a `StoreError`."""
    try:
        yield
    except StoreError:
        raise
    except ImportError as problem:
        text = f"{url} cannot be {action}: {problem}."
        raise StoreError(f"{text} Install fsspec and the package for this kind of address, such as s3fs.") from None
    except Exception as problem:
        reason = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise StoreError(f"{url} cannot be {action}: {reason}.") from None


def _open(url: str) -> tuple[AbstractFileSystem, str]:
    import fsspec

    return fsspec.core.url_to_fs(url)


def writable(url: str) -> None:
    """Raises StoreError where no file could be written to `url`, as far as that is known without writing."""
    with _reporting(url, "written"):
        _open(url)


def write(url: str, text: str) -> None:
    """Writes a file as UTF-8. Raises StoreError."""
    with _reporting(url, "written"):
        store, path = _open(url)
        store.pipe_file(path, text.encode())


class SubmissionStore:
    """Notebooks `<learner>/<lesson>/<lesson>.ipynb` below a URL, and a copy of them in the course's `build/`.

    Learners' own files beside a notebook are copied too, where the lesson allows them.
    """

    def __init__(self, url: str, course: Course) -> None:
        self.url, self.course = url.rstrip("/"), course
        self.folder = course.home / "build" / "submissions" / digest(self.url)
        self._known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
            self._known = {str(name): str(version) for name, version in found.items()}

    def fetch(self, lesson: str | None = None) -> list[str]:
        """Copies notebooks that are new or have changed, and removes those that are gone, of one lesson or all.

        At most as many bytes are read of a file as a notebook, or the learner's own files, may have; the copy of a
        larger one is as long as it is, and empty. Returns paths that are ignored: no lesson has this name, or allows
        this file. Raises StoreError.
        """
        with _reporting(self.url, "read"):
            store, root = _open(self.url)
            store.invalidate_cache()
            root = root.rstrip("/")
            if not store.isdir(root):
                raise StoreError(f"There is no folder {self.url}. Pass one that contains <learner>/<lesson>/.")
            found: dict[str, dict[str, Any]] = store.find(root, detail=True)
            here, ignored = dict[str, str](), list[str]()
            beside: Counter[tuple[str, str]] = Counter()
            for path, about in sorted(found.items()):
                name = path.removeprefix(f"{root}/")
                learner, *below = name.split("/")
                of = below[0] if len(below) > 1 else ""
                plain = learner not in ("", ".", "..") and not re.search(r"[\\\0]", name)
                is_notebook = below[1:] == [f"{of}.ipynb"]
                most = MAX_BYTES if is_notebook else self.course.own_files_bytes(of)
                own = most > 0 and can_be_own("/".join(below[1:])) and beside[learner, of] <= 2 * MAX_FILES
                if not plain or of not in self.course.lesson_ids or not (is_notebook or own):
                    if not any(part.startswith(".") for part in name.split("/")):
                        ignored.append(name)
                elif lesson in (None, of):
                    beside[learner, of] += 1
                    here[name] = digest([about.get("size"), *(str(about.get(key)) for key in VERSION_KEYS)])
                    if self._known.get(name) != here[name] or not (self.folder / name).is_file():
                        try:
                            self._copy(store, path, int(about.get("size") or 0), self.folder / name, most)
                        except NO_ROOM:
                            del here[name]
                            ignored.append(name)
            gone = [name for name in self._known if name not in here and lesson in (None, name.split("/")[1])]
            for name in gone:
                with contextlib.suppress(*NO_ROOM):
                    (self.folder / name).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    for folder in (self.folder / name).parents:
                        folder.rmdir()
            others = {name: version for name, version in self._known.items() if name not in (*here, *gone)}
            if here != self._known:
                self._known = {**others, **here}
                files.write(self.folder / INDEX, json.dumps(self._known))
        return ignored

    @staticmethod
    def _copy(store: AbstractFileSystem, path: str, size: int, to: Path, most: int) -> None:
        if size > most:
            files.write_hollow(to, size)
            return
        with store.open(path, "rb") as stream:
            files.write(to, stream.read(most + 1))
