"""Returns NumPy's arrays where JAX's would do, and subclasses that are data all the same."""
# %% answer="affine"
def affine(x):
    return jnp.add(jnp.multiply(x, 3), 1)
# %% answer="keep"
import collections


def doubled(tree):
    ordered = collections.OrderedDict((name, np.add(value, value)) for name, value in tree.items())
    return dict(ordered)
# %% answer="tally"
def tally(counts, start):
    return int(np.sum([start, *counts.values()], dtype=np.int64))
