"""Has the compiler fold a huge constant."""
# affine: timeout, timeout
# %% answer="affine"
def affine(x):
    big = jax.lax.iota("float32", 200_000_000)
    s = jax.lax.sort(jnp.sin(big))
    return 3 * x + 1 + 0 * s[0]
