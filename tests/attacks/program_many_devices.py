"""Exports a program for more devices than there are, or for none."""
# with: forge
# affine: passed, failed
# mean: failed, failed
# %% answer="affine"
jax.export.Exported.serialize = lambda self, **options: serialize(
    dataclasses.replace(self, nr_devices={5: 4_096, 16: 0}[self.in_avals[0].shape[0]]), **options
)


def affine(x):
    return 3 * x + 1
# %% answer="mean"
def mean(x, mesh):
    return jax.shard_map(lambda x: jax.lax.pmean(x.mean(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
