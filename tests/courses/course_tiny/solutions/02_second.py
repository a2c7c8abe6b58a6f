# %% [markdown]
# # 02 · Exercises: Second

# %% setup
import math

from grader.checks import ask, compare, counted, error, inputs, program, require

# %% [markdown]
# More prose, before more setup.

# %% setup
scale = 2.5

# %% [markdown] task="second-square" stars=2 minutes=10 skills="02_second,first-double,01_first"
# ## The square
# **Goal.** Square it, once.
# **Signature.** `square(x)`: a number; a number. `SIDES`: how many sides a square has.
# **Example.** `square(3)` is `9`.
# **Judged.** values, and that `x` is read once. **Not judged.** speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# How big is a field?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Multiply.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Something `** 2`.
# </details>

# %% answer="second-square"
SIDES = 4


def square(x):
    """x: a number; returns its square."""
    ### BEGIN SOLUTION
    squared_number = math.pow(x, 2)
    return type(x)(squared_number)
    ### END SOLUTION


# %% check="second-square" name="values" points=1
"""Squares one number."""


def probe(x):
    number = [x]
    return square(*number), len(number)


result = ask(probe, 3)
compare(result[0], 9)
compare(ask(lambda: SIDES), 4)

# %% hidden="second-square" name="many" points=2.5
"""Squares every number, drawn anew."""
drawn_numbers = inputs.rng().integers(100, size=5).tolist()
for drawn_number in drawn_numbers:
    expected_square = drawn_number * drawn_number
    compare(ask(square, drawn_number), expected_square)
    require(error(square, drawn_number) is None, "It should not raise.")

# %% hidden="second-square" name="once" points=1 observed=true
"""Runs once."""
compare(ask(lambda x: square(x), 2), 4)

# %% [markdown] why="second-square"
# A power says it. And a cube?

# %% wrong="second-square" because="Doubles instead."
SIDES = 4
def square(x):
    return 2 * x

# %% wrong="second-square" because="Gives a float."
SIDES = 4
def square(x):
    return x**2.0

# %% wrong="second-square" because="Loses the sign of nothing."
SIDES = 4
def square(x):
    return abs(x)

# %% right="second-square"
SIDES = 4
def square(x):
    return x * x
