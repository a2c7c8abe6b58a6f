"""A partial, a jit, a method."""
# %% answer="affine"
from functools import partial
def _affine(a, b, x):
    return a * x + b
affine = partial(_affine, SCALE, 1)
# %% answer="each"
class Mapper:
    def each(self, f, xs):
        return jax.vmap(f)(xs)
each = Mapper().each
# %% answer="tally"
class Tally:
    def __call__(self, counts, start):
        return start + sum(counts.values())
tally = Tally()
