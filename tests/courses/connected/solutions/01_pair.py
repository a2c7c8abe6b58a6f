# %% [markdown]
# # 01 · A pair
#
# %% setup
import numpy as np

from grader.checks import ask, compare, inputs, processes, require
# %% [markdown] task="pair-index" stars=1 minutes=1 skills="01_pair"
# ## Index
# **Goal.** Return the index of the process, times a factor.
# **Signature.** `index(factor)`: int to int.
# **Example.** Process 1 with 3 gives 3.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>Which process is this?</details>
# <details><summary>Hint 2 · a nudge</summary>`jax.process_index()`.</details>
# <details><summary>Hint 3 · nearly there</summary>Multiply.</details>
# %% answer="pair-index" timeout=60
def index(factor):
    """The index of this process times factor."""
    ### BEGIN SOLUTION
    return jax.process_index() * factor
    ### END SOLUTION
# %% check="pair-index" name="alone" points=1
"""A process alone has index 0."""
def probe_alone(factor):
    return processes.run(index, [(factor,)], devices=1)
compare(np.asarray(ask(probe_alone, 3)[0]), np.asarray(0))
# %% hidden="pair-index" name="pair" points=2
"""Each of two processes has its own index."""
def probe_pair(factor):
    return processes.run(index, [(factor,), (factor,)], devices=1)
factor = int(inputs.rng().integers(2, 9))
if not processes.loopback():
    ask(lambda factor: processes.run(index, [(factor,)], devices=1), factor)
processes.need_loopback()
got = ask(probe_pair, factor)
require([int(one) for one in got] == [0, factor], "The processes do not have their own index.")
# %% [markdown] why="pair-index"
# Each process has an index. Which one is the coordinator?
# %% wrong="pair-index" because="Returns the factor."
def index(factor):
    return factor
# %% wrong="pair-index" because="Always zero."
def index(factor):
    return 0
# %% wrong="pair-index" because="Counts the processes."
def index(factor):
    return factor * jax.process_count()
# %% right="pair-index"
def index(factor):
    import jax

    return factor * jax.process_index()
