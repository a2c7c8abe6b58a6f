"""What the zygote does once, so that no fork does it again: imports, traces, one MLIR context."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

ALWAYS = (
    *("jax", "jax.numpy", "jax.export", "optax", "flax.nnx", "IPython.core.inputtransformer2"),
    *("grader.checks", "grader.sandbox.worker", "grader.sandbox.executor"),
)
# The first export and the first compile import these; in every fork anew that would cost 0.2 s.
AT_FIRST_USE = ("jaxlib.mlir.dialects.mhlo", "jaxlib.lapack", "jax.scipy.linalg", "scipy.linalg.cython_lapack")


def preload(modules: list[str]) -> None:
    """Import what the forks will need; a module that cannot be imported is left for the fork to stumble over."""
    for name in (*ALWAYS, *AT_FIRST_USE, *modules):
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def warm() -> None:
    """Trace what most answers use, so that no fork traces it for the first time. Tracing makes no backend."""
    import jax
    import jax.numpy as jnp

    def medley(x: jax.Array, w: jax.Array, key: jax.Array) -> jax.Array:
        h = jax.nn.relu(jnp.tanh(x @ w) + jnp.exp(-(x**2)).mean(axis=0)) - jnp.abs(x).max()
        h = jnp.where(h > 0, jnp.log1p(h), jnp.sqrt(jnp.square(h))) / jnp.maximum(h.var(), 1.0)
        h = jnp.concatenate([h[:1], jnp.stack([h[1], h[2]]), h[jnp.arange(1)]]).at[0].set(0.0).at[1].add(1.0)
        h, _ = jax.lax.scan(lambda carry, row: (carry + row, None), h, jax.random.normal(key, (2, *h.shape)))
        h = jax.lax.cond(h.sum() > 0, lambda h: h.T.reshape(h.shape), lambda h: jnp.cumsum(h, axis=1), h)
        return jax.lax.fori_loop(0, 3, lambda i, h: h * i, h).sum() + jax.nn.log_softmax(h).sum()

    def batch(xs: jax.Array, w: jax.Array, keys: jax.Array) -> Any:
        return jax.vmap(jax.value_and_grad(medley, argnums=1), in_axes=(0, None, 0))(xs, w, keys)

    with contextlib.suppress(Exception):  # a newer JAX may refuse some of it: then nothing is warm, and nothing is lost
        xs, w = jax.ShapeDtypeStruct((2, 4, 4), "float32"), jax.ShapeDtypeStruct((4, 4), "float32")
        jax.make_jaxpr(batch)(xs, w, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2)))


def share_mlir_context() -> None:
    """One MLIR context for each fork: JAX makes one, 3 ms, whenever it lowers, exports or loads (measured: a sixth of
    a submission's time). It has no public name; where it is called otherwise, nothing is shared and nothing is lost."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.interpreters import mlir

        mlir.make_ir_context = functools.cache(mlir.make_ir_context)
