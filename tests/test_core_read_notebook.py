"""A notebook file is opened without links on its way, and looked at only when it is open."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from grader.board.judge_queue import FolderWatcher
from grader.core import own_files
from grader.core.notebook import MAX_BYTES, Unreadable, read_bytes

LINK = "It is a link or not a regular file"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "one" / "course" / "work" / "05_vmap" / "05_vmap.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    return path


def test_a_plain_file_is_read_through_folders_that_cannot_be_listed(place: Path) -> None:
    place.parent.chmod(0o311)
    assert read_bytes(place) == b"{}"
    place.write_bytes(bytes(MAX_BYTES + 1))
    with pytest.raises(Unreadable, match=r"The notebook has 21 MB, but at most 21 MB are read\. Clear its outputs"):
        read_bytes(place)


@pytest.mark.parametrize(("above", "folders"), [(0, 0), (0, 2), (1, 1), (1, 2), (2, 2), (3, 3)])
def test_no_link_is_followed_in_the_folders_that_are_the_learners(place: Path, above: int, folders: int) -> None:
    part = (place, *place.parents)[above]
    part.rename(part.with_name("moved"))
    part.symlink_to(part.with_name("moved"))
    with pytest.raises(Unreadable, match=LINK):
        read_bytes(place, folders)
    if above > 1:
        assert read_bytes(place, above - 1) == b"{}"  # links above are the machine's own


def test_a_file_that_becomes_a_pipe_blocks_nobody(place: Path) -> None:
    """Its author renames a pipe over it again and again while it is read."""
    pipe, plain, ended = place.with_name("pipe"), place.with_name("plain"), threading.Event()

    def swap() -> None:
        while not ended.is_set():
            os.mkfifo(pipe)
            pipe.replace(place)
            plain.write_bytes(b"{}")
            plain.replace(place)

    thread = threading.Thread(target=swap)
    thread.start()
    found = set[bytes | str]()
    try:
        while len(found) < 2:
            try:
                found.add(read_bytes(place))
            except Unreadable as problem:
                found.add(str(problem)[: len(LINK)])
    finally:
        ended.set()
        thread.join()
    assert found == {b"{}", LINK}


def test_a_watched_folder_that_is_a_link_is_nobodys(tmp_path: Path, place: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "course").symlink_to(tmp_path / "one" / "course")
    watched = FolderWatcher([str(tmp_path / "*" / "course")], ["05_vmap"], lambda saved: None)
    assert [one.name for one in watched._look()] == ["one"]


def test_the_name_of_a_file_beside_a_notebook_makes_no_lines(tmp_path: Path) -> None:
    (tmp_path / "b\nmallory 21 of 21 points").write_text("x")
    (remark,) = own_files.read(tmp_path, 100, {}).remarks
    assert remark.startswith("b mallory 21 of 21 points was not used: ")
    assert "\n" not in remark
    assert not own_files.can_be_own("/".join(["a" * 200] * 25))
