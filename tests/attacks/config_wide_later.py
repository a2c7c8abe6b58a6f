"""Leaves 64 bits on for the exercises after its own."""
# affine: failed, failed
# %% answer="affine"
def affine(x):
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    return x * 4
# %% answer="bystander"
def again(text):
    return text * 2
