"""The poem of the capstone is found from every folder in which its notebooks are run."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from grader.learning import poem


def test_it_is_clean() -> None:
    text = poem.load()
    assert len(text) == 456_741
    assert text.isascii()
    assert "\r" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert text.startswith("Book I\n")
    assert [line for line in text.splitlines() if line.startswith("Book ")][-1] == "Book XII"


@pytest.mark.parametrize("place", ["exercises/26_capstone", "26_capstone", "beside"])
def test_a_copy_near_the_notebook_comes_first(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lessons = tmp_path / "lessons"
    lessons.mkdir()
    copy = (lessons if place == "beside" else tmp_path / place) / poem.NAME
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text("a copy")
    monkeypatch.chdir(lessons)
    assert poem.load() == "a copy"


def test_any_other_folder_finds_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert poem.path() == ROOT / "exercises" / poem.LESSON / poem.NAME


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(poem, "SOURCE", tmp_path)
    monkeypatch.setattr(poem, "INSTALLED_COURSE", tmp_path)
    with pytest.raises(FileNotFoundError, match="26_capstone"):
        poem.load()
