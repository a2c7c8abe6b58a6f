"""Serializes a program with a derivative beside it."""
# affine: passed, failed
# %% answer="affine"
import jax.export
old_s = jax.export.Exported.serialize
jax.export.Exported.serialize = lambda self, vjp_order=0: old_s(self, vjp_order=3)
def affine(x):
    return 3 * x + 1
