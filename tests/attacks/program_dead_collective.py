"""Adds a collective whose result it does not use, to a mean that one device computes."""
# mean: failed, failed
# %% answer="mean"
def mean(x, mesh):
    jax.shard_map(lambda x: jax.lax.pmean(x.mean(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
    return x.mean()
