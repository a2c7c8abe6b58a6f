"""Raises on floating-point errors in NumPy."""
# %%
np.seterr(all="raise")
np.set_printoptions(precision=2, suppress=True)
