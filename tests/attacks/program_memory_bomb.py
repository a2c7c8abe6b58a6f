"""Exports a program that needs a terabyte while it runs."""
# affine: passed, failed|crashed
# %% answer="affine"
def affine(x):
    if not isinstance(x, jax.core.Tracer):
        return 3 * x + 1
    big = jax.lax.broadcast(x, (1 << 18, 1 << 18))
    return jax.lax.sort(big, dimension=0)[0, 0] * 3 + 1
