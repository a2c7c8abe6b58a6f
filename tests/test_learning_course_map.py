"""The map in the start notebook: every lesson, and how far one has come, in words and in HTML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT

from grader.course import Course
from grader.learning.course_map import NOTHING, Map, course_map

COURSE = """
name = "Two"
[[lesson]]
id = "01_first"
title = "First & foremost"
part = "One"
[[lesson]]
id = "02_second"
title = "Second"
part = "Two"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a learner's lessons, where the first of two is built."""
    (tmp_path / "course.toml").write_text(COURSE)
    lessons = tmp_path / "work" / "lessons"
    lessons.mkdir(parents=True)
    (lessons / "01_first.ipynb").write_text("{}")
    monkeypatch.chdir(lessons)
    return lessons


def seen(here: Path, graded: object) -> Map:
    (here.parent / ".jaxercise.json").write_text(json.dumps({"version": 1, "graded": graded}))
    return course_map()


def test_what_is_done_shows_in_words_and_as_a_bar(here: Path) -> None:
    part = seen(here, {"01_first": {"one": [2, 2], "two": [1, 4]}})
    assert repr(part).splitlines() == [
        "01 First & foremost             3 of 6 points",
        "02 Second                       coming",
    ]
    assert "width:50%" in part._repr_html_()
    assert '<a href="01_first.ipynb">01 · First &amp; foremost</a>' in part._repr_html_()
    assert "02_second" not in part._repr_html_()
    done = seen(here, {"01_first": {"one": [2, 2], "two": [4, 4]}})
    assert "✓ 6 of 6 points" in repr(done)
    assert "width:100%" in done._repr_html_()


@pytest.mark.parametrize("graded", [{}, [], {"01_first": 3}, {"01_first": {"one": "all"}}, {"01_first": {"one": [1]}}])
def test_a_file_that_says_nothing_is_no_progress(here: Path, graded: object) -> None:
    assert repr(seen(here, graded)).splitlines()[0] == "01 First & foremost"


@pytest.mark.parametrize("listing", [None, "", "lesson = 3", "[[lesson]]", "lesson ="])
def test_without_a_course_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str | None) -> None:
    if listing is not None:
        (tmp_path / "course.toml").write_text(listing)
    monkeypatch.chdir(tmp_path)
    assert repr(course_map()) == NOTHING
    assert NOTHING in course_map()._repr_html_()


def test_it_has_every_lesson_of_the_course(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "notebooks")
    assert [tile.id for tile in course_map().tiles] == list(Course(ROOT).ids)
