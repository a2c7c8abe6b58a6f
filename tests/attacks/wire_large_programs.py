"""Sends a hundred megabytes along with every program that it is asked for, to fill the memory of who keeps them."""
# affine: passed, failed
# each: passed, failed, passed
# mean: failed, failed
# says mean-program: Your answer returned too much
# %%
import grader.program.endpoints as sides

export = sides.export


class Padded:
    def __init__(self, made):
        self.parameters, self.donated, self.results = made.parameters, made.donated, made.results
        self.blob = made.blob + bytes(100 << 20)


sides.export = lambda *args: Padded(export(*args))
# %% answer="affine"
def affine(x):
    return 3 * x + 1
# %% answer="each"
def each(f, xs):
    return jax.vmap(f)(xs)
# %% answer="mean"
def mean(x, mesh):
    return jax.shard_map(lambda x: jax.lax.pmean(x.mean(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
