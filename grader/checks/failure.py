"""The two sides, found and wanted, of the comparison in a failing `require`, read from the check's text and its frame.

`executing` finds the call that failed, `pure_eval` evaluates parts of it again without running foreign code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any, cast

import jax
import numpy as np
from executing import Source
from jax.sharding import NamedSharding, PartitionSpec
from pure_eval import CannotEval, Evaluator

from grader.checks.verbs import Program
from grader.program.load import Facts

WORDS: dict[type, str] = {ast.Lt: "less than ", ast.LtE: "at most ", ast.Gt: "more than ", ast.GtE: "at least "}
WORDS |= {ast.Eq: "", ast.NotEq: "not ", ast.Is: "", ast.IsNot: "not ", ast.In: "one of ", ast.NotIn: "none of "}
MIRRORED: dict[type, type] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
PLAIN = (bool, int, float, complex, str, tuple, list, dict, set, frozenset, type(None))
METHODS = frozenset({"count", "elements"})  # of a Program: they read what is there
ARRAY = frozenset({"shape", "size", "ndim", "dtype", "nbytes", "itemsize", "sharding"})
UNKNOWN = object()


class CheckEvaluator(Evaluator):
    """Evaluates what pure_eval holds to be safe, and facts of programs, attributes of arrays, shardings and specs."""

    def _handle(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Attribute):
            value = self[node.value]
            if node.attr in _attributes(value):
                return getattr(value, node.attr)
        if isinstance(node, ast.Call) and not node.keywords:
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in METHODS and type(self[called.value]) is Program:
                return getattr(self[called.value], called.attr)(*map(self._plain, node.args))
            if isinstance(called, ast.Name) and self[called] is PartitionSpec:
                return PartitionSpec(*map(self._plain, node.args))
        return super()._handle(node)

    def _plain(self, node: ast.expr) -> Any:
        if not _is_plain(self[node]):
            raise CannotEval
        return self[node]

    def get(self, node: ast.expr) -> Any:
        """Returns the value of `node`; `UNKNOWN` if it cannot be evaluated, or could run foreign code."""
        try:
            return self[node]
        except Exception:  # CannotEval, and what a value of the check's makes of it, such as a list in itself
            return UNKNOWN


def _attributes(value: Any) -> Any:
    """The names of attributes that can be read without running anybody's code."""
    if type(value) is Program:
        return Facts.__dataclass_fields__.keys() | {"outputs"}
    if type(value) is NamedSharding:
        return ("spec", "mesh")
    # NumPy's own arrays and JAX's own, and no subclass of another author.
    if type(value) in (np.ndarray, jax.ShapeDtypeStruct) or isinstance(value, jax.Array):
        return ARRAY
    fields = getattr(type(value), "_fields", ()) if isinstance(value, tuple) else ()
    return fields if isinstance(fields, tuple) else ()


def _is_plain(value: Any) -> bool:
    """Whether a value is Python's own data, or a number or dtype of NumPy's."""
    return type(value) in PLAIN or isinstance(value, np.generic | np.dtype)


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    node: ast.expr
    origin: ast.expr  # what was assigned to it if it is a name, else `node`
    value: Any  # or UNKNOWN
    fact: tuple[Program, str, str] | None  # program, fact and kind of collective, if it reads that and nothing else

    @property
    def plain(self) -> bool:
        return self.value is not UNKNOWN and _is_plain(self.value)


@dataclass(frozen=True)
class FailedComparison:
    """A comparison that does not hold: the side that is the answer's, how it should be, and the other side."""

    found: Side
    relation: str
    wanted: Side
    evaluator: CheckEvaluator


def failed_comparison(problem: BaseException, judge: CodeType) -> FailedComparison | None:
    """Returns the comparison in the call of `judge` (that of `require`) that raised `problem`; None if it made none."""
    caller: TracebackType | None = None
    step = problem.__traceback__
    while step is not None and step.tb_frame.f_code is not judge:
        caller, step = step, step.tb_next
    call: Any = Source.executing(caller).node if caller is not None and step is not None else None
    if caller is None or not isinstance(call, ast.Call) or not call.args:
        return None
    evaluator = cast(CheckEvaluator, CheckEvaluator.from_frame(caller.tb_frame))
    tests = (test for test in _conjuncts(call.args[0]) if isinstance(test, ast.Compare) and len(test.ops) == 1)
    failed = next((test for test in tests if evaluator.get(test) in (False, UNKNOWN)), None)
    if failed is None:
        return None
    left, right = (_side(node, call, evaluator) for node in (failed.left, failed.comparators[0]))
    relation: type = type(failed.ops[0])
    # What is found stands left by habit; where only the right side reads a program, or the left is constant, right.
    if (right.fact and not left.fact) or isinstance(left.node, ast.Constant):
        if relation in (ast.In, ast.NotIn):
            return None
        left, right, relation = right, left, MIRRORED.get(relation, relation)
    return FailedComparison(left, WORDS[relation], right, evaluator)


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conjuncts(value)
    else:
        yield test


def _side(node: ast.expr, call: ast.Call, evaluator: CheckEvaluator) -> Side:
    origin = next(_assigned(node.id, call), node) if isinstance(node, ast.Name) else node
    return Side(node, origin, evaluator.get(node), _fact(origin, evaluator))


def _assigned(name: str, call: ast.Call) -> Iterator[ast.expr]:
    """What was assigned to a name in the function or cell of `call` and before it, the last first."""
    scope: Any = call
    while not isinstance(scope, ast.FunctionDef | ast.Module):
        scope = scope.parent  # set by executing
    statements, todo = [], list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Assign) and (node.end_lineno or 0) < call.lineno:
            statements.append(node)
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)
    for statement in sorted(statements, key=lambda one: one.lineno, reverse=True):
        for target in reversed(statement.targets):
            pairs = [(target, statement.value)]
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                pairs = list(zip(target.elts, statement.value.elts, strict=False))
            yield from (value for bound, value in reversed(pairs) if isinstance(bound, ast.Name) and bound.id == name)


def _fact(node: ast.expr, evaluator: CheckEvaluator) -> tuple[Program, str, str] | None:
    kind: Any = ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        kind = evaluator.get(node.args[0]) if len(node.args) == 1 else UNKNOWN
        node = node.func
    if not isinstance(node, ast.Attribute) or type(kind) is not str:
        return None
    of = evaluator.get(node.value)
    return (of, node.attr, kind) if type(of) is Program else None
