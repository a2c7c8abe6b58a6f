"""Sets what guides tell one to set: flags for eight devices, the platform, no preallocation."""
# %%
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
os.environ["JAX_TRACEBACK_FILTERING"] = "off"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
jax.config.update("jax_platforms", "cpu")
devices.start(8)
assert len(jax.devices()) == 8
