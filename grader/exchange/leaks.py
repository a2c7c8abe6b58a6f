"""Looks for hidden text in what is about to go out: lines of answers, hidden checks, right and wrong answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from grader.course import Cell, Course, exercises
from grader.course.rules_leaks import telling
from grader.exchange import checkout

HIDDEN = frozenset({"hidden", "wrong", "right"})


def find(course: Course, files: Mapping[str, bytes]) -> list[str]:
    """A sentence for each hidden line that stands in a file. Lines that public text has too are no secret."""
    said = _public(course)
    hidden = {line: owner for line, owner in _hidden(course) if line not in said}
    found = []
    for path, content in files.items():
        text = readable(path, content)
        found += [f"{path} holds `{line}` of {owner}." for line, owner in hidden.items() if line in text]
    return found


def readable(path: str, content: bytes) -> str:
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


def _courses(course: Course) -> Iterator[Course]:
    """The course and the one that it extends: what it leaves out is hidden as well."""
    yield course
    if course.base is not None:
        yield course.base


def _cells(course: Course) -> Iterator[Cell]:
    for one in _courses(course):
        for lesson in one.lesson_ids:
            yield from one.lesson(lesson).cells


def _hidden(course: Course) -> Iterator[tuple[str, str]]:
    """Every line that learners are not given, and what it is of."""
    for cell in _cells(course):
        if cell.kind in HIDDEN:
            said = [*telling(cell.source.split("\n")), cell.attributes.get("because", "")]
            yield from ((line, f"a {cell.kind} cell of {cell.id}") for line in said if line)
        elif cell.kind == "answer":
            lines = telling(exercises.solution(cell.source))
            yield from ((line, f"the answer of {cell.id}") for line in lines)


def _public(course: Course) -> str:
    """All text that learners are given."""
    said = [content.decode() for content in checkout.package(checkout.LEARNERS_ROOMS).values()]
    for cell in _cells(course):
        if cell.kind == "answer":
            said.append(exercises.stub(cell.source))
        elif cell.kind not in HIDDEN:
            said.append(cell.source)
        if cell.kind == "hidden":
            said.append(exercises.title_of_check(cell.source) or "")
    for one in _courses(course):
        said += [cell.source for lesson in one.text_ids for cell in one.text(lesson)]
    return "\n".join(said)
