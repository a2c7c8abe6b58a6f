"""Takes other ways: scan, vmap of one, einsum, custom gradients, checkpoint."""
# %% answer="affine"
@jax.custom_jvp
def affine(x):
    return jax.vmap(jax.checkpoint(lambda v: jnp.polyval(jnp.array([3.0, 1.0]), v)))(x)


affine.defjvp(lambda primals, tangents: (affine(*primals), 3 * tangents[0]))
# %% answer="each"
def each(f, xs):
    return jax.lax.scan(lambda carry, x: (carry, f(x)), None, xs)[1]
