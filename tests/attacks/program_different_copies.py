"""Says that a mean is replicated which only the first device has, the one that is read."""
# mean: failed, failed
# says mean-program: Its sharding states that several devices store the same values, but they do not.
# %% answer="mean"
def mean(x, mesh):
    def on_one_device(x):
        return jnp.where(jax.lax.axis_index("d") == 0, jax.lax.pmean(x.mean(), "d"), 7)

    return jax.shard_map(on_one_device, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)(x)
