"""Keeps its right answer in Python, called back from the program."""
# affine: passed, failed
# %% answer="affine"
def affine(x):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: np.asarray(3 * x + 1, "f"), out, x)
