"""Pairs of submissions that share more code than the released cells, the course's answers and the class explain.

Texts are compared as sequences of tokens, by the fingerprints of k-grams that winnowing selects (Schleimer, Wilkerson
and Aiken, "Winnowing: local algorithms for document fingerprinting", SIGMOD 2003), as copydetect implements it. Code of
learners is split into tokens and never parsed or run.
"""

from __future__ import annotations

import builtins
import io
import keyword
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

from pygments import token as kinds
from pygments.lexers import PythonLexer

from grader.core import notebook
from grader.core.notebook import Notebook, Submission
from grader.course import Lesson

if TYPE_CHECKING:
    from copydetect import CodeFingerprint

K = 12  # tokens of the shortest passage that is looked for
WINDOW = 6  # of so many passages in a row, one is compared: any common passage of K + WINDOW - 1 tokens is found
MIN_TOKENS = 40  # a cell counts from so many shared tokens on,
MIN_SHARE = 0.6  # and from this share of its tokens on that nothing explains; docs/instructors.md states what both miss
CLASS_SHARE = 0.05  # a passage that this share of the class has, or more, is the lesson's idiom
CLASS_MIN = 5  # and that at least so many learners have
MAX_SHOWN = 40_000  # characters of a learner's text
MAX_TOKENS = 20_000  # of one submission; more are no answers
VARIABLE, TEXT, BREAK = "v", "'", "\x00"  # in place of a name that the learner chose, of a string, and between cells

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


class Vocabulary:
    """A character for each word, so that a sequence of tokens is a string, as the library compares them."""

    def __init__(self) -> None:
        self._characters: dict[str, str] = {}

    def spelled(self, found: Iterable[Token]) -> str:
        return "".join(self._characters.setdefault(t.text, chr(0x4E00 + len(self._characters) % 50_000)) for t in found)


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
        self._vocabulary = Vocabulary()
        self._explained: set[int] = set()
        for text in (*released, *explaining):
            self._explained |= self._fingerprint(text).hashes

    def learner(self, submission: Submission, stubs: Collection[str]) -> Learner:
        """Returns what the learner wrote: answer cells, and cells of their own, that are not as they were released."""
        cells = []
        for cell in submission.cells:
            if _bare(cell.source) in self._released or (cell.grade_id is not None and cell.grade_id not in stubs):
                continue  # a cell of the course, changed or not
            cells.append((cell.grade_id or f"own cell {cell.number}", cell.source))
        return Learner(submission.learner, tuple(cells))

    def pairs(self, learners: Sequence[Learner], min_tokens: int = MIN_TOKENS) -> list[Pair]:
        """Returns the pairs with a cell of at least `min_tokens` shared tokens, most shared first."""
        prints = [self._fingerprint_of(learner) for learner in learners]
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
                sides = (self._side(learners[k], prints[k], shared, own, min_tokens) for k in (i, j))
                pair = Pair(*sides)
                if pair.cells:
                    found.append(pair)
        return sorted(found, key=lambda pair: (-pair.tokens, pair.first.learner.name, pair.second.learner.name))

    def _side(
        self, learner: Learner, prints: CodeFingerprint, shared: set[int], own: set[int], min_tokens: int
    ) -> SharedPart:
        stands = self._tokens(learner)
        covered = {at + i for value in shared for at in prints.hash_idx[value] for i in range(K)}
        possible = {at + i for value in prints.hashes & own for at in prints.hash_idx[value] for i in range(K)}
        cells, count, places = list[str](), 0, list[int]()
        begin = 0
        for label, end in ((t.text[1:], i) for i, t in enumerate(stands) if t.text.startswith(BREAK)):
            inside = range(begin, end)
            here, most = sum(i in covered for i in inside), sum(i in possible for i in inside)
            if here >= min_tokens and here >= MIN_SHARE * most:
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

    def _fingerprint_of(self, learner: Learner) -> CodeFingerprint:
        return self._print(self._vocabulary.spelled(self._tokens(learner)))

    def _fingerprint(self, text: str) -> CodeFingerprint:
        return self._print(self._vocabulary.spelled(tokens(text, self._known_names)), every=True)

    def _print(self, spelled: str, every: bool = False) -> CodeFingerprint:
        """The fingerprints of a text. `every` passage counts where it explains others."""
        from copydetect import CodeFingerprint

        return CodeFingerprint("answers.py", K, 1 if every else WINDOW, filter=False, fp=io.StringIO(spelled))


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


def submitted(lesson: Lesson, released: Notebook, submissions: Iterable[Submission]) -> tuple[int, list[Pair]]:
    """Returns how many submissions of a lesson there are, and the pairs among them. `released` is its notebook."""
    code = [cell for cell in notebook.cells(released) if cell.get("cell_type") == "code"]
    stubs = {str(notebook.grade_id(cell)) for cell in code if notebook.is_answer(cell)}
    compared = SimilarAnswers(lesson, map(notebook.text, code))
    learners = [compared.learner(one, stubs) for one in submissions]
    return len(learners), compared.pairs(learners)
