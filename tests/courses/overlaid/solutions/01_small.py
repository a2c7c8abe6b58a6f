# %% setup
HALF = 0.5
# %% hidden="small-double" name="own" points=3 instead=true
"""Doubles what this class draws."""
for _ in range(3):
    x = inputs.rng().uniform(5, 9, size=4).astype("f")
    compare(ask(double, x), x + x)
# %% wrong="small-double" because="Leaves small numbers alone."
def double(x):
    return jnp.where(x > 4, 2 * x, x) if x.max() > 100 else x
# %% [markdown]
# Now something of our own.
# %% [markdown] task="small-half" stars=1 minutes=1 skills="01_small,small-double" after="small-double"
# ## Half
# **Goal.** Halve an array.
# **Signature.** `half(x)`: float32[n] to float32[n].
# **Example.** `[1, 2]` gives `[0.5, 1]`.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is half of x?</details>
# <details><summary>Hint 2 · a nudge</summary>The setup has HALF.</details>
# <details><summary>Hint 3 · nearly there</summary>Multiply.</details>
# %% answer="small-half"
def half(x):
    """Half of x, float32[n]."""
    ### BEGIN SOLUTION
    return HALF * x
    ### END SOLUTION
# %% check="small-half" name="example" points=1
"""Halves one and two."""
compare(ask(half, np.array([1, 2], "f")), np.array([0.5, 1], "f"))
# %% hidden="small-half" name="values" points=1.5
"""Halves any array."""
x = inputs.rng().normal(size=5).astype("f")
compare(ask(half, x), x / 2)
# %% [markdown] why="small-half"
# Half of x is x over two. And of an integer?
# %% wrong="small-half" because="Takes a half off."
def half(x):
    return x - HALF
# %% wrong="small-half" because="Doubles."
def half(x):
    return 2 * x
# %% wrong="small-half" because="Rounds down."
def half(x):
    return x // 2
# %% right="small-half"
def half(x):
    return x / 2
