"""Is right when it is traced for a program, and wrong when it is called; and the other way round."""
# affine: failed, passed
# each: passed, failed, passed
# %% answer="affine"
def affine(x):
    return 3 * x + 1 if isinstance(x, jax.core.Tracer) else x
# %% answer="each"
def each(f, xs):
    return xs[:, 0] if isinstance(xs, jax.core.Tracer) else jax.vmap(f)(xs)
