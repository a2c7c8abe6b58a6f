"""Machine-made wrong answers: each changes one thing in a reference that people get wrong."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    """A changed reference; `what` says the change, `line` where in the answer cell."""

    kind: str
    what: str
    line: int
    source: str


Change = Callable[[ast.AST], None]


def mutants(reference: str) -> list[Mutant]:
    """Every mutant of an answer cell, each once: swapped axes, changed in_axes and argnums, dropped collectives and
    stop_gradients, sum for mean, integers that are off by one, and what goes wrong with containers: a dropped
    is_leaf or star, data for settings, a shortened path, a flipped sum, the other branch; with random keys: one for
    all, a dropped fold_in, p for 1 - p, a quotient for a remainder; with modules: the other mode, the model itself
    for its clone, the filter for its contrary; and with timelines: a dropped wait or `with`."""
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
    """Every node in a type annotation: to change those changes nothing."""
    held = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    return {node for annotation in held if annotation is not None for node in ast.walk(annotation)}


def _changes(node: ast.AST) -> Iterator[tuple[str, str, Change]]:
    if isinstance(node, ast.Call):
        yield from _call_changes(node)
    if isinstance(node, ast.Attribute) and node.attr in OPPOSITES:
        yield "sum for mean", f"{node.attr} -> {OPPOSITES[node.attr]}", _rename(OPPOSITES[node.attr])
    if isinstance(node, ast.Subscript):
        yield from _numbers(node, "slice")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _numbers(node, "right")
    if isinstance(node, ast.BinOp):
        yield from _parts(node)
    if isinstance(node, ast.IfExp):
        yield "swapped branches", "a if ... else b -> b if ... else a", _other_branch
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
        yield from _assigned(node.value)
    if isinstance(node, ast.With):
        for place, item in enumerate(node.items):
            if item.optional_vars is None:
                yield "dropped with", f"with {ast.unparse(item.context_expr)} -> none", _no_context(place)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield "flipped sum", "+= -> -=", _subtract


def _call_changes(node: ast.Call) -> Iterator[tuple[str, str, Change]]:
    name = _name(node)
    for i, keyword in enumerate(node.keywords):
        path = ("keywords", i)
        if keyword.arg == "axis":
            yield from _axes("swapped axes", keyword.value, path)
        if keyword.arg in ("in_axes", "out_axes"):
            yield from _axes("changed in_axes", keyword.value, path)
        if keyword.arg == "argnums":
            yield from _axes("changed argnums", keyword.value, path)
        if keyword.arg in MODES and isinstance(keyword.value, ast.Constant):
            other = not keyword.value.value
            yield "the other mode", f"{keyword.arg}={not other} -> {other}", _set_leaf(path, 0, other)
        if keyword.arg == "is_leaf":
            yield "dropped is_leaf", "is_leaf=... -> none", _drop_keyword("is_leaf")
    if name == "vmap" and len(node.args) > 1:
        yield from _axes("changed in_axes", node.args[1], ("args", 1))
    yield from _fields(node)
    if name == "keystr" and node.args:
        yield "shortened path", "keystr(path) -> keystr(path[-1:])", _last_key
    if name == "map" and any(isinstance(argument, ast.Starred) for argument in node.args):
        yield "dropped star", "map(f, *trees) -> map(f, trees)", _no_star
    if name in REDUCTIONS and node.args and _is_integer(node.args[-1]):
        yield from _axes("swapped axes", node.args[-1], ("args", len(node.args) - 1))
    if name in COLLECTIVES and node.args:
        yield "dropped collective", f"{name}(x, ...) -> x", _drop
    if name in DROPPED and node.args:
        yield f"dropped {name}", DROPPED[name], _drop
    if name == "split" and ast.unparse(node.func).endswith("random.split"):
        yield "one key for all", "split(key, n) -> n times key", _one_key
    if name in ("range", "arange", "fori_loop", "roll"):
        for i, argument in enumerate(node.args):
            number = _integer(argument)
            if number is not None:
                yield "off by one", f"{number} -> {number + 1}", _set_leaf(("args", i), 0, number + 1)


def _assigned(call: ast.Call) -> Iterator[tuple[str, str, Change]]:
    """Where a wait's value is not used, it only warms up: that is no mistake that values would show."""
    if _name(call) == "block_until_ready":
        yield "dropped wait", "block_until_ready(x) -> x", _no_wait


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _parts(node: ast.BinOp) -> Iterator[tuple[str, str, Change]]:
    """The other part of a whole: p for 1 - p, and a quotient for a remainder (a text's % is neither)."""
    if isinstance(node.op, ast.Sub) and _integer(node.left) == 1:
        yield "the contrary", "1 - p -> 1 * p", _set_operator(ast.Mult())
    if isinstance(node.op, ast.FloorDiv):
        yield "quotient for remainder", "// -> %", _set_operator(ast.Mod())
    if isinstance(node.op, ast.Mod) and not isinstance(node.left, ast.Constant | ast.JoinedStr):
        yield "quotient for remainder", "% -> //", _set_operator(ast.FloorDiv())


def _fields(call: ast.Call) -> Iterator[tuple[str, str, Change]]:
    """A field of a registered class that is data becomes a setting, and the other way round."""
    lists = {keyword.arg: keyword.value for keyword in call.keywords if isinstance(keyword.value, ast.List)}
    for source, target in FIELDS.items():
        if source in lists and target in lists:
            for place, field in enumerate(lists[source].elts):
                yield "data for settings", f"{ast.unparse(field)} -> {target}", _move(source, place, target)


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


def _axes(kind: str, value: ast.expr, path: tuple[str, int]) -> Iterator[tuple[str, str, Change]]:
    """Each axis in an int, None or a tuple of them becomes another axis, or mapped becomes unmapped."""
    for place, number, sign in _literals(value):
        other = 1 - number if number in (0, 1) and not sign else 0
        yield kind, f"{sign}{number} -> {other}", _set_leaf(path, place, other)
        if kind == "changed in_axes" and not sign:
            yield kind, f"{number} -> None", _set_leaf(path, place, None)
    for place, leaf in enumerate(ast.walk(value)):
        if kind == "changed in_axes" and isinstance(leaf, ast.Constant) and leaf.value is None:
            yield kind, "None -> 0", _set_leaf(path, place, 0)


def _set_leaf(path: tuple[str, int], place: int, value: int | None) -> Change:
    def change(call: ast.AST) -> None:
        held = getattr(call, path[0])[path[1]]
        root = held.value if isinstance(held, ast.keyword) else held
        list(ast.walk(root))[place].value = value  # type: ignore[attr-defined]

    return change


def _numbers(node: ast.AST, field: str) -> Iterator[tuple[str, str, Change]]:
    for place, number, sign in _literals(getattr(node, field)):

        def change(changed: ast.AST, place: int = place, other: int = number + 1) -> None:
            list(ast.walk(getattr(changed, field)))[place].value = other  # type: ignore[attr-defined]

        yield "off by one", f"{sign}{number} -> {sign}{number + 1}", change


def _rename(name: str) -> Change:
    def change(node: ast.AST) -> None:
        node.attr = name  # type: ignore[attr-defined]

    return change


def _drop(node: ast.AST) -> None:
    """`f(x, ...)` becomes `(x)`: as a call of the identity, so that the node itself may stay where it is."""
    assert isinstance(node, ast.Call)
    identity = ast.parse("(lambda kept, *rest, **more: kept)", mode="eval").body
    node.func = identity


def _set_operator(operator: ast.operator) -> Change:
    def change(node: ast.AST) -> None:
        node.op = operator  # type: ignore[attr-defined]

    return change


def _one_key(call: ast.AST) -> None:
    assert isinstance(call, ast.Call)
    call.func = ast.parse("(lambda key, num=2: key[None].repeat(num))", mode="eval").body


def _other_branch(node: ast.AST) -> None:
    node.body, node.orelse = node.orelse, node.body  # type: ignore[attr-defined]


def _no_wait(node: ast.AST) -> None:
    node.value = node.value.args[0]  # type: ignore[attr-defined]


def _no_context(place: int) -> Change:
    """What stands within this `with` runs as if that part of it were not there."""

    def change(node: ast.AST) -> None:
        nothing = ast.parse("__import__('contextlib').nullcontext()", mode="eval").body
        node.items[place].context_expr = nothing  # type: ignore[attr-defined]

    return change


def _subtract(node: ast.AST) -> None:
    node.op = ast.Sub()  # type: ignore[attr-defined]


def _drop_keyword(name: str) -> Change:
    def change(call: ast.AST) -> None:
        assert isinstance(call, ast.Call)
        call.keywords = [keyword for keyword in call.keywords if keyword.arg != name]

    return change


def _move(source: str, place: int, target: str) -> Change:
    """One name of a list that is a keyword argument of a call goes into another such list of the call."""

    def change(call: ast.AST) -> None:
        lists = {keyword.arg: keyword.value for keyword in call.keywords}  # type: ignore[attr-defined]
        lists[target].elts.append(lists[source].elts.pop(place))

    return change


def _last_key(call: ast.AST) -> None:
    assert isinstance(call, ast.Call)
    call.args[0] = ast.Subscript(call.args[0], ast.Slice(ast.Constant(-1)), ast.Load())


def _no_star(call: ast.AST) -> None:
    assert isinstance(call, ast.Call)
    call.args = [arg.value if isinstance(arg, ast.Starred) else arg for arg in call.args]
