# %% [markdown]
# # 01 · Every way to ask
#
# %% setup
import functools
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from grader.checks import ask, compare, counted, devices, error, inputs, program, require

devices.start(8)
Point = namedtuple("Point", "x y")


def mse(w, x):
    """Squared product."""
    return (w @ x) ** 2
# %% [markdown] task="ask-mutate" stars=1 minutes=2 skills="01_vocabulary"
# ## Double every array of a dict without touching the dict
# **Goal.** Double every array of a dict without touching the dict.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-mutate"
def doubled(tree):
    """The same dict with every array doubled; the argument stays as it was."""
    ### BEGIN SOLUTION
    return {name: value * 2 for name, value in tree.items()}
    ### END SOLUTION
# %% check="ask-mutate" name="values" points=1
"""Doubles every array."""
got = ask(doubled, {"w": np.ones(3, "f")})
compare(got, {"w": np.full(3, 2, "f")})
# %% hidden="ask-mutate" name="untouched" points=2
"""Leaves its argument alone."""
def probe(tree):
    doubled(tree)
    return tree

for n in (2, 5):
    x = inputs.rng().normal(size=n).astype("f")
    compare(ask(doubled, {"a": x}), {"a": x * 2})
    require(np.array_equal(ask(probe, {"a": x})["a"], x), "The argument was changed in place.")
# %% [markdown] why="ask-mutate"
# It holds.
# %% wrong="ask-mutate" because="Changes the argument in place."
def doubled(tree):
    tree["w" if "w" in tree else "a"] *= 2
    return tree
# %% wrong="ask-mutate" because="Adds instead of multiplying."
def doubled(tree):
    return {name: value + 2 for name, value in tree.items()}
# %% wrong="ask-mutate" because="Drops the names."
def doubled(tree):
    return list(value * 2 for value in tree.values())
# %% right="ask-mutate"
def doubled(tree):
    return jax.tree.map(lambda value: 2 * value, tree)
# %% [markdown] task="ask-donate" stars=1 minutes=2 skills="01_vocabulary"
# ## Give the old parameters away
# **Goal.** Give the old parameters away.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-donate"
@functools.partial(jax.jit, donate_argnums=0)
def update(params, grads):
    """One step of gradient descent that reuses the memory of params."""
    ### BEGIN SOLUTION
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
    ### END SOLUTION
# %% check="ask-donate" name="values" points=1
"""Takes one step."""
x = np.ones((8, 8), "f")
compare(ask(update, x, x), x / 2)
# %% hidden="ask-donate" name="alias" points=1 observed=true
"""Reuses the memory of the parameters."""
x = inputs.rng().normal(size=(8, 8)).astype("f")
made = program(update, x, x)
require(made.alias_bytes == x.nbytes, f"{made.alias_bytes} bytes are reused; the parameters have {x.nbytes}.")
compare(made.run(x, x), x / 2)
def probe(p, g):
    update(p, g)
    return p.is_deleted()

require(ask(probe, x, x), "The old parameters are still there after the step.")
# %% [markdown] why="ask-donate"
# It holds.
# %% wrong="ask-donate" because="Donates nothing."
@jax.jit
def update(params, grads):
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
# %% wrong="ask-donate" because="Climbs instead of descending."
@functools.partial(jax.jit, donate_argnums=0)
def update(params, grads):
    return jax.tree.map(lambda p, g: p + 0.5 * g, params, grads)
# %% wrong="ask-donate" because="Is not compiled at all."
def update(params, grads):
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
# %% right="ask-donate"
def update(params, grads):
    jax.debug.print('step {}', grads.sum())
    return params - 0.5 * grads


update = jax.jit(update, donate_argnames='params')
# %% [markdown] task="ask-raise" stars=1 minutes=2 skills="01_vocabulary"
# ## Refuse what is not a matrix
# **Goal.** Refuse what is not a matrix.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-raise"
def matrix_only(x):
    """x itself, float32[n,m]; raises ValueError for any other number of dimensions."""
    ### BEGIN SOLUTION
    if x.ndim != 2:
        raise ValueError(f"want a matrix, got {x.shape}")
    return x
    ### END SOLUTION
# %% check="ask-raise" name="passes" points=1
"""Lets a matrix through."""
compare(ask(matrix_only, np.ones((2, 3), "f")), np.ones((2, 3), "f"))
# %% hidden="ask-raise" name="refuses" points=2
"""Refuses a vector with a ValueError, and a traced bool with JAX's own error."""
compare(ask(matrix_only, np.ones((1, 2), "f")), np.ones((1, 2), "f"))
kind = error(matrix_only, np.ones(3, "f"))
require(kind == "ValueError", f"A vector raised {kind}; expected ValueError.")
require(error(lambda x: matrix_only(x).sum() if jax.jit(lambda y: bool(y.sum()))(x) else x, np.ones((2, 2), "f")) == "TracerBoolConversionError", "A traced bool raises TracerBoolConversionError.")
# %% [markdown] why="ask-raise"
# It holds.
# %% wrong="ask-raise" because="Refuses nothing."
def matrix_only(x):
    return x
# %% wrong="ask-raise" because="Raises another kind of error."
def matrix_only(x):
    assert x.ndim == 2
    return x
# %% wrong="ask-raise" because="Refuses everything."
def matrix_only(x):
    raise ValueError('no')
# %% right="ask-raise"
def matrix_only(x):
    match x.ndim:
        case 2:
            return x
    raise ValueError('not a matrix')
# %% [markdown] task="ask-model" stars=1 minutes=2 skills="01_vocabulary"
# ## A small network as an NNX module
# **Goal.** A small network as an NNX module.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-model"
class MLP(nnx.Module):
    """Two linear layers, 4 hidden units, relu between them."""

    ### BEGIN SOLUTION
    def __init__(self, n_in, n_out, *, rngs):
        self.layers = nnx.List([nnx.Linear(n_in, 4, rngs=rngs), nnx.Linear(4, n_out, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](jax.nn.relu(self.layers[0](x)))
    ### END SOLUTION
# %% check="ask-model" name="shapes" points=1
"""Gives one row for each row."""
def probe(x):
    return MLP(3, 2, rngs=nnx.Rngs(0))(x).shape

require(ask(probe, np.ones((5, 3), "f")) == (5, 2), "A (5, 3) input should give a (5, 2) output.")
# %% hidden="ask-model" name="parameters" points=2
"""Has 26 parameters and a loss that falls."""
def probe_size():
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(MLP(3, 2, rngs=nnx.Rngs(0)), nnx.Param)))


def probe_fit(x, y):
    graph, state = nnx.split(MLP(3, 2, rngs=nnx.Rngs(0)))
    tx = optax.adam(0.05)
    loss = lambda s: ((nnx.merge(graph, s)(x) - y) ** 2).mean()
    memory, losses = tx.init(state), []
    gradient = jax.jit(jax.value_and_grad(loss))
    for _ in range(20):
        value, grads = gradient(state)
        updates, memory = tx.update(grads, memory)
        state = optax.apply_updates(state, updates)
        losses.append(float(value))
    return losses


size = ask(probe_size)
require(size == 26, f"The module has {size} parameters; two layers of 3, 4 and 2 units have 26.")
rng = inputs.rng()
losses = ask(probe_fit, rng.normal(size=(16, 3)).astype("f"), rng.normal(size=(16, 2)).astype("f"))
require(losses[-1] < losses[0], "The loss does not fall.")
# %% [markdown] why="ask-model"
# It holds.
# %% wrong="ask-model" because="Keeps modules in a plain list."
class MLP(nnx.Module):
    def __init__(self, n_in, n_out, *, rngs):
        self.layers = [nnx.Linear(n_in, 4, rngs=rngs), nnx.Linear(4, n_out, rngs=rngs)]

    def __call__(self, x):
        return self.layers[1](jax.nn.relu(self.layers[0](x)))
# %% wrong="ask-model" because="Has one layer only."
class MLP(nnx.Module):
    def __init__(self, n_in, n_out, *, rngs):
        self.a = nnx.Linear(n_in, 4, rngs=rngs)

    def __call__(self, x):
        return self.a(x)[:, :2]
# %% wrong="ask-model" because="Returns the transpose."
class MLP(nnx.Module):
    def __init__(self, n_in, n_out, *, rngs):
        self.a = nnx.Linear(n_in, 4, rngs=rngs)
        self.b = nnx.Linear(4, n_out, rngs=rngs)

    def __call__(self, x):
        return self.b(self.a(x)).T
# %% right="ask-model"
class MLP(nnx.Module):
    def __init__(self, n_in, n_out, *, rngs):
        self.a = nnx.Linear(n_in, 4, rngs=rngs)
        self.b = nnx.Linear(4, n_out, rngs=rngs)

    def __call__(self, x):
        return self.b(jax.nn.relu(self.a(x)))
# %% [markdown] task="ask-functions" stars=1 minutes=2 skills="01_vocabulary"
# ## Gradients one by one, for any loss
# **Goal.** Gradients one by one, for any loss.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-functions"
def each_gradient(loss, w, xs):
    """jax.grad(loss)(w, x) for each x of xs: float32[n,k]."""
    ### BEGIN SOLUTION
    return jax.vmap(jax.grad(loss), (None, 0))(w, xs)
    ### END SOLUTION
# %% check="ask-functions" name="values" points=1
"""One gradient for each example."""
def probe(w, xs):
    return each_gradient(lambda w, x: (w * x).sum(), w, xs)

x = np.arange(6, dtype="f").reshape(2, 3)
compare(ask(probe, np.ones(3, "f"), x), x)
# %% hidden="ask-functions" name="state" points=1 observed=true
"""Takes a loss that returns a named tuple's field, and traces it once."""
def probe(w, xs):
    loss = counted(lambda w, x: Point(w @ x, w @ w).x ** 2)
    grads = each_gradient(loss, w, xs)
    return Point(grads, loss.calls)

rng = inputs.rng()
w, xs = rng.normal(size=4).astype("f"), rng.normal(size=(5, 4)).astype("f")
got = ask(probe, w, xs)
compare(got.x, 2 * (xs @ w)[:, None] * xs)
require(got.y == 1, f"The loss was traced {got.y} times; vmap needs one.")
# %% hidden="ask-functions" name="program" points=1
"""Becomes a program without a loop."""
rng = inputs.rng()
w, xs = rng.normal(size=4).astype("f"), rng.normal(size=(5, 4)).astype("f")
made = program(lambda w, xs: each_gradient(mse, w, xs), w, xs)
require(made.loops == 0, f"The program has {made.loops} loops; vmap needs none.")
compare(made.run(w, xs), 2 * (xs @ w)[:, None] * xs)
# %% [markdown] why="ask-functions"
# It holds.
# %% wrong="ask-functions" because="Loops in Python."
def each_gradient(loss, w, xs):
    return jnp.stack([jax.grad(loss)(w, x) for x in xs])
# %% wrong="ask-functions" because="Loops in XLA."
def each_gradient(loss, w, xs):
    return jax.lax.map(lambda x: jax.grad(loss)(w, x), xs)
# %% wrong="ask-functions" because="Takes the gradient of the mean."
def each_gradient(loss, w, xs):
    return jax.grad(lambda w: jax.vmap(loss, (None, 0))(w, xs).mean())(w)
# %% right="ask-functions"
def each_gradient(loss, w, xs):
    return jax.jacrev(lambda w: jax.vmap(lambda x: loss(w, x))(xs))(w)
# %% [markdown] task="ask-keys" stars=1 minutes=2 skills="01_vocabulary"
# ## One normal sample for each key
# **Goal.** One normal sample for each key.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-keys"
def samples(key, n):
    """float32[n]: sample i is drawn with fold_in(key, i)."""
    ### BEGIN SOLUTION
    return jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i)))(jnp.arange(n))
    ### END SOLUTION
# %% check="ask-keys" name="shape" points=1
"""Draws n numbers."""
require(ask(samples, jax.random.key(0), 3).shape == (3,), "Three samples are wanted.")
# %% hidden="ask-keys" name="values" points=2
"""Derives each key with fold_in, typed or raw."""
key = inputs.key()
want = np.array([jax.random.normal(jax.random.fold_in(key, i)) for i in range(4)])
compare(ask(samples, key, 4), want)
compare(program(samples, key, 4).run(key, 4), want)
compare(ask(samples, jax.random.key_data(key), 4), want)
# %% [markdown] why="ask-keys"
# It holds.
# %% wrong="ask-keys" because="Uses one key for all."
def samples(key, n):
    return jax.random.normal(key, (n,))
# %% wrong="ask-keys" because="Reuses the key."
def samples(key, n):
    return jnp.stack([jax.random.normal(key) for _ in range(n)])
# %% wrong="ask-keys" because="Counts from one."
def samples(key, n):
    return jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i)))(1 + jnp.arange(n))
# %% right="ask-keys"
def samples(key, n):
    return jnp.stack([jax.random.normal(jax.random.fold_in(key, i)) for i in range(n)])
# %% [markdown] task="ask-static" stars=1 minutes=2 skills="01_vocabulary"
# ## A flag and a count that the compiler knows
# **Goal.** A flag and a count that the compiler knows.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-static"
@functools.partial(jax.jit, static_argnames=("n", "flag"))
def repeated(x, n, flag):
    """n times x when flag, else x; n and flag are static."""
    ### BEGIN SOLUTION
    return sum(x for _ in range(n)) if flag else x
    ### END SOLUTION
# %% check="ask-static" name="values" points=1
"""Adds x n times."""
compare(ask(repeated, jnp.ones(3), 3, True), np.full(3, 3, "f"))
# %% hidden="ask-static" name="lowering" points=1 observed=true
"""Keeps n and flag static."""
x = inputs.rng().normal(size=3).astype("f")
compare(ask(lambda x: repeated(x, n=2, flag=False), x), x)
require(ask(lambda x: "stablehlo" in repeated.lower(x, 3, True).as_text(), x), "repeated is not compiled by jax.jit.")
compare(program(repeated, x, 4, True).run(x, 4, True), 4 * x)
# %% [markdown] why="ask-static"
# It holds.
# %% wrong="ask-static" because="Is not compiled."
def repeated(x, n, flag):
    return sum(x for _ in range(n)) if flag else x
# %% wrong="ask-static" because="Hides the compiled function."
@jax.jit
def repeated(x, n, flag):
    return jnp.where(flag, n * x, x)


repeated_plain = repeated


def repeated(x, n, flag):
    return repeated_plain(x, n, flag)
# %% wrong="ask-static" because="Multiplies."
@functools.partial(jax.jit, static_argnames=("n", "flag"))
def repeated(x, n, flag):
    return x**n if flag else x
# %% right="ask-static"
@jax.jit
def repeated(x, n, flag):
    return jnp.where(flag, n * x, x)
# %% [markdown] task="ask-auto" stars=1 minutes=2 skills="01_vocabulary"
# ## Spread rows over the devices
# **Goal.** Spread rows over the devices.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-auto"
def spread(x, mesh):
    """x placed on the mesh with its rows split over axis "d"."""
    ### BEGIN SOLUTION
    return jax.device_put(x, NamedSharding(mesh, P("d")))
    ### END SOLUTION
# %% check="ask-auto" name="values" points=1
"""Keeps the values."""
x = np.arange(16, dtype="f")
compare(ask(spread, x, devices.mesh((8,), ("d",))), x)
# %% hidden="ask-auto" name="shards" points=2
"""Puts an eighth of the rows on each device, and a product over them needs one all-reduce."""
mesh = devices.mesh((8,), ("d",))
x = inputs.rng().normal(size=(16, 4)).astype("f")
got = ask(spread, x, mesh)
require(isinstance(got.sharding, NamedSharding) and got.sharding.shard_shape(got.shape) == (2, 4), f"Each device holds {got.sharding.shard_shape(got.shape)}; expected (2, 4).")
made = program(lambda x: x.sum(0), got)
require(made.count("all-reduce") == 1, f"{made.count('all-reduce')} all-reduces; expected 1.")
compare(made.run(got), x.sum(0))
# %% [markdown] why="ask-auto"
# It holds.
# %% wrong="ask-auto" because="Replicates."
def spread(x, mesh):
    return jax.device_put(x, NamedSharding(mesh, P()))
# %% wrong="ask-auto" because="Places nothing."
def spread(x, mesh):
    return x
# %% wrong="ask-auto" because="Changes the values."
def spread(x, mesh):
    return jax.device_put(x * 2, NamedSharding(mesh, P("d")))
# %% right="ask-auto"
def spread(x, mesh):
    return jax.device_put(x, NamedSharding(mesh, P(mesh.axis_names[0], *[None] * (x.ndim - 1))))
# %% [markdown] task="ask-explicit" stars=1 minutes=2 skills="01_vocabulary"
# ## Reshard under a mesh that the caller entered
# **Goal.** Reshard under a mesh that the caller entered.
# **Signature.** See the stub.
# **Example.** See the check.
# **Judged.** Values. **Not judged.** Style.
# <details><summary>Hint 1 · a question</summary>What is asked?</details>
# <details><summary>Hint 2 · a nudge</summary>Read the stub.</details>
# <details><summary>Hint 3 · nearly there</summary>Read it again.</details>
# %% answer="ask-explicit"
def rows(x):
    """2 * x with its rows split over axis "d" of the mesh around the call."""
    ### BEGIN SOLUTION
    return jax.sharding.reshard(x * 2, P("d"))
    ### END SOLUTION
# %% check="ask-explicit" name="values" points=1
"""Doubles."""
with jax.set_mesh(devices.mesh((8,), ("d",), explicit=True)):
    compare(ask(rows, jnp.arange(16.0)), 2 * np.arange(16, dtype="f"))
# %% hidden="ask-explicit" name="sharding" points=2
"""Splits the rows in the type, live and as a program."""
mesh = devices.mesh((8,), ("d",), explicit=True)
x = inputs.rng().normal(size=(8, 2)).astype("f")
with jax.set_mesh(mesh):
    got = ask(rows, x)
    made = program(rows, x)
    spec = ask(lambda x: jax.typeof(rows(x)).sharding.spec, x)
    require(got.sharding.shard_shape(got.shape) == (1, 2), "Each device should hold one row.")
    require(spec == P("d", None), f"The type says {spec}.")
    require(made.outputs.sharding is not None and made.outputs.sharding.spec[0] == "d", "The program does not split its rows.")
    compare(made.run(x), 2 * x)
# %% [markdown] why="ask-explicit"
# It holds.
# %% wrong="ask-explicit" because="Reshards nothing."
def rows(x):
    return x * 2
# %% wrong="ask-explicit" because="Replicates."
def rows(x):
    return jax.sharding.reshard(x * 2, P())
# %% wrong="ask-explicit" because="Forgets to double."
def rows(x):
    return jax.sharding.reshard(x, P("d"))
# %% right="ask-explicit"
def rows(x):
    return 2 * jax.sharding.reshard(x, P("d"))
