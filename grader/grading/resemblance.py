"""Resemblance of an answer to the wrong answers of its exercise: what each changes in the trees of the right ones.

A change is a feature that no right answer has, or the absence of one that all have. A feature is a node of the syntax
tree and what it stands in, such as `call sum > axis=`. Names of locals, docstrings, annotations and formatting have no
features.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from functools import lru_cache

from grader.course import Exercise

MAX_CHARACTERS, MAX_NODES, MAX_SHOWN = 20_000, 4_000, 40
HARDLY = 0.1
MODULES = frozenset({"jax", "jnp", "lax", "nn", "random"})  # `np` is no such name: it may be the mistake
SILENT = ast.Module | ast.Expr | ast.Assign | ast.Return | ast.Tuple | ast.arguments | ast.arg | ast.expr_context
SILENT |= ast.operator | ast.unaryop | ast.boolop | ast.cmpop
SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PLACES = frozenset({"left", "right", "test", "body", "orelse"})
OPERATORS = {"mod": "Mod", "remainder": "Mod", "add": "Add", "subtract": "Sub", "multiply": "Mult", "divide": "Div"}
OPERATORS |= {"true_divide": "Div", "floor_divide": "FloorDiv", "power": "Pow", "matmul": "MatMult"}


class Resemblance:
    """How much an answer resembles each wrong answer of an exercise.

    Args:
        exercise: the exercise, whose answers are the course's own.
        source: the learner's answer, which is parsed and never evaluated. One that is no Python, or too long or deep,
            resembles none.
    """

    def __init__(self, exercise: Exercise, source: str) -> None:
        read = lambda text: features(text, exercise.stub)
        right = [read(text) for text in (exercise.reference, *(answer.source for answer in exercise.right))]
        known, common = set().union(*right), set(right[0]).intersection(*right)
        self.found, self.lines = read(source), source.splitlines()
        usual = (exercise.stub, exercise.reference, *(answer.source for answer in exercise.right))
        self.usual_lines = {line.strip() for text in usual for line in text.splitlines()}
        self.missing = [common - read(wrong.source).keys() for wrong in exercise.wrong]
        self.added = [read(wrong.source).keys() - known for wrong in exercise.wrong]
        often = Counter(change for changes in (*self.missing, *self.added) for change in changes)
        self.weights = {change: math.log((len(exercise.wrong) + 1) / number) for change, number in often.items()}
        self.rare = math.log(len(exercise.wrong) + 1)
        self.own = (common - self.found.keys(), self.found.keys() - known) if self.found else (set(), set())
        self.scores = [self._score(*changes) for changes in zip(self.missing, self.added, strict=True)]

    def _weight(self, changes: Collection[str]) -> float:
        return sum(self.weights.get(change, self.rare) for change in changes)

    def _score(self, *changes: Collection[str]) -> float:
        """The weight of the changes that both make, as a share of all that they make, from 0 to 1."""
        shared = sum(self._weight(own & other) for own, other in zip(self.own, map(set, changes), strict=True))
        made = sum(map(self._weight, (*self.own, *changes)))
        return 2 * shared / made if made else 0.0

    def clearly(self, index: int, others: Collection[int], least: float, factor: float) -> bool:
        """Whether the score of a wrong answer is at least `least`, and at least `factor` times that of each other."""
        score = self.scores[index]
        return score >= least and all(score >= factor * self.scores[one] for one in others)

    def contradicts(self, index: int) -> bool:
        """Whether the answer changes something else than a wrong answer does; False where either changes nothing.

        They have none in common, or hardly any, and the answer contains all that the wrong answer leaves out.
        """
        score, lacks = self.scores[index], self.missing[index]
        if not any(self.own) or not (lacks or self.added[index]):
            return False
        contains = bool(lacks) and not lacks & self.own[0]
        return score == 0 or (contains and score < min(HARDLY, max(self.scores)))

    def line(self, index: int) -> int:
        """The line of the answer with most of what it adds as a wrong answer does; 0 where no line has half of it.

        A line that the stub or a right answer has too is not shown: it is no mistake by itself.
        """
        weights: Counter[int] = Counter()
        for feature in sorted(self.own[1] & self.added[index]):
            weights[self.found[feature]] += self.weights[feature]  # type: ignore[assignment]
        for line, weight in weights.most_common(1):
            if 2 * weight >= weights.total() and self.lines[line - 1].strip() not in self.usual_lines:
                return line
        return 0


@lru_cache(maxsize=512)
def features(source: str, stub: str) -> dict[str, int]:
    """Returns the features of an answer, each with a line that has it; none where the text cannot be read.

    Names that occur in `stub` count, although the answer binds them: each answer has its own names for the rest.
    """
    if len(source) > MAX_CHARACTERS:
        return {}
    try:
        with warnings.catch_warnings():  # of odd escapes in strings, on our stderr
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return _Reader(nodes, frozenset(re.findall(r"\w+", stub))).features if len(nodes) <= MAX_NODES else {}


class _Reader:
    def __init__(self, nodes: list[ast.AST], kept: frozenset[str]) -> None:
        bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        bound |= {node.name for node in nodes if isinstance(node, SCOPES)}
        self.locals = bound - kept
        self.values = self._values(nodes)
        self.features: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        todo: list[tuple[ast.AST, str]] = [(nodes[0], "")]
        while todo:
            node, above = todo.pop()
            label = self._label(node)
            if label and label not in MODULES:
                self._add(label, node)
                self._add(f"{above} > {label}", node)
            for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
                if isinstance(body, list):
                    for one, other in itertools.pairwise(one for one in body if not _is_plain(one)):
                        self._add(f"{self._statement(one)} ; {self._statement(other)}", other)
            todo += self._children(node, label or above)

    def _add(self, feature: str, node: ast.AST) -> None:
        self.counts[feature] += 1
        if (count := self.counts[feature]) < 4:
            self.features[feature if count == 1 else f"{feature} x{count}"] = getattr(node, "lineno", 0)

    def _values(self, nodes: list[ast.AST]) -> dict[str, ast.expr]:
        """What each local that is assigned once stands for."""
        stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        assigned = [(node.targets, node.value) for node in nodes if isinstance(node, ast.Assign)]
        names = [(one.id, value) for targets, value in assigned for one in targets if isinstance(one, ast.Name)]
        return {name: value for name, value in names if stored[name] == 1 and name in self.locals}

    def _statement(self, node: ast.stmt) -> str:
        value = getattr(node, "value", None)
        return self._label(value if isinstance(value, ast.expr) else node)

    def _label(self, node: ast.AST) -> str:
        """A node in at most `MAX_SHOWN` characters, as it is in many features; "" for one that says nothing."""
        return self._words(node)[:MAX_SHOWN]

    def _words(self, node: ast.AST, steps: int = 3) -> str:
        """A node in words. At most so many `steps` from a name to what it stands for."""
        match node:
            case ast.Name():
                value = self.values.get(node.id)
                if node.id not in self.locals:
                    return node.id
                return self._words(value, steps - 1) if value is not None and steps else ""
            case ast.Call():
                called = node.func
                deeper = self._words(called, steps - 1) if steps else ""
                name = called.attr if isinstance(called, ast.Attribute) else deeper
                return OPERATORS.get(name, f"call {name}") if len(node.args) == 2 else f"call {name}"
            case ast.Attribute():
                return f".{node.attr}"
            case ast.Constant():
                huge = isinstance(node.value, int) and node.value.bit_length() > 64  # Python refuses to write some
                return "a huge number" if huge else repr(node.value)[:MAX_SHOWN]
            case ast.keyword():
                return f"{node.arg}="
            case ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.AugAssign():
                return type(node.op).__name__
            case ast.Compare():
                return " ".join(type(operator).__name__ for operator in node.ops)
        if isinstance(node, SILENT):
            return ""
        return "def" if isinstance(node, SCOPES) else type(node).__name__

    def _children(self, node: ast.AST, above: str) -> Iterator[tuple[ast.AST, str]]:
        if isinstance(node, ast.Call):  # the label has the name of what is called
            yield (node.func.value if isinstance(node.func, ast.Attribute) else node.func), above
            yield from ((argument, f"{above} {place}") for place, argument in enumerate(node.args))
            yield from ((keyword, above) for keyword in node.keywords)
            return
        scope = isinstance(node, SCOPES | ast.Module | ast.Lambda)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns"):
                continue
            place = above if scope or field not in PLACES else f"{above} {field}"
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_plain(child):
                    yield child, place


def _is_plain(node: ast.AST) -> bool:
    """Whether it is a statement that does nothing: a docstring, or `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
