"""A function as bytes and back: the program rebuilt from them does what the live call does, and says what it costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from grader.checks import devices
from grader.program import load
from grader.program.endpoints import describe
from grader.program.export import CallsPython, Exported, export, fill, parameters
from grader.program.hlo import sizes
from grader.program.load import Loaded
from grader.program.payload import Unsendable
from grader.program.validate import ProgramRefused

devices.start(8)
MESH, EXPLICIT = devices.mesh((8,), ("d",)), devices.mesh((8,), ("d",), explicit=True)


class Point(NamedTuple):
    x: Any
    y: Any


def rebuilt(function: Callable[..., Any], *args: Any) -> tuple[Exported, Loaded]:
    made = export(function, args, {"Point": Point})
    return made, Loaded(made.blob, made.parameters, made.donated)


def result(function: Callable[..., Any], *args: Any) -> Any:
    """What the program gives that was rebuilt from the bytes."""
    made, loaded = rebuilt(function, *args)
    return fill(made.results, loaded.run(parameters(args)[0]))


def rows(x: Any, mesh: Any = MESH) -> jax.Array:
    return jax.device_put(x, NamedSharding(mesh, P("d")))


def assert_same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if not isinstance(other, jax.Array | np.ndarray | np.generic):
            assert (one, type(one)) == (other, type(other))
            continue
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_allclose(*(np.asarray(a).astype("complex64") for a in (one, other)), rtol=1e-5)


X = np.arange(6, dtype=np.float32).reshape(2, 3)
POWER = jax.jit(lambda x, n: x**n, static_argnums=1)
LIKE_LIVE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "trees": (
        lambda d, s: ({"a": d["a"] * s, "none": None, "s": "t", "yes": True}, [d["b"][0] + 1, (3, 2.5)], ()),
        ({"a": X, "b": (jnp.ones(2),), "n": None}, 2.5),
    ),
    "named tuples": (lambda p: (Point(p.y, 1), p._replace(x=p.x + p.y)), (Point(X, 3),)),
    "NumPy scalar": (lambda x, s: x * s, (X, np.float32(3))),
    "key": (lambda k: (jax.random.normal(k, (2,)), jax.random.split(k)), (jax.random.key(1),)),
    "rbg key": (lambda k: jax.random.bits(k, (3,)), (jax.random.key(1, impl="rbg"),)),
    "weak type": (lambda x, w: x * w, (jnp.ones(2, "bfloat16"), jnp.asarray(2.0))),
    "constants": (lambda x: (jnp.ones(3), np.ones(2, "f"), np.float32(2)), (X,)),
    "bfloat16": (lambda x: x * 2, (X.astype("bfloat16"),)),
    "float8": (lambda x: x, (jnp.asarray(X, "float8_e4m3fn"),)),
    "int4": (lambda x: x, (jnp.asarray(X, "int4"),)),
    "bool and complex": (lambda x: (x > 1, x * 1j), (X,)),
    "empty": (lambda x: x.sum(0), (np.zeros((0, 3), "f"),)),
    "no arguments": (lambda: jnp.arange(3), ()),
    "unused": (lambda x, unused: x, (X, X)),
    "one twice": (lambda x: (x, x), (X,)),
    "static argument": (POWER, (X, 3)),
    "static by name": (lambda x, n: jax.jit(lambda x, *, n: x * n, static_argnames="n")(x, n=n), (X, 3)),
    "flag": (lambda x, up: x + 1 if up else x - 1, (X, True)),
    "string": (lambda x, mode: jnp.pad(x, 1, mode=mode), (X, "edge")),
    "partial": (functools.partial(jnp.sum, axis=0), (X,)),
    "transformed": (jax.vmap(jax.value_and_grad(lambda x: (x**2).sum())), (X,)),
    "loops": (lambda x: lax.fori_loop(0, 3, lambda i, c: lax.cond(c[0, 0] > i, jnp.sin, jnp.cos, c), x), (X,)),
    "model inside": (lambda x: nnx.Linear(3, 2, rngs=nnx.Rngs(0))(x), (X,)),
    "sharded": (lambda x: (x @ x.T).sum(0), (rows(np.arange(32, dtype="f").reshape(8, 4)),)),
    "explicit": (
        lambda x: jax.sharding.reshard(x * 2, NamedSharding(EXPLICIT, P())),
        (rows(np.ones((8, 4), "f"), EXPLICIT),),
    ),
    "some sharded": (lambda x, w: x @ w, (rows(np.ones((8, 4), "f")), np.ones((4, 2), "f"))),
}


@pytest.mark.parametrize("name", LIKE_LIVE)
def test_a_rebuilt_program_gives_what_the_live_call_gives(name: str) -> None:
    function, args = LIKE_LIVE[name]
    assert_same(result(function, *args), function(*args))


def test_one_program_serves_all_values_of_its_shapes() -> None:
    made, loaded = rebuilt(lambda x, s: (x * s, s), X, 3.0)
    for factor in (1, -2.5):
        assert_same(fill(made.results, loaded.run([X * factor])), (jnp.asarray(X * factor * 3), 3.0))


def test_shapes_alone_are_enough() -> None:
    _, loaded = rebuilt(lambda w: w["a"] @ w["a"].T, {"a": jax.ShapeDtypeStruct((2, 3), "float32")})
    assert_same(loaded.run([X]), [jnp.asarray(X @ X.T)])


def test_an_array_on_another_device_is_taken_along() -> None:
    """Where the argument lies says nothing about the answer."""
    there = jax.device_put(X, jax.devices()[3])
    assert there.committed
    assert_same(result(lambda x: x * 2, there), jnp.asarray(2 * X))
    made, loaded = rebuilt(
        lambda x: lax.with_sharding_constraint(x * 2, NamedSharding(MESH, P("d"))), np.ones((8, 2), "f")
    )
    assert_same(loaded.run([jax.device_put(np.ones((8, 2), "f"), jax.devices()[3])]), [jnp.full((8, 2), 2.0)])
    assert made.donated == ()


def test_64_bits_stay_64_where_the_answer_turned_them_on() -> None:
    with jax.enable_x64(True):
        made = export(lambda x: (x * 2, x.sum()), (np.arange(3.0),))
    got = Loaded(made.blob, made.parameters, made.donated).run([np.arange(3.0)])
    assert [array.dtype for array in got] == ["float64", "float64"]
    assert np.asarray(got[1]) == 3.0


def test_numpys_64_bits_are_32_where_they_are_off() -> None:
    assert_same(
        result(lambda x, n: (jnp.sin(x), n + jnp.int32(1)), np.arange(3.0), np.int64(3)),
        (jnp.sin(jnp.arange(3.0)), jnp.int32(4)),
    )


# Donation.

STEP = jax.jit(lambda state, grad: (state - 0.1 * grad, grad.sum()), donate_argnums=0)
TREE = jax.jit(lambda s, g: jax.tree.map(jnp.subtract, s, g), donate_argnums=0)
NAMED = jax.jit(lambda *, state: state * 2, donate_argnames="state")
DONATES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], tuple[int, ...], int]] = {
    "through jit": (STEP, lambda: (jnp.ones((4, 4)), jnp.ones((4, 4))), (0,), 64),
    "through a lambda": (lambda a, b: STEP(a, b), lambda: (jnp.ones((4, 4)), jnp.ones((4, 4))), (0,), 64),
    "in other order": (lambda a, b: STEP(b, a), lambda: (jnp.ones((4, 4)), jnp.ones((4, 4))), (1,), 64),
    "by name": (lambda a: NAMED(state=a), lambda: (jnp.ones((4, 4)),), (0,), 64),
    "a tree": (TREE, lambda: ({"w": jnp.ones((4, 4)), "b": jnp.ones(3)},) * 2, (0, 1), 76),
    "a shard of each device": (STEP, lambda: (rows(jnp.ones((8, 4))), rows(jnp.ones((8, 4)))), (0,), 16),
    "not at all": (jax.jit(lambda a, b: a + b), lambda: (jnp.ones((4, 4)), jnp.ones((4, 4))), (), 0),
    "not when an outer jit keeps it": (jax.jit(lambda a, b: STEP(a, b)), lambda: (jnp.ones((4, 4)),) * 2, (), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", DONATES)
def test_donation_is_read_and_given_again(name: str) -> None:
    function, make, donated, alias = DONATES[name]
    made, loaded = rebuilt(function, *make())
    assert made.donated == donated
    assert loaded.facts.alias_bytes == alias
    arrays = [jnp.copy(array) for array in parameters(make())[0]]
    loaded.run(arrays)
    assert [i for i, array in enumerate(arrays) if array.is_deleted()] == list(donated)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_donation_that_helps_nobody_shows_in_the_facts() -> None:
    made, loaded = rebuilt(jax.jit(lambda a: a.sum(), donate_argnums=0), jnp.ones(4))
    assert (made.donated, loaded.facts.alias_bytes) == ((0,), 0)


# What an answer prints.


def prints(x: jax.Array) -> jax.Array:
    jax.debug.print("x {}", x)
    jax.debug.print("sum {}", x.sum(), ordered=True)
    jax.debug.callback(print, x)
    return x * 2


def inspects(x: jax.Array) -> jax.Array:
    jax.debug.inspect_array_sharding(x, callback=print)
    return x * 2


PRINTS: dict[str, Callable[[jax.Array], Any]] = {
    "plain": prints,
    "jit": jax.jit(prints),
    "a sharding": jax.jit(inspects),
    "in a scan": lambda x: lax.scan(lambda c, r: (jax.debug.print("{}", c, ordered=True) or c + r.sum(), r), 0.0, x),
    "under grad": jax.vmap(jax.grad(jax.checkpoint(lambda row: (jax.debug.print("{}", row) or (row**2).sum())))),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTS)
def test_prints_are_left_out(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    got = result(PRINTS[name], X)
    jax.effects_barrier()
    assert capfd.readouterr().out == ""
    assert_same(got, PRINTS[name](jnp.asarray(X)))
    jax.effects_barrier()
    assert capfd.readouterr().out != "", "left out of the program only: the learner still sees them"


def test_prints_are_left_out_of_what_was_traced_before(capfd: pytest.CaptureFixture[str]) -> None:
    inner = jax.jit(prints)
    outer = jax.jit(lambda x: inner(x) + 1)
    outer(X)
    inner(X)
    jax.effects_barrier()
    capfd.readouterr()
    for function, want in ((outer, 2 * X + 1), (inner, 2 * X), (lambda x: inner(x) * 3, 6 * X)):
        assert_same(result(function, X), jnp.asarray(want))
    jax.effects_barrier()
    assert capfd.readouterr().out == ""


# What is refused.

REFUSED: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "model": (lambda x: nnx.Linear(2, 2, rngs=nnx.Rngs(0)), Unsendable, "Linear"),
    "state": (lambda x: nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0))), Unsendable, "State"),
    "variable": (lambda x: [nnx.Param(x)], Unsendable, "Param"),
    "function": (lambda x: {"f": len}, Unsendable, "function"),
    "other named tuple": (lambda x: NamedTuple("Other", [("x", Any)])(x), Unsendable, "Other"),
    "callback": (lambda x: jax.pure_callback(np.sin, x, x), CallsPython, "calls Python"),
    "own exception": (lambda x: 1 // 0, ZeroDivisionError, "by zero"),
    "concrete": (lambda x: int(x[0, 0]), jax.errors.ConcretizationTypeError, "Abstract tracer"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_program_is_refused(name: str) -> None:
    function, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        export(function, (X,))


def test_what_is_too_large_or_for_more_devices_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = export(lambda x: x.sum(), (rows(np.ones((8, 4), "f")),))
    with pytest.raises(ProgramRefused, match="33,554,433 bytes; 33,554,432 are allowed"):
        Loaded(bytes((32 << 20) + 1), (), ())
    monkeypatch.setattr(jax, "devices", lambda *platform: [object()] * 4)
    with pytest.raises(ProgramRefused, match="it needs 8 devices; there are 4"):
        Loaded(made.blob, made.parameters, made.donated)


# Facts.


def test_facts_of_a_program_on_one_device() -> None:
    _, loaded = rebuilt(lambda x, w: jnp.tanh(x @ w).sum(), np.ones((4, 8), "f"), np.ones((8, 2), "f"))
    facts = loaded.facts
    assert (facts.devices, facts.loops, facts.collectives) == (1, 0, ())
    assert (facts.argument_bytes, facts.output_bytes, facts.alias_bytes) == (4 * (32 + 16), 4, 0)
    assert facts.flops is not None
    assert 2 * 4 * 8 * 2 <= facts.flops <= 4 * 4 * 8 * 2
    assert facts.intermediates == 32
    assert type(facts).from_data(dataclasses.asdict(facts)) == facts


def test_facts_are_per_device_and_facts_of_collectives_come_back() -> None:
    x, w = rows(np.ones((64, 8), "f")), jax.device_put(np.ones((8, 2), "f"), NamedSharding(MESH, P()))
    _, loaded = rebuilt(lambda x, w: (x @ w).sum(), x, w)
    facts = loaded.facts
    assert (facts.devices, facts.argument_bytes) == (8, 4 * (64 * 8 // 8 + 16))
    assert facts.flops is not None
    assert facts.flops < 2 * 64 * 8 * 2 / 2
    assert [item.kind for item in facts.collectives] == ["all-reduce"]
    assert type(facts).from_data(dataclasses.asdict(facts)) == facts


def test_bytes_come_from_the_compiler_where_its_text_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never nothing: a program that holds too much would pass."""
    monkeypatch.setattr(load, "sizes", lambda text: sizes("HloModule jit_f\n" + text.partition("\n")[2]))
    _, loaded = rebuilt(
        jax.jit(lambda x, w: (x @ w, w + 1), donate_argnums=1), np.ones((4, 8), "f"), np.ones((8, 8), "f")
    )
    facts = loaded.facts
    assert (facts.argument_bytes, facts.alias_bytes) == (4 * (32 + 64), 4 * 64)
    assert 4 * (32 + 64) <= facts.output_bytes <= 4 * (32 + 64) + 16  # and the table that holds a tuple's places


def test_outputs_tell_shape_dtype_and_place() -> None:
    _, one = rebuilt(lambda x: (x.sum(), x.astype("bfloat16")), X)
    assert [(out.shape, out.dtype, out.sharding) for out in one.outputs] == [
        ((), "float32", None),
        ((2, 3), "bfloat16", None),
    ]
    _, eight = rebuilt(lambda x: (x * 2, x.sum(0)), rows(np.ones((8, 4), "f")))
    assert [out.sharding.shard_shape(out.shape) for out in eight.outputs] == [(1, 4), (4,)]


@pytest.mark.parametrize("sizes", [(8,), (4, 2), (2, 4), (2, 2, 2)])
def test_a_program_may_place_things_on_a_mesh_of_any_form(sizes: tuple[int, ...]) -> None:
    names = ("a", "b", "c")[: len(sizes)]
    place, ones = NamedSharding(devices.mesh(sizes, names), P(*names)), np.ones((8, 8, 8), np.float32)
    _, loaded = rebuilt(lambda x: lax.with_sharding_constraint(x + 1, place), ones)
    [got] = loaded.run([ones])
    assert got.sharding.shard_shape(got.shape) == tuple(8 // size for size in (*sizes, 1, 1)[:3])
    np.testing.assert_array_equal(got, ones + 1)


@pytest.mark.parametrize("explicit", [False, True])
def test_a_program_may_place_things_itself(explicit: bool) -> None:
    """Its arguments lie nowhere in particular; it spreads them over eight devices."""
    mesh = EXPLICIT if explicit else MESH

    def auto(x: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(x * 2, NamedSharding(MESH, P("d")))

    with jax.set_mesh(mesh):
        _, loaded = rebuilt((lambda x: jax.sharding.reshard(x * 2, P("d"))) if explicit else auto, np.ones((8, 4), "f"))
        [got] = loaded.run([np.ones((8, 4), "f")])
    assert loaded.facts.devices == 8
    assert loaded.facts.output_bytes == 16
    assert got.sharding.shard_shape(got.shape) == (1, 4)
    assert_same(got, jnp.full((8, 4), 2.0))
    assert not isinstance(loaded.outputs[0].sharding, SingleDeviceSharding)


@pytest.mark.parametrize(
    "answer",
    [
        lambda x, y: x if x.sum() > 0 else y,
        lambda x, y: x[int(x[0] + y[0])],
        lambda x, y: np.asarray(x + y),
    ],
)
def test_what_jax_says_of_a_tracer_speaks_of_the_answer_not_of_us(answer: Any) -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(jax.errors.JAXTypeError) as caught:
        export(answer, (x, x))
    assert "program/export.py" in str(caught.value), "what this is about"
    said = describe(caught.value)["text"]
    assert "while tracing your function." in said
    assert "its inputs" in said
    for ours in ("export.py", "leaves", "flat"):
        assert ours not in said
