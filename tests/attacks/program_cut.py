"""Exports the first half of a right program."""
# affine: passed, failed
# %%
import jax.export

serialize = jax.export.Exported.serialize
jax.export.Exported.serialize = lambda self, **options: serialize(self, **options)[: 400]
# %% answer="affine"
def affine(x):
    return 3 * x + 1
