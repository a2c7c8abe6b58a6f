"""Exports a Pallas kernel that never ends in its second step."""
# affine: timeout, timeout
# %% answer="affine"
from jax.experimental import pallas as pl


def affine(x):
    def kernel(x_ref, out_ref):
        start = pl.program_id(0) * 0.0
        out_ref[...] = jax.lax.while_loop(lambda y: y[0] == y[0], lambda y: y + 1, start + x_ref[...] * 0)

    like = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return pl.pallas_call(kernel, grid=2, out_shape=like, interpret=True)(x)
