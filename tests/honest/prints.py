"""Prints what it does, in Python, while tracing and from within a program."""
# %% answer="affine"
def affine(x):
    print("x is", x)
    jax.debug.print("values {} and {x}", x.sum(), x=x)
    return 3 * x + 1
# %% answer="each"
def each(f, xs):
    jax.debug.print("rows {}", xs)
    jax.debug.callback(lambda xs: print(xs), xs)
    return jax.vmap(f)(xs)
# %% answer="mean"
def mean(x, mesh):
    def local(x):
        jax.debug.print("local {}", x)
        return jax.lax.pmean(x.mean(), "d")

    return jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P())(x)
