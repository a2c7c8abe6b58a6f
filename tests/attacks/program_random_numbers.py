"""Leaves a program's results to chance: the compiler's own random numbers differ from run to run."""
# affine: failed, failed
# %% answer="affine"
def affine(x):
    return jax.lax.rng_uniform(jnp.float32(4), jnp.float32(7), x.shape)
