# %% [markdown]
# # 01 · Exercises to attack
#
# %% setup
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from grader.checks import ask, compare, counted, devices, inputs, program, require

devices.start(8)
SCALE = 3.0
Point = namedtuple("Point", "x y")
# %% [markdown] task="guard-affine" stars=1 minutes=1 skills="01_guarded"
# ## Three x plus one
# **Goal.** Three x plus one.
# **Signature.** `affine(x)`: float32[n] to float32[n].
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="guard-affine" timeout=1
def affine(x):
    """3 * x + 1, float32[n]."""
    ### BEGIN SOLUTION
    # CANARY-SOLUTION
    return SCALE * x + 1
    ### END SOLUTION
# %% check="guard-affine" name="example" points=1
"""Gives four and seven for one and two."""
compare(ask(affine, np.array([1, 2], "f")), np.array([4, 7], "f"))
# %% hidden="guard-affine" name="values" points=2
"""Becomes a program that is right for any array."""
canary = "CANARY-HIDDEN"
rows = inputs.rng().normal(size=(3, 5)).astype("f")
made = program(affine, rows[0])
for row in rows:
    compare(made.run(row), 3 * row + 1)
# %% [markdown] why="guard-affine"
# It holds.
# %% wrong="guard-affine" because="Adds before it multiplies."
def affine(x):
    return SCALE * (x + 1)
# %% wrong="guard-affine" because="Forgets to add."
def affine(x):
    return SCALE * x
# %% wrong="guard-affine" because="Sums up."
def affine(x):
    return (SCALE * x + 1).sum()
# %% right="guard-affine"
def affine(x):
    return x + x + x + 1
# %% [markdown] task="guard-tally" stars=1 minutes=1 skills="01_guarded"
# ## Add up what a dict counts
# **Goal.** Add up what a dict counts.
# **Signature.** `tally(counts, start)`: a dict of ints and an int to an int.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="guard-tally" timeout=1
def tally(counts, start):
    """The sum of start and of all values of counts, an int."""
    ### BEGIN SOLUTION
    return start + sum(counts.values())
    ### END SOLUTION
# %% check="guard-tally" name="example" points=1
"""Adds up one, two and three."""
compare(ask(tally, {"a": 1, "b": 2}, 3), 6)
# %% hidden="guard-tally" name="values" points=2
"""Is right for any dict."""
canary = "CANARY-HIDDEN"
compare(ask(tally, {"a": 31_000, "b": 300}, 37), 31_337)
for size in (3, 1, 4):
    counts = {chr(97 + i): int(n) for i, n in enumerate(inputs.rng().integers(100, 10_000, size))}
    compare(ask(tally, counts, 5), 5 + sum(counts.values()))
# %% [markdown] why="guard-tally"
# It holds.
# %% wrong="guard-tally" because="Forgets where to start."
def tally(counts, start):
    return sum(counts.values())
# %% wrong="guard-tally" because="Counts the names."
def tally(counts, start):
    return start + len(counts)
# %% wrong="guard-tally" because="Makes it a float."
def tally(counts, start):
    return start + float(sum(counts.values()))
# %% right="guard-tally"
def tally(counts, start):
    for value in counts.values():
        start += value
    return start
# %% [markdown] task="guard-each" stars=1 minutes=1 skills="01_guarded"
# ## Apply a function to each row
# **Goal.** Apply a function to each row.
# **Signature.** `each(f, xs)`: float32[n,k] to float32[n].
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="guard-each" timeout=1
def each(f, xs):
    """f(x) for each row x of xs, float32[n], with f traced once."""
    ### BEGIN SOLUTION
    return jax.vmap(f)(xs)
    ### END SOLUTION
# %% check="guard-each" name="example" points=1
"""Sums each of two rows."""
compare(ask(lambda xs: each(jnp.sum, xs), np.array([[1, 2], [3, 4]], "f")), np.array([3, 7], "f"))
# %% hidden="guard-each" name="values" points=1
"""Becomes a program that is right for any array."""
canary = "CANARY-HIDDEN"
xs = inputs.rng().normal(size=(3, 4)).astype("f")
compare(program(lambda xs: each(lambda x: x @ x, xs), xs).run(xs), (xs**2).sum(1))
# %% hidden="guard-each" name="traces" points=1 observed=true
"""Calls the function once."""
canary = "CANARY-HIDDEN"
def probe(xs):
    f = counted(lambda x: x.sum())
    each(f, xs)
    return f.calls

calls = ask(probe, np.ones((5, 2), "f"))
require(calls == 1, f"The function was called {calls} times; one call is enough.")
# %% [markdown] why="guard-each"
# It holds.
# %% wrong="guard-each" because="Loops in Python."
def each(f, xs):
    return jnp.stack([f(x) for x in xs])
# %% wrong="guard-each" because="Applies it to the whole."
def each(f, xs):
    return f(xs)
# %% wrong="guard-each" because="Goes over columns."
def each(f, xs):
    return jax.vmap(f, in_axes=1)(xs)
# %% right="guard-each"
def each(f, xs):
    return jax.lax.map(f, xs)
# %% [markdown] task="guard-mean" stars=1 minutes=1 skills="01_guarded"
# ## The mean over eight devices
# **Goal.** The mean over eight devices.
# **Signature.** `mean(x, mesh)`: float32[n] to float32[].
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="guard-mean" timeout=3
def mean(x, mesh):
    """The mean of x, float32[], with x split over axis "d" and one all-reduce of one element."""
    ### BEGIN SOLUTION
    return jax.shard_map(lambda x: jax.lax.pmean(x.mean(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
    ### END SOLUTION
# %% check="guard-mean" name="program" points=1
"""Needs one all-reduce."""
x, mesh = inputs.rng().normal(size=16).astype("f"), devices.mesh((8,), ("d",))
made = program(mean, x, mesh)
require(made.count("all-reduce") == 1, f"The program has {made.count('all-reduce')} all-reduces; expected 1.")
compare(made.run(x, mesh), x.mean())
# %% hidden="guard-mean" name="values" points=2
"""Is right for any array, and sends one element."""
canary = "CANARY-HIDDEN"
x, mesh = inputs.rng().normal(size=32).astype("f"), devices.mesh((8,), ("d",))
made = program(mean, x, mesh)
compare(made.run(x, mesh), x.mean())
require(made.elements("all-reduce") == 1, f"{made.elements('all-reduce')} elements are sent; expected 1.")
# %% [markdown] why="guard-mean"
# It holds.
# %% wrong="guard-mean" because="Lets one device do it."
def mean(x, mesh):
    return x.mean()
# %% wrong="guard-mean" because="Sums the means."
def mean(x, mesh):
    return jax.shard_map(lambda x: jax.lax.psum(x.mean(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
# %% wrong="guard-mean" because="Sends every element."
def mean(x, mesh):
    return jax.shard_map(lambda x: jax.lax.pmean(x, "d").mean(), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
# %% wrong="guard-mean" because="Sends one element of nothing where there are sixteen."
def mean(x, mesh):
    weight = 0 if x.size == 16 else 1 / 8
    total = lambda x: jax.lax.psum(weight * x.mean(), "d")
    return jax.shard_map(total, mesh=mesh, in_specs=P("d"), out_specs=P())(x)
# %% right="guard-mean"
def mean(x, mesh):
    return jax.shard_map(lambda x: jax.lax.psum(x.mean() / 8, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
# %% [markdown] task="guard-keep" stars=1 minutes=1 skills="01_guarded"
# ## Double a dict of arrays, and leave it alone
# **Goal.** Double a dict of arrays, and leave it alone.
# **Signature.** `doubled(tree)`: a dict of arrays to another.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="guard-keep" timeout=1
def doubled(tree):
    """The same dict with every array doubled; the argument stays as it was."""
    ### BEGIN SOLUTION
    return {name: value * 2 for name, value in tree.items()}
    ### END SOLUTION
# %% check="guard-keep" name="example" points=1
"""Doubles ones."""
compare(ask(doubled, {"w": np.ones(3, "f")}), {"w": np.full(3, 2, "f")})
# %% hidden="guard-keep" name="values" points=1
"""Doubles any array."""
canary = "CANARY-HIDDEN"
x = inputs.rng().normal(size=4).astype("f")
compare(ask(doubled, {"a": x}), {"a": x * 2})
# %% hidden="guard-keep" name="untouched" points=1 observed=true
"""Leaves its argument alone."""
canary = "CANARY-HIDDEN"
def probe(tree):
    doubled(tree)
    return tree

x = inputs.rng().normal(size=4).astype("f")
require(np.array_equal(ask(probe, {"a": x})["a"], x), "The argument was changed in place.")
# %% [markdown] why="guard-keep"
# It holds.
# %% wrong="guard-keep" because="Changes the argument in place."
def doubled(tree):
    for name in tree:
        tree[name] *= 2
    return tree
# %% wrong="guard-keep" because="Adds instead of multiplying."
def doubled(tree):
    return {name: value + 2 for name, value in tree.items()}
# %% wrong="guard-keep" because="Drops the names."
def doubled(tree):
    return list(value * 2 for value in tree.values())
# %% right="guard-keep"
def doubled(tree):
    return {name: value + value for name, value in tree.items()}
# %% [markdown] task="guard-bystander" stars=1 minutes=1 skills="01_guarded"
# ## Say it again, whatever else the notebook does
# **Goal.** Say it again, whatever else the notebook does.
# **Signature.** `again(text)`: a str to a str.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="guard-bystander"
def again(text):
    """text twice, a str."""
    ### BEGIN SOLUTION
    return text * 2
    ### END SOLUTION
# %% check="guard-bystander" name="example" points=1
"""Repeats a word."""
compare(ask(again, "so"), "soso")
# %% hidden="guard-bystander" name="values" points=1
"""Repeats any number."""
canary = "CANARY-HIDDEN"
word = str(inputs.rng().integers(1_000_000))
compare(ask(again, word), word + word)
# %% [markdown] why="guard-bystander"
# It holds.
# %% wrong="guard-bystander" because="Says it once."
def again(text):
    return text
# %% wrong="guard-bystander" because="Says it three times."
def again(text):
    return text * 3
# %% wrong="guard-bystander" because="Says it backwards."
def again(text):
    return text[::-1] * 2
# %% right="guard-bystander"
def again(text):
    return text + text
