"""Pairs of submissions that share more code than the released cells, the course's answers and the class explain.

Texts are compared as sequences of tokens, by the hashes of k-grams that winnowing selects (Schleimer, Wilkerson and
Aiken, "Winnowing: local algorithms for document fingerprinting", SIGMOD 2003). The hashes are the same in every
process, so a class gives the same pairs each time. Code of learners is split into tokens and never parsed or run.
"""

from __future__ import annotations

import builtins
import keyword
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from pygments import token as kinds
from pygments.lexers import PythonLexer

from grader.core import notebook
from grader.core.notebook import Notebook, Submission
from grader.core.result import to_text
from grader.core.text import trimmed_lines
from grader.course import Lesson

K = 12  # tokens of the shortest passage that is looked for
WINDOW = 6  # of so many passages in a row, one is compared: any common passage of K + WINDOW - 1 tokens is found
MIN_TOKENS = 40  # a cell counts from so many shared tokens on,
MIN_SHARE = 0.6  # and from this share of its tokens on that nothing explains; docs/instructors.md states what both miss
CLASS_SHARE = 0.05  # a passage that this share of the class has, or more, is the lesson's idiom
CLASS_MIN = 5  # and that at least so many learners have
FACTOR = np.uint64(6364136223846793005)  # Knuth's, for a hash modulo 2**64
MAX_SHOWN = 40_000  # characters of a learner's text
MAX_TOKENS = 20_000  # of one submission; more are no answers
MAX_CHARACTERS = 100_000  # of one submission
VARIABLE, TEXT, BREAK = "v", "'", "\0"  # in place of a name that the learner chose, of a string, and between cells

Span = tuple[int, int]


@dataclass(frozen=True)
class Token:
    """A token as it is compared, and where it stands in the learner's text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Learner:
    """What one learner wrote in one lesson: cells with their labels, without the released ones."""

    name: str
    cells: tuple[tuple[str, str], ...]

    @cached_property
    def text(self) -> str:
        return "\n\n".join(f"# {label}\n{source}" for label, source in self.cells)


@dataclass(frozen=True)
class SharedPart:
    """What one learner of a pair shares: the cells that count, how many tokens are shared in them, and where."""

    learner: Learner
    cells: tuple[str, ...]
    tokens: int
    spans: tuple[Span, ...]

    @property
    def marked(self) -> list[tuple[str, bool]]:
        """The text in pieces, and whether each is shared; at most MAX_SHOWN characters of it."""
        text, at, found = self.learner.text[:MAX_SHOWN], 0, []
        for start, end in self.spans:
            found += [(text[at:start], False), (text[start:end], True)]
            at = end
        return [piece for piece in [*found, (text[at:], False)] if piece[0]]


@dataclass(frozen=True)
class Pair:
    """Two learners who share code."""

    first: SharedPart
    second: SharedPart

    @property
    def tokens(self) -> int:
        return max(self.first.tokens, self.second.tokens)

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.first.cells, *self.second.cells)))


def tokens(text: str, known: Collection[str]) -> Iterator[Token]:
    """Yields the tokens of a piece of Python, right or wrong: without comments, layout and docstrings, with one word
    for all names that the learner chose (those that are not `known`, in the course or in Python) and all strings."""
    dotted = False
    for start, kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens_unprocessed(text):
        if kind in kinds.Comment or kind in kinds.String.Doc or not value.strip():
            continue
        if kind in kinds.String:
            shown = TEXT
        elif kind in kinds.Name and not dotted and value not in known and not keyword.iskeyword(value):
            shown = VARIABLE
        else:
            shown = value
        dotted = value == "."
        yield Token(shown, start, start + len(value))


class Fingerprint:
    """The selected passages of K tokens: where each stands in the sequence, by its hash. `every`: all are selected."""

    def __init__(self, found: Iterable[Token], every: bool = False) -> None:
        words = np.array([zlib.crc32(one.text.encode(errors="replace")) for one in found], np.uint64)
        self.places: dict[int, list[int]] = {}
        if len(words) < K:
            return
        hashes = np.zeros(len(words) - K + 1, np.uint64)
        for i in range(K):
            hashes = hashes * FACTOR + words[i : i + len(hashes)]
        window = 1 if every else min(WINDOW, len(hashes))
        last_smallest = np.lib.stride_tricks.sliding_window_view(hashes, window)[:, ::-1].argmin(1)
        for at in np.unique(np.arange(len(last_smallest)) + window - 1 - last_smallest).tolist():
            self.places.setdefault(int(hashes[at]), []).append(at)

    @property
    def hashes(self) -> set[int]:
        return set(self.places)


class SimilarAnswers:
    """Compares the submissions of one lesson. The `released` cells, and the course's own answers unless `own` is False,
    explain the passages that occur in them."""

    def __init__(self, lesson: Lesson, released: Iterable[str], own: bool = True) -> None:
        explaining = [exercise.stub for exercise in lesson.exercises]
        for exercise in lesson.exercises if own else ():
            explaining += [exercise.reference, *(v.source for v in (*exercise.right, *exercise.wrong))]
        released = list(released)
        self._released = {_bare(text) for text in released}
        self._known_names = {*lesson.setup_names, *dir(builtins), *(name for e in lesson.exercises for name in e.names)}
        self._explained: set[int] = set()
        for text in (*released, *explaining):
            self._explained |= Fingerprint(tokens(text, self._known_names), every=True).hashes

    def learner(self, submission: Submission, stubs: Collection[str]) -> Learner:
        """Returns what the learner wrote: answer cells, and cells of their own, that are not as they were released.
        Long lines and long submissions are cut."""
        cells, room = [], MAX_CHARACTERS
        for cell in submission.cells:
            if _bare(cell.source) in self._released or (cell.grade_id is not None and cell.grade_id not in stubs):
                continue  # a cell of the course, changed or not
            source = trimmed_lines(cell.source)[:room]
            room -= len(source)
            cells.append((cell.grade_id or f"own cell {cell.number}", source))
        return Learner(submission.learner, tuple(cells))

    def pairs(
        self, learners: Sequence[Learner], min_tokens: int = MIN_TOKENS, min_share: float = MIN_SHARE
    ) -> list[Pair]:
        """Returns the pairs with a cell of at least `min_tokens` shared tokens, which are at least `min_share` of what
        nothing explains in this cell, most shared first."""
        prints = [Fingerprint(self._tokens(learner)) for learner in learners]
        owners: dict[int, list[int]] = defaultdict(list)
        for i, one in enumerate(prints):
            for value in one.hashes - self._explained:
                owners[value].append(i)
        common = max(CLASS_MIN, CLASS_SHARE * len(learners))
        own = {value for value, found in owners.items() if len(found) < common}
        met: Counter[tuple[int, int]] = Counter()
        for value in own:
            met.update(combinations(owners[value], 2))
        found = []
        for (i, j), passages in met.items():
            if passages * (WINDOW + 1) + K >= min_tokens:  # else it cannot be enough
                shared = prints[i].hashes & prints[j].hashes & own
                sides = (self._side(learners[k], prints[k], shared, own, min_tokens, min_share) for k in (i, j))
                pair = Pair(*sides)
                if pair.cells:
                    found.append(pair)
        return sorted(found, key=lambda pair: (-pair.tokens, pair.first.learner.name, pair.second.learner.name))

    def _side(
        self, learner: Learner, prints: Fingerprint, shared: set[int], own: set[int], min_tokens: int, min_share: float
    ) -> SharedPart:
        stands = self._tokens(learner)
        covered = {at + i for value in shared for at in prints.places[value] for i in range(K)}
        possible = {at + i for value in prints.hashes & own for at in prints.places[value] for i in range(K)}
        cells, count, places = list[str](), 0, list[int]()
        begin = 0
        for label, end in ((t.text[1:], i) for i, t in enumerate(stands) if t.text.startswith(BREAK)):
            inside = range(begin, end)
            here, most = sum(i in covered for i in inside), sum(i in possible for i in inside)
            if here >= min_tokens and here >= min_share * most:
                cells.append(label)
                count += here
                places += [i for i in inside if i in covered]
            begin = end + 1
        spans = _merged((stands[i].start, stands[i].end) for i in places)
        return SharedPart(learner, tuple(cells), count, tuple(spans))

    def _tokens(self, learner: Learner) -> list[Token]:
        """The tokens of a learner's text; no passage goes from one cell to the next."""
        found, at = list[Token](), 0
        for label, source in learner.cells:
            at += len(f"# {label}\n")
            found += [Token(t.text, t.start + at, t.end + at) for t in tokens(source, self._known_names)]
            at += len(source) + 2
            found.append(Token(f"{BREAK}{label}", at, at))
        return found[:MAX_TOKENS]


def _bare(text: str) -> str:
    return "".join(text.split())


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans in order, joined where only white space can be between two tokens."""
    last: Span | None = None
    for start, end in spans:
        if last is not None and start <= last[1] + 1:
            last = last[0], max(last[1], end)
            continue
        if last is not None:
            yield last
        last = start, end
    if last is not None:
        yield last


def submitted(
    lesson: Lesson, released: Notebook, submissions: Iterable[Submission], only: str | None = None,
    min_share: float = MIN_SHARE,
) -> tuple[int, list[Pair]]:  # fmt: skip
    """Returns how many submissions of a lesson there are, and the pairs among them. `released` is its notebook, `only`
    the exercise whose answers alone are compared."""
    code = [cell for cell in notebook.cells(released) if cell.get("cell_type") == "code"]
    stubs = {str(notebook.grade_id(cell)) for cell in code if notebook.is_answer(cell)}
    compared = SimilarAnswers(lesson, map(notebook.text, code))
    learners = [compared.learner(one, stubs) for one in submissions]
    if only is not None:
        learners = [Learner(one.name, tuple(cell for cell in one.cells if cell[0] == only)) for one in learners]
    return len(learners), compared.pairs(learners, min_share=min_share)


def document(lessons: Sequence[tuple[str, int, Sequence[Pair]]], unread: Sequence[dict[str, str]]) -> str:
    """Returns the pairs as JSON: of each its lesson, both learners, the cells that count and how much they share, and
    of each submission that could not be read its learner, lesson and reason."""
    pairs = [
        {
            "lesson": lesson,
            "learners": [pair.first.learner.name, pair.second.learner.name],
            "cells": [list(pair.first.cells), list(pair.second.cells)],
            "shared_tokens": pair.tokens,
        }
        for lesson, _, found in lessons
        for pair in found
    ]
    submissions = {lesson: count for lesson, count, _ in lessons}
    return to_text({"version": 1, "submissions": submissions, "pairs": pairs, "not_compared": unread})
