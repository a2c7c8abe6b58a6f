# %% [markdown]
# # 01 · Exercises: First
#
# Begin here.

# %% setup
from grader.checks import ask, compare, counted, error, inputs, program, require


def add(a, b):
    return a + b


# %% [markdown] task="first-double" stars=1 minutes=5 skills="01_first"
# ## Twice the number
# **Goal.** Double it.
# **Signature.** `double(x)`: a number; a number.
# **Example.** `double(3)` is `6`.
# **Judged.** values. **Not judged.** speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is two times one?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Adding is enough.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `add`.
# </details>

# %% answer="first-double" timeout=20
def double(x):
    """x: a number; returns twice x."""
    ### BEGIN SOLUTION
    return add(x, add(x, 0)) + 0 * x
    ### END SOLUTION


# %% check="first-double" name="values" points=1
"""Doubles one number."""
compare(ask(double, 3), 6)

# %% hidden="first-double" name="many" points=2
"""Doubles every number, drawn anew."""
for number in inputs.rng().integers(100, size=5).tolist():
    compare(ask(double, number), 2 * number)

# %% [markdown] why="first-double"
# Adding a number to itself doubles it. What doubles a list?

# %% wrong="first-double" because="Squares instead."
def double(x):
    return x**2


# %% wrong="first-double" because="Adds two."
def double(x):
    return x + 2


# %% wrong="first-double" because="Forgets to return."
def double(x):
    x + x


# %% right="first-double"
def double(x):
    return 2 * x
