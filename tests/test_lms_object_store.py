"""Submissions in an object store: fsspec's in memory, which lives as long as this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from conftest import Grader

from grader.core.notebook import MAX_BYTES, Unreadable, read_bytes
from grader.course import Course
from grader.grading import batch
from grader.lms import object_store
from grader.lms.object_store import StoreError, SubmissionStore

LESSON = "01_small"
URL = "memory://class/submitted"


@pytest.fixture
def store(built: Callable[[str], Path], course: Path) -> Iterator[SubmissionStore]:
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/class/submitted/{name}/{LESSON}/{LESSON}.ipynb": name.encode() for name in ("ann", "bob")})
    memory.pipe({"/class/submitted/ann/notes.txt": b"", f"/class/submitted/../{LESSON}/{LESSON}.ipynb": b"outside"})
    yield SubmissionStore(URL, Course(course))
    memory.rm("/class", recursive=True)


def found(store: SubmissionStore) -> dict[str, bytes]:
    return {entry.learner: read_bytes(entry.path) for entry in batch.find(store.folder, store.course)}


def test_the_copy_follows_what_is_added_changed_and_removed(store: SubmissionStore) -> None:
    assert store.fetch() == ["ann/notes.txt"]
    assert found(store) == {"ann": b"ann", "bob": b"bob"}
    before = {entry.path: os.stat(entry.path).st_mtime_ns for entry in batch.find(store.folder, store.course)}
    again = SubmissionStore(URL, store.course)
    again.fetch()
    assert {path: os.stat(path).st_mtime_ns for path in before} == before, "what has not changed is not read again"
    memory = fsspec.filesystem("memory")
    memory.pipe(f"/class/submitted/ann/{LESSON}/{LESSON}.ipynb", b"new")
    memory.pipe(f"/class/submitted/cy/{LESSON}/{LESSON}.ipynb", b"cy")
    memory.rm(f"/class/submitted/bob/{LESSON}/{LESSON}.ipynb")
    again.fetch()
    assert found(again) == {"ann": b"new", "cy": b"cy"}


def test_no_more_is_read_than_a_notebook_may_have(store: SubmissionStore) -> None:
    path = f"/class/submitted/ann/{LESSON}/{LESSON}.ipynb"
    fsspec.filesystem("memory").pipe(path, bytes(MAX_BYTES + (5 << 20)))
    store.fetch()
    (entry, _) = batch.find(store.folder, store.course)
    with pytest.raises(Unreadable, match="The notebook has 26 MB, but at most 21 MB are read"):
        read_bytes(entry.path)
    assert entry.path.stat().st_blocks == 0


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://nothing", "There is no folder memory://nothing"),
        ("nosuch://bucket", "cannot be read: Protocol not known: nosuch"),
    ],
)
def test_a_store_that_cannot_be_read_is_told(course: Path, url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        SubmissionStore(url, Course(course)).fetch()
    if url.startswith("nosuch"):
        with pytest.raises(StoreError, match="cannot be written"):
            object_store.writable(url)


def test_the_command_reads_and_writes_urls(course: Path, grader: Grader, tmp_path: Path) -> None:
    (tmp_path / "in" / "ann" / LESSON).mkdir(parents=True)
    (tmp_path / "in" / "ann" / LESSON / f"{LESSON}.ipynb").write_bytes(b"")
    (tmp_path / "in" / "bob").mkdir()
    (tmp_path / "in" / "bob" / "notes.txt").touch()
    to = tmp_path / "results.json"
    done = grader("--course", course, "grade", f"file://{tmp_path}/in", "--json", f"file://{to}")
    assert done.returncode == 1, done.stderr
    assert "Not graded, or only in part: ann/01_small." in done.stderr
    assert "Ignored, because no lesson has this name: bob/notes.txt." in done.stderr
    (result,) = json.loads(to.read_text())["results"]
    assert (result["learner"], result["fault"]) == ("ann", "submission")
    for words, said in (
        ([f"file://{tmp_path}/none"], "There is no folder"),
        ([f"file://{tmp_path}/in", "--json", "nosuch://x"], "cannot be written"),
        ([f"file://{tmp_path}/in", "--gradebook"], "Copy the submissions there first"),
        ([tmp_path / "in", "--metrics", "9999"], "--metrics requires --follow"),
        ([tmp_path / "in", "--on", "somewhere"], "'somewhere' is no address of a cluster"),
    ):
        done = grader("--course", course, "grade", *words)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert said in done.stderr
