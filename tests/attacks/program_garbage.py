"""Exports bytes that are no program."""
# affine: passed, failed
# each: passed, failed, passed
# %%
import jax.export, os

jax.export.Exported.serialize = lambda self, **options: bytearray(os.urandom(9_000))
# %% answer="affine"
def affine(x):
    return 3 * x + 1
# %% answer="each"
def each(f, xs):
    return jax.vmap(f)(xs)
