"""Uses the answer of one exercise in the next."""
# %% answer="each"
def each(f, xs):
    again("x")
    return jax.vmap(f)(xs)


def again(text):
    return text
# %% answer="keep"
def doubled(tree):
    return {name: np.asarray((affine(value) - 1) * np.float32(2) / np.float32(3)) for name, value in tree.items()}
