"""Gives functions rules of their own: called with NumPy arrays they return a kind that JAX keeps to itself."""
# %% answer="affine"
@jax.custom_jvp
def affine(x):
    return x * 3 + 1


affine.defjvp(lambda primals, tangents: (affine(*primals), 3 * tangents[0]))
# %% answer="keep"
@jax.custom_vjp
def same(x):
    return x


same.defvjp(lambda x: (x, None), lambda kept, cotangent: (cotangent,))


def doubled(tree):
    return {name: same(2 * value) for name, value in tree.items()}
