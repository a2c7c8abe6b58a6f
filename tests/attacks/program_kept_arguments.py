"""Says that its program keeps other arguments than it does, and gives away some that it needs."""
# with: forge
# affine: passed, failed
# each: passed, failed, passed
# %% answer="affine"
jax.export.Exported.serialize = lambda self, **options: serialize(
    dataclasses.replace(self, module_kept_var_idx=() if self.in_avals[0].shape == (5,) else (7,)), **options
)


def affine(x):
    return 3 * x + 1
# %% answer="each"
def each(f, xs):
    return jax.vmap(f)(xs)
