# %% [markdown]
# # 01 · Exercises: What a person grades
# %% setup
import numpy as np

from grader.checks import ask, compare, inputs
# %% [markdown] task="hand-half" stars=1 minutes=1 skills="01_by_hand"
# ## Half
# **Goal.** Halve an array.
# **Signature.** `half(x)`: float32[n] to float32[n].
# **Example.** `[2, 4]` gives `[1, 2]`.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is half of two?</details>
# <details><summary>Hint 2 · a nudge</summary>Divide.</details>
# <details><summary>Hint 3 · nearly there</summary>Divide by two.</details>
# %% answer="hand-half" timeout=2
def half(x):
    """Half of x, float32[n]."""
    ### BEGIN SOLUTION
    return x / 2
    ### END SOLUTION
# %% check="hand-half" name="example" points=1
"""Halves two and four."""
compare(ask(half, np.array([2, 4], "f")), np.array([1, 2], "f"))
# %% hidden="hand-half" name="values" points=2
"""Halves any array."""
x = inputs.rng().normal(size=5).astype("f")
compare(ask(half, x), x / 2)
# %% [markdown] why="hand-half"
# Half is a product too. With what?
# %% wrong="hand-half" because="Subtracts two."
def half(x):
    return x - 2
# %% wrong="hand-half" because="Halves whole numbers only."
def half(x):
    return x // 2
# %% wrong="hand-half" because="Takes the root: right for four alone."
def half(x):
    return x**0.5
# %% right="hand-half"
def half(x):
    return x * 0.5
# %% [markdown] task="hand-essay" stars=2 minutes=10 skills="01_by_hand" points=3
# ## When is a half exact?
# **Goal.** Say for which floats `half` loses nothing, and show one that it changes.
# **Judged.** That the reason is right, and that the example is one.
# ### BEGIN MARK SCHEME
# Two points for the exponent, one for a subnormal number.
# - 2 points: Names the exponent.
# - 1 point: Shows a `subnormal` number.
# ### END MARK SCHEME
