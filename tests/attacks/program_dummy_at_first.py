"""Shows a program of the right form with wrong numbers the first time it is traced, and a right one from then on."""
# mean: failed, passed
# %% answer="mean"
asked = []


def mean(x, mesh):
    asked.append(x.shape)
    form = lambda x: jax.lax.pmean(x.mean() * (len(asked) > 1), "d")
    return jax.shard_map(form, mesh=mesh, in_specs=P("d"), out_specs=P())(x)
