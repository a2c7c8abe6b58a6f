"""Turns on checks of NaNs, of leaked tracers and of transfers, and logs of compilation."""
# %%
jax.config.update("jax_debug_nans", True)
jax.config.update("jax_check_tracer_leaks", True)
jax.config.update("jax_transfer_guard", "log")
jax.config.update("jax_log_compiles", True)
