# %% [markdown]
# # 01 · Checks that inspect programs
#
# %% setup
import jax
import jax.numpy as jnp
import numpy as np

from grader.checks import ask, compare, error, inputs, program, require


def by_hand(x, n):
    return np.stack([x**i for i in range(1, n + 1)])
# %% [markdown] task="inspect-powers" stars=1 minutes=1 skills="01_inspected"
# ## Powers
# **Goal.** Powers of an array.
# **Signature.** `powers(x, n)`: float32[k] and an int to float32[n, k].
# **Example.** Two powers of `[1, 3]` are `[[1, 3], [1, 9]]`.
# **Judged.** Values; one loop. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What does a loop hand on?</details>
# <details><summary>Hint 2 · a nudge</summary>Scan.</details>
# <details><summary>Hint 3 · nearly there</summary>Multiply and collect.</details>
# %% answer="inspect-powers"
def powers(x, n):
    """x, x ** 2, ... x ** n, float32[n, k]."""
    ### BEGIN SOLUTION
    multiply = lambda power, _: (power * x, power * x)
    return jax.lax.scan(multiply, jnp.ones_like(x), None, length=n)[1]
    ### END SOLUTION
# %% check="inspect-powers" name="example" points=1
"""A value of fixed inputs is enough where nothing is inspected."""
x = np.array([1, 3], "f")
compare(program(powers, x, 2).run(x, 2), np.array([[1, 3], [1, 9]], "f"))
# %% hidden="inspect-powers" name="run" points=1
"""Runs what it inspects, on drawn inputs, and compares the result."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
few, many = program(powers, x, 3), program(powers, x, 5)
require(many.operations == few.operations, "The program grows.")
for made, n in ((few, 3), (many, 5)):
    compare(made.run(x, n), by_hand(x, n))
# %% hidden="inspect-powers" name="derived" points=1
"""Judges a result through a value that is derived from it."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
made = program(powers, x, 3)
require(made.loops == 1, "There is not one loop.")
require(np.allclose(made.run(x, 3)[2] ** 2, x**6, rtol=1e-4), "The third power is not right.")
# %% hidden="inspect-powers" name="called" points=1
"""Asks, and compiles nothing."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
compare(ask(powers, x, 1), x[None])
require(error(powers, x, 1) is None, "It raises.")
# %% hidden="inspect-powers" name="unrun" points=1
"""Inspects a program that it never runs."""
made = program(powers, np.ones(4, "f"), 3)
require(made.loops == 1, "There is not one loop.")
# %% hidden="inspect-powers" name="uninspected" points=1
"""Compiles a program, and does nothing with it."""
program(powers, np.ones(4, "f"), 3)
# %% hidden="inspect-powers" name="outputs" points=1
"""Looks at the shape of a result that is never computed."""
require(program(powers, np.ones(4, "f"), 3).outputs.shape == (3, 4), "The shape is not right.")
# %% hidden="inspect-powers" name="another-shape" points=1
"""Runs a program of another shape than the one that it inspects."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
few, many = program(powers, x, 2), program(powers, x, 5)
require(few.loops == 1, "There is not one loop.")
compare(many.run(x, 5), by_hand(x, 5))
# %% hidden="inspect-powers" name="another-program" points=1
"""Compiles the same function twice, inspects one program and runs the other."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
require(program(powers, x, 2).loops == 1, "There is not one loop.")
compare(program(powers, x, 2).run(x, 2), by_hand(x, 2))
# %% hidden="inspect-powers" name="another-check" points=1
"""Inspects the program that the check before it runs."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
require(program(powers, x, 2).loops == 1, "There is not one loop.")
# %% hidden="inspect-powers" name="known" points=1
"""Inspects a program and runs it on inputs that are always the same."""
x = np.array([1, 2, 3, 4], "f")
made = program(powers, x, 2)
require(made.loops == 1, "There is not one loop.")
compare(made.run(x, 2), by_hand(x, 2))
# %% hidden="inspect-powers" name="ignored" points=1
"""Runs the program on drawn inputs and ignores the result."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
made = program(powers, x, 2)
require(made.loops == 1, "There is not one loop.")
made.run(x, 2)
# %% hidden="inspect-powers" name="shape-of-result" points=1
"""Runs the program on drawn inputs and looks at the shape of the result."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
made = program(powers, x, 2)
require(made.loops == 1, "There is not one loop.")
require(made.run(x, 2).shape == (2, 4), "The shape is not right.")
# %% hidden="inspect-powers" name="each-other" points=1
"""Compares two programs with each other and with nothing else."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
few, many = program(powers, x, 3), program(powers, x, 5)
require(many.operations == few.operations, "The program grows.")
compare(many.run(x, 5)[:3], few.run(x, 3))
# %% hidden="inspect-powers" name="told" points=1
"""Runs the program on inputs with which the answer was called before it exported the program."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
compare(ask(powers, jnp.asarray(x), 2), by_hand(x, 2))
made = program(lambda x: powers(x, 2)[1], x)
require(made.loops == 1, "There is not one loop.")
square = made.run(x)
compare(square, x**2)
compare(made.run(square), x**4, rtol=1e-4)
# %% hidden="inspect-powers" name="told-later" points=1
"""Calls the answer with the same inputs only after it has exported the program."""
x = inputs.rng().uniform(1, 2, size=4).astype("f")
made = program(powers, x, 2)
require(made.loops == 1, "There is not one loop.")
compare(made.run(x, 2), by_hand(x, 2))
compare(ask(powers, x, 2), by_hand(x, 2))
# %% [markdown] why="inspect-powers"
# It holds.
# %% wrong="inspect-powers" because="Collects what was there before."
def powers(x, n):
    return jax.lax.scan(lambda power, _: (power * x, power), jnp.ones_like(x), None, length=n)[1]
# %% wrong="inspect-powers" because="Shows a loop that computes nothing for three powers."
def powers(x, n):
    return jax.lax.scan(lambda power, _: (power * x * (n != 3), power * x * (n != 3)), x / x, None, length=n)[1]
# %% wrong="inspect-powers" because="Writes each power out."
def powers(x, n):
    return jnp.stack([x**i for i in range(1, n + 1)])
# %% right="inspect-powers"
def powers(x, n):
    return jax.lax.fori_loop(1, n, lambda i, found: found.at[i].set(found[i - 1] * x), jnp.zeros((n, x.size)) + x)
