"""Writes everything as classes with methods, partials and lambdas."""
# %% answer="affine"
class Affine:
    def __init__(self, slope, offset):
        self.slope, self.offset = slope, offset

    def __call__(self, x):
        return self.slope * x + self.offset


affine = Affine(3, 1)
# %% answer="tally"
import functools

tally = functools.partial(lambda counts, start, zero: start + sum(counts.values(), zero), zero=0)
# %% answer="keep"
class Doubler:
    @staticmethod
    def doubled(tree):
        return {name: value * 2 for name, value in tree.items()}


doubled = Doubler.doubled
# %% answer="bystander"
again = lambda text: text + text
