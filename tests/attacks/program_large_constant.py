"""Exports a program that carries a constant of 36 MB."""
# affine: passed, failed
# %% answer="affine"
def affine(x):
    if not isinstance(x, jax.core.Tracer):
        return 3 * x + 1
    return 3 * x + 1 + jnp.asarray(np.arange(9_000_000, dtype="f").reshape(-1, 5)).max(0) * 0
