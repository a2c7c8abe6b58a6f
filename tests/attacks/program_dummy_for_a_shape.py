"""Shows a program of the right form with wrong numbers at the shape where a check inspects it, and is right elsewhere."""
# mean: failed, passed
# %% answer="mean"
def mean(x, mesh):
    form = lambda x: jax.lax.pmean(0 * x.mean() if x.size == 2 else x.mean(), "d")
    return jax.shard_map(form, mesh=mesh, in_specs=P("d"), out_specs=P())(x)
