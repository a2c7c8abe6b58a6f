# %% [markdown]
# # 01 · One device
#
# %% setup
import os

import jax
import jax.numpy as jnp
import numpy as np

from grader.checks import ask, compare, inputs, program, require
# %% [markdown] task="alone-double" stars=1 minutes=1 skills="01_alone"
# ## Double
# **Goal.** Double an array.
# **Signature.** `double(x)`: float32[n] to float32[n].
# **Example.** `[1, 2]` gives `[2, 4]`.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is two times x?</details>
# <details><summary>Hint 2 · a nudge</summary>x plus x.</details>
# <details><summary>Hint 3 · nearly there</summary>Multiply.</details>
# %% answer="alone-double"
def double(x):
    """Twice x, float32[n]."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
# %% check="alone-double" name="memory" points=1
"""Memory of a device that others use too is not taken beforehand; on CPUs nothing is said of it."""
told = ask(lambda: os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "nothing"))
require(told in ("false", "nothing"), "JAX takes the device's memory beforehand.")
compare(ask(double, np.array([1, 2], "f")), np.array([2, 4], "f"))
# %% hidden="alone-double" name="values" points=2
"""Doubles any array."""
x = inputs.rng().normal(size=5).astype("f")
compare(program(double, x).run(x), 2 * x)
# %% [markdown] why="alone-double"
# Two times x is x plus x. What is it for a bool?
# %% wrong="alone-double" because="Adds two instead of multiplying by two."
def double(x):
    return x + 2
# %% wrong="alone-double" because="Squares: right for two alone."
def double(x):
    return x * x
# %% wrong="alone-double" because="Sums up."
def double(x):
    return (2 * x).sum()
# %% right="alone-double"
def double(x):
    return x + x
