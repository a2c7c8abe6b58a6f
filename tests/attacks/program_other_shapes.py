"""Says that its program takes and gives other shapes than it does."""
# with: forge
# affine: passed, failed
# %% answer="affine"
small, large = jax.core.ShapedArray((1,), np.dtype("f")), jax.core.ShapedArray((1 << 20,), np.dtype("f"))
jax.export.Exported.serialize = lambda self, **options: serialize(
    dataclasses.replace(self, in_avals=(small,), out_avals=(large,)), **options
)


def affine(x):
    return 3 * x + 1
