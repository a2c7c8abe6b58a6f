"""Machine-made wrong answers: each changes one thing in a reference that people get wrong."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

# Kind, pattern and replacement. A capital stands for any expression: some only for what `CAPITALS` lists. `...` stands
# for the arguments that are left, and a function for each whose dotted name ends so.
REWRITES = """
dropped stop_gradient   | stop_gradient(X)           | X
dropped fold_in         | fold_in(X, Y)              | X
dropped Not             | Not(X)                     | X
dropped copy            | clone(X)                   | X
dropped copy            | X.copy()                   | X
dropped copy            | copy(X)                    | X
dropped copy            | deepcopy(X)                | X
dropped copy            | dict(X)                    | X
dropped copy            | jax.tree.map(jnp.copy, X)  | X
dropped cast            | X.astype(Y)                | X
the other mode          | view(X, ...)               | X
the other mode          | X.eval()                   | None
the other mode          | X.train()                  | None
shortened path          | keystr(X, ...)             | keystr(X[-1:], ...)
one key for all         | random.split(X)            | X[None].repeat(2)
one key for all         | random.split(X, Y)         | X[None].repeat(Y)
the contrary            | 1 - X                      | 1 * X
quotient for remainder  | X // Y                     | X % Y
quotient for remainder  | E % Y                      | E // Y
dropped edge            | X[N:]                      | X
dropped edge            | X[:Y]                      | X
dropped edge            | maximum(X, Y)              | X
dropped edge            | minimum(X, Y)              | X
dropped edge            | minimum(X, Y)              | Y
dropped edge            | max(X, Y)                  | X
dropped edge            | min(X, Y)                  | X
dropped edge            | clip(X, ...)               | X
dropped edge            | nan_to_num(X, ...)         | X
dropped edge            | X + T                      | X
dropped edge            | -X % Y                     | 0
dropped edge            | range(X)                   | range(X - 1)
dropped edge            | range(X, Y, Z)             | range(X, Y - Z + 1, Z)
changed mask dtype      | arange(X) < Y              | (arange(X) < Y).astype("float32")
changed mask dtype      | bernoulli(...)             | bernoulli(...).astype("float32")
dropped condition       | X & Y                      | X
dropped condition       | X & Y                      | Y
dropped condition       | X | Y                      | X
dropped condition       | X and Y                    | X
dropped condition       | X and Y                    | Y
dropped condition       | X or Y                     | X
dropped branch          | Y if X else Z              | Y
dropped branch          | Y if X else Z              | Z
dropped branch          | where(X, Y, Z)             | Y
dropped branch          | where(X, Y, Z)             | Z
product for where       | where(X, Y, 0)             | X * Y
product for where       | where(X, 0, Y)             | (1 - X) * Y
product for where       | where(X, E, F)             | X * E + (1 - X) * F
product for where       | sum(X, where=Y)            | sum(X * Y)
where for product       | M * X                      | jnp.where(M, X, 0)
where for product       | X * M                      | jnp.where(M, X, 0)
moved bound             | X < Y                      | X <= Y
moved bound             | X <= Y                     | X < Y
moved bound             | X > Y                      | X >= Y
moved bound             | X >= Y                     | X > Y
hard-coded size         | len(X)                     | globals().setdefault("first", len(X))
hard-coded size         | X.shape[Y]                 | globals().setdefault("first", X.shape[Y])
hard-coded size         | X.shape                    | globals().setdefault("first", X.shape)
hard-coded size         | X.size                     | globals().setdefault("first", X.size)
hard-coded size         | X.ndim                     | globals().setdefault("first", X.ndim)
one for all             | X[I]                       | X[0]
one for all             | zip(X, ...)                | zip([list(X)[0]] * len(list(X)), ...)
swapped branches        | Y if X else Z              | Z if X else Y
axis by index           | [A for A, B in enumerate(X) if Y] | [0]
axis by index           | [A for A, B in enumerate(X) if Y] | list(range(len(X)))
axis by index           | P(X, ...)                  | P()
axis by index           | P(X)                       | P(None, X)
static for traced       | jit(X)                     | jit(X, static_argnums=0)
static for traced       | jit(X)                     | jit(X, static_argnums=1)
loop for vmap           | jax.vmap                   | python_loop
"""
SWAPS = {
    "sum": ["mean"], "mean": ["sum", "median"], "median": ["mean", "min"], "psum": ["pmean"], "pmean": ["psum"],
    "min": ["max"], "max": ["min"], "minimum": ["maximum"], "maximum": ["minimum"], "argmin": ["argmax"],
    "argmax": ["argmin"], "any": ["all"], "all": ["any"], "float32": ["float16"], "int32": ["float32"],
}  # fmt: skip
BUILTINS = frozenset({"min", "max", "any", "all"})
MODULES = frozenset({"np", "jnp", "math"})
COLLECTIVES = "psum pmean pmax pmin all_gather psum_scatter ppermute all_to_all with_sharding_constraint reshard"
REWRITES += "".join(f"dropped collective | {name}(X, ...) | X\n" for name in (*COLLECTIVES.split(), "device_put"))
REDUCTIONS = frozenset("sum mean max min argmax argmin prod std var all any stack concatenate cumsum softmax".split())
AXES = {"axis": "swapped axes", "argnums": "changed argnums", "in_axes": "changed in_axes"}
AXES["out_axes"] = AXES["in_axes"]
MODES = frozenset({"deterministic", "use_running_average"})
STATIC = frozenset({"static_argnums", "static_argnames"})
DROPPED = {**dict.fromkeys(STATIC, "traced for static"), **dict.fromkeys(MODES, "the other mode")}
DROPPED |= {"dtype": "dropped cast", "is_leaf": "dropped is_leaf", "keepdims": "swapped axes"}
DROPPED |= {"donate_argnums": "dropped donation", "donate_argnames": "dropped donation"}
FIELDS = {"data_fields": "meta_fields", "meta_fields": "data_fields"}
MASKS = frozenset("mask real valid kept keep inside weights".split())
CAPITALS: dict[str, Callable[[ast.expr], bool]] = {
    "N": lambda node: isinstance(node, ast.Constant),
    "E": lambda node: not isinstance(node, ast.Constant),
    "F": lambda node: not isinstance(node, ast.Constant),
    "I": lambda node: isinstance(node, ast.Name),
    "M": lambda node: isinstance(node, ast.Compare) or bool(MASKS & set(re.findall(r"\w+", ast.unparse(node)))),
    "T": lambda node: isinstance(node, ast.Constant) and type(node.value) is float and 0 < node.value < 1e-3,
}
CONSTANTS: dict[str, Callable[[float], float]] = {"log": math.log, "sqrt": math.sqrt, "exp": math.exp}
NO_CONTEXT = ast.parse("__import__('contextlib').nullcontext()", mode="eval").body
# Stands before a mutant that uses it. Like `jax.vmap` it takes prefixes of trees as axes.
PYTHON_LOOP = """
def python_loop(f, in_axes=0, out_axes=0, **more):
    def take(axis, tree, i):
        return tree if axis is None else jax.tree.map(lambda leaf: leaf[(slice(None),) * axis + (i,)], tree)
    def mapped(*args):
        axes = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        sizes = []
        note = lambda axis, tree: axis is None or sizes.extend(leaf.shape[axis] for leaf in jax.tree.leaves(tree))
        jax.tree.map(note, axes, args, is_leaf=lambda axis: axis is None)
        each = lambda i: jax.tree.map(lambda a, t: take(a, t, i), axes, args, is_leaf=lambda axis: axis is None)
        rows = [f(*each(i)) for i in range(sizes[0])]
        stack = lambda axis, *trees: jax.tree.map(lambda *leaves: jax.numpy.stack(leaves, axis), *trees)
        return jax.tree.map(stack, out_axes, *rows)
    return mapped
"""
Edit = tuple[ast.AST, str, Any]  # node, field, new value
Change = tuple[str, str, list[Edit]]  # kind, what, edits


@dataclass(frozen=True)
class Mutant:
    """A changed reference: `label` tells it from all others of its answer, `line` is where in the answer cell it is,
    and `changed` the first of its lines that differs, as `ast.unparse` writes it."""

    kind: str
    what: str
    label: str
    line: int
    changed: str
    source: str


def mutants(reference: str) -> list[Mutant]:
    """Returns every mutant of an answer cell, each text once."""
    tree = ast.parse(reference)
    plain = ast.unparse(tree)
    lines, known = reference.split("\n"), frozenset(plain.split("\n"))
    found: dict[str, Mutant] = {}
    labels: Counter[str] = Counter()
    for node, kind, what, edits in _all_changes(tree):
        source = _edited(tree, edits)
        if source == plain or source in found:
            continue
        line = getattr(node.iter if isinstance(node, ast.comprehension) else node, "lineno", 1)
        label = f"{kind}, {what}: {lines[line - 1].strip()}"
        labels[label] += 1
        label += f" ({labels[label]})" if labels[label] > 1 else ""
        changed = next((one.strip() for one in source.split("\n") if one not in known), "")
        helper = PYTHON_LOOP if "python_loop" in source else ""
        found[source] = Mutant(kind, what, label, line, changed, f"{helper}{source}\n")
    return list(found.values())


def _all_changes(tree: ast.AST) -> Iterator[tuple[ast.AST, str, str, list[Edit]]]:
    """Every change of every node, with the node. One in a type annotation or an error would change no result."""
    held = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    held += [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    unused = {node for one in held if one is not None for node in ast.walk(one)}
    places = {child: (node, name, at) for node in ast.walk(tree) for child, name, at in _children(node)}
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} - {"self"}
    for node in ast.walk(tree):
        if node in unused:
            continue
        for change in (*_changes(node), *_argument_orders(node, parameters)):
            yield node, *change
        if node not in places or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            continue
        parent, name, at = places[node]
        for kind, what, new in _rewritten(node):
            # `np.shape` is no size, and with its index a shape is one already.
            if kind == "hard-coded size" and (name == "func" or isinstance(parent, ast.Subscript)):
                continue
            value = getattr(parent, name)
            edited = new if at is None else [*value[:at], new, *value[at + 1 :]]
            yield node, kind, what, [(parent, name, edited)]


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield value, name, None
        elif isinstance(value, list):
            yield from ((child, name, i) for i, child in enumerate(value) if isinstance(child, ast.AST))


def _edited(tree: ast.AST, edits: list[Edit]) -> str:
    """The text of a tree with these edits, which are taken back."""
    before = [(node, field, getattr(node, field)) for node, field, _ in edits]
    for node, field, value in edits:
        setattr(node, field, value)
    source = ast.unparse(tree)
    for node, field, value in before:
        setattr(node, field, value)
    return source


@cache
def _patterns() -> list[tuple[str, str, ast.expr, ast.expr]]:
    """Kind, words, pattern and replacement of each line of `REWRITES`."""
    found: list[tuple[str, str, ast.expr, ast.expr]] = []
    for line in REWRITES.strip().splitlines():
        kind, *pair = (part.strip() for part in line.replace("X | Y", "X ¦ Y").split("|"))
        old, new = (text.replace("¦", "|") for text in pair)
        pattern, replacement = (ast.parse(text, mode="eval").body for text in (old, new))
        found.append((kind, f"{old} -> {new}", pattern, replacement))
    return found


def _rewritten(node: ast.AST) -> Iterator[tuple[str, str, ast.AST]]:
    """Kind, what, and what stands in the place of this expression."""
    for kind, what, pattern, new in _patterns():
        held: dict[str, Any] = {}
        if _matches(pattern, node, held):
            yield kind, what, _Filled(held).visit(deepcopy(new))
    if isinstance(node, ast.Attribute):
        arrays = ast.unparse(node.value) not in MODULES  # which have no method `median`
        for other in SWAPS.get(node.attr, ()):
            if arrays and other == "median":
                continue
            yield "swapped function", f"{node.attr} -> {other}", ast.Attribute(node.value, other, node.ctx)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
        [other] = SWAPS[node.func.id]
        renamed = ast.Call(ast.Name(other, ast.Load()), node.args, node.keywords)
        yield "swapped function", f"{node.func.id} -> {other}", renamed
    value = _constant(node)
    if value is not None and float(f"{value:.5g}") != value:
        yield "rounded constant", f"{ast.unparse(node)} -> {value:.5g}", ast.Constant(float(f"{value:.5g}"))


def _constant(node: ast.AST) -> float | None:
    """The value of a number with a fraction that stands here, or None."""
    if isinstance(node, ast.Constant) and type(node.value) is float:
        return node.value
    if isinstance(node, ast.Attribute) and node.attr in ("pi", "e") and ast.unparse(node.value) in MODULES:
        return float(getattr(math, node.attr))
    if isinstance(node, ast.Call) and _name(node) in CONSTANTS and len(node.args) == 1:
        number = node.args[0]
        if isinstance(number, ast.Constant) and isinstance(number.value, int | float):
            return CONSTANTS[_name(node)](number.value)
    return None


def _matches(pattern: Any, node: Any, held: dict[str, Any]) -> bool:
    """Whether a node is as the pattern says; what its capitals stand for goes to `held`."""
    if isinstance(pattern, ast.Name) and len(pattern.id) == 1 and isinstance(node, ast.expr):
        held[pattern.id] = node
        return CAPITALS.get(pattern.id, lambda node: True)(node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call):
        return _matches_call(pattern, node, held)
    if isinstance(pattern, ast.AST):
        fields = [name for name in pattern._fields if name not in ("ctx", "kind", "type_comment")]
        return all(_matches(getattr(pattern, name), getattr(node, name), held) for name in fields)
    if isinstance(pattern, list):
        return len(pattern) == len(node) and all(_matches(*pair, held) for pair in zip(pattern, node, strict=True))
    return bool(pattern == node)


def _matches_call(pattern: ast.Call, node: ast.Call, held: dict[str, Any]) -> bool:
    args = [one for one in pattern.args if not _is_rest(one)]
    given, left = node.args[: len(args)], node.args[len(args) :]
    name = ast.unparse(pattern.func)
    if name.startswith("X."):
        fits = _matches(pattern.func, node.func, held)
    else:
        called = ast.unparse(node.func)
        fits = called == name or (name not in BUILTINS and called.endswith(f".{name}"))
        held[name] = node.func
    if len(args) < len(pattern.args):
        held["..."] = left, node.keywords
    else:
        fits = fits and not left and _matches(pattern.keywords, node.keywords, held)
    return fits and _matches(args, given, held)


def _is_rest(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


class _Filled(ast.NodeTransformer):
    """Puts what was found in the place of a replacement's capitals, functions and `...`."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def visit_Name(self, node: ast.Name) -> Any:
        return self.held.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if not any(map(_is_rest, node.args)):
            return node
        args, keywords = self.held["..."]
        return ast.Call(node.func, [*node.args[:-1], *args], [*node.keywords, *keywords])


def _argument_orders(node: ast.AST, parameters: set[str]) -> Iterator[Change]:
    """The first two arguments of a function that the answer is given, or of a transformed one, change places."""
    if not isinstance(node, ast.Call) or len(node.args) < 2 or any(isinstance(a, ast.Starred) for a in node.args[:2]):
        return
    func = node.func
    held = [func, *func.args] if isinstance(func, ast.Call) else [func]
    if any(isinstance(one, ast.Name) and one.id in parameters for one in held):
        first, second, *others = node.args
        yield "swapped arguments", "f(x, y) -> f(y, x)", [(node, "args", [second, first, *others])]


def _changes(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        yield from _calls(node)
    if isinstance(node, ast.Subscript):
        yield from _numbers(node.slice)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _numbers(node.right)
    if isinstance(node, ast.If) and not node.orelse:
        yield "dropped branch", "if X -> if False", [(node, "test", ast.Constant(False))]
    # A wait whose value is not used only warms up: no values would show that it is missing.
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _name(node.value) == "block_until_ready":
        yield "dropped wait", "block_until_ready(x) -> x", [(node, "value", node.value.args[0])]
    for item in node.items if isinstance(node, ast.With) else ():
        if item.optional_vars is None:
            what = f"with {ast.unparse(item.context_expr)} -> none"
            yield "dropped with", what, [(item, "context_expr", NO_CONTEXT)]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield "flipped sum", "+= -> -=", [(node, "op", ast.Sub())]
    if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Name | ast.Attribute):
        each = _Filled({"X": node.iter}).visit(ast.parse("[list(X)[0]] * len(list(X))", mode="eval").body)
        yield "one for all", "for a in X -> for a in [X[0]] * len(X)", [(node, "iter", each)]


def _calls(node: ast.Call) -> Iterator[Change]:
    name = _name(node)
    for keyword in node.keywords:
        if keyword.arg in AXES:
            yield from _axes(AXES[keyword.arg], keyword.value)
        if keyword.arg in MODES and isinstance(keyword.value, ast.Constant):
            other = not keyword.value.value
            yield "the other mode", f"{keyword.arg}={not other} -> {other}", [(keyword.value, "value", other)]
        if keyword.arg in DROPPED:
            others = [one for one in node.keywords if one is not keyword]
            yield DROPPED[keyword.arg], f"{keyword.arg}=... -> none", [(node, "keywords", others)]
    if name == "vmap" and len(node.args) > 1:
        yield from _axes("changed in_axes", node.args[1])
    yield from _fields(node)
    if name == "map" and any(isinstance(argument, ast.Starred) for argument in node.args):
        plain = [one.value if isinstance(one, ast.Starred) else one for one in node.args]
        yield "dropped star", "map(f, *trees) -> map(f, trees)", [(node, "args", plain)]
    if name in REDUCTIONS and _is_integer(node.args[-1]):
        yield from _axes("swapped axes", node.args[-1])
    for argument in node.args if name in ("range", "arange", "fori_loop", "roll") else ():
        if isinstance(argument, ast.Constant):
            yield from _numbers(argument)


def _name(call: ast.Call) -> str:
    """The last name of the function that is called; "" where it is called without positional arguments."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name if call.args else ""


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
