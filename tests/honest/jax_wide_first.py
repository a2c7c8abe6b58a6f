"""Turns 64 bits on in a cell of its own at the top."""
# %%
jax.config.update("jax_enable_x64", True)
