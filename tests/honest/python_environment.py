"""Sets flags that come too late, and a locale."""
# %%
import os, sys, locale
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
sys.setrecursionlimit(10_000)
locale.setlocale(locale.LC_ALL, "C")
