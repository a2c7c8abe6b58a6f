"""Makes a mesh of its own and leaves it set."""
# %%
my_mesh = jax.make_mesh((4, 2), ("a", "b"))
jax.set_mesh(my_mesh)
placed = jax.device_put(jnp.arange(8.0), jax.sharding.NamedSharding(my_mesh, P("a")))
