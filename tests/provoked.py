"""Provokes each error that `grader/checks/errors.toml` explains, and prints what was raised, as JSON.

A program of its own: some errors need eight devices, which a process has to ask for before it uses any.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

x = np.arange(3, dtype=np.float32)
kept: list[Any] = []


def traced(function: Callable[..., Any], *args: Any) -> Any:
    """Trace it, and run nothing."""
    return jax.jit(function).trace(*(args or (x,)))


def loop(step: Callable[..., Any], first: Any = 0.0, over: Any = x) -> Any:
    return jax.eval_shape(lambda: lax.scan(step, first, over))


def mesh(kind: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind,) * 2)


def placed(*spec: str | None, shape: tuple[int, ...] = (8, 8), kind: AxisType = AxisType.Auto) -> jax.Array:
    return jax.device_put(np.zeros(shape, np.float32), NamedSharding(mesh(kind), P(*spec)))


def explicit(function: Callable[..., Any], *specs: tuple[str, str]) -> None:
    with jax.set_mesh(mesh(AxisType.Explicit)):
        function(*(placed(*spec, kind=AxisType.Explicit) for spec in specs))


def by_rules(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    function = jax.custom_vjp(lambda x: x.sum())
    function.defvjp(forward, backward)
    return function


def leaked() -> None:
    traced(lambda x: kept.append(x))
    _ = kept[-1] + 1


def leaked_and_looked_for() -> None:
    with jax.checking_leaks():
        jax.jit(lambda x: kept.append(x))(1.0)


def not_differentiable() -> None:
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def clipped(x: Any, limit: Any) -> Any:
        return x

    clipped.defvjp(lambda x, limit: (x, None), lambda limit, kept, g: (g,))
    traced(clipped, 1.0, 2.0)


def donated(then: Callable[..., Any]) -> None:
    array = jnp.arange(3.0)
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    step(array)
    then(step, array)


def donated_twice() -> None:
    array = jnp.arange(3.0)
    jax.jit(lambda x, y: (x + 1, y + 1), donate_argnums=(0, 1))(array, array)


def assigned() -> None:
    array = jnp.arange(3.0)
    array[0] = 1  # type: ignore[index]


def filled_in_place(x: Any) -> None:
    np.zeros(3)[0] = x[0]


def of_devices() -> None:
    one, other = (jax.device_put(x, device) for device in jax.devices()[:2])
    _ = one + other


def given_devices() -> None:
    jax.jit(jnp.sin, in_shardings=NamedSharding(mesh(), P("b")))(placed("a", "b"))


def per_device(function: Callable[..., Any], out: P) -> Any:
    return jax.shard_map(function, mesh=mesh(), in_specs=P("a"), out_specs=out)(jnp.zeros(8))


class Stack(nnx.Module):
    def __init__(self) -> None:
        self.layers = [nnx.Linear(2, 2, rngs=nnx.Rngs(0))]


def mixed_scopes() -> None:
    shapes = [jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), jnp.float32) for _ in range(2)]
    jax.export.export(jax.jit(lambda x, y: x + y.sum()))(*shapes)


def norm() -> nnx.BatchNorm:
    return nnx.BatchNorm(2, rngs=nnx.Rngs(0))


# By the line of the table.
PROGRAMS: dict[str, Callable[[], Any]] = {
    "TracerBoolConversionError:": lambda: traced(lambda x: 1 if x[0] > 0 else 2),
    "TracerIntegerConversionError:": lambda: traced(lambda n: sum(range(n)), 3),
    "TracerArrayConversionError:": lambda: traced(lambda x: np.sin(x)),
    "ConcretizationTypeError: The problem arose with the `float` function.": lambda: traced(lambda x: float(x[0])),
    "ConcretizationTypeError: The problem arose with the `int` function.": lambda: traced(lambda x: int(x[0])),
    "ConcretizationTypeError: The problem arose with the `": lambda: traced(lambda x: complex(x[0])),
    "ConcretizationTypeError: item()": lambda: traced(lambda x: x[0].item()),
    "ConcretizationTypeError: tolist()": lambda: traced(lambda x: x.tolist()),
    "ConcretizationTypeError: size argument": lambda: traced(lambda x: jnp.nonzero(x > 0)),
    "ConcretizationTypeError:": lambda: traced(jnp.arange, 3),
    "NonConcreteBooleanIndexError:": lambda: traced(lambda x: x[x > 0]),
    "TypeError: Shapes must be 1D sequences of concrete": lambda: traced(jnp.zeros, 3),
    "IndexError: Slice entries must be static integers.": lambda: traced(lambda n: jnp.ones(3)[:n], 2),
    "TypeError: Tracer.__format__": lambda: traced(lambda x: f"{x[0]:.2f}"),
    "UnexpectedTracerError: nondiff_argnums": not_differentiable,
    "UnexpectedTracerError:": leaked,
    "Exception: Leaked trace": leaked_and_looked_for,
    "RuntimeError: Array has been deleted": lambda: donated(lambda step, array: array + 1),
    "ValueError: Buffer has been deleted or donated": lambda: donated(lambda step, array: step(array)),
    "JaxRuntimeError: Attempt to donate the same buffer twice": donated_twice,
    "JaxRuntimeError: RESOURCE_EXHAUSTED": lambda: jnp.zeros((2**25, 2**25)),
    "TypeError: scan body output must be a pair": lambda: loop(lambda carry, x: carry),
    "TypeError: carry input and carry output must have the same pytree structure, but they differ:": lambda: loop(
        lambda carry, x: ((carry, x), None)
    ),
    "TypeError: carry input and carry output must have equal types, but they differ:": lambda: loop(
        lambda c, x: (x + c, None), 0.0, x[:, None]
    ),
    "TypeError: branches must have equal output types but they differ.": lambda: lax.cond(
        True, lambda: x, lambda: x[:1]
    ),
    "TypeError: branch outputs must have the same pytree structure, but they differ:": lambda: lax.cond(
        True, lambda: x, lambda: (x, x)
    ),
    "TypeError: Pred must be a scalar": lambda: lax.cond(x > 0, lambda: x, lambda: -x),
    "TypeError: arguments should be callable": lambda: lax.cond(True, x, -x),
    "TypeError: cond_fun must return a boolean scalar": lambda: lax.while_loop(lambda x: x, lambda x: x - 1, 3.0),
    "ValueError: got values with different leading axis sizes": lambda: loop(lambda *c: c, 0.0, (x, x[1:])),
    "ValueError: no leading axis to scan over": lambda: loop(lambda *c: c, 0.0, 1.0),
    "ValueError: scan got no values to scan over": lambda: loop(lambda *c: c, 0.0, None),
    "ValueError: Reverse-mode differentiation does not work for": lambda: jax.grad(
        lambda x: lax.while_loop(lambda x: x < 3, lambda x: 2 * x, x)
    )(1.0),
    "ValueError: vmap got inconsistent sizes for array axes to be mapped:": lambda: jax.vmap(jnp.add)(x, x[1:]),
    "ValueError: vmap was requested to map its argument along": lambda: jax.vmap(jnp.add)(x, 1.0),
    "ValueError: vmap in_axes must be an int, None, or": lambda: jax.vmap(jnp.add, in_axes=(0,))(x, x),
    "TypeError: vmap in_axes must be an int, None, or": lambda: jax.vmap(jnp.add, in_axes="0")(x, x),
    "ValueError: vmap in_axes specification must be a tree": lambda: jax.vmap(jnp.sin, in_axes=({"w": 0},))(x),
    "ValueError: vmap out_axes specification must be a tree": lambda: jax.vmap(jnp.sin, out_axes=(0, 0))(x),
    "ValueError: at least one non-None value in in_axes": lambda: jax.vmap(jnp.sin, in_axes=None)(x),
    "ValueError: at vmap out_axes, got axis spec None": lambda: jax.vmap(jnp.sin, out_axes=None)(x),
    "TypeError: Expected a callable value": lambda: jax.grad(jnp.sum(x)),
    "TypeError: Gradient only defined for scalar-output": lambda: jax.grad(jnp.sin)(x),
    "TypeError: requires real- or complex-valued inputs": lambda: jax.grad(jnp.sum)(np.arange(3)),
    "TypeError: requires real-valued outputs": lambda: jax.grad(lambda x: jnp.sum(x > 0))(x),
    "TypeError: expected function with aux output": lambda: jax.grad(jnp.sum, has_aux=True)(x),
    "TypeError: primal and tangent arguments to jax.jvp": lambda: jax.jvp(jnp.sin, (x,), (np.arange(3),)),
    "ValueError: jvp called with different primal and tangent": lambda: jax.jvp(jnp.sin, (x,), (x[1:],)),
    "ValueError: for argument to VJP function": lambda: jax.vjp(jnp.sin, x)[1](x[1:]),
    "ValueError: argument to a VJP function": lambda: jax.vjp(lambda x: (x, x), x)[1](x),
    "TypeError: bwd rule must produce an output with the same container": lambda: jax.grad(
        by_rules(lambda x: (x.sum(), x), lambda kept, g: g * kept)
    )(x),
    "ValueError: type as the args tuple of the primal function, but": lambda: jax.grad(
        by_rules(lambda x: (x.sum(), x), lambda kept, g: (g,))
    )(x),
    "TypeError: Custom VJP fwd rule": lambda: jax.grad(by_rules(lambda x: x.sum(), lambda kept, g: (g,)))(x),
    "TypeError: to a custom_vjp function": lambda: jax.jvp(
        by_rules(lambda x: (x.sum(), x), lambda kept, g: (g * kept,)), (x,), (x,)
    ),
    "TypeError: as an abstract array.": lambda: jax.jit(lambda f: f)(print),
    "ValueError: Non-hashable static arguments": lambda: jax.jit(jnp.sum, static_argnums=0)(x),
    "ValueError: Jitted function has": lambda: jax.jit(lambda x: x, static_argnums=4)(x),
    "TypeError: differ from the types for which this computation was": lambda: (
        jax.jit(jnp.sin).lower(x).compile()(x[1:])
    ),
    "TypeError: is not a valid JAX type": lambda: traced(lambda x: "three"),
    "TypeError: JAX arrays are immutable and do not support in-place item assignment.": assigned,
    "TypeError: Indexer must have integer or boolean type": lambda: jnp.ones(3)[1.0],
    "TypeError: got incompatible shapes for broadcasting": lambda: jnp.ones(3) + jnp.ones(2),
    "TypeError: requires contracting dimensions to have the same shape": lambda: jnp.ones((2, 3)) @ jnp.ones((2, 3)),
    "ValueError: Invalid mixing of symbolic scopes": mixed_scopes,
    "ValueError: Incompatible shapes for broadcasting": lambda: jnp.where(x > 0, x, x[1:]),
    "TypeError: cannot reshape array": lambda: jnp.ones(3).reshape(2, 2),
    "TypeError: requires ndarray or scalar arguments": lambda: jnp.add([1, 2], [3, 4]),
    "ValueError: Invalid shapes for solve:": lambda: jnp.linalg.solve(jnp.ones((2, 3, 3)), jnp.ones((2, 3))),
    "ValueError: setting an array element with a sequence.": lambda: traced(filled_in_place),
    "DTypePromotionError:": lambda: np.promote_types(np.float16, jnp.bfloat16),
    "TypeError: Only scalar arrays can be converted": lambda: float(jnp.ones(3)),
    "TypeError: iteration over a 0-d array": lambda: [*jnp.ones(())],
    "TypeError: len() of unsized object": lambda: len(jnp.ones(())),
    "ValueError: truth value of an array with more than one element is ambiguous.": lambda: bool(jnp.ones(3) > 0),
    "TypeError: unhashable type: 'jaxlib": lambda: {jnp.ones(())},
    "TypeError: unhashable type: 'DynamicJaxprTracer'": lambda: traced(lambda x: {x}),
    "ValueError: pytree structure error:": lambda: jax.tree.map(lambda a, b: a, {"w": 1}, {"b": 1}),
    "TypeError: JAX encountered invalid PRNG key data": lambda: jax.random.normal(3),
    "TypeError: unexpected PRNG key type": lambda: jax.random.normal(None),
    "ValueError: accepts a single key, but was given": lambda: jax.random.normal(jax.random.split(jax.random.key(0))),
    "TypeError: does not accept dtypes key<": lambda: jax.random.key(0) + 1,
    "IndivisibleError: implies that": lambda: placed("a", shape=(6,)),
    "ValueError: is only valid for values of": lambda: placed("a", shape=()),
    "ValueError: is not found in mesh": lambda: placed("c"),
    "DuplicateSpecError:": lambda: placed("a", "a"),
    "RuntimeError: requires a non-empty mesh in context": lambda: lax.with_sharding_constraint(x, P("a")),
    "ValueError: Received incompatible devices for jitted computation.": of_devices,
    "ValueError: Sharding passed to jit does not match the sharding on the respective arg.": given_devices,
    "ValueError: must be >= the product of mesh_shape": lambda: jax.make_mesh((4, 4), ("a", "b")),
    "ShardingTypeError: Contracting dimensions are sharded": lambda: explicit(lambda x: x.T @ x, ("a", "b")),
    "ShardingTypeError:": lambda: explicit(lambda x, y: x + y, ("a", "b"), ("b", "a")),
    "AssertionError: acts as an assert when all axes": lambda: explicit(
        lambda x: lax.with_sharding_constraint(x, P("b", "a")), ("a", "b")
    ),
    "ValueError: not evenly divisible by the corresponding mesh axis sizes:": lambda: jax.shard_map(
        jnp.sin, mesh=mesh(), in_specs=P("a"), out_specs=P("a")
    )(jnp.zeros(6)),
    "TypeError: the manual axis types do not match": lambda: per_device(
        lambda shard: lax.fori_loop(0, 2, lambda _, total: total + shard, jnp.zeros(shard.shape)), P("a")
    ),
    "ValueError: require replication which can't be": lambda: per_device(jnp.sin, P()),
    "ValueError: out_specs entry which is too long": lambda: per_device(jnp.sum, P("a")),
    "NameError: unbound axis name": lambda: traced(lambda x: lax.psum(x, "a")),
    "TraceContextError:": lambda: traced(norm(), np.zeros((3, 2), np.float32)),
    "ValueError: assigned to static attribute": Stack,
    "TypeError: Missing required argument `wrt`": lambda: nnx.Optimizer(norm(), optax.sgd(0.1)),  # type: ignore[call-arg]
    "TypeError: keyword-only argument: 'rngs'": lambda: nnx.Linear(2, 2),
}


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    seen = {}
    for line, program in PROGRAMS.items():
        try:
            program()
            seen[line] = ["nothing", ""]
        except Exception as problem:
            seen[line] = [type(problem).__name__, str(problem)]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
