"""Decorates its answers, with wrappers of its own and with JAX's."""
# %%
import functools, time


def timed(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        begin = time.perf_counter()
        out = f(*args, **kwargs)
        print(f.__name__, time.perf_counter() - begin)
        return out

    return wrapper
# %% answer="affine"
@timed
@jax.jit
def affine(x):
    return 3 * x + 1
# %% answer="tally"
@timed
def tally(counts, start):
    return start + sum(counts.values())
# %% answer="each"
@functools.partial(jax.jit, static_argnums=0)
def each(f, xs):
    return jax.vmap(f)(xs)
# %% answer="mean"
@timed
@functools.partial(jax.jit, static_argnums=1)
def mean(x, mesh):
    return jax.shard_map(lambda x: jax.lax.pmean(x.mean(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
