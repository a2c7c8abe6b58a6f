"""Gives a Pallas kernel so many steps that it ends after hours."""
# affine: passed, timeout|crashed|failed
# %% answer="affine"
from jax.experimental import pallas as pl


def affine(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = 3 * x_ref[...] + 1

    steps = 2**30 if isinstance(x, jax.core.Tracer) else 1
    like = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return pl.pallas_call(kernel, grid=steps, out_shape=like, interpret=True)(x)
