# %% [markdown]
# # 01 · Three small exercises
#
# %% setup
import jax
import jax.numpy as jnp
import numpy as np

from grader.checks import ask, compare, inputs, program, require

SCALE = 2.0
# %% [markdown] task="small-double" stars=1 minutes=1 skills="01_small"
# ## Double
# **Goal.** Double an array.
# **Signature.** `double(x)`: float32[n] to float32[n].
# **Example.** `[1, 2]` gives `[2, 4]`.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is two times x?</details>
# <details><summary>Hint 2 · a nudge</summary>The setup has SCALE.</details>
# <details><summary>Hint 3 · nearly there</summary>Multiply.</details>
# %% answer="small-double" timeout=2
def double(x):
    """Twice x, float32[n]."""
    ### BEGIN SOLUTION
    return SCALE * x
    ### END SOLUTION
# %% check="small-double" name="example" points=1
"""Doubles one and two."""
compare(ask(double, np.array([1, 2], "f")), np.array([2, 4], "f"))
# %% hidden="small-double" name="values" points=2
"""Doubles any array."""
for _ in range(3):
    x = inputs.rng().normal(size=5).astype("f")
    compare(ask(double, x), 2 * x)
# %% [markdown] why="small-double"
# Two times x is x plus x. What is it for a bool?
# %% wrong="small-double" because="Adds two instead of multiplying by two."
def double(x):
    return x + 2
# %% wrong="small-double" because="Squares: right for two alone."
def double(x):
    return x * x
# %% wrong="small-double" because="Sums up."
def double(x):
    return (2 * x).sum()
# %% right="small-double"
def double(x):
    return x + x
# %% [markdown] task="small-mean" stars=1 minutes=1 skills="01_small"
# ## A loss
# **Goal.** The mean of squares.
# **Signature.** `loss(x)`: float32[n] to float32[].
# **Example.** `[1, 3]` gives `5`.
# **Judged.** Values, and that it compiles. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is a square?</details>
# <details><summary>Hint 2 · a nudge</summary>Use mean.</details>
# <details><summary>Hint 3 · nearly there</summary>Square, then mean.</details>
# %% answer="small-mean"
def loss(x):
    """Mean of the squares of x, float32[]."""
    ### BEGIN SOLUTION
    return (x**2).mean()
    ### END SOLUTION
# %% check="small-mean" name="example" points=1
"""Gives five for one and three."""
compare(ask(loss, np.array([1, 3], "f")), np.array(5, "f"))
# %% hidden="small-mean" name="program" points=2
"""Becomes a program that is right for any array."""
x = inputs.rng().normal(size=(4, 6)).astype("f")
made = program(loss, x[0])
for row in x:
    compare(made.run(row), (row**2).mean())
# %% [markdown] why="small-mean"
# A mean divides by the count. What if the count is zero?
# %% wrong="small-mean" because="Sums where a mean is asked for."
def loss(x):
    return (x**2).sum()
# %% wrong="small-mean" because="Squares the mean."
def loss(x):
    return x.mean() ** 2
# %% wrong="small-mean" because="Leaves JAX for NumPy."
def loss(x):
    return float(np.mean(np.asarray(x) ** 2))
# %% right="small-mean"
def loss(x):
    return x @ x / x.size
# %% [markdown] task="small-total" stars=1 minutes=1 skills="01_small"
# ## Another loss
# **Goal.** The sum of squares, under the same name.
# **Signature.** `loss(x)`: float32[n] to float32[].
# **Example.** `[1, 3]` gives `10`.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is a square?</details>
# <details><summary>Hint 2 · a nudge</summary>Use sum.</details>
# <details><summary>Hint 3 · nearly there</summary>Square, then sum.</details>
# %% answer="small-total"
def loss(x):
    """Sum of the squares of x, float32[]."""
    ### BEGIN SOLUTION
    return (x**2).sum()
    ### END SOLUTION
# %% check="small-total" name="example" points=1
"""Gives ten for one and three."""
compare(ask(loss, np.array([1, 3], "f")), np.array(10, "f"))
# %% hidden="small-total" name="values" points=2
"""Is right for any array, and sees the setup's SCALE."""
x = inputs.rng().normal(size=7).astype("f")
compare(ask(loss, x), (x**2).sum())
require(ask(lambda: SCALE) == 2.0, "SCALE should be the setup's.")
# %% [markdown] why="small-total"
# A sum grows with the count. When does that matter?
# %% wrong="small-total" because="Takes the mean where a sum is asked for."
def loss(x):
    return (x**2).mean()
# %% wrong="small-total" because="Sums without squaring."
def loss(x):
    return x.sum()
# %% wrong="small-total" because="Keeps the axis."
def loss(x):
    return (x**2).sum(keepdims=True)
# %% right="small-total"
def loss(x):
    return x @ x
