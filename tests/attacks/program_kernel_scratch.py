"""Asks for a scratch array of a terabyte in a Pallas kernel."""
# affine: passed, failed|crashed
# %% answer="affine"
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def affine(x):
    def kernel(x_ref, out_ref, scratch_ref):
        scratch_ref[...] = jnp.full_like(scratch_ref, x_ref[0])
        out_ref[...] = 3 * x_ref[...] + 1 + 0 * scratch_ref[0, 0]

    side = 1 << 19 if isinstance(x, jax.core.Tracer) else 1
    scratch, like = pltpu.VMEM((side, side), jnp.float32), jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return pl.pallas_call(kernel, out_shape=like, scratch_shapes=[scratch], interpret=True)(x)
