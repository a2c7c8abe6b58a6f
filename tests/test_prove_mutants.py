"""Machine-made wrong answers: one change each, always Python, never the reference itself."""

from __future__ import annotations

import ast

import pytest
from conftest import ROOT

from grader.course import Course
from grader.prove.mutants import mutants

# A reference's one line, and what each mutant turns it into.
MADE: dict[str, set[tuple[str, str, str]]] = {
    "y = x.sum(axis=0)": {
        ("swapped axes", "0 -> 1", "y = x.sum(axis=1)"),
        ("sum for mean", "sum -> mean", "y = x.mean(axis=0)"),
    },
    "y = jnp.max(x, 1)": {("swapped axes", "1 -> 0", "y = jnp.max(x, 0)")},
    "y = x.max(-1)": {("swapped axes", "-1 -> 0", "y = x.max(-0)")},
    "y = x.max(axis=-1, keepdims=True)": {("swapped axes", "-1 -> 0", "y = x.max(axis=-0, keepdims=True)")},
    "y = jnp.any(x, axis=(0, 2))": {
        ("swapped axes", "0 -> 1", "y = jnp.any(x, axis=(1, 2))"),
        ("swapped axes", "2 -> 0", "y = jnp.any(x, axis=(0, 0))"),
    },
    "y = jnp.mean(x)": {("sum for mean", "mean -> sum", "y = jnp.sum(x)")},
    "y = lax.psum(x, 'd')": {
        ("sum for mean", "psum -> pmean", "y = lax.pmean(x, 'd')"),
        ("dropped collective", "psum(x, ...) -> x", "y = (lambda kept, *rest, **more: kept)(x, 'd')"),
    },
    "y = jax.device_put(x, s)": {
        ("dropped collective", "device_put(x, ...) -> x", "y = (lambda kept, *rest, **more: kept)(x, s)"),
    },
    "f = vmap(g, (0, None))": {
        ("changed in_axes", "0 -> 1", "f = vmap(g, (1, None))"),
        ("changed in_axes", "0 -> None", "f = vmap(g, (None, None))"),
        ("changed in_axes", "None -> 0", "f = vmap(g, (0, 0))"),
    },
    "f = jax.vmap(g, in_axes={'w': None}, out_axes=-1)": {
        ("changed in_axes", "None -> 0", "f = jax.vmap(g, in_axes={'w': 0}, out_axes=-1)"),
        ("changed in_axes", "-1 -> 0", "f = jax.vmap(g, in_axes={'w': None}, out_axes=-0)"),
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
        ("dropped stop_gradient", "stop_gradient(x) -> x", "y = x + (lambda kept, *rest, **more: kept)(z)"),
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
        ("shortened path", "keystr(path) -> keystr(path[-1:])", "name = keystr(path[-1:], simple=True)"),
    },
    "y = a if b is None else b": {
        ("swapped branches", "a if ... else b -> b if ... else a", "y = b if b is None else a"),
    },
    "total += x": {("flipped sum", "+= -> -=", "total -= x")},
    "k = jax.random.fold_in(key, i)": {
        ("dropped fold_in", "fold_in(key, ...) -> key", "k = (lambda kept, *rest, **more: kept)(key, i)"),
    },
    "m = nnx.view(nnx.clone(m), deterministic=True)": {
        ("the other mode", "deterministic=True -> False", "m = nnx.view(nnx.clone(m), deterministic=False)"),
        ("dropped clone", "clone(x) -> x", "m = nnx.view((lambda kept, *rest, **more: kept)(m), deterministic=True)"),
    },
    "m.set_attributes(use_running_average=False)": {
        ("the other mode", "use_running_average=False -> True", "m.set_attributes(use_running_average=True)"),
    },
    "s = nnx.state(m, nnx.Not(f))": {
        ("dropped Not", "Not(filter) -> filter", "s = nnx.state(m, (lambda kept, *rest, **more: kept)(f))"),
    },
    "m = view(m, deterministic=not training)": set(),
    "ks = jax.random.split(key, n)": {
        ("one key for all", "split(key, n) -> n times key", "ks = (lambda key, num=2: key[None].repeat(num))(key, n)"),
    },
    "p = 1 - q": {
        ("the contrary", "1 - p -> 1 * p", "p = 1 * q"),
    },
    "y = i // n": {("quotient for remainder", "// -> %", "y = i % n")},
    "y = i % n": {("quotient for remainder", "% -> //", "y = i // n")},
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
    [only] = mutants("y = x[range(3)]")  # 3 stands in an index and in a range
    assert only.source == "y = x[range(4)]\n"


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
