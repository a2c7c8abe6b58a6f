"""Machine-made wrong answers: each changes one thing in a reference that people get wrong."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

REDUCTIONS = frozenset("sum mean max min argmax argmin prod std var all any stack concatenate cumsum softmax".split())
COLLECTIVES = frozenset(
    "psum pmean pmax pmin all_gather psum_scatter ppermute all_to_all "
    "with_sharding_constraint reshard device_put".split()
)
# Calls whose first argument could stand without them.
DROPPED = {
    "stop_gradient": "stop_gradient(x) -> x",
    "fold_in": "fold_in(key, ...) -> key",
    "clone": "clone(x) -> x",
    "Not": "Not(filter) -> filter",
}
MODES = frozenset({"deterministic", "use_running_average"})
FIELDS = {"data_fields": "meta_fields", "meta_fields": "data_fields"}
OPPOSITES = {"sum": "mean", "mean": "sum", "psum": "pmean", "pmean": "psum"}


@dataclass(frozen=True)
class Mutant:
    """A changed reference: `what` names the change, `line` is where in the answer cell it stands."""

    kind: str
    what: str
    line: int
    source: str


Change = Callable[[Any], None]
Changes = Iterator[tuple[str, str, Change]]  # kind, what, change
IDENTITY = "(lambda kept, *rest, **more: kept)"
ONE_KEY = "(lambda key, num=2: key[None].repeat(num))"


def mutants(reference: str) -> list[Mutant]:
    """Returns every mutant of an answer cell, each text once; the kinds are those that `_changes` yields."""
    tree = ast.parse(reference)
    plain = ast.unparse(tree)
    found: dict[str, Mutant] = {}
    typing = _annotations(tree)
    for place, node in enumerate(ast.walk(tree)):
        for kind, what, change in () if node in typing else _changes(node):
            changed = copy.deepcopy(tree)
            change(list(ast.walk(changed))[place])
            source = ast.unparse(ast.fix_missing_locations(changed)) + "\n"
            if source.strip() != plain.strip() and source not in found:
                found[source] = Mutant(kind, what, getattr(node, "lineno", 0), source)
    return list(found.values())


def _annotations(tree: ast.AST) -> set[ast.AST]:
    """Every node in a type annotation: changing one changes nothing that runs."""
    held = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    return {node for annotation in held if annotation is not None for node in ast.walk(annotation)}


def _changes(node: ast.AST) -> Changes:
    if isinstance(node, ast.Call):
        yield from _call_changes(node)
    if isinstance(node, ast.Attribute) and node.attr in OPPOSITES:
        yield "sum for mean", f"{node.attr} -> {OPPOSITES[node.attr]}", _set("attr", OPPOSITES[node.attr])
    if isinstance(node, ast.Subscript):
        yield from _numbers(node, "slice")
    if isinstance(node, ast.BinOp):
        yield from _operators(node)
    if isinstance(node, ast.IfExp):
        yield "swapped branches", "a if ... else b -> b if ... else a", _swap_branches
    # A wait whose value is not used only warms up: no values would show that it is missing.
    if isinstance(node, ast.Assign) and _name(node.value) == "block_until_ready":
        yield "dropped wait", "block_until_ready(x) -> x", _drop_wait
    if isinstance(node, ast.With):
        for place, item in enumerate(node.items):
            if item.optional_vars is None:
                yield "dropped with", f"with {ast.unparse(item.context_expr)} -> none", partial(_drop_with, place)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield "flipped sum", "+= -> -=", _set("op", ast.Sub())


def _call_changes(node: ast.Call) -> Changes:
    name = _name(node)
    for i, keyword in enumerate(node.keywords):
        root = partial(_keyword, i)
        if keyword.arg == "axis":
            yield from _axes("swapped axes", node, root)
        if keyword.arg in ("in_axes", "out_axes"):
            yield from _axes("changed in_axes", node, root)
        if keyword.arg == "argnums":
            yield from _axes("changed argnums", node, root)
        if keyword.arg in MODES and isinstance(keyword.value, ast.Constant):
            other = not keyword.value.value
            yield "the other mode", f"{keyword.arg}={not other} -> {other}", _set_leaf(root, 0, other)
        if keyword.arg == "is_leaf":
            yield "dropped is_leaf", "is_leaf=... -> none", partial(_drop_keyword, i)
    if name == "vmap" and len(node.args) > 1:
        yield from _axes("changed in_axes", node, partial(_argument, 1))
    yield from _fields(node)
    if name == "keystr":
        yield "shortened path", "keystr(path) -> keystr(path[-1:])", _last_key
    if name == "map" and any(isinstance(argument, ast.Starred) for argument in node.args):
        yield "dropped star", "map(f, *trees) -> map(f, trees)", _drop_star
    if name in REDUCTIONS and _is_integer(node.args[-1]):
        yield from _axes("swapped axes", node, partial(_argument, len(node.args) - 1))
    # As a call of the identity, so that the node itself stays where it is.
    if name in COLLECTIVES:
        yield "dropped collective", f"{name}(x, ...) -> x", _set_function(IDENTITY)
    if name in DROPPED:
        yield f"dropped {name}", DROPPED[name], _set_function(IDENTITY)
    if name == "split" and ast.unparse(node.func).endswith("random.split"):
        yield "one key for all", "split(key, n) -> n times key", _set_function(ONE_KEY)
    if name in ("range", "arange", "fori_loop", "roll"):
        for i, argument in enumerate(node.args):
            number = _integer(argument)
            if number is not None:
                yield "off by one", f"{number} -> {number + 1}", _set_leaf(partial(_argument, i), 0, number + 1)


def _name(node: ast.AST) -> str:
    """The last name of the function that a call with arguments calls; "" for any other node."""
    function = node.func if isinstance(node, ast.Call) and node.args else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _operators(node: ast.BinOp) -> Changes:
    """Off by one in a sum, p for 1 - p, and a quotient for a remainder (the % of a text is neither)."""
    if isinstance(node.op, ast.Add | ast.Sub):
        yield from _numbers(node, "right")
    if isinstance(node.op, ast.Sub) and _integer(node.left) == 1:
        yield "the contrary", "1 - p -> 1 * p", _set("op", ast.Mult())
    if isinstance(node.op, ast.FloorDiv):
        yield "quotient for remainder", "// -> %", _set("op", ast.Mod())
    if isinstance(node.op, ast.Mod) and not isinstance(node.left, ast.Constant | ast.JoinedStr):
        yield "quotient for remainder", "% -> //", _set("op", ast.FloorDiv())


def _fields(call: ast.Call) -> Changes:
    """A data field of a registered class becomes a static one, and the other way round."""
    lists = {keyword.arg: keyword.value for keyword in call.keywords if isinstance(keyword.value, ast.List)}
    for source, target in FIELDS.items():
        if source in lists and target in lists:
            for place, field in enumerate(lists[source].elts):
                yield "data for settings", f"{ast.unparse(field)} -> {target}", partial(_move, source, place, target)


def _integer(node: ast.AST) -> int | None:
    """The value of an integer literal (a bool is none), else None."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _is_integer(node: ast.AST) -> bool:
    return _integer(node.operand if isinstance(node, ast.UnaryOp) else node) is not None


def _literals(root: ast.AST) -> Iterator[tuple[int, int, str]]:
    """Place in the walk of `root`, value and sign ("-" or nothing) of each integer literal."""
    minus = {id(n.operand) for n in ast.walk(root) if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub)}
    for place, leaf in enumerate(ast.walk(root)):
        number = _integer(leaf)
        if number is not None:
            yield place, number, "-" if id(leaf) in minus else ""


def _axes(kind: str, call: ast.Call, root: Callable[[Any], ast.AST]) -> Changes:
    """Each axis in an int, None or a tuple of them becomes another axis, or mapped becomes unmapped."""
    for place, number, sign in _literals(root(call)):
        other = 1 - number if number in (0, 1) and not sign else 0
        yield kind, f"{sign}{number} -> {other}", _set_leaf(root, place, other)
        if kind == "changed in_axes" and not sign:
            yield kind, f"{number} -> None", _set_leaf(root, place, None)
    for place, leaf in enumerate(ast.walk(root(call))):
        if kind == "changed in_axes" and isinstance(leaf, ast.Constant) and leaf.value is None:
            yield kind, "None -> 0", _set_leaf(root, place, 0)


def _numbers(node: ast.AST, field: str) -> Changes:
    for place, number, sign in _literals(getattr(node, field)):
        yield "off by one", f"{sign}{number} -> {sign}{number + 1}", _set_leaf(attrgetter(field), place, number + 1)


def _argument(i: int, call: Any) -> ast.AST:
    return call.args[i]


def _keyword(i: int, call: Any) -> ast.AST:
    return call.keywords[i].value


def _set_leaf(root: Callable[[Any], ast.AST], place: int, value: int | None) -> Change:
    def change(node: Any) -> None:
        list(ast.walk(root(node)))[place].value = value  # type: ignore[attr-defined]

    return change


def _set(field: str, value: Any) -> Change:
    return lambda node: setattr(node, field, value)


def _set_function(text: str) -> Change:
    return _set("func", ast.parse(text, mode="eval").body)


def _swap_branches(node: Any) -> None:
    node.body, node.orelse = node.orelse, node.body


def _drop_wait(node: Any) -> None:
    node.value = node.value.args[0]


def _drop_with(place: int, node: Any) -> None:
    """The body runs as if this one of the contexts were not entered."""
    node.items[place].context_expr = ast.parse("__import__('contextlib').nullcontext()", mode="eval").body


def _drop_keyword(i: int, call: Any) -> None:
    del call.keywords[i]


def _move(source: str, place: int, target: str, call: Any) -> None:
    """A name in one list of a call's keyword arguments goes into another of these lists."""
    lists = {keyword.arg: keyword.value for keyword in call.keywords}
    lists[target].elts.append(lists[source].elts.pop(place))


def _last_key(call: Any) -> None:
    call.args[0] = ast.Subscript(call.args[0], ast.Slice(ast.Constant(-1)), ast.Load())


def _drop_star(call: Any) -> None:
    call.args = [arg.value if isinstance(arg, ast.Starred) else arg for arg in call.args]
