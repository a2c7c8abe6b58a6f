"""What a failing `require` compared: its two sides, found and wanted, from the text of the check and the frame."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from grader.checks.evaluate import METHODS, NotEvaluable, evaluate, is_plain
from grader.checks.verbs import Program

WORDS: dict[type, str] = {
    ast.Eq: "",
    ast.NotEq: "not ",
    ast.Lt: "less than ",
    ast.LtE: "at most ",
    ast.Gt: "more than ",
    ast.GtE: "at least ",
    ast.Is: "",
    ast.IsNot: "not ",
    ast.In: "one of ",
    ast.NotIn: "none of ",
}
HOLDS: dict[type, Any] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
TURNED: dict[type, type] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
MISSING = object()


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its text, the text that it was assigned from, its value where that can be told."""

    node: ast.expr
    origin: ast.expr
    value: Any

    @property
    def known(self) -> bool:
        """Whether the value could be told."""
        return self.value is not MISSING

    @property
    def text(self) -> str:
        """As the check has it."""
        return ast.unparse(self.node)


@dataclass(frozen=True)
class FailedComparison:
    """A comparison that does not hold: the side that is the answer's, how it should be, and the other side."""

    found: Side
    relation: str
    wanted: Side
    frame: FrameType


def failed_comparison(problem: BaseException, judge: CodeType) -> FailedComparison | None:
    """The comparison in the call of `judge` (that of `require`) that raised `problem`; None where it made none."""
    place = _calling(problem, judge)
    if place is None:
        return None
    frame, tree, call = place
    if not call.args:
        return None
    for test in _conjuncts(call.args[0]):
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            op = type(test.ops[0])
            left, right = (_side(node, frame, tree, call) for node in (test.left, test.comparators[0]))
            if _holds(op, left, right) is not True:
                return _ordered(left, right, op, frame)
    return None


def _calling(problem: BaseException, judge: CodeType) -> tuple[FrameType, ast.Module, ast.Call] | None:
    """The frame that called `judge`, its file's text as a tree, and the call in it."""
    caller, step = None, problem.__traceback__
    while step is not None and step.tb_frame.f_code is not judge:
        caller, step = step, step.tb_next
    if caller is None or step is None:
        return None
    code = caller.tb_frame.f_code
    positions = list(code.co_positions())[caller.tb_lasti // 2]
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _position(node) == positions:
            return caller.tb_frame, tree, node
    return None


def _position(node: ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conjuncts(value)
    else:
        yield test


def _side(node: ast.expr, frame: FrameType, tree: ast.Module, call: ast.Call) -> Side:
    try:
        value = evaluate(node, frame)
    except NotEvaluable:
        value = MISSING
    return Side(node, _origin(node, tree, call), value)


def _origin(node: ast.expr, tree: ast.Module, call: ast.Call) -> ast.expr:
    """What a name was assigned last before the call, in the same function; the node itself for all else."""
    if not isinstance(node, ast.Name):
        return node
    origin: ast.expr = node
    for statement in sorted(_assignments(tree, call), key=lambda one: one.lineno):
        for target in statement.targets:
            values: list[tuple[ast.expr, ast.expr]] = [(target, statement.value)]
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                values = list(zip(target.elts, statement.value.elts, strict=False))
            for bound, value in values:
                if isinstance(bound, ast.Name) and bound.id == node.id:
                    origin = value
    return origin


def _assignments(tree: ast.Module, call: ast.Call) -> Iterator[ast.Assign]:
    """Those of the function that holds the call, or of the cell, that end before it."""
    scope: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.lineno <= call.lineno <= (node.end_lineno or 0):
            scope = node  # ast.walk goes from the outside in
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Assign) and (node.end_lineno or 0) < call.lineno:
            yield node
        todo += ast.iter_child_nodes(node)


def _holds(op: type, left: Side, right: Side) -> bool | None:
    """Whether it does; None where that cannot be told of plain data."""
    if not (left.known and right.known and is_plain(left.value) and is_plain(right.value)):
        return None
    try:
        return bool(HOLDS[op](left.value, right.value))
    except Exception:  # lists of arrays have no truth
        return None


def _ordered(left: Side, right: Side, op: type, frame: FrameType) -> FailedComparison | None:
    """What is found stands left by habit; where only the right side reads a program, or the left is constant, right."""
    turned = (_reads(right, frame) and not _reads(left, frame)) or isinstance(left.node, ast.Constant)
    if turned and op in (ast.In, ast.NotIn):
        return None
    if turned:
        left, right, op = right, left, TURNED.get(op, op)
    return FailedComparison(left, WORDS[op], right, frame)


def _reads(side: Side, frame: FrameType) -> bool:
    return fact(side, frame) is not None


def fact(side: Side, frame: FrameType) -> tuple[Program, str, str] | None:
    """The program, the fact and the kind of collective that a side reads and nothing else, if it is such a thing."""
    node, kind = side.origin, ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        try:
            [kind] = [str(evaluate(arg, frame)) for arg in node.args]
        except (NotEvaluable, ValueError):
            return None
        node = node.func
    if not isinstance(node, ast.Attribute):
        return None
    try:
        of = evaluate(node.value, frame)
    except NotEvaluable:
        return None
    return (of, node.attr, kind) if type(of) is Program else None
