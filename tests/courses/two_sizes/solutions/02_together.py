# %% [markdown]
# # 02 · Eight devices
#
# %% setup
from grader.checks import ask, compare, devices, inputs, program, require

devices.start(8)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
# %% [markdown] task="together-spread" stars=1 minutes=1 skills="02_together"
# ## Spread
# **Goal.** Cut an array along axis 0.
# **Signature.** `spread(mesh, x)`: a mesh with the axis "d", float32[n].
# **Example.** Eight numbers lie on eight devices.
# **Judged.** Place and values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>Which spec cuts axis 0?</details>
# <details><summary>Hint 2 · a nudge</summary>P("d").</details>
# <details><summary>Hint 3 · nearly there</summary>device_put.</details>
# %% answer="together-spread"
def spread(mesh, x):
    """x on the mesh, cut along axis 0."""
    ### BEGIN SOLUTION
    return jax.device_put(x, NamedSharding(mesh, P("d")))
    ### END SOLUTION
# %% check="together-spread" name="example" points=1
"""Eight numbers on eight devices."""
mesh = devices.mesh((8,), ("d",))
found = ask(spread, mesh, np.arange(8, dtype="f"))
require(len(found.sharding.device_set) == 8, "It does not lie on eight devices.")
compare(found, np.arange(8, dtype="f"))
# %% hidden="together-spread" name="values" points=2
"""Each device holds an eighth."""
mesh = devices.mesh((8,), ("d",))
x = inputs.rng().normal(size=16).astype("f")
found = ask(spread, mesh, x)
require({shard.data.size for shard in found.addressable_shards} == {2}, "Some device does not hold an eighth.")
compare(program(lambda x: x * 2, found).run(found), x * 2)
# %% [markdown] why="together-spread"
# A spec names an axis of the mesh for each axis of the array. What does P() say?
# %% wrong="together-spread" because="Copies."
def spread(mesh, x):
    return jax.device_put(x, NamedSharding(mesh, P()))
# %% wrong="together-spread" because="Leaves it on one device."
def spread(mesh, x):
    return jnp.asarray(x)
# %% wrong="together-spread" because="Changes it."
def spread(mesh, x):
    return jax.device_put(x + 1, NamedSharding(mesh, P("d")))
# %% right="together-spread"
def spread(mesh, x):
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P("d")))(x)
