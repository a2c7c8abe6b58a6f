"""Turns 64 bits on in one answer's own cell, where its results still are what is asked for."""
# %% answer="affine"
jax.config.update("jax_enable_x64", True)


def affine(x):
    return (3 * x.astype(jnp.float64) + 1).astype(jnp.float32)
