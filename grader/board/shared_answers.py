"""Answers that learners share in a workshop: their text without comments, and what makes two of them equal."""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import dataclass

from pygments import token as kinds
from pygments.lexers import PythonLexer

from grader.core.text import trimmed_lines
from grader.reports.similar import tokens


@dataclass(frozen=True)
class SharedAnswer:
    """An answer that a learner has shared. Answers with the same `group` differ in names, comments and layout alone."""

    code: str
    group: str
    wrong: bool  # the learner did not have all points when sharing it


def shared_answer(code: str, known: Set[str], wrong: bool) -> SharedAnswer:
    """Returns an answer as it is shown. `known` are names that its author did not choose."""
    shown = without_comments(code)
    group = hashlib.sha256("\0".join(answer_words(shown, known)).encode(errors="replace")).hexdigest()[:16]
    return SharedAnswer(shown, group, wrong)


def answer_words(code: str, known: Set[str]) -> list[str]:
    """Returns the tokens of an answer without comments, and without the names that its author chose."""
    return [one.text for one in tokens(without_comments(code), known)]


def without_comments(code: str) -> str:
    """Returns code without its comments, which may contain a name, and without the lines that they fill."""
    found = PythonLexer(stripnl=False, ensurenl=False).get_tokens_unprocessed(trimmed_lines(code))
    text = "".join("\0" if kind in kinds.Comment else value for _, kind, value in found)
    lines = (line.replace("\0", "").rstrip() for line in text.split("\n") if line.strip() != "\0")
    return "\n".join(lines).strip("\n")
