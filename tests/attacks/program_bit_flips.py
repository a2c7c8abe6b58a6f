"""Exports a right program with some of its bits turned over, at other places each time."""
# affine: passed, failed|crashed
# each: passed, failed|crashed, passed
# %%
import jax.export, random

serialize, dice = jax.export.Exported.serialize, random.Random(3)


def flipped(self, **options):
    blob = bytearray(serialize(self, **options))
    for _ in range(12):
        blob[dice.randrange(len(blob))] ^= 1 << dice.randrange(8)
    return blob


jax.export.Exported.serialize = flipped
# %% answer="affine"
def affine(x):
    return 3 * x + 1
# %% answer="each"
def each(f, xs):
    return jax.vmap(f)(xs)
