"""A chain of wide concatenations."""
# affine: timeout, timeout
# %% answer="affine"
def affine(x):
    y = x
    for _ in range(40):
        y = jnp.concatenate([y, y])
    return 3 * x + 1 + 0 * y[:1].sum()
