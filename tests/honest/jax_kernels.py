"""Writes answers as Pallas kernels in interpret mode: a grid with an edge, scratch memory, a rule for gradients."""
# %% answer="affine"
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def affine(x):
    def kernel(x_ref, out_ref, scratch_ref):
        scratch_ref[...] = SCALE * x_ref[...]
        out_ref[...] = scratch_ref[...] + 1

    spec, like = pl.BlockSpec((2,), lambda i: (i,)), jax.ShapeDtypeStruct(x.shape, jnp.float32)
    options = {"in_specs": [spec], "out_specs": spec, "scratch_shapes": [pltpu.VMEM((2,), jnp.float32)]}
    return pl.pallas_call(kernel, grid=pl.cdiv(len(x), 2), out_shape=like, interpret=True, **options)(x)
# %% answer="each"
def each(f, xs):
    def kernel(x_ref, out_ref):
        out_ref[0] = f(x_ref[...])

    row, like = pl.BlockSpec((None, xs.shape[1]), lambda i: (i, 0)), jax.ShapeDtypeStruct(xs.shape[:1], jnp.float32)
    options = {"in_specs": [row], "out_specs": pl.BlockSpec((1,), lambda i: (i,)), "out_shape": like}
    return pl.pallas_call(kernel, grid=len(xs), interpret=True, **options)(xs)
