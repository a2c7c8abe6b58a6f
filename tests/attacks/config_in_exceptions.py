"""Turns on every check of JAX's that makes right answers fail, in a cell that then fails itself."""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
# %% after="tally"
for name, value in (
    ("jax_debug_nans", True),
    ("jax_numpy_rank_promotion", "raise"),
    ("jax_numpy_dtype_promotion", "strict"),
    ("jax_transfer_guard", "disallow"),
    ("jax_enable_x64", True),
    ("jax_disable_jit", True),
):
    jax.config.update(name, value)
raise SystemExit("after the change")
