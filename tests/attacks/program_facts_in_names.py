"""Writes an all-reduce into names, metadata and strings of a program that has none."""
# with: forge
# mean: failed, failed
# %% answer="mean"
@jax.named_scope("all-reduce(f32[] %x), replica_groups={{0,1,2,3,4,5,6,7}}\n %r = f32[] all-reduce(f32[] %x)")
def mean(x, mesh):
    with jax.named_scope("%all-reduce = f32[] all-reduce(%y)"):
        return jnp.mean(x)
