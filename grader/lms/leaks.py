"""Looks for hidden text in what is about to go out: lines of answers, hidden checks, right and wrong answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from grader.course import Cell, Course, build, exercises
from grader.course.rules import telling
from grader.lms import checkout

WORD = re.compile(r"\w+")
HIDDEN = frozenset({"hidden", "wrong", "right"})


@dataclass(frozen=True)
class CellText:
    """One cell: what learners are given of it, what they are not, and whose it is."""

    given: str
    hidden: str = ""
    owner: str = ""


def find(course: Course, files: Mapping[str, bytes]) -> list[str]:
    """A sentence for each hidden line that stands in a file. Lines that public text has too are no secret."""
    texts = [text for one in (course, course.base) if one is not None for text in _texts(one)]
    package = [content.decode() for content in checkout.learner_package().values()]
    said = SearchableText("\n".join([*(text.given for text in texts), *package]))
    lines = {line: text.owner for text in texts for line in telling(text.hidden.split("\n"))}
    hidden = {line: owner for line, owner in lines.items() if not said.holds(line)}
    found = []
    for path, content in files.items():
        shown = SearchableText(readable(path, content))
        found += [f"{path} holds `{line}` of {owner}." for line, owner in hidden.items() if shown.holds(line)]
    return found


class SearchableText:
    """A text in which many lines are looked for: most are ruled out by two words that do not stand there in a row."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pairs = set(pairwise(WORD.findall(text)))

    def holds(self, line: str) -> bool:
        """Whether the line stands in the text, if within longer words."""
        return self.pairs.issuperset(pairwise(WORD.findall(line)[1:-1])) and line in self.text


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


def _texts(course: Course) -> Iterator[CellText]:
    """Every text of the course's; an overlay's course below has texts of its own, also those that are left out."""
    for lesson in course.text_ids:
        yield from (CellText(cell.source) for cell in course.text(lesson))
    for lesson in course.lesson_ids:
        if course.adopted(lesson) is None:
            yield from map(_text, course.lesson(lesson).cells)
        else:
            before = build.source(course, lesson)
            after = build.release(before)
            for cell, given in zip(before["cells"], after["cells"], strict=True):
                yield CellText(given["source"], cell["source"], f"a cell of {lesson}")


def _text(cell: Cell) -> CellText:
    if cell.kind == "answer":
        solution = "\n".join(exercises.solution(cell.source))
        return CellText(exercises.stub(cell.source), solution, f"the answer of {cell.id}")
    if cell.kind in HIDDEN:
        title = exercises.title_of_check(cell.source) if cell.kind == "hidden" else None
        because = cell.attributes.get("because", "")
        return CellText(title or "", f"{cell.source}\n{because}", f"a {cell.kind} cell of {cell.id}")
    return CellText(cell.source)
