"""Deletes names that it no longer needs."""
# note: Restored before the checks of guard-bystander: jnp, np (set by the setup).
# %% after="bystander"
del np, jnp
