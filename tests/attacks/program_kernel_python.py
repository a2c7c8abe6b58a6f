"""Runs a Pallas kernel in the interpreter that simulates a TPU, which calls Python while the program runs."""
# affine: passed, failed
# %% answer="affine"
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def affine(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = 3 * x_ref[...] + 1

    return pl.pallas_call(kernel, out_shape=jax.typeof(x), interpret=pltpu.InterpretParams())(x)
