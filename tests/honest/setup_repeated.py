"""Repeats imports and devices.start in own cells, as people do who restart often."""

# %%
from grader.checks import *
from grader.checks import ask, compare, counted, devices, inputs, program, require

devices.start(8)
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

assert jax.device_count() == 8
# %% after="tally"
devices.start(8)
from grader.checks import *
