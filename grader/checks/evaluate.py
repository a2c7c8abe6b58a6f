"""Evaluates pieces of a check's text again in the frame where it failed, and never anything that could run code."""

from __future__ import annotations

import ast
import builtins
import operator
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from grader.checks.verbs import Program
from grader.program.load import Facts

PLAIN = (bool, int, float, complex, str, tuple, list, dict, set, frozenset, type(None))
PURE = (len, sorted, set, list, tuple, range, sum, min, max, abs, round)  # of plain data, none of them a learner's
METHODS = frozenset({"count", "elements"})  # of a Program: they read what is there
ARRAY = frozenset({"shape", "size", "ndim", "dtype", "nbytes", "itemsize", "sharding"})
FACTS = frozenset(Facts.__dataclass_fields__)
OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}


class NotEvaluable(Exception):
    """This piece is not evaluated: it is not there, or could run somebody's code."""


def is_array(value: Any) -> bool:
    """One of NumPy's own or JAX's own, and no class of somebody's that is derived from them."""
    return type(value) is np.ndarray or isinstance(value, np.generic | jax.Array | jax.ShapeDtypeStruct)


def is_plain(value: Any) -> bool:
    """Python's own data, or a number of NumPy's."""
    return type(value) in PLAIN or isinstance(value, np.generic | np.dtype)


def evaluate(node: ast.expr, frame: FrameType) -> Any:
    """The value of `node` in `frame`: names, constants, arithmetic, displays, items of plain containers, attributes of
    arrays and programs, a Program's cheap methods and Python's own functions of plain data. Raises Unknown else."""
    try:
        return _value(node, frame)
    except NotEvaluable:
        raise
    except Exception as problem:  # such as a key that is not there
        raise NotEvaluable(type(problem).__name__) from None


def _value(node: ast.expr, frame: FrameType) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _named(name, frame)
        case ast.Attribute(value=of, attr=attribute):
            return _attribute(_value(of, frame), attribute)
        case ast.Tuple(elts=items):
            return tuple(_value(item, frame) for item in items)
        case ast.List(elts=items):
            return [_value(item, frame) for item in items]
        case ast.Set(elts=items):
            return {_plain(item, frame) for item in items}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_plain(k, frame): _value(v, frame) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_plain(left, frame), _plain(right, frame))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_plain(operand, frame)
        case ast.Subscript(value=of, slice=index):
            held = _value(of, frame)
            if type(held) in (tuple, list, dict) or hasattr(type(held), "_fields"):
                return held[_plain(index, frame)]
        case ast.Call(func=func, args=args, keywords=[]):
            return _call(func, args, frame)
    raise NotEvaluable(type(node).__name__)


def _named(name: str, frame: FrameType) -> Any:
    for scope in (frame.f_locals, frame.f_globals, vars(builtins)):
        if name in scope:
            return scope[name]
    raise NotEvaluable(name)


def _plain(node: ast.expr, frame: FrameType) -> Any:
    value = _value(node, frame)
    if not is_plain(value):
        raise NotEvaluable(type(value).__name__)
    return value


def _attribute(value: Any, name: str) -> Any:
    fields = getattr(type(value), "_fields", ())
    allowed = (
        FACTS | {"outputs"} if type(value) is Program
        else ARRAY if is_array(value)
        else {"spec", "mesh"} if type(value) is NamedSharding
        else fields if isinstance(value, tuple) and isinstance(fields, tuple)
        else ()
    )  # fmt: skip
    if name not in allowed:
        raise NotEvaluable(name)
    return getattr(value, name)


def _call(func: ast.expr, args: list[ast.expr], frame: FrameType) -> Any:
    given = [_plain(arg, frame) for arg in args]
    if isinstance(func, ast.Attribute) and func.attr in METHODS:
        of = _value(func.value, frame)
        if type(of) is Program:
            return getattr(of, func.attr)(*given)
    elif isinstance(func, ast.Name):
        called = _named(func.id, frame)
        if called is PartitionSpec or any(called is one for one in PURE):
            return called(*given)
    raise NotEvaluable("a call")
