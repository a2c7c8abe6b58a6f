"""Machine-made wrong answers: one change each, always Python, never the reference itself."""

from __future__ import annotations

import ast

import jax
import numpy as np
import pytest
from conftest import ROOT

from grader.course import Course
from grader.prove.mutants import mutants

# A reference's one line, and what each mutant turns it into.
MADE: dict[str, set[tuple[str, str, str]]] = {
    "y = x.sum(axis=0)": {
        ("swapped axes", "0 -> 1", "y = x.sum(axis=1)"),
        ("swapped function", "sum -> mean", "y = x.mean(axis=0)"),
    },
    "y = jnp.max(x, 1)": {
        ("swapped axes", "1 -> 0", "y = jnp.max(x, 0)"),
        ("swapped function", "max -> min", "y = jnp.min(x, 1)"),
    },
    "y = x.prod(-1)": {("swapped axes", "-1 -> 0", "y = x.prod(-0)")},
    "y = x.std(axis=-1, keepdims=True)": {
        ("swapped axes", "-1 -> 0", "y = x.std(axis=-0, keepdims=True)"),
        ("swapped axes", "keepdims=... -> none", "y = x.std(axis=-1)"),
    },
    "y = jnp.any(x, axis=(0, 2))": {
        ("swapped axes", "0 -> 1", "y = jnp.any(x, axis=(1, 2))"),
        ("swapped axes", "2 -> 0", "y = jnp.any(x, axis=(0, 0))"),
        ("swapped function", "any -> all", "y = jnp.all(x, axis=(0, 2))"),
    },
    "y = jnp.mean(x)": {
        ("swapped function", "mean -> sum", "y = jnp.sum(x)"),
        ("swapped function", "mean -> median", "y = jnp.median(x)"),
    },
    "y = lax.psum(x, 'd')": {
        ("swapped function", "psum -> pmean", "y = lax.pmean(x, 'd')"),
        ("dropped collective", "psum(X, ...) -> X", "y = x"),
    },
    "y = jax.device_put(x, s)": {
        ("dropped collective", "device_put(X, ...) -> X", "y = x"),
    },
    "f = vmap(g, (0, None))": {
        ("changed in_axes", "0 -> 1", "f = vmap(g, (1, None))"),
        ("changed in_axes", "0 -> None", "f = vmap(g, (None, None))"),
        ("changed in_axes", "None -> 0", "f = vmap(g, (0, 0))"),
    },
    "f = nnx.vmap(g, in_axes={'w': None}, out_axes=-1)": {
        ("changed in_axes", "None -> 0", "f = nnx.vmap(g, in_axes={'w': 0}, out_axes=-1)"),
        ("changed in_axes", "-1 -> 0", "f = nnx.vmap(g, in_axes={'w': None}, out_axes=-0)"),
    },
    "g = jax.grad(f, argnums=(0, 2))": {
        ("changed argnums", "0 -> 1", "g = jax.grad(f, argnums=(1, 2))"),
        ("changed argnums", "2 -> 0", "g = jax.grad(f, argnums=(0, 0))"),
    },
    "y = jax.block_until_ready(f(x))": {
        ("dropped wait", "block_until_ready(x) -> x", "y = f(x)"),
    },
    "with open(p) as f, trace(q):\n    y = f": {
        (
            "dropped with",
            "with trace(q) -> none",
            "with open(p) as f, __import__('contextlib').nullcontext():\n    y = f",
        ),
    },
    "y = x + jax.lax.stop_gradient(z)": {
        ("dropped stop_gradient", "stop_gradient(X) -> X", "y = x + z"),
    },
    "y = x[1:-1, None]": {
        ("off by one", "1 -> 2", "y = x[2:-1, None]"),
        ("off by one", "-1 -> -2", "y = x[1:-2, None]"),
    },
    "y = [i for i in range(n, 8)]": {("off by one", "8 -> 9", "y = [i for i in range(n, 9)]")},
    "y = n - 1": {("off by one", "1 -> 2", "y = n - 2")},
    "y = lax.fori_loop(0, n, body, x)": {("off by one", "0 -> 1", "y = lax.fori_loop(1, n, body, x)")},
    "t = jax.tree.map(f, *ts, is_leaf=g)": {
        ("dropped is_leaf", "is_leaf=... -> none", "t = jax.tree.map(f, *ts)"),
        ("dropped star", "map(f, *trees) -> map(f, trees)", "t = jax.tree.map(f, ts, is_leaf=g)"),
    },
    "register(c, data_fields=['x'], meta_fields=['n'])": {
        ("data for settings", "'x' -> meta_fields", "register(c, data_fields=[], meta_fields=['n', 'x'])"),
        ("data for settings", "'n' -> data_fields", "register(c, data_fields=['x', 'n'], meta_fields=[])"),
    },
    "name = keystr(path, simple=True)": {
        ("shortened path", "keystr(X, ...) -> keystr(X[-1:], ...)", "name = keystr(path[-1:], simple=True)"),
    },
    "y = a if b is None else b": {
        ("swapped branches", "Y if X else Z -> Z if X else Y", "y = b if b is None else a"),
        ("dropped branch", "Y if X else Z -> Y", "y = a"),
        ("dropped branch", "Y if X else Z -> Z", "y = b"),
    },
    "total += x": {("flipped sum", "+= -> -=", "total -= x")},
    "k = jax.random.fold_in(key, i)": {
        ("dropped fold_in", "fold_in(X, Y) -> X", "k = key"),
    },
    "m = nnx.view(nnx.clone(m), deterministic=True)": {
        ("the other mode", "deterministic=True -> False", "m = nnx.view(nnx.clone(m), deterministic=False)"),
        ("the other mode", "deterministic=... -> none", "m = nnx.view(nnx.clone(m))"),
        ("the other mode", "view(X, ...) -> X", "m = nnx.clone(m)"),
        ("dropped copy", "clone(X) -> X", "m = nnx.view(m, deterministic=True)"),
    },
    "m.set_attributes(use_running_average=False)": {
        ("the other mode", "use_running_average=False -> True", "m.set_attributes(use_running_average=True)"),
        ("the other mode", "use_running_average=... -> none", "m.set_attributes()"),
    },
    "s = nnx.state(m, nnx.Not(f))": {
        ("dropped Not", "Not(X) -> X", "s = nnx.state(m, f)"),
    },
    "m = look(m, deterministic=not training)": {
        ("the other mode", "deterministic=... -> none", "m = look(m)"),
    },
    "ks = jax.random.split(key, n)": {
        ("one key for all", "random.split(X, Y) -> X[None].repeat(Y)", "ks = key[None].repeat(n)"),
    },
    "p = 1 - q": {
        ("the contrary", "1 - X -> 1 * X", "p = 1 * q"),
    },
    "y = i // n": {("quotient for remainder", "X // Y -> X % Y", "y = i % n")},
    "y = i % n": {("quotient for remainder", "E % Y -> E // Y", "y = i // n")},
    "y = jnp.where(x < 0, 0, x)": {
        ("moved bound", "X < Y -> X <= Y", "y = jnp.where(x <= 0, 0, x)"),
        ("dropped branch", "where(X, Y, Z) -> Y", "y = 0"),
        ("dropped branch", "where(X, Y, Z) -> Z", "y = x"),
        ("product for where", "where(X, 0, Y) -> (1 - X) * Y", "y = (1 - (x < 0)) * x"),
    },
    "y = jnp.where(a, b, c)": {
        ("dropped branch", "where(X, Y, Z) -> Y", "y = b"),
        ("dropped branch", "where(X, Y, Z) -> Z", "y = c"),
        ("product for where", "where(X, E, F) -> X * E + (1 - X) * F", "y = a * b + (1 - a) * c"),
    },
    "y = jnp.cumsum(x, where=w)": set(),
    "y = x * mask": {("where for product", "X * M -> jnp.where(M, X, 0)", "y = jnp.where(mask, x, 0)")},
    "y = jnp.arange(n) < k": {
        ("moved bound", "X < Y -> X <= Y", "y = jnp.arange(n) <= k"),
        (
            "changed mask dtype",
            'arange(X) < Y -> (arange(X) < Y).astype("float32")',
            "y = (jnp.arange(n) < k).astype('float32')",
        ),
    },
    "y = x.astype(z.dtype)": {("dropped cast", "X.astype(Y) -> X", "y = x")},
    "y = jnp.zeros(n, jnp.int32)": {("swapped function", "int32 -> float32", "y = jnp.zeros(n, jnp.float32)")},
    "y = a & b": {
        ("dropped condition", "X & Y -> X", "y = a"),
        ("dropped condition", "X & Y -> Y", "y = b"),
    },
    "y = max(n, m)": {
        ("dropped edge", "max(X, Y) -> X", "y = n"),
        ("swapped function", "max -> min", "y = min(n, m)"),
    },
    "y = jnp.sqrt(x) + 1e-8": {("dropped edge", "X + T -> X", "y = jnp.sqrt(x)")},
    "y = x[1:]": {
        ("dropped edge", "X[N:] -> X", "y = x"),
        ("off by one", "1 -> 2", "y = x[2:]"),
    },
    "y = x[:n]": {("dropped edge", "X[:Y] -> X", "y = x")},
    "y = range(0, n, size)": {
        ("dropped edge", "range(X, Y, Z) -> range(X, Y - Z + 1, Z)", "y = range(0, n - size + 1, size)"),
        ("off by one", "0 -> 1", "y = range(1, n, size)"),
    },
    "y = -n % size": {
        ("dropped edge", "-X % Y -> 0", "y = 0"),
        ("quotient for remainder", "E % Y -> E // Y", "y = -n // size"),
    },
    "if x:\n    y = 0": {("dropped branch", "if X -> if False", "if False:\n    y = 0")},
    "if x:\n    y = 0\nelse:\n    y = z": set(),
    "y = len(x)": {
        (
            "hard-coded size",
            'len(X) -> globals().setdefault("first", len(X))',
            "y = globals().setdefault('first', len(x))",
        ),
    },
    "y = x.shape[i]": {
        (
            "hard-coded size",
            'X.shape[Y] -> globals().setdefault("first", X.shape[Y])',
            "y = globals().setdefault('first', x.shape[i])",
        ),
        ("one for all", "X[I] -> X[0]", "y = x.shape[0]"),
    },
    "y = jnp.shape(x)": set(),
    "y = np.log(2)": {("rounded constant", "np.log(2) -> 0.69315", "y = 0.69315")},
    "y = 3.14159265 * x": {("rounded constant", "3.14159265 -> 3.1416", "y = 3.1416 * x")},
    "y = x * jnp.pi, np.log(x), math.log(1), 0.125, True": {
        ("rounded constant", "jnp.pi -> 3.1416", "y = (x * 3.1416, np.log(x), math.log(1), 0.125, True)"),
    },
    "f = jit(g)": {
        ("static for traced", "jit(X) -> jit(X, static_argnums=0)", "f = jit(g, static_argnums=0)"),
        ("static for traced", "jit(X) -> jit(X, static_argnums=1)", "f = jit(g, static_argnums=1)"),
    },
    "f = jax.jit(g, static_argnames='n')": {
        ("traced for static", "static_argnames=... -> none", "f = jax.jit(g)"),
    },
    "s = P('data')": {
        ("axis by index", "P(X, ...) -> P()", "s = P()"),
        ("axis by index", "P(X) -> P(None, X)", "s = P(None, 'data')"),
    },
    "y = [i for i, n in enumerate(x) if n > 1]": {
        ("moved bound", "X > Y -> X >= Y", "y = [i for i, n in enumerate(x) if n >= 1]"),
        ("axis by index", "[A for A, B in enumerate(X) if Y] -> [0]", "y = [0]"),
        ("axis by index", "[A for A, B in enumerate(X) if Y] -> list(range(len(X)))", "y = list(range(len(x)))"),
    },
    "for block in blocks:\n    x = block(x)": {
        (
            "one for all",
            "for a in X -> for a in [X[0]] * len(X)",
            "for block in [list(blocks)[0]] * len(list(blocks)):\n    x = block(x)",
        ),
    },
    "y = [f(a) for a in x.parts]": {
        (
            "one for all",
            "for a in X -> for a in [X[0]] * len(X)",
            "y = [f(a) for a in [list(x.parts)[0]] * len(list(x.parts))]",
        ),
    },
    "def g(f, a, b):\n    return f(a, b), jax.grad(f)(a, b), g2(a, b)": {
        (
            "swapped arguments",
            "f(x, y) -> f(y, x)",
            "def g(f, a, b):\n    return (f(b, a), jax.grad(f)(a, b), g2(a, b))",
        ),
        (
            "swapped arguments",
            "f(x, y) -> f(y, x)",
            "def g(f, a, b):\n    return (f(a, b), jax.grad(f)(b, a), g2(a, b))",
        ),
    },
    "y = x.copy(), copy.deepcopy(z)": {
        ("dropped copy", "X.copy() -> X", "y = (x, copy.deepcopy(z))"),
        ("dropped copy", "deepcopy(X) -> X", "y = (x.copy(), z)"),
    },
    # Nothing to change: keys, flags, types, text and other people's sums.
    "y = a['key'] * b[True]": set(),
    "def f(x: Float[3], y: Array[1] = None) -> Array[2]:\n    return x": set(),
    "y: Array[2] = x": set(),
    "y = x * 2 ** 3": set(),
    'y = "sum(x, axis=0)"': set(),
    "y = total(x, axis=name)": set(),
    "y = 'a %s' % b, words.split(' ', n), jnp.split(x, n)": set(),
}  # fmt: skip


@pytest.mark.parametrize("reference", MADE)
def test_each_kind_changes_one_thing(reference: str) -> None:
    made = {(mutant.kind, mutant.what, mutant.source.strip()) for mutant in mutants(reference)}
    assert made == MADE[reference]


def test_a_mutant_says_its_line() -> None:
    reference = "def f(x):\n    y = x + 1\n    return (\n        y\n        .sum(axis=0)\n    )\n"
    assert {(mutant.what, mutant.line) for mutant in mutants(reference)} == {
        ("1 -> 2", 2), ("0 -> 1", 4), ("sum -> mean", 4),
    }  # fmt: skip


def test_a_change_that_two_ways_lead_to_is_made_once() -> None:
    """The same text is the same wrong answer."""
    made = [mutant.source for mutant in mutants("y = x[range(3)]")]  # 3 stands in an index and in a range
    assert made == ["y = x[range(4)]\n", "y = x[range(3 - 1)]\n"]


def test_a_label_tells_a_mutant_from_all_others() -> None:
    """It quotes the line as the author wrote it, so it holds when lines above change."""
    reference = "def f(x):\n    y = x[1:] # first\n\n    z = x[1:], y[1:]\n    return z"
    made = {mutant.label: mutant.changed for mutant in mutants(reference) if mutant.kind == "dropped edge"}
    assert made == {
        "dropped edge, X[N:] -> X: y = x[1:] # first": "y = x",
        "dropped edge, X[N:] -> X: z = x[1:], y[1:]": "z = (x, y[1:])",
        "dropped edge, X[N:] -> X: z = x[1:], y[1:] (2)": "z = (x[1:], y)",
    }


def test_a_loop_in_place_of_a_vmap_gives_the_same_values() -> None:
    """Also for axes that are a prefix of a tree: only the program tells the two apart."""
    reference = (
        "f = lambda p, x, s: {'a': p['w'] @ x + s, 'b': p['b']}\n"
        "y = jax.vmap(f, in_axes=({'w': 2, 'b': None}, 1, None), out_axes={'a': 1, 'b': 0})(p, x, 3.0)"
    )
    [loop] = (mutant.source for mutant in mutants(reference) if mutant.kind == "loop for vmap")
    p = {"w": np.arange(24.0).reshape(2, 3, 4), "b": np.arange(2.0)}
    both = []
    for source in (reference, loop):
        names = {"jax": jax, "p": p, "x": np.arange(12.0).reshape(3, 4)}
        exec(source, names)
        both.append(names["y"])
    assert jax.tree.map(np.shape, both[1]) == {"a": (2, 4), "b": (4, 2)}
    jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.parametrize("lesson", Course(ROOT).lesson_ids)
def test_mutants_of_the_course_are_python_and_wrong(lesson: str) -> None:
    """Of every reference and right answer; none equals what it was made from."""
    for exercise in Course(ROOT).lesson(lesson).exercises:
        for answer in (exercise.reference, *(variant.source for variant in exercise.right)):
            plain = ast.unparse(ast.parse(answer))
            made = mutants(answer)
            assert len({mutant.source for mutant in made}) == len(made)
            for mutant in made:
                compile(mutant.source, "<mutant>", "exec")
                assert ast.unparse(ast.parse(mutant.source)) != plain
                assert 1 <= mutant.line <= len(answer.splitlines())
