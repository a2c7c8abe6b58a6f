"""Machine-made wrong answers: each changes one thing in a reference that people get wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

REDUCTIONS = frozenset("sum mean max min argmax argmin prod std var all any stack concatenate cumsum softmax".split())
COLLECTIVES = frozenset(
    "psum pmean pmax pmin all_gather psum_scatter ppermute all_to_all "
    "with_sharding_constraint reshard device_put".split()
)
# Calls whose first argument could stand without them.
DROPPED = {"stop_gradient": "x", "fold_in": "key, ...", "clone": "x", "Not": "filter"}
AXES = {"axis": "swapped axes", "argnums": "changed argnums"}
AXES |= {"in_axes": "changed in_axes", "out_axes": "changed in_axes"}
MODES = frozenset({"deterministic", "use_running_average"})
FIELDS = {"data_fields": "meta_fields", "meta_fields": "data_fields"}
OPPOSITES = {"sum": "mean", "mean": "sum", "psum": "pmean", "pmean": "psum"}
IDENTITY = ast.parse("(lambda kept, *rest, **more: kept)", mode="eval").body
ONE_KEY = ast.parse("(lambda key, num=2: key[None].repeat(num))", mode="eval").body
NO_CONTEXT = ast.parse("__import__('contextlib').nullcontext()", mode="eval").body
Edit = tuple[ast.AST, str, Any]  # node, field, new value
Change = tuple[str, str, list[Edit]]  # kind, what, edits


@dataclass(frozen=True)
class Mutant:
    """A changed reference: `what` names the change, `line` is where in the answer cell it stands."""

    kind: str
    what: str
    line: int
    source: str


def mutants(reference: str) -> list[Mutant]:
    """Returns every mutant of an answer cell, each text once; the kinds are those that `_changes` yields."""
    tree = ast.parse(reference)
    plain = ast.unparse(tree)
    found: dict[str, Mutant] = {}
    typing = _annotations(tree)
    for node in ast.walk(tree):
        for kind, what, edits in () if node in typing else _changes(node):
            source = _edited(tree, edits)
            if source != plain and source + "\n" not in found:
                found[source + "\n"] = Mutant(kind, what, getattr(node, "lineno", 0), source + "\n")
    return list(found.values())


def _annotations(tree: ast.AST) -> set[ast.AST]:
    """Every node in a type annotation: changing one changes nothing that runs."""
    held = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    return {node for annotation in held if annotation is not None for node in ast.walk(annotation)}


def _edited(tree: ast.AST, edits: list[Edit]) -> str:
    """The text of a tree with these edits, which are taken back."""
    before = [(node, field, getattr(node, field)) for node, field, _ in edits]
    for node, field, value in edits:
        setattr(node, field, value)
    source = ast.unparse(tree)
    for node, field, value in before:
        setattr(node, field, value)
    return source


def _changes(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        yield from _calls(node)
    if isinstance(node, ast.Attribute) and node.attr in OPPOSITES:
        other = OPPOSITES[node.attr]
        yield "sum for mean", f"{node.attr} -> {other}", [(node, "attr", other)]
    if isinstance(node, ast.Subscript):
        yield from _numbers(node.slice)
    if isinstance(node, ast.BinOp):
        yield from _operators(node)
    if isinstance(node, ast.IfExp):
        edits: list[Edit] = [(node, "body", node.orelse), (node, "orelse", node.body)]
        yield "swapped branches", "a if ... else b -> b if ... else a", edits
    # A wait whose value is not used only warms up: no values would show that it is missing.
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _name(node.value) == "block_until_ready":
        yield "dropped wait", "block_until_ready(x) -> x", [(node, "value", node.value.args[0])]
    for item in node.items if isinstance(node, ast.With) else ():
        if item.optional_vars is None:
            what = f"with {ast.unparse(item.context_expr)} -> none"
            yield "dropped with", what, [(item, "context_expr", NO_CONTEXT)]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield "flipped sum", "+= -> -=", [(node, "op", ast.Sub())]


def _calls(node: ast.Call) -> Iterator[Change]:
    name = _name(node)
    for keyword in node.keywords:
        if keyword.arg in AXES:
            yield from _axes(AXES[keyword.arg], keyword.value)
        if keyword.arg in MODES and isinstance(keyword.value, ast.Constant):
            other = not keyword.value.value
            yield "the other mode", f"{keyword.arg}={not other} -> {other}", [(keyword.value, "value", other)]
        if keyword.arg == "is_leaf":
            others = [one for one in node.keywords if one is not keyword]
            yield "dropped is_leaf", "is_leaf=... -> none", [(node, "keywords", others)]
    if name == "vmap" and len(node.args) > 1:
        yield from _axes("changed in_axes", node.args[1])
    yield from _fields(node)
    if name == "keystr":
        last = ast.Subscript(node.args[0], ast.Slice(ast.Constant(-1)), ast.Load())
        yield "shortened path", "keystr(path) -> keystr(path[-1:])", [(node, "args", [last, *node.args[1:]])]
    if name == "map" and any(isinstance(argument, ast.Starred) for argument in node.args):
        plain = [one.value if isinstance(one, ast.Starred) else one for one in node.args]
        yield "dropped star", "map(f, *trees) -> map(f, trees)", [(node, "args", plain)]
    if name in REDUCTIONS and _is_integer(node.args[-1]):
        yield from _axes("swapped axes", node.args[-1])
    if name in COLLECTIVES:
        yield "dropped collective", f"{name}(x, ...) -> x", [(node, "func", IDENTITY)]
    if name in DROPPED:
        what = f"{name}({DROPPED[name]}) -> {DROPPED[name].removesuffix(', ...')}"
        yield f"dropped {name}", what, [(node, "func", IDENTITY)]
    if name == "split" and ast.unparse(node.func).endswith("random.split"):
        yield "one key for all", "split(key, n) -> n times key", [(node, "func", ONE_KEY)]
    for argument in node.args if name in ("range", "arange", "fori_loop", "roll") else ():
        if isinstance(argument, ast.Constant):
            yield from _numbers(argument)


def _name(call: ast.Call) -> str:
    """The last name of the function that is called; "" where it is called without positional arguments."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name if call.args else ""


def _operators(node: ast.BinOp) -> Iterator[Change]:
    """Off by one in a sum, p for 1 - p, and a quotient for a remainder (the % of a text is neither)."""
    if isinstance(node.op, ast.Add | ast.Sub):
        yield from _numbers(node.right)
    if isinstance(node.op, ast.Sub) and _is_integer(node.left) and ast.unparse(node.left) == "1":
        yield "the contrary", "1 - p -> 1 * p", [(node, "op", ast.Mult())]
    if isinstance(node.op, ast.FloorDiv):
        yield "quotient for remainder", "// -> %", [(node, "op", ast.Mod())]
    if isinstance(node.op, ast.Mod) and not isinstance(node.left, ast.Constant | ast.JoinedStr):
        yield "quotient for remainder", "% -> //", [(node, "op", ast.FloorDiv())]


def _fields(call: ast.Call) -> Iterator[Change]:
    """A data field of a registered class becomes a static one, and the other way round."""
    lists = {keyword.arg: keyword.value for keyword in call.keywords if isinstance(keyword.value, ast.List)}
    for source, target in FIELDS.items():
        if source in lists and target in lists:
            for field in lists[source].elts:
                others = [one for one in lists[source].elts if one is not field]
                more = [*lists[target].elts, field]
                edits: list[Edit] = [(lists[source], "elts", others), (lists[target], "elts", more)]
                yield "data for settings", f"{ast.unparse(field)} -> {target}", edits


def _is_integer(node: ast.AST) -> bool:
    leaf = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(leaf, ast.Constant) and type(leaf.value) is int


def _literals(root: ast.AST) -> Iterator[tuple[ast.Constant, int | None, str]]:
    """Each integer literal (a bool is none) and None, its value, and its sign ("-" or nothing)."""
    minus = {id(n.operand) for n in ast.walk(root) if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub)}
    for leaf in ast.walk(root):
        if isinstance(leaf, ast.Constant) and (leaf.value is None or type(leaf.value) is int):
            yield leaf, leaf.value, "-" if id(leaf) in minus else ""


def _axes(kind: str, root: ast.AST) -> Iterator[Change]:
    """Each axis in an int, None or a tuple of them becomes another axis, or mapped becomes unmapped."""
    for leaf, number, sign in _literals(root):
        if number is not None:
            other = 1 - number if number in (0, 1) and not sign else 0
            yield kind, f"{sign}{number} -> {other}", [(leaf, "value", other)]
        if kind == "changed in_axes" and not sign:
            mapped = None if number is not None else 0
            yield kind, f"{number} -> {mapped}", [(leaf, "value", mapped)]


def _numbers(root: ast.AST) -> Iterator[Change]:
    for leaf, number, sign in _literals(root):
        if number is not None:
            yield "off by one", f"{sign}{number} -> {sign}{number + 1}", [(leaf, "value", number + 1)]
