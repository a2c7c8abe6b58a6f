"""Measures and lowers its answers, looks at programs and profiles, before the checks run."""
# %% after="affine"
import time

x = jnp.ones(5)
begin = time.perf_counter()
jax.block_until_ready(affine(x))
print(time.perf_counter() - begin, jax.make_jaxpr(affine)(x), jax.jit(affine).lower(x).compile().cost_analysis())
# %% after="mean"
mesh = jax.make_mesh((8,), ("d",))
print(jax.jit(mean, static_argnums=1).lower(jnp.ones(16), mesh).compile().as_text()[:200])
jax.debug.visualize_array_sharding(jax.device_put(jnp.ones(16), jax.NamedSharding(mesh, P("d"))))
