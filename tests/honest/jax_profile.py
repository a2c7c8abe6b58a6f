"""Profiles and times its programs, and writes the trace into its folder."""
# %% after="affine"
with jax.profiler.trace("trace"):
    jax.block_until_ready(affine(jnp.ones(5)))
with jax.profiler.TraceAnnotation("mine"), jax.log_compiles():
    jax.jit(affine)(jnp.ones(6))
print(jax.jit(affine).lower(jnp.ones(5)).compile().memory_analysis())
