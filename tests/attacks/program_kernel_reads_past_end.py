"""Reads far outside of its block in a Pallas kernel, and leaves memory uninitialised that may contain other data."""
# affine: failed, failed
# %% answer="affine"
from jax.experimental import pallas as pl


def affine(x):
    def kernel(x_ref, out_ref):
        far = 2**30 * (1 + pl.program_id(0))
        out_ref[pl.ds(0, 1)] = x_ref[pl.ds(far, 1)]

    like = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    spec = pl.BlockSpec((2,), lambda i: (i + 2**20,))
    return pl.pallas_call(kernel, grid=1, in_specs=[spec], out_specs=spec, out_shape=like, interpret=True)(x)
