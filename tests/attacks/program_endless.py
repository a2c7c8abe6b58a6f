"""Exports a loop that never ends; traced it looks like any other."""
# affine: timeout, timeout
# each: passed, timeout, timeout
# %% answer="affine"
def affine(x):
    return jax.lax.while_loop(lambda y: y[0] == y[0], lambda y: y + 1, x)
# %% answer="each"
def each(f, xs):
    out = jax.vmap(f)(xs)
    return jax.lax.while_loop(lambda y: y[0] == y[0], jnp.sin, out) if isinstance(xs, jax.core.Tracer) else out
