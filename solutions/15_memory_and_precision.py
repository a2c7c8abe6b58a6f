# %% [markdown]
# # 15 · Exercises: memory and precision
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The function `stored(f, *args)` from the setup returns the residuals of `f`, as a list of arrays. The arguments of `f` are among them where the backward pass needs them. An array "of the size of x" has as many bytes as x.

# %% setup
import math

from grader.checks import ask, case, compare, inputs, program, require, skip
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def stored(f, *args):
    """The residuals of f(*args): the arrays that its backward pass needs, as a list."""
    return jax.tree.leaves(jax.vjp(f, *args)[1])


def nbytes(arrays):
    """The bytes of a list or a tree of arrays or of jax.ShapeDtypeStruct."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))


def mean_square(x):
    """The loss of these exercises: x of any shape -> ()"""
    return jnp.mean(x**2)


def mlp_block(params, x):
    """One residual block: {"w1": (d, h), "w2": (h, d)}, x (n, d) -> (n, d)"""
    return x + jnp.sin(jnp.tanh(x @ params["w1"]) @ params["w2"])


def attention_block(params, x):
    """Attention with two heads, then two layers: x (t, d) -> (t, d). Its scores have the shape (2, t, t)."""
    t, d = x.shape
    q, k, v = (jnp.dot(x, params[name]).reshape(t, 2, d // 2) for name in ("q", "k", "v"))
    weights = jax.nn.softmax(jnp.einsum("thd,shd->hts", q, k) / math.sqrt(d // 2))
    x = x + jnp.einsum("hts,shd->thd", weights, v).reshape(t, d) @ params["o"]
    return x + jnp.tanh(x @ params["up"]) @ params["down"]


def tanh_layer(w, x):
    """One layer: w (d, d), x (n, d) -> (n, d)"""
    return jnp.tanh(jnp.sin(x @ w))


def pendulum(params, state, force):
    """One time step of m pendulums: {"length": (m,), "damping": (m,)}, state (2, m), force (m,) -> (2, m)"""
    angle, speed = state
    speed = speed + 0.01 * (force - jnp.sin(angle) / params["length"] - params["damping"] * speed)
    return jnp.stack([angle + 0.01 * speed, speed])


# The functions of the first exercise. Each takes x of shape (n,) and dtype float32.
sine = jnp.sin
total = jnp.sum
product = lambda x: x * jnp.sin(x)
two_sines = lambda x: jnp.sin(jnp.sin(x))
narrow = lambda x: jnp.sin(jnp.sin(x.astype(jnp.bfloat16)))
recomputed = jax.checkpoint(lambda x: jnp.sin(jnp.sin(jnp.sin(jnp.sin(x)))))
steps = lambda x: jax.lax.scan(lambda x, _: (two_sines(x), None), x, length=10)[0]
recomputed_steps = lambda x: jax.lax.scan(jax.checkpoint(lambda x, _: (two_sines(x), None)), x, length=10)[0]

FUNCTIONS = {
    "sine": sine,
    "total": total,
    "product": product,
    "two_sines": two_sines,
    "narrow": narrow,
    "recomputed": recomputed,
    "steps": steps,
    "recomputed_steps": recomputed_steps,
}


# %% [markdown] task="memory-predict-residuals" stars=1 minutes=8 skills="04_grad,08_control_flow"
# ## What does the backward pass store?
# **Goal.** Predict how many bytes of residuals a function stores. Four lines are missing.
#
# **Signature.** `predict_residuals(n)` takes an int, and returns a dict with a key for each of the eight functions at the end of the setup. The value is an int, the bytes of the residuals for an argument of shape `(n,)` and dtype float32. The residuals include the argument itself, if the backward pass needs it.
#
# **Example.** `predict_residuals(100)["sine"]` is 400. The backward pass of `sin` needs `cos(x)`, which has 100 numbers of 4 bytes.
#
# **Judged.** All eight numbers, for several values of n. **Not judged.** How you find them. You can derive them or measure them.
#
# <details><summary>Hint 1 · a question</summary>
#
# `two_sines` stores the factor of each `sin`, which is a cosine. How large is a number in bfloat16? What does a function under `jax.checkpoint` store?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A `scan` stacks the residuals of all its iterations. Each of the ten iterations of `steps` stores what `two_sines` stores.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.checkpoint` stores the arguments of its function, and nothing else. In `recomputed_steps` it is applied to the body, so each iteration stores its own carry. To check a prediction, add up `leaf.nbytes` for the arrays in `stored(steps, jnp.ones(100))`.
#
# </details>


# %% answer="memory-predict-residuals"
def predict_residuals(n):
    """The bytes of the residuals of each function in FUNCTIONS, for x (n,) float32, as a dict of ints."""
    found = {"sine": 4 * n}  # cos(x)
    found["total"] = 0  # the gradient of a sum does not depend on x
    found["product"] = 12 * n  # x, sin(x) and cos(x)
    found["two_sines"] = 8 * n  # two cosines
    ### BEGIN SOLUTION
    found["narrow"] = 4 * n
    found["recomputed"] = 4 * n
    found["steps"] = 80 * n
    found["recomputed_steps"] = 40 * n
    ### END SOLUTION
    return found


# %% check="memory-predict-residuals" name="example" points=1
"""The example: 400 bytes for `sine` at n = 100, and an int for each of the eight functions."""
found = ask(predict_residuals, 100)
require(isinstance(found, dict), f"`predict_residuals` returned a {type(found).__name__}; expected a dict.")
missing = sorted(set(FUNCTIONS) - set(found))
require(not missing, f"These functions are missing: {', '.join(missing)}.")
for name in FUNCTIONS:
    whole = isinstance(found[name], int | np.integer) and not isinstance(found[name], bool)
    require(whole, f'The value of "{name}" is a {type(found[name]).__name__}; expected an int.')
require(found["sine"] == 400, f"For `sine` and n = 100 you return {found['sine']} bytes; expected 400.")

# %% hidden="memory-predict-residuals" name="values" points=3
"""The bytes of all eight functions, for several n."""
sizes = [int(n) for n in inputs.rng().choice(np.arange(3, 300), size=3, replace=False)]
predicted = [ask(predict_residuals, n) for n in sizes]
wrong = []
for name, f in FUNCTIONS.items():
    wanted = [nbytes(stored(f, jnp.ones(n))) for n in sizes]
    require(all(isinstance(each, dict) and name in each for each in predicted), f'The result has no key "{name}".')
    found = [each[name] for each in predicted]
    whole = all(isinstance(each, int | np.integer) and not isinstance(each, bool) for each in found)
    require(whole, f'The value of "{name}" is not an int.')
    if sum(found) != sum(wanted):
        wrong.append(f"`{name}` (too {'few' if sum(found) < sum(wanted) else 'many'})")
    elif list(map(int, found)) != wanted:
        wrong.append(f"`{name}`")
require(not wrong, f"The number of bytes is wrong for {', '.join(wrong)}.", kind="values")

# %% [markdown] why="memory-predict-residuals"
# A residual is whatever the derivative rule of an operation multiplies with, in the dtype of that operation. Checkpointing the body of a loop reduces the residuals of an iteration to its carry. **Next:** What would `jax.checkpoint` around the whole loop store, and what would its backward pass have to store again while it recomputes?


# %% wrong="memory-predict-residuals" because="Counts four bytes for a number in bfloat16, which has two."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 8 * n, "recomputed": 4 * n, "steps": 80 * n, "recomputed_steps": 40 * n}


# %% wrong="memory-predict-residuals" because="Assumes that `jax.checkpoint` stores nothing, but it stores the arguments of its function."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 4 * n, "recomputed": 0, "steps": 80 * n, "recomputed_steps": 0}


# %% wrong="memory-predict-residuals" because="Counts the residuals of a single iteration of the loop."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 4 * n, "recomputed": 4 * n, "steps": 8 * n, "recomputed_steps": 4 * n}


# %% wrong="memory-predict-residuals" because="Assumes that a checkpointed body stores one carry for the whole loop, but it stores one for each iteration."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 4 * n, "recomputed": 4 * n, "steps": 80 * n, "recomputed_steps": 4 * n}


# %% wrong="memory-predict-residuals" because="Assumes that a checkpointed function stores all its residuals."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 4 * n, "recomputed": 16 * n, "steps": 80 * n, "recomputed_steps": 80 * n}


# %% wrong="memory-predict-residuals" because="Assumes that a checkpointed function stores all its residuals."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 4 * n, "recomputed": 16 * n, "steps": 80 * n, "recomputed_steps": 40 * n}


# %% wrong="memory-predict-residuals" because="Counts x beside the carries of `recomputed_steps`, but x is the first of them."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 4 * n, "recomputed": 4 * n, "steps": 80 * n, "recomputed_steps": 44 * n}


# %% wrong="memory-predict-residuals" because="Returns the numbers of the example's size for every n."
def predict_residuals(n):
    found = {"sine": 400, "total": 0, "product": 1200, "two_sines": 800}
    return found | {"narrow": 400, "recomputed": 400, "steps": 8000, "recomputed_steps": 4000}


# %% wrong="memory-predict-residuals" because="Adds the argument of each function, although the backward pass of a sine does not need it."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 8 * n, "recomputed": 8 * n, "steps": 84 * n, "recomputed_steps": 44 * n}


# %% wrong="memory-predict-residuals" because="Counts the residuals of a single iteration of the loop."
def predict_residuals(n):
    found = {"sine": 4 * n, "total": 0, "product": 12 * n, "two_sines": 8 * n}
    return found | {"narrow": 4 * n, "recomputed": 4 * n, "steps": 8 * n, "recomputed_steps": 4 * n}


# %% right="memory-predict-residuals"
def predict_residuals(n):
    return {name: sum(leaf.nbytes for leaf in stored(f, jnp.ones(n))) for name, f in FUNCTIONS.items()}


# %% right="memory-predict-residuals"
def predict_residuals(n):
    x = jax.ShapeDtypeStruct((n,), jnp.float32)
    shapes = {name: jax.eval_shape(lambda x, f=f: stored(f, x), x) for name, f in FUNCTIONS.items()}
    return {
        name: sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) for name, leaves in shapes.items()
    }


# %% [markdown] task="memory-remat-block" stars=2 minutes=10 skills="04_grad,06_pytrees,memory-predict-residuals"
# ## Recompute each block
# **Goal.** A network applies a block for each of its layers, one after the other. Store only the input of each block, and recompute the rest of the block in the backward pass.
#
# **Signature.** `remat_loss(block, layers, x)`. `layers` is a list of trees of float32 arrays with the same structure and shapes, the parameters of the layers. `block(layer, x)` maps x of shape `(n, d)` to shape `(n, d)`. The function applies the blocks in order to `x`, and returns `mean_square` of the result, a scalar.
#
# **Example.** With `block = mlp_block` and three layers, the residuals are the parameters, the inputs of the three blocks, and the result of the last block, which `mean_square` needs.
#
# **Judged.** The value and the gradients for any block. The residuals have the bytes of the parameters and of L or L + 1 arrays of the size of x, for L layers. Less is not enough either, because then the backward pass recomputes several blocks together and needs memory for the residuals of all of them. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does `jax.checkpoint(f)` store when it is differentiated? For which function f is that the input of one block?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# First write the loop without `jax.checkpoint`. Then replace the function that the loop calls.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.checkpoint(block)` takes the same arguments as `block`. Call it for each layer. Do not wrap the whole loop.
#
# </details>


# %% answer="memory-remat-block"
def remat_loss(block, layers, x):
    """mean_square of all blocks applied to x (n, d); the backward pass stores only the inputs of the blocks."""
    ### BEGIN SOLUTION
    remat = jax.checkpoint(block)
    for layer in layers:
        x = remat(layer, x)
    return mean_square(x)
    ### END SOLUTION


# %% check="memory-remat-block" name="example" points=1 observed=true
"""The example: with three layers, the value of a loop without `jax.checkpoint`, and fewer bytes of residuals."""


def probe_example(layers, x):
    value, backward = jax.vjp(lambda layers, x: remat_loss(mlp_block, layers, x), layers, x)
    return {"loss": value, "stored": jax.tree.leaves(backward)}


rng = inputs.rng()
layers = [{"w1": rng.normal(size=(4, 16)), "w2": rng.normal(size=(16, 4))} for _ in range(3)]
layers = jax.tree.map(lambda leaf: (leaf / 4).astype(np.float32), layers)
x = rng.normal(size=(6, 4)).astype(np.float32)
made, wanted = program(probe_example, layers, x), x
for weights in layers:
    wanted = wanted + np.sin(np.tanh(wanted @ weights["w1"]) @ weights["w2"])
compare(made.run(layers, x)["loss"], np.float32(np.mean(wanted**2)), label="the loss")
found, parameters = nbytes(made.outputs["stored"]), nbytes(layers)
require(
    found <= parameters + 4 * x.nbytes,
    f"The residuals have {found:,} bytes; expected the {parameters:,} bytes of the parameters, and 3 or 4 arrays of the "
    f"{x.nbytes} bytes of x.",
)
require(
    found >= parameters + 3 * x.nbytes,
    f"The residuals have {found:,} bytes, less than the parameters ({parameters:,} bytes) and the inputs of three blocks "
    f"({x.nbytes} bytes each). Then the backward pass recomputes several blocks together, or does not reach all of them.",
)

# %% hidden="memory-remat-block" name="values" points=2
"""The value and the gradients, for any block and any number of layers."""


def probe_values(layers, x):
    block = lambda layer, x: layer["b"] + x * jnp.sin(x @ layer["w"])
    return jax.value_and_grad(lambda layers, x: remat_loss(block, layers, x), argnums=(0, 1))(layers, x)


for depth in (1, 4):
    rng = inputs.rng()
    layers = [{"w": rng.normal(size=(3, 3)), "b": rng.normal(size=3)} for _ in range(depth)]
    layers = jax.tree.map(lambda leaf: leaf.astype(np.float32), layers)
    x = rng.normal(size=(5, 3)).astype(np.float32)
    taken = [x.astype(np.float64)]
    for layer in layers:
        taken.append(layer["b"] + taken[-1] * np.sin(taken[-1] @ layer["w"]))
    back, gradients = 2 * taken[-1] / x.size, []
    for layer, before in zip(layers[::-1], taken[-2::-1], strict=True):
        angle = before @ layer["w"]
        inner = back * before * np.cos(angle)
        gradients.insert(0, {"w": (before.T @ inner).astype(np.float32), "b": back.sum(0).astype(np.float32)})
        back = back * np.sin(angle) + inner @ layer["w"].T
    with case("for another block than `mlp_block`, whose parameters have other names"):
        value, (for_layers, for_x) = program(probe_values, layers, x).run(layers, x)
        compare(value, np.float32(np.mean(taken[-1] ** 2)), rtol=1e-3, label="the loss")
        compare(for_layers, gradients, rtol=1e-3, atol=1e-3, label="the gradient with respect to the layers")
        compare(for_x, back.astype(np.float32), rtol=1e-3, atol=1e-3, label="the gradient with respect to x")

# %% hidden="memory-remat-block" name="residuals" points=1 observed=true
"""The residuals are the parameters and the inputs of the blocks, for blocks with few or many intermediate results."""


def probe_residuals(layers, x, sines):
    def block(layer, x):
        for _ in range(sines):
            x = jnp.sin(x @ layer)
        return x

    value, backward = jax.vjp(lambda layers, x: remat_loss(block, layers, x), layers, x)
    return {"loss": value, "stored": jax.tree.leaves(backward)}


for depth, sines in ((3, 5), (5, 2)):
    rng = inputs.rng()
    layers = [(rng.normal(size=(8, 8)) / 3).astype(np.float32) for _ in range(depth)]  # larger ones are chaotic
    x = rng.normal(size=(64, 8)).astype(np.float32)
    with case("for a block whose parameters are one array"):
        made, wanted = program(probe_residuals, layers, x, sines), x
        for layer in layers:
            for _ in range(sines):
                wanted = np.sin(wanted @ layer)
        compare(made.run(layers, x, sines)["loss"], np.float32(np.mean(wanted**2)), rtol=1e-3, label="the loss")
    arrays = (nbytes(made.outputs["stored"]) - nbytes(layers)) / x.nbytes
    require(
        arrays < depth + 1.5,
        f"With {depth} layers, {arrays:.1f} arrays of the size of x are stored in addition to the parameters; expected "
        f"{depth} or {depth + 1}. Results inside the blocks are stored too.",
    )
    require(
        arrays > depth - 0.5,
        f"With {depth} layers, only {arrays:.1f} arrays of the size of x are stored in addition to the parameters; expected "
        f"{depth} or {depth + 1}. The backward pass recomputes several blocks together, or does not reach all.",
    )

# %% [markdown] why="memory-remat-block"
# `jax.checkpoint(block)` stores the arguments of each call, so one array of the size of x remains for each layer. The backward pass recomputes one block at a time, and its residuals are discarded before the next block is recomputed. **Next:** How many products are computed in a backward pass with and without `jax.checkpoint`?


# %% wrong="memory-remat-block" because="Checkpoints the whole network. Then all blocks are recomputed together, and the residuals of all of them are stored after all."
def remat_loss(block, layers, x):
    def network(layers, x):
        for layer in layers:
            x = block(layer, x)
        return mean_square(x)

    return jax.checkpoint(network)(layers, x)


# %% wrong="memory-remat-block" because="Stores every residual of the blocks, because no block is recomputed."
def remat_loss(block, layers, x):
    for layer in layers:
        x = block(layer, x)
    return mean_square(x)


# %% wrong="memory-remat-block" because="Uses a policy that stores the results of products, which are inside the blocks."
def remat_loss(block, layers, x):
    remat = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)
    for layer in layers:
        x = remat(layer, x)
    return mean_square(x)


# %% wrong="memory-remat-block" because="Stores every residual of the blocks, because no block is recomputed."
def remat_loss(block, layers, x):
    for layer in layers:
        x = block(layer, x)
    return jax.checkpoint(mean_square)(x)


# %% wrong="memory-remat-block" because="Checkpoints only the first block."
def remat_loss(block, layers, x):
    x = jax.checkpoint(block)(layers[0], x)
    for layer in layers[1:]:
        x = block(layer, x)
    return mean_square(x)


# %% wrong="memory-remat-block" because="Does not checkpoint the last block, so all its residuals are stored."
def remat_loss(block, layers, x):
    remat = jax.checkpoint(block)
    for layer in layers[:-1]:
        x = remat(layer, x)
    return mean_square(block(layers[-1], x))


# %% wrong="memory-remat-block" because="Stops the gradient between the blocks, so that little is stored, and the gradients of the earlier layers are 0."
def remat_loss(block, layers, x):
    for layer in layers:
        x = block(layer, jax.lax.stop_gradient(x))
    return mean_square(x)


# %% wrong="memory-remat-block" because="Checkpoints pairs of blocks, so two blocks are recomputed together."
def remat_loss(block, layers, x):
    def pair(layers, x):
        for layer in layers:
            x = block(layer, x)
        return x

    for start in range(0, len(layers), 2):
        x = jax.checkpoint(pair)(layers[start : start + 2], x)
    return mean_square(x)


# %% wrong="memory-remat-block" because="Uses the parameters of the first layer in every block."
def remat_loss(block, layers, x):
    remat = jax.checkpoint(block)
    for _ in layers:
        x = remat(layers[0], x)
    return mean_square(x)


# %% wrong="memory-remat-block" because="Uses a policy that stores the results of products, which are inside the blocks."
def remat_loss(block, layers, x):
    remat = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    for layer in layers:
        x = remat(layer, x)
    return mean_square(x)


# %% wrong="memory-remat-block" because="Calls `mlp_block` instead of the block that it is given."
def remat_loss(block, layers, x):
    remat = jax.checkpoint(mlp_block)
    for layer in layers:
        x = remat(layer, x)
    return mean_square(x)


# %% wrong="memory-remat-block" because="Checkpoints the whole network. Then all blocks are recomputed together, and the residuals of all of them are stored after all."
def remat_loss(block, layers, x):
    @jax.checkpoint
    def run(layers, x):
        for layer in layers:
            x = block(layer, x)
        return x

    return mean_square(run(layers, x))


# %% right="memory-remat-block"
def remat_loss(block, layers, x):
    for layer in layers:
        x = jax.checkpoint(lambda x, layer=layer: block(layer, x))(x)
    return mean_square(x)


# %% right="memory-remat-block"
def remat_loss(block, layers, x):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    body = jax.checkpoint(lambda x, layer: (block(layer, x), None), prevent_cse=False)
    return mean_square(jax.lax.scan(body, x, stacked)[0])


# %% right="memory-remat-block"
def remat_loss(block, layers, x):
    def network(layers, x):
        for layer in layers:
            x = checkpoint_name(block(layer, x), "output")
        return mean_square(x)

    policy = jax.checkpoint_policies.save_only_these_names("output")
    return jax.checkpoint(network, policy=policy)(layers, x)


# %% [markdown] task="memory-dots-policy" stars=2 minutes=12 skills="memory-remat-block"
# ## Store the products with weights
# **Goal.** The products with weight matrices take most of the time of a transformer, and the attention scores take most of its memory. Store the former and recompute the latter.
#
# **Signature.** `store_weight_products(f)` takes a function of any positional arguments, such as `attention_block` from the setup, and returns a function with the same results and gradients. The backward pass of the returned function stores its arguments and the results of **products without batch dimensions**, where it needs them, whatever the shapes of their factors. It recomputes everything else. A product with a weight matrix has no batch dimensions. The two `einsum` of the attention have one, the head.
#
# **Example.** With t = 32 and d = 8, one array of scores has 8,192 bytes. `attention_block` alone stores several arrays of this size. `store_weight_products(attention_block)` stores none. Apart from its arguments, it stores four arrays `(32, 8)` for `q`, `k`, `v` and `o`, and the result of `x @ params["up"]`. The result of the last product is not stored, because the backward pass does not need it.
#
# **Judged.** The values and gradients for any function. The bytes of the residuals. **Not judged.** Speed, and where the residuals are stored.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.checkpoint` has an argument that selects which results are stored. What is it called?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The lesson used `jax.checkpoint_policies.dots_saveable`, which stores the results of *all* products. Look at the other names in `jax.checkpoint_policies`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Return `jax.checkpoint(f, policy=...)` with the policy whose name contains `dots_with_no_batch_dims`.
#
# </details>


# %% answer="memory-dots-policy"
def store_weight_products(f):
    """A function like f, whose backward pass stores products without batch dimensions and recomputes the rest."""
    ### BEGIN SOLUTION
    return jax.checkpoint(f, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    ### END SOLUTION


# %% check="memory-dots-policy" name="example" points=1 observed=true
"""The example: the residuals of an attention block with t = 32 and d = 8."""


def probe_example(params, x):
    value, backward = jax.vjp(store_weight_products(attention_block), params, x)
    return {"result": value, "stored": jax.tree.leaves(backward)}


rng = inputs.rng()
shapes = {**dict.fromkeys("qkvo", (8, 8)), "up": (8, 16), "down": (16, 8)}
params = {name: rng.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}
x = rng.normal(size=(32, 8)).astype(np.float32)
made = program(probe_example, params, x)
wanted = np.asarray(attention_block(params, x))
compare(made.run(params, x)["result"], wanted, rtol=1e-3, atol=1e-4, label="the result of the block")
scores = sum(leaf.size >= 2 * 32 * 32 for leaf in made.outputs["stored"])
require(scores == 0, f"{scores} array(s) of the size of the scores, (2, 32, 32), are stored.")
found = nbytes(made.outputs["stored"]) - nbytes(params) - x.nbytes
products = 4 * (4 * 32 * 8 + 32 * 16)
require(
    abs(found - products) < 64,
    f"Apart from the arguments, {found:,} bytes are stored; expected {products:,}, the results of five products.",
)

# %% hidden="memory-dots-policy" name="values" points=2
"""The results and gradients of functions with several arguments and several results."""


def probe_values(w, x, y):
    def f(w, x, y):
        hidden = jnp.sin(x @ w) * y
        return {"hidden": hidden, "norm": jnp.sum(hidden**2)}

    made = store_weight_products(f)
    return made(w, x, y), jax.grad(lambda *args: made(*args)["norm"], argnums=(0, 1, 2))(w, x, y)


for n, d, k in ((5, 4, 3), (2, 6, 6)):
    rng = inputs.rng()
    w, x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((d, k), (n, d), (n, k)))
    angle = x.astype(np.float64) @ w
    hidden = np.sin(angle) * y
    inner = 2 * hidden * y * np.cos(angle)
    want = {"hidden": np.float32(hidden), "norm": np.float32(np.sum(hidden**2))}
    gradients = tuple(map(np.float32, (x.T @ inner, inner @ w.T, 2 * hidden * np.sin(angle))))
    with case("for a function of three arrays that returns a dict"):
        result, found = program(probe_values, w, x, y).run(w, x, y)
        compare(result, want, rtol=1e-3, atol=1e-3, label="the result")
        compare(found, gradients, rtol=1e-3, atol=1e-3, label="the gradients")

# %% hidden="memory-dots-policy" name="residuals" points=1 observed=true
"""The residuals of blocks of several sizes: every product with a weight, no scores, and no result between products."""


def probe_attention(params, x):
    value, backward = jax.vjp(store_weight_products(attention_block), params, x)
    return {"result": value, "stored": jax.tree.leaves(backward)}


def probe_layers(ws, x):
    def f(ws, x):
        for w in ws:
            x = x @ w
            x = jnp.sin(x) * jnp.tanh(x)
        return jnp.einsum("hn,hm->nm", x, x), jnp.einsum("hnd,hmd->hnm", *2 * [x[:, :, None]])

    value, backward = jax.vjp(store_weight_products(f), ws, x)
    return {"result": value, "stored": jax.tree.leaves(backward)}


def probe_shapes(w, heads, x):
    def f(w, heads, x):
        x = jnp.einsum("btd,dhe->bthe", jnp.tanh(x @ w), heads)
        return jnp.sin(jnp.einsum("nd,nd->n", *2 * [jnp.sin(x).reshape(-1, x.shape[-1])]))

    value, backward = jax.vjp(store_weight_products(f), w, heads, x)
    return {"result": value, "stored": jax.tree.leaves(backward)}


rng = inputs.rng()
ws = [rng.normal(size=(12, 12)).astype(np.float32) / 3 for _ in range(3)]
x = rng.normal(size=(30, 12)).astype(np.float32)
with case("for three layers"):
    made, y = program(probe_layers, ws, x), x
    for w in ws:
        y = np.sin(y @ w) * np.tanh(y @ w)
    result = (y.T @ y, y[:, :, None] * y[:, None, :])
    compare(made.run(ws, x)["result"], result, rtol=1e-3, atol=1e-3, label="the result")
found = (nbytes(made.outputs["stored"]) - nbytes(ws)) / x.nbytes
for few, beyond in (("few", 3.9 - found), ("many", found - 4.1)):
    require(
        beyond < 0,
        f"Three layers store too {few} arrays; expected x and the product of each layer, in addition to the weights.",
    )
t, d, h = (int(rng.integers(*limits)) for limits in ((40, 60), (3, 6), (10, 30)))
d *= 2
shapes = {**dict.fromkeys("qkvo", (d, d)), "up": (d, h), "down": (h, d)}
params = {name: rng.normal(size=shape).astype(np.float32) / 4 for name, shape in shapes.items()}
x = rng.normal(size=(t, d)).astype(np.float32)
with case("for an attention block"):
    made = program(probe_attention, params, x)
    wanted = np.asarray(attention_block(params, x))
    compare(made.run(params, x)["result"], wanted, rtol=1e-3, atol=1e-3, label="the result")
scores = sum(leaf.size >= 2 * t * t for leaf in made.outputs["stored"])
require(
    scores != 1, "The result of the product for the attention scores is stored. It has a batch dimension, the head."
)
require(
    scores == 0,
    "Several arrays of the size of the attention scores are stored, not only results of products without batch dimensions.",
)
found, products = nbytes(made.outputs["stored"]) - nbytes(params) - x.nbytes, 4 * (4 * t * d + t * h)
require(
    found < products + 64,
    "The residuals of an attention block have too many bytes: more is stored than the arguments and the results of "
    "products without batch dimensions.",
)
require(
    found > products - 64,
    "The residuals of an attention block have too few bytes: the backward pass recomputes products with weights.",
)
w, heads, x = (rng.normal(size=shape).astype(np.float32) / 2 for shape in ((5, 5), (5, 2, 3), (4, 6, 5)))
first = np.tanh(x @ w)
second = np.einsum("btd,dhe->bthe", first, heads)
result = np.sin((np.sin(second) ** 2).reshape(-1, 3).sum(1))
with case("for x and weights with three axes"):
    made = program(probe_shapes, w, heads, x)
    compare(made.run(w, heads, x)["result"], result, rtol=1e-3, atol=1e-3, label="the result")
    products = nbytes(made.outputs["stored"]) - nbytes([w, heads, x])
    for few, wrong in (
        ("few", products < first.nbytes + second.nbytes - 4),
        ("many", products > first.nbytes + second.nbytes + 4),
    ):
        require(not wrong, f"Too {few} results of products are stored. Their batch dimensions decide, not their axes.")

# %% [markdown] why="memory-dots-policy"
# A policy decides for each operation whether its result may be stored. A product with weights is expensive to recompute and its result is small. For the scores it is the other way round, because their number grows with the square of the length. **Next:** Which policy would you choose if the batch were mapped with `vmap` over per-example weights?


# %% wrong="memory-dots-policy" because="Stores the results of all products, including the attention scores."
def store_weight_products(f):
    return jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)


# %% wrong="memory-dots-policy" because="Stores no results of products, so the backward pass recomputes all of them."
def store_weight_products(f):
    return jax.checkpoint(f)


# %% wrong="memory-dots-policy" because="Stores everything, as without `jax.checkpoint`."
def store_weight_products(f):
    return jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable)


# %% wrong="memory-dots-policy" because="Stores everything, as without `jax.checkpoint`."
def store_weight_products(f):
    return f


# %% wrong="memory-dots-policy" because="Stores no results of products, so the backward pass recomputes all of them."
def store_weight_products(f):
    return jax.checkpoint(f, policy=jax.checkpoint_policies.save_only_these_names("q", "k", "v", "o", "up"))


# %% wrong="memory-dots-policy" because="Stores everything, as without `jax.checkpoint`."
def store_weight_products(f):
    return jax.checkpoint(f, policy=jax.checkpoint_policies.save_anything_except_these_names("scores"))


# %% wrong="memory-dots-policy" because="Has the condition reversed, so only products with batch dimensions are stored."
def store_weight_products(f):
    def policy(primitive, *_, **params):
        return primitive.name == "dot_general" and bool(params["dimension_numbers"][1][0])

    return jax.checkpoint(f, policy=policy)


# %% wrong="memory-dots-policy" because="Stores everything, as without `jax.checkpoint`."
def store_weight_products(f):
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    keep = jax.checkpoint(lambda result: result, policy=policy)
    return lambda *args: keep(f(*args))


# %% wrong="memory-dots-policy" because="Decides by the number of axes of the factors, but a product of larger arrays can be without batch dimensions."
def store_weight_products(f):
    def policy(primitive, *avals, **_):
        return primitive.name == "dot_general" and all(aval.ndim == 2 for aval in avals)

    return jax.checkpoint(f, policy=policy)


# %% wrong="memory-dots-policy" because="Decides by the number of axes of the factors, but a product of larger arrays can be without batch dimensions."
def store_weight_products(f):
    def policy(primitive, *avals, **_):
        return primitive.name == "dot_general" and avals[0].ndim == 2

    return jax.checkpoint(f, policy=policy)


# %% wrong="memory-dots-policy" because="Decides by the number of axes of the factors, but a product of larger arrays can be without batch dimensions."
def store_weight_products(f):
    def policy(primitive, *avals, **_):
        return primitive.name == "dot_general" and avals[1].ndim == 2

    return jax.checkpoint(f, policy=policy)


# %% wrong="memory-dots-policy" because="Decides by the number of axes of the factors, but a product of larger arrays can be without batch dimensions."
def store_weight_products(f):
    def policy(primitive, *avals, **_):
        return primitive.name == "dot_general" and all(aval.ndim <= 2 for aval in avals)

    return jax.checkpoint(f, policy=policy)


# %% wrong="memory-dots-policy" because="Also stores the results of `tanh`, but only results of products should be stored."
def store_weight_products(f):
    def policy(primitive, *_, **params):
        product = primitive.name == "dot_general" and not params["dimension_numbers"][1][0]
        return product or primitive.name == "tanh"

    return jax.checkpoint(f, policy=policy)


# %% right="memory-dots-policy"
def store_weight_products(f):
    def policy(primitive, *_, **params):
        return primitive.name == "dot_general" and not params["dimension_numbers"][1][0]

    return jax.checkpoint(f, policy=policy)


# %% right="memory-dots-policy"
def store_weight_products(f):
    policies = jax.checkpoint_policies
    both = policies.save_from_both_policies(policies.nothing_saveable, policies.checkpoint_dots_with_no_batch_dims)

    def remat(*args):
        return jax.remat(f, policy=both)(*args)

    return remat


# %% [markdown] task="memory-mixed-precision-step" stars=2 minutes=20 skills="04_grad,06_pytrees,09_training"
# ## A step in mixed precision
# **Goal.** Write a training step that computes in float16, stores its parameters in float32, and scales the loss so that small gradients survive.
#
# **Signature.** `mixed_precision_step(loss, params, scale, x, y, rate)`. `params` is a tree of float32 arrays. `scale` and `rate` are float32 scalars, `x` and `y` are float32 arrays. `loss(params, x, y)` returns a float32 scalar, whatever the dtype of its arguments. The step
#
# 1. calls `loss` with `params` and `x` in float16, and with `y` unchanged,
# 2. differentiates `scale` times this loss, and divides the gradients by `scale` in float32,
# 3. if all gradients are finite, subtracts `rate` times the gradients from the float32 parameters, and leaves `scale` unchanged,
# 4. otherwise leaves all parameters unchanged, and halves `scale`.
#
# It returns `(new params, new scale, loss)`. Parameters, scale and the loss, which is not scaled, are float32.
#
# **Example.** `loss` is the mean of `(x @ w - y)²`, `w = [[1]]`, `x = [[2]]`, `y = [[0]]` and `rate = 0.125`. The loss is 4 and its gradient 8. With `scale = 1024`, the step returns `w = [[0]]` and `scale = 1024`. With `scale = 32768`, a gradient in the backward pass exceeds the largest float16. The step returns `w = [[1]]` and `scale = 16384`.
#
# **Judged.** The three results, also if only some of the gradients are not finite, or if gradients and updates are too small for float16. The step can be compiled, with `scale` and `rate` as traced arguments. **Not judged.** When to increase the scale again, and steps whose update is too large for float32.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which of these must be in float32: the gradient that is divided by `scale`, the parameters that the update is subtracted from?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Write a function of the parameters that returns `loss * scale` and, as auxiliary data, `loss`. `jax.value_and_grad` with `has_aux=True` differentiates it. The choice between steps 3 and 4 depends on traced values, so use `jnp.where`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Cast the gradients with `astype(jnp.float32)` before you divide. `finite` is one boolean for all leaves, such as `jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))`. Then every new leaf is `jnp.where(finite, p - rate * g, p)`.
#
# </details>


# %% answer="memory-mixed-precision-step"
def mixed_precision_step(loss, params, scale, x, y, rate):
    """One step in float16 with float32 parameters and a scaled loss. Returns (params, scale, loss)."""
    ### BEGIN SOLUTION
    half = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float16), tree)

    def scaled(params):
        value = loss(params, half(x), y)
        return value * scale, value

    (_, value), gradients = jax.value_and_grad(scaled, has_aux=True)(half(params))
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, gradients)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, gradients)
    return params, jnp.where(finite, scale, scale / 2), value
    ### END SOLUTION


# %% check="memory-mixed-precision-step" name="example" points=1
"""The example: a step with a scale of 1024, and one with 32768, where a gradient overflows."""


def probe_example(w, scale, x, y, rate):
    loss = lambda w, x, y: jnp.mean(((x @ w).astype(jnp.float32) - y) ** 2)
    return mixed_precision_step(loss, w, scale, x, y, rate)


w, x, y = np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32), np.zeros((1, 1), np.float32)
made = program(probe_example, w, np.float32(1), x, y, np.float32(1))
with case("with a scale of 1024"):
    got = made.run(w, np.float32(1024), x, y, np.float32(0.125))
    compare(got, (np.zeros((1, 1), np.float32), np.float32(1024), np.float32(4)), label="the result")
with case("with a scale of 32768"):
    got = made.run(w, np.float32(32768), x, y, np.float32(0.125))
    compare(got, (w, np.float32(16384), np.float32(4)), label="the result")

# %% hidden="memory-mixed-precision-step" name="values" points=1
"""A step of a network, and the dtypes in which the loss gets the parameters, x and y."""


def probe_network(params, scale, x, y, rate):
    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["w1"] + params["b1"])
        return jnp.mean(((hidden @ params["w2"]).astype(jnp.float32)[:, 0] - y) ** 2)

    return mixed_precision_step(loss, params, scale, x, y=y, rate=rate)


def probe_sum(params, scale, x, y, rate):
    def loss(params, x, y):
        return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in (params["a"], params["b"], x, y))

    return mixed_precision_step(loss, params, scale, x, y=y, rate=rate)


rng = inputs.rng()
draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
params, x, y = {"w1": draw(4, 6) / 2, "b1": draw(6), "w2": draw(6, 1) / 2}, draw(8, 4), draw(8)
scale, rate = np.float32(256), np.float32(0.1)
p = {name: leaf.astype(np.float16).astype(np.float64) for name, leaf in params.items()}
rounded = x.astype(np.float16).astype(np.float64)
hidden = np.tanh(rounded @ p["w1"] + p["b1"])
wrong_by = (hidden @ p["w2"])[:, 0] - y
back = 2 / 8 * wrong_by[:, None] * p["w2"].T * (1 - hidden**2)
gradients = {"w1": rounded.T @ back, "b1": back.sum(0), "w2": hidden.T @ (2 / 8 * wrong_by[:, None])}
wanted = {name: np.float32(params[name] - rate * gradients[name]) for name in params}
with case("for a step of a network"):
    got = program(probe_network, params, scale, x, y, rate).run(params, scale, x, y, rate)
    compare(got, (wanted, scale, np.float32(np.mean(wrong_by**2))), rtol=3e-2, atol=1e-2, label="the result")
thirds = np.float32(1 / 3)  # 0.33325195 in float16
names = ("params", "x", "y")
params, x, y = {"a": np.full(2, thirds), "b": np.full((), thirds)}, np.full(2, thirds), np.full(2, thirds)
in_half = np.float32(np.float16(thirds))
with case("for a loss that shows how its arguments were rounded"):
    _, _, found = program(probe_sum, params, scale, x, y, rate).run(params, scale, x, y, rate)
    compare(found, np.float32(5 * in_half + 2 * thirds), rtol=1e-3, label="the loss")
    for other, words in (
        (7 * thirds, "neither `params` nor `x`"),
        (3 * in_half + 4 * thirds, "`params`, but not `x`,"),
        (7 * in_half, "`params`, `x` and `y`"),
    ):
        require(abs(found - other) > 1e-5, f"The loss was called with {words} rounded to float16.")
    compare(found, np.float32(5 * in_half + 2 * thirds), rtol=1e-6, atol=0, label="the loss")

# %% hidden="memory-mixed-precision-step" name="small" points=2
"""Gradients and updates that are too small for float16."""


def probe_small(params, scale, x, y, rate):
    def loss(params, x, y):
        return jnp.sum(y) * (jnp.sum(params["a"].astype(jnp.float32)) + 2 * jnp.sum(params["b"].astype(jnp.float32)))

    return mixed_precision_step(loss, params, scale, x, y=y, rate=rate)


params = {"a": np.ones((2, 3), np.float32), "b": np.ones((), np.float32)}
x, y = np.ones(1, np.float32), np.full(1, 2.0**-26, np.float32)
with case("for parameters of different shapes"):
    made = program(probe_small, params, np.float32(1), x, y, np.float32(1))
for power in (int(inputs.rng().integers(12, 15)), 15, 17):
    scale = np.float32(2.0**power)
    with case("when the gradients are smaller than any float16"):
        moved, *_ = made.run(params, scale, x, y, np.float32(2.0**25))
        compare(
            moved, {"a": np.full((2, 3), 0.5, np.float32), "b": np.float32(0)}, rtol=1e-3, label="the new parameters"
        )
    with case("when the update is small compared with the parameters"):
        moved, *_ = made.run(params, scale, x, np.full(1, 2.0**-12, np.float32), np.float32(0.5))
        by_a, by_b = 2.0**-13, 2.0**-12
        wanted = {"a": np.full((2, 3), 1 - by_a, np.float32), "b": np.float32(1 - by_b)}
        compare(moved, wanted, rtol=1e-6, atol=0, label="the new parameters")

# %% hidden="memory-mixed-precision-step" name="overflow" points=2
"""Gradients that are not finite, in all parameters, in one of them, or in a part of one."""


def probe_overflow(params, scale, x, y, rate):
    def loss(params, x, y):
        rows = {"a": y[0], "b": y[1], "c": y[2]}
        return sum(jnp.sum(rows[name] * leaf.astype(jnp.float32)) for name, leaf in params.items())

    return mixed_precision_step(loss, params, scale, x, y=y, rate=rate)


rng = inputs.rng()
params = {name: rng.normal(size=3).astype(np.float16).astype(np.float32) for name in "abc"}
x, fine = np.ones(1, np.float32), np.ones((3, 3), np.float32)  # y has a row for each parameter
with case("for three parameters, each with its own row of `y`"):
    made = program(probe_overflow, params, np.float32(1), x, fine, np.float32(1))
scale, rate = np.float32(2.0 ** int(rng.integers(4, 12))), np.float32(0.25)
value = lambda y: np.float32(sum(np.sum(row * params[name]) for row, name in zip(y, "abc", strict=True)))
for words, y in (("finite", fine), ("large, but finite", np.full_like(fine, 30000 / scale))):
    with case(f"when all gradients are {words}"):
        moved = {name: leaf - rate * y[0] for name, leaf in params.items()}
        compare(made.run(params, scale, x, y, rate), (moved, scale, value(y)), rtol=1e-3, atol=1e-2)
for words, rows in (("all parameters", [0, 1, 2]), ("the first parameter", [0]), ("the last parameter", [2])):
    for what, number in (("NaN", np.nan), ("infinite, and the loss is not finite", np.inf)):
        y = fine.copy()
        y[rows, 1] = number
        with case(f"when gradients of {words} are {what}"):
            got = made.run(params, scale, x, y, rate)
            compare(got[0], params, rtol=0, atol=0, label="the new parameters")
            compare(got[1], np.float32(scale / 2), label="the new scale")
    y = fine.copy()
    y[rows, 1] = 2e5 / scale
    with case(f"when gradients of {words} overflow"):
        got = made.run(params, scale, x, y, rate)
        compare(got[0], params, rtol=0, atol=0, label="the new parameters")
        compare(got[1], np.float32(scale / 2), label="the new scale")
        compare(got[2], value(y), rtol=1e-3, atol=1e-3, label="the loss")
with case("when a gradient overflows and the scale is at most 1"):
    got = made.run(params, np.float32(1), x, np.full_like(fine, 2e5), rate)
    compare(got[:2], (params, np.float32(0.5)), rtol=0, atol=0, label="the new parameters and scale")

# %% [markdown] why="memory-mixed-precision-step"
# The products run in float16, so activations and gradients need half the memory. The parameters stay in float32, because a float16 near 1 cannot represent a change below 0.0005. The scale moves all gradients into the range of float16, and an overflow costs only one skipped step. **Next:** Libraries double the scale after a number of steps without overflow, such as 2,000. What would you add to the state of the step for this?


# %% wrong="memory-mixed-precision-step" because="Divides the float16 gradients by the scale before they are cast, so small gradients become 0 again."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: (g / scale.astype(jnp.float16)).astype(jnp.float32), grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Updates the float16 copy of the parameters, so small updates are lost."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    moved = jax.tree.map(lambda p, g: (p - rate * g).astype(jnp.float16).astype(jnp.float32), half(params), grads)
    params = jax.tree.map(lambda p, m: jnp.where(finite, m, p), params, moved)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Does not scale the loss, so gradients below the smallest float16 become 0."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    v, grads = jax.value_and_grad(lambda params: loss(params, half(x), y))(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Does not divide the gradients by the scale, so the step is too long."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Returns the scaled loss."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    v, grads = jax.value_and_grad(lambda params: scale * loss(params, half(x), y))(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Chooses with a Python `if`, which needs a value, but the gradients are traced."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    if all(jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)):
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), scale, v
    return params, scale / 2, v


# %% wrong="memory-mixed-precision-step" because="Decides for each parameter by itself, so a step changes some parameters and not others."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(jnp.all(jnp.isfinite(g)), p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Looks at the loss instead of the gradients, but the loss is finite when a gradient overflows."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.isfinite(v * scale)
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Computes in float32, because neither the parameters nor x are cast."
def mixed_precision_step(loss, params, scale, x, y, rate):
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, x, y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(params)
    grads = jax.tree.map(lambda g: g / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Does not cast x, so its float32 values promote the products to float32."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, x, y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Does not reduce the scale after an overflow, so every later step overflows too."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, scale, v


# %% wrong="memory-mixed-precision-step" because="Multiplies by the scale in float16, where a scale above 65504 is infinite."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    f16 = jnp.float16
    scaled = lambda params: (lambda v: (v.astype(f16) * scale.astype(f16), v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Adds up the float16 gradients to test them, and the sum of finite gradients can be infinite."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(lambda p: p.astype(jnp.float16), t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    finite = jnp.isfinite(sum(jnp.sum(g) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Sets a lower limit for the scale, so an overflow at this scale is repeated in every later step."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(jnp.float16, t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, jnp.maximum(scale / 2, 1.0)), v


# %% wrong="memory-mixed-precision-step" because="Tests for NaN only, but a gradient that overflows is infinite."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(jnp.float16, t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = ~jnp.any(jnp.array([jnp.any(jnp.isnan(g)) for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Returns the loss of a second call in float32, instead of the one that is differentiated."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(jnp.float16, t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    new = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return new, jnp.where(finite, scale, scale / 2), loss(params, x, y)


# %% wrong="memory-mixed-precision-step" because="Replaces gradients that are not finite by numbers, and then updates with them instead of skipping the step."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(jnp.float16, t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: p - rate * jnp.nan_to_num(g, nan=0, posinf=0, neginf=0), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Returns the parameters in float16, so small updates are lost."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(jnp.float16, t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), y))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return half(params), jnp.where(finite, scale, scale / 2), v


# %% wrong="memory-mixed-precision-step" because="Casts `y` too, but the loss gets it unchanged."
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda t: jax.tree.map(jnp.float16, t)
    scaled = lambda params: (lambda v: (v * scale, v))(loss(params, half(x), half(y)))
    (_, v), grads = jax.value_and_grad(scaled, has_aux=True)(half(params))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    finite = jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, grads)
    return params, jnp.where(finite, scale, scale / 2), v


# %% right="memory-mixed-precision-step"
def mixed_precision_step(loss, params, scale, x, y, rate):
    def scaled(params):  # the casts are differentiated too, so the gradients are float32
        params, inputs = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), (params, x))
        value = loss(params, inputs, y)
        return value * scale, value

    gradients, value = jax.grad(scaled, has_aux=True)(params)
    gradients = jax.tree.map(lambda g: g / scale, gradients)
    flat = jnp.concatenate([jnp.ravel(g) for g in jax.tree.leaves(gradients)])
    step = lambda: (jax.tree.map(lambda p, g: p - rate * g, params, gradients), scale)
    return *jax.lax.cond(jnp.isfinite(flat).all(), step, lambda: (params, scale / 2)), value


# %% right="memory-mixed-precision-step"
def mixed_precision_step(loss, params, scale, x, y, rate):
    to = lambda tree, dtype: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    value, backward = jax.vjp(lambda p: loss(p, to(x, jnp.float16), y), to(params, jnp.float16))
    (gradients,) = backward(scale)
    gradients = jax.tree.map(lambda g: g / scale, to(gradients, jnp.float32))
    total = sum(jnp.sum(0 * g) for g in jax.tree.leaves(gradients))  # 0 or NaN
    finite = total == 0
    moved = jax.tree.map(
        lambda p, g: jax.lax.select(jnp.broadcast_to(finite, p.shape), p - rate * g, p), params, gradients
    )
    return moved, scale * jnp.where(finite, 1.0, 0.5), value


# %% right="memory-mixed-precision-step"
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float16), tree)
    assert y.dtype == jnp.float32
    scaled = lambda params: (lambda value: (value * scale, value))(loss(params, half(x), jnp.asarray(y, jnp.float32)))
    (_, value), gradients = jax.value_and_grad(scaled, has_aux=True)(half(params))
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, gradients)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - rate * g, p), params, gradients)
    return params, jnp.where(finite, scale, scale / 2), value


# %% right="memory-mixed-precision-step"
def mixed_precision_step(loss, params, scale, x, y, rate):
    half = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float16), tree)
    scaled = lambda params: (lambda value: (value * scale, value))(loss(params, half(x), y))
    (_, value), gradients = jax.value_and_grad(scaled, has_aux=True)(half(params))
    moved = jax.tree.map(lambda p, g: p - rate * (g.astype(jnp.float32) / scale), params, gradients)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(m)) for m in jax.tree.leaves(moved)]))  # NaN and infinity remain
    params = jax.tree.map(lambda p, m: jnp.where(finite, m, p), params, moved)
    return params, jnp.where(finite, scale, scale / 2), value


# %% equivalent="memory-mixed-precision-step" because="`scale` is a float32 array, so the division promotes float16 gradients to float32 and is computed in float32."
# dropped cast, X.astype(Y) -> X: gradients = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, gradients)
# swapped function, float32 -> float16: gradients = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, gradients)


# %% equivalent="memory-mixed-precision-step" because="The scale is finite in both branches, so the product selects as `jnp.where` does."
# product for where, where(X, E, F) -> X * E + (1 - X) * F: return params, jnp.where(finite, scale, scale / 2), value


# %% [markdown] task="memory-offload" stars=3 minutes=25 skills="08_control_flow,memory-remat-block,memory-dots-policy"
# ## Activations in host memory
# *Needs: Deeper: offload to host memory.*
#
# **Goal.** Between the forward and the backward pass of a deep network, move the inputs of layers to the memory of the host, and recompute everything else. The backward pass starts with the last layers, so a copy of their inputs could not be fetched in time. Leave these inputs on the device.
#
# **Signature.** `offload_loss(layer, weights, x, near)`. `weights` is a float32 array of shape `(L, d, d)` with the weights of L layers. `layer(w, x)` maps w of shape `(d, d)` and x of shape `(n, d)` to shape `(n, d)`, such as `tanh_layer` from the setup. `near` is a Python int with 0 < near < L. The function applies the layers in order to `x` with `jax.lax.scan`, and returns `mean_square` of the result. The inputs of the first L - near layers are offloaded. Those of the last `near` layers stay on the device.
#
# **Example.** With `tanh_layer`, `weights` of shape `(6, 4, 4)`, `x` of shape `(8, 4)` and `near = 2`, the inputs of four layers, 4 · 8 · 4 numbers, are in the memory `"pinned_host"`. The residuals on the device are `weights`, the inputs of two layers and, unless it is recomputed, the result of the last layer, which `mean_square` needs.
#
# **Judged.** The value and the gradients for any layer. At most two loops in the forward pass, and a program that does not grow with the number of layers. The bytes of the residuals and the memory that each of them is in, if the device has the memory `"pinned_host"`. Without a gradient, the temporary memory of the compiled loss does not grow with the number of layers, so results of layers are not collected. **Not judged.** Speed, and the memory of the compiled gradient.
#
# <details><summary>Hint 1 · a question</summary>
#
# A policy selects values by their names. How does the input of a layer get a name? Can the body of one `scan` have different policies for different iterations?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Slice the weights and use two scans. The body of the first calls `checkpoint_name` on its carry, and is wrapped by `jax.checkpoint` with the policy `save_and_offload_only_these_names`. What must the body of the second scan store?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The policy takes four keyword arguments, `names_which_can_be_saved=[]`, `names_which_can_be_offloaded=["x"]`, `offload_src="device"` and `offload_dst="pinned_host"`. Use the named carry, the result of `checkpoint_name(x, "x")`, in the rest of the body. For the last `near` layers, `jax.checkpoint` without a policy stores the carry on the device.
#
# </details>


# %% answer="memory-offload"
def offload_loss(layer, weights, x, near):
    """mean_square of all layers applied to x (n, d); the inputs of all but the last `near` layers are offloaded."""
    ### BEGIN SOLUTION
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["x"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def body(x, w):
        return layer(w, checkpoint_name(x, "x")), None

    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights[far:])
    return mean_square(x)
    ### END SOLUTION


# %% check="memory-offload" name="example" points=1 observed=true
"""The example: the value for six layers, and the bytes of the residuals."""


def probe_example(weights, x):
    value, backward = jax.vjp(lambda weights, x: offload_loss(tanh_layer, weights, x, 2), weights, x)
    return {"loss": value, "stored": jax.tree.leaves(backward)}


rng = inputs.rng()
weights, x = rng.normal(size=(6, 4, 4)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)
made, wanted = program(probe_example, weights, x), x
for w in weights:
    wanted = np.tanh(np.sin(wanted @ w))
compare(made.run(weights, x)["loss"], np.float32(np.mean(wanted**2)), rtol=1e-3, label="the loss")
found = (nbytes(made.outputs["stored"]) - weights.nbytes) / x.nbytes
require(
    5.5 < found < 7.5,
    f"In addition to the weights, the residuals have {found:.1f} times the bytes of x; expected 7, for the inputs of six "
    "layers and the last result.",
)

# %% hidden="memory-offload" name="values" points=3
"""The value and the gradients, for another layer, by a program that does not grow with the number of layers."""


def probe_values(weights, x, near):
    layer = lambda w, x: x + jnp.sin(x @ w) * w[0]
    return jax.value_and_grad(lambda weights, x: offload_loss(layer, weights, x, near), argnums=(0, 1))(weights, x)


def probe_value(weights, x, near):
    return offload_loss(lambda w, x: x + jnp.sin(x @ w) * w[0], weights, x, near)


made = {}
for depth, near in ((5, 2), (9, 6)):
    rng = inputs.rng()
    weights, x = (rng.normal(size=(depth, 4, 4)) / 3).astype(np.float32), rng.normal(size=(5, 4)).astype(np.float32)
    taken = [x.astype(np.float64)]
    for w in weights:
        taken.append(taken[-1] + np.sin(taken[-1] @ w) * w[0])
    back, gradients = 2 * taken[-1] / x.size, []
    for w, before in zip(weights[::-1], taken[-2::-1], strict=True):
        angle = before @ w
        inner = back * w[0] * np.cos(angle)
        gradient = before.T @ inner
        gradient[0] += (back * np.sin(angle)).sum(0)
        gradients.insert(0, gradient)
        back = back + inner @ w.T
    with case(f"for another layer than `tanh_layer`, {depth} layers and near = {near}"):
        value, found = program(probe_values, weights, x, near).run(weights, x, near)
        compare(value, np.float32(np.mean(taken[-1] ** 2)), rtol=1e-3, label="the loss")
        compare(found, (np.float32(gradients), np.float32(back)), rtol=1e-3, atol=1e-3, label="the gradients")
        made[depth] = program(probe_value, weights, x, near)
        compare(
            made[depth].run(weights, x, near), np.float32(np.mean(taken[-1] ** 2)), rtol=1e-3, label="the loss alone"
        )
require(
    made[5].operations == made[9].operations,
    "The program grows with the number of layers. Use scans over the weights instead of a Python loop.",
)
loops = made[5].loops
require(1 <= loops <= 2, f"The forward pass has {loops} loops; expected at most two scans over layers.")
rng = inputs.rng()
weights, x = rng.normal(size=(40, 8, 8)).astype(np.float32) / 4, rng.normal(size=(64, 8)).astype(np.float32)
wanted = x
for w in weights:
    wanted = wanted + np.sin(wanted @ w) * w[0]
with case("for 40 layers and near = 30"):
    deep = program(probe_value, weights, x, 30)
    compare(deep.run(weights, x, 30), np.float32(np.mean(wanted**2)), rtol=1e-3, label="the loss alone")
    arrays = round(deep.temp_bytes / x.nbytes)
    require(
        arrays < 20,
        f"without a gradient, the loss needs temporary memory for {arrays} arrays of the size of x. Do not collect the "
        "results of all layers.",
    )

# %% hidden="memory-offload" name="placement" points=2 observed=true
"""Which inputs of layers are in host memory, and that the device stores no other results of layers."""


def probe_placement(weights, x, near, sines):
    def layer(w, x):
        for _ in range(sines):
            x = jnp.sin(x @ w)
        return x

    weights, x = jnp.asarray(weights), jnp.asarray(x)  # a residual that is an argument has a sharding too
    found = stored(lambda weights, x: offload_loss(layer, weights, x, near), weights, x)
    on_host = [np.ravel(leaf) for leaf in found if leaf.sharding.memory_kind == "pinned_host"]
    on_device = sum(leaf.nbytes for leaf in found if leaf.sharding.memory_kind != "pinned_host")
    return np.concatenate(on_host or [np.zeros(0, np.float32)]), on_device


if "pinned_host" not in [memory.kind for memory in jax.devices()[0].addressable_memories()]:
    skip("This device has no memory of the kind pinned_host, so nothing can be offloaded.")
for depth, near, sines in ((4, 1, 3), (9, 6, 1)):
    rng = inputs.rng()
    weights, x = rng.normal(size=(depth, 6, 6)).astype(np.float32) / 2, rng.normal(size=(50, 6)).astype(np.float32)
    taken = [x]
    for w in weights[: depth - near - 1]:
        taken.append(taken[-1])
        for _ in range(sines):
            taken[-1] = np.sin(taken[-1] @ w)
    with case(f"for {depth} layers and near = {near}"):
        on_host, on_device = ask(probe_placement, weights, x, near, sines)
        on_device -= weights.nbytes
        require(on_host.size, "no residual is in the memory pinned_host. If you use a policy, does it find the name?")
        require(
            on_host.nbytes == (depth - near) * x.nbytes,
            f"the residuals in host memory have {on_host.nbytes:,} bytes; expected those of the inputs of {depth - near} "
            f"layers, {x.nbytes:,} bytes each.",
        )
        require(
            np.allclose(np.sort(on_host), np.sort(np.ravel(taken)), rtol=1e-2, atol=1e-2),
            f"the residuals in host memory are not the inputs of the first {depth - near} layers.",
        )
        for words, beyond in (
            ("more", on_device - (near + 1.5) * x.nbytes),
            ("less", (near - 0.5) * x.nbytes - on_device),
        ):
            require(
                beyond < 0,
                f"in addition to the weights, the device stores {words} than the inputs of near = {near} layers and the last "
                "result.",
            )

# %% [markdown] why="memory-offload"
# The policy moves the named value to the host in the forward pass, and the backward pass fetches it back one iteration at a time. While it works on the last `near` layers, whose inputs are on the device, the first copies can already be fetched. **Next:** A layer takes 2 ms and its input has 64 MB. At 50 GB per second, does the copy fit into the time of the layer? How would you choose `near`?


# %% wrong="memory-offload" because="Leaves the inputs of all layers on the device. The policy has to offload a named value, and the layer has to use this value."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )

    def body(x, w):
        checkpoint_name(x, "x")
        return layer(w, x), None

    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights[far:])
    return mean_square(x)


# %% wrong="memory-offload" because="Leaves the inputs of all layers on the device. The policy has to offload a named value, and the layer has to use this value."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["x"], names_which_can_be_offloaded=[], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights[far:])
    return mean_square(x)


# %% wrong="memory-offload" because="Leaves the inputs of all layers on the device. The policy has to offload a named value, and the layer has to use this value."
def offload_loss(layer, weights, x, near):
    body = jax.checkpoint(lambda x, w: (layer(w, x), None))
    return mean_square(jax.lax.scan(body, x, weights)[0])


# %% wrong="memory-offload" because="Leaves the inputs of all layers on the device. The policy has to offload a named value, and the layer has to use this value."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["y"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights[far:])
    return mean_square(x)


# %% wrong="memory-offload" because="Offloads the inputs of all layers, also of those that the backward pass needs first."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    return mean_square(jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights)[0])


# %% wrong="memory-offload" because="Offloads the inputs of all layers, also of those that the backward pass needs first."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    body = jax.checkpoint(body, policy=policy)
    far = len(weights) - near
    x, _ = jax.lax.scan(body, x, weights[:far])
    return mean_square(jax.lax.scan(body, x, weights[far:])[0])


# %% wrong="memory-offload" because="Offloads the inputs of `near` layers, and leaves those of the others on the device."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:near])
    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights[near:])
    return mean_square(x)


# %% wrong="memory-offload" because="Offloads the inputs of the last layers instead of the first ones."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights[:near])
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[near:])
    return mean_square(x)


# %% wrong="memory-offload" because="Does not checkpoint the last layers, so all their residuals are stored on the device."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    return mean_square(jax.lax.scan(body, x, weights[far:])[0])


# %% wrong="memory-offload" because="Checkpoints the last layers together, so only the input of the first of them is stored."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    rest = jax.checkpoint(lambda x, weights: jax.lax.scan(body, x, weights)[0])
    return mean_square(rest(x, weights[far:]))


# %% wrong="memory-offload" because="Names the values but does not use `jax.checkpoint`, and a name alone has no effect."
def offload_loss(layer, weights, x, near):
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    return mean_square(jax.lax.scan(body, x, weights)[0])


# %% wrong="memory-offload" because="Applies layers in a Python loop, so the program grows with their number."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda w, x: layer(w, checkpoint_name(x, "x"))
    for w in weights[: len(weights) - near]:
        x = jax.checkpoint(body, policy=policy)(w, x)
    for w in weights[len(weights) - near :]:
        x = jax.checkpoint(body)(w, x)
    return mean_square(x)


# %% wrong="memory-offload" because="Applies layers in a Python loop, so the program grows with their number."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    for w in weights[far:]:
        x = jax.checkpoint(layer)(w, x)
    return mean_square(x)


# %% wrong="memory-offload" because="Leaves the inputs of all layers on the device. The policy has to offload a named value, and the layer has to use this value."
def offload_loss(layer, weights, x, near):
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="device")
    x = jax.device_put(jax.device_put(x, host), device)
    body = jax.checkpoint(lambda x, w: (layer(w, x), None))
    return mean_square(jax.lax.scan(body, x, weights)[0])


# %% wrong="memory-offload" because="Leaves out the last layers."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, w: (layer(w, checkpoint_name(x, "x")), None)
    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    return mean_square(x)


# %% wrong="memory-offload" because="Offloads the result of each layer's product instead of its input."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    body = lambda x, w: (layer(w, x), None)
    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights[far:])
    return mean_square(x)


# %% wrong="memory-offload" because="Offloads the weights of each layer as well as its input."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["x", "w"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    body = lambda x, w: (layer(checkpoint_name(w, "w"), checkpoint_name(x, "x")), None)
    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    x, _ = jax.lax.scan(jax.checkpoint(body), x, weights[far:])
    return mean_square(x)


# %% wrong="memory-offload" because="Collects the results of all layers to use the last of them, so each of them is stored."
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )

    def body(x, w):
        x = layer(w, checkpoint_name(x, "x"))
        return x, x

    far = len(weights) - near
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights[:far])
    _, results = jax.lax.scan(jax.checkpoint(body), x, weights[far:])
    return mean_square(results[-1])


# %% right="memory-offload"
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["w"],
        names_which_can_be_offloaded=["input of a layer"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def one_layer(x, w):
        x = checkpoint_name(x, "input of a layer")
        return layer(w, x)

    offloaded = jax.remat(one_layer, policy=policy, prevent_cse=False)
    for some, remat in ((weights[:-near], offloaded), (weights[-near:], jax.remat(one_layer, prevent_cse=False))):
        x, _ = jax.lax.scan(lambda x, w, remat=remat: (remat(x, w), None), x, some)
    return mean_square(x)


# %% right="memory-offload"
def offload_loss(layer, weights, x, near):
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="device")

    @jax.custom_vjp
    def network(weights, x):
        return jax.lax.scan(lambda x, w: (layer(w, x), None), x, weights)[0]

    def forward(weights, x):
        last, taken = jax.lax.scan(lambda x, w: (layer(w, x), x), x, weights)
        return last, (weights, jax.device_put(taken[:-near], host), taken[-near:])

    def backward(residuals, g):
        weights, far, close = residuals
        inputs = jnp.concatenate([jax.device_put(far, device), close])
        body = lambda g, each: jax.vjp(layer, *each)[1](g)[::-1]
        g, for_weights = jax.lax.scan(body, g, (weights, inputs), reverse=True)
        return for_weights, g

    network.defvjp(forward, backward)
    return mean_square(network(weights, x))


# %% right="memory-offload"
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    body = lambda x, i: (layer(weights[i], checkpoint_name(x, "x")), None)
    far, close = jnp.split(jnp.arange(len(weights)), [len(weights) - near])
    x, _ = jax.lax.scan(jax.checkpoint(body, policy=policy), x, far)
    return mean_square(jax.lax.scan(jax.checkpoint(body), x, close)[0])


# %% right="memory-offload"
def offload_loss(layer, weights, x, near):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["close"],
        names_which_can_be_offloaded=["far"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def loss(weights, x):
        for name, some in (("far", weights[:-near]), ("close", weights[-near:])):
            x, _ = jax.lax.scan(lambda x, w, name=name: (layer(w, checkpoint_name(x, name)), None), x, some)
        return mean_square(x)

    return jax.checkpoint(loss, policy=policy)(weights, x)


# %% [markdown] task="memory-remat-scan" stars=3 minutes=30 skills="08_control_flow,14_profiling,memory-remat-block"
# ## The gradient of a long simulation
# *Needs: Deeper: segments.*
#
# **Goal.** A simulation has thousands of steps, and its gradient has to go back through all of them. Store the state at the start of each segment of the simulation, and recompute the steps of one segment at a time.
#
# **Signature.** `simulate(step, params, state, forces, segment)`. `step(params, state, force)` returns the next state, an array with the shape of `state`, as `pendulum` from the setup does. `forces` has shape `(n, ...)`, and step i gets `forces[i]`. `segment` is a Python int, the number of steps of a segment. The result is the state after n steps. If `segment` does not divide n, the last segment is shorter. If n is less than `segment`, this segment is the only one.
#
# **Example.** For n = 250 steps and `segment = 16`, there are 15 segments of 16 steps and one of 10. The residuals are `params`, `forces` and the 16 states at the starts of the segments. The gradient of a scan alone stores several arrays for each of the 250 steps.
#
# **Judged.** The result, and the gradients with respect to `params`, `state` and `forces`. The residuals have the bytes of `params` and `forces`, which may be padded, stored once, and of a state for each segment, or one state more or less. The compiled gradient needs temporary memory for about these states and the residuals of one segment. The program does not grow with n or `segment`. **Not judged.** Speed, and a few numbers for each step, such as a mask.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which function should `jax.checkpoint` wrap, so that the input of this function is the state at the start of a segment?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Use a scan in a scan, where `jax.checkpoint` wraps the body of the outer one. All iterations of the outer scan need forces of the same shape. How can the shorter segment be run?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# With `whole = n // segment * segment`, reshape `forces[:whole]` to `(n // segment, segment, ...)` for the outer scan, whose body is an inner scan over one segment. Which function can also run the steps of `forces[whole:]`? Or pad `forces` to a multiple of `segment`, and leave the state unchanged in the additional steps.
#
# </details>


# %% answer="memory-remat-scan"
def simulate(step, params, state, forces, segment):
    """The state after all steps. The backward pass stores the state at the start of each segment of steps."""

    ### BEGIN SOLUTION
    @jax.checkpoint
    def run_segment(state, forces):
        return jax.lax.scan(lambda state, force: (step(params, state, force), None), state, forces)[0]

    whole = len(forces) // segment * segment
    segments = forces[:whole].reshape(-1, segment, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: (run_segment(state, forces), None), state, segments)
    return run_segment(state, forces[whole:])
    ### END SOLUTION


# %% check="memory-remat-scan" name="example" points=1 observed=true
"""The example: 250 steps of pendulums in segments of 16, and the bytes of the residuals."""


def probe_example(params, state, forces):
    result, backward = jax.vjp(lambda *args: simulate(pendulum, *args, 16), params, state, forces)
    return {"result": result, "stored": jax.tree.leaves(backward)}


rng = inputs.rng()
params = {name: rng.uniform(least, least + 1, 50).astype(np.float32) for name, least in (("length", 1), ("damping", 0))}
state, forces = rng.normal(size=(2, 50)).astype(np.float32), rng.normal(size=(250, 50)).astype(np.float32)
made, (angle, speed) = program(probe_example, params, state, forces), state.astype(np.float64)
for force in forces:
    speed = speed + 0.01 * (force - np.sin(angle) / params["length"] - params["damping"] * speed)
    angle = angle + 0.01 * speed
got = made.run(params, state, forces)["result"]
compare(got, np.float32([angle, speed]), rtol=1e-3, atol=1e-3, label="the state after 250 steps")
found = nbytes(made.outputs["stored"]) - nbytes(params) - forces.nbytes
require(
    found < 18.9 * state.nbytes + 512,
    f"In addition to `params` and `forces`, which are stored once, the residuals have {found:,} bytes; expected 16 states "
    f"of {state.nbytes} bytes.",
)

# %% hidden="memory-remat-scan" name="values" points=3
"""The result and the gradients, by a program that is the same for any number of steps and any segment."""


def probe_gradients(params, state, forces, segment):
    step = lambda params, state, force: state + params * jnp.sin(state + force[:, None])

    def squared(params, state, forces):
        result = simulate(step, params, state, forces, segment)
        return jnp.sum(result**2), result

    return jax.value_and_grad(squared, argnums=(0, 1, 2), has_aux=True)(params, state, forces)


made = {}
for n, segment in ((14, 4), (41, 7), (12, 4), (35, 7), (3, 5), (5, 1)):
    rng = inputs.rng()
    params, state = (rng.normal(size=3) / 4).astype(np.float32), rng.normal(size=(2, 3)).astype(np.float32)
    forces = rng.normal(size=(n, 2)).astype(np.float32)
    states = [state.astype(np.float64)]
    for force in forces:
        states.append(states[-1] + params * np.sin(states[-1] + force[:, None]))
    back, by_params, by_forces = 2 * states[-1], 0, []
    for before, force in zip(states[-2::-1], forces[::-1], strict=True):
        by_params = by_params + (back * np.sin(before + force[:, None])).sum(0)
        pulled = back * params * np.cos(before + force[:, None])
        by_forces.insert(0, pulled.sum(1))
        back = back + pulled
    with case(f"for {n} steps in segments of {segment}"):
        made[n] = program(probe_gradients, params, state, forces, segment)
        (_, result), gradients = made[n].run(params, state, forces, segment)
        compare(result, np.float32(states[-1]), rtol=1e-3, atol=1e-3, label="the last state")
        wanted = tuple(map(np.float32, (by_params, back, by_forces)))
        compare(gradients, wanted, rtol=2e-3, atol=2e-3, label="the gradients")
for few, many in ((14, 41), (12, 35)):
    require(
        made[many].operations < made[few].operations + 12,  # a size of 1 or 0 changes a few
        "The program has more operations for a longer simulation. Use one scan over all whole segments, neither unrolled nor "
        "over slices that are made in Python.",
    )

# %% hidden="memory-remat-scan" name="memory" points=1 observed=true
"""The bytes of the residuals, and the temporary memory of the compiled gradient."""


def probe_memory(params, state, forces, segment):
    def step(params, state, force):
        for _ in range(4):
            state = state + 0.01 * jnp.sin(params * state + force)
        return state

    result, backward = jax.vjp(lambda *args: simulate(step, *args, segment), params, state, forces)
    return {"result": result, "gradients": backward(jnp.ones_like(state))}


def probe_residuals(params, state, forces, segment):
    def step(params, state, force):
        for _ in range(4):
            state = state + 0.01 * jnp.sin(params * state + force)
        return state

    result, backward = jax.vjp(lambda *args: simulate(step, *args, segment), params, state, forces)
    return {"result": result, "stored": jax.tree.leaves(backward)}


for n, segment, shape in ((307, 20, ()), (240, 8, (400,))):
    rng = inputs.rng()
    params, state = np.float32(rng.uniform(0.5, 1, shape)), rng.normal(size=400).astype(np.float32)
    forces = rng.normal(size=n).astype(np.float32)
    wanted = state
    for force in forces:
        for _ in range(4):
            wanted = wanted + np.float32(0.01) * np.sin(params * wanted + force)
    with case(f"for {n} steps in segments of {segment}{' and `params` of the shape of `state`' if shape else ''}"):
        made = program(probe_residuals, params, state, forces, segment)
        got = made.run(params, state, forces, segment)["result"]
        compare(got, wanted, rtol=1e-3, atol=1e-3, label="the last state")
        states, segments = (nbytes(made.outputs["stored"]) - nbytes([params, forces])) / state.nbytes, -(-n // segment)
        for words, beyond in (("many", states - segments - 2.5), ("few", segments - 1.5 - states)):
            require(
                beyond < 0,
                f"the residuals have too {words} bytes; expected those of `params`, `forces` and of {segments} states, one for "
                "each segment.",
            )
        made = program(probe_memory, params, state, forces, segment)
        got = made.run(params, state, forces, segment)["result"]
        compare(got, wanted, rtol=1e-3, atol=1e-3, label="the last state")
        found, most = round(made.temp_bytes / state.nbytes), 2 * (segments + 10 * segment)
        require(
            found < most,
            f"the compiled gradient needs temporary memory for {found} states; {segments} segments and the residuals of one "
            f"of them need less than {most}.",
        )

# %% [markdown] why="memory-remat-scan"
# The backward pass needs the states at the starts of the segments and the residuals of one segment, instead of the residuals of all steps. With segments of √n steps, both are proportional to √n, and each step is computed twice. **Next:** With `jax.checkpoint` around the step as well, how often is each step computed, and what is stored for a segment?


# %% wrong="memory-remat-scan" because="Stores the state of every step, because the segments are not checkpointed."
def simulate(step, params, state, forces, segment):
    body = jax.checkpoint(lambda state, f: (step(params, state, f), None))
    return jax.lax.scan(body, state, forces)[0]


# %% wrong="memory-remat-scan" because="Checkpoints the whole simulation. Then the residuals of all steps are stored while it is recomputed."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(params, state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    return run(params, state, forces)


# %% wrong="memory-remat-scan" because="Uses no `jax.checkpoint`, so the residuals of every step are stored."
def simulate(step, params, state, forces, segment):
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    return run(state, forces[w:])


# %% wrong="memory-remat-scan" because="Swaps the number of segments and the number of steps in a segment."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(segment, -1, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    return run(state, forces[w:])


# %% wrong="memory-remat-scan" because="Loops over the segments in Python, so the program grows with their number."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    for start in range(0, len(forces), segment):
        state = run(state, forces[start : start + segment])
    return state


# %% wrong="memory-remat-scan" because="Stores the state of every step, because the segments are not checkpointed."
def simulate(step, params, state, forces, segment):
    body = jax.checkpoint(lambda state, f: (step(params, state, f), None))
    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: jax.lax.scan(body, state, forces), state, parts)
    return jax.lax.scan(body, state, forces[w:])[0]


# %% wrong="memory-remat-scan" because="Stops the gradient at the start of each segment, so only the last segment contributes to the gradients."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        state = jax.lax.stop_gradient(state)
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    return run(state, forces[w:])


# %% wrong="memory-remat-scan" because="Pairs each step with a force of another segment, because the reshaped forces are transposed."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(segment, -1, *forces.shape[1:]).swapaxes(0, 1)
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    return run(state, forces[w:])


# %% wrong="memory-remat-scan" because="Reshapes the forces to two axes, which fails or mixes them up if a force is an array."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment)
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    return run(state, forces[w:])


# %% wrong="memory-remat-scan" because="Uses no `jax.checkpoint`, so the residuals of every step are stored."
def simulate(step, params, state, forces, segment):
    return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]


# %% wrong="memory-remat-scan" because="Stops the gradient with respect to `params`, which is 0 then."
def simulate(step, params, state, forces, segment):
    params = jax.lax.stop_gradient(params)

    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    return run(state, forces[w:])


# %% wrong="memory-remat-scan" because="Stops the gradient with respect to `forces`, which is 0 then."
def simulate(step, params, state, forces, segment):
    forces = jax.lax.stop_gradient(forces)

    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    return run(state, forces[w:])


# %% wrong="memory-remat-scan" because="Unrolls the loop over the steps of a segment, so the program grows with `segment`."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces, unroll=segment)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    return run(state, forces[w:])


# %% wrong="memory-remat-scan" because="Reshapes all forces into segments, which fails if `segment` does not divide their number."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    parts = forces.reshape(-1, segment, *forces.shape[1:])
    return jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)[0]


# %% wrong="memory-remat-scan" because="Reshapes all forces into segments, which fails if `segment` does not divide their number."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    parts = forces.reshape(len(forces) // segment, segment, *forces.shape[1:])
    return jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)[0]


# %% wrong="memory-remat-scan" because="Leaves out the steps after the last whole segment."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    return jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)[0]


# %% wrong="memory-remat-scan" because="Pads the forces with zeros and runs these steps too, which moves the state after the last step."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    count = -(-len(forces) // segment)
    padding = [(0, count * segment - len(forces))] + [(0, 0)] * (forces.ndim - 1)
    parts = jnp.pad(forces, padding).reshape(count, segment, *forces.shape[1:])
    return jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)[0]


# %% wrong="memory-remat-scan" because="Runs the remaining steps in a Python loop, so the program grows with their number."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    state, _ = jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)
    for force in forces[w:]:
        state = step(params, state, force)
    return state


# %% wrong="memory-remat-scan" because="Runs the remaining steps first, but they are the last ones."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, forces):
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]

    rest = len(forces) % segment
    state = run(state, forces[len(forces) - rest :])
    parts = forces[: len(forces) - rest].reshape(-1, segment, *forces.shape[1:])
    return jax.lax.scan(lambda state, forces: (run(state, forces), None), state, parts)[0]


# %% wrong="memory-remat-scan" because="Names the states but checkpoints the whole simulation, so the residuals of all steps are stored while it is recomputed."
def simulate(step, params, state, forces, segment):
    def run(state, forces):
        state = checkpoint_name(state, "start")
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0], None

    def whole_run(params, state, forces):
        w = len(forces) // segment * segment
        parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
        return run(jax.lax.scan(run, state, parts)[0], forces[w:])[0]

    policy = jax.checkpoint_policies.save_only_these_names("start")
    return jax.checkpoint(whole_run, policy=policy)(params, state, forces)


# %% wrong="memory-remat-scan" because="Stores a copy of `params` for each segment. The body can read them without a carry or an input."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(carry, forces):
        params, state = carry
        return (params, jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0]), None

    w = len(forces) // segment * segment
    parts = forces[:w].reshape(-1, segment, *forces.shape[1:])
    carry, _ = jax.lax.scan(run, (params, state), parts)
    return run(carry, forces[w:])[0][1]


# %% wrong="memory-remat-scan" because="Stores a copy of `params` for each segment. The body can read them without a carry or an input."
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run(state, inputs):
        params, forces = inputs
        return jax.lax.scan(lambda state, f: (step(params, state, f), None), state, forces)[0], None

    count = len(forces) // segment
    parts = forces[: count * segment].reshape(count, segment, *forces.shape[1:])
    copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), params)
    state, _ = jax.lax.scan(run, state, (copies, parts))
    return run(state, (params, forces[count * segment :]))[0]


# %% wrong="memory-remat-scan" because="Calls a jitted segment in a Python loop, so the program grows with the number of segments."
def simulate(step, params, state, forces, segment):
    whole = len(forces) // segment

    def run(params, state, forces):
        return jax.lax.scan(lambda state, force: (step(params, state, force), None), state, forces)[0]

    @jax.jit
    @jax.checkpoint
    def run_segment(params, state, forces, i):
        return run(params, state, jax.lax.dynamic_slice_in_dim(forces, i * segment, segment))

    for i in range(whole):
        state = run_segment(params, state, forces, i)
    return jax.checkpoint(run)(params, state, forces[whole * segment :])


# %% right="memory-remat-scan"
def simulate(step, params, state, forces, segment):
    one = jax.checkpoint(lambda state, force: (step(params, state, force), None))
    many = jax.checkpoint(lambda state, forces: (jax.lax.scan(one, state, forces)[0], None))
    rest = len(forces) % segment
    first, last = forces[: len(forces) - rest], forces[len(forces) - rest :]
    state, _ = jax.lax.scan(many, state, first.reshape(len(first) // segment, segment, *forces.shape[1:]))
    return many(state, last)[0] if rest else state


# %% right="memory-remat-scan"
def simulate(step, params, state, forces, segment):
    @jax.checkpoint
    def run_segment(params, state, start):
        def body(state, i):
            index = jnp.minimum(start + i, len(forces) - 1)
            return jnp.where(start + i < len(forces), step(params, state, forces[index]), state), None

        return jax.lax.scan(body, state, jnp.arange(segment))[0]

    starts = jnp.arange(0, forces.shape[0], segment)
    return jax.lax.scan(lambda state, start: (run_segment(params, state, start), None), state, starts)[0]


# %% right="memory-remat-scan"
def simulate(step, params, state, forces, segment):
    count = -(-len(forces) // segment)
    padding = [(0, count * segment - len(forces))] + [(0, 0)] * (forces.ndim - 1)
    padded = jnp.pad(forces, padding).reshape(count, segment, *forces.shape[1:])
    used = (jnp.arange(count * segment) < len(forces)).reshape(count, segment)

    def body(state, one):
        force, use = one
        return jnp.where(use, step(params, state, force), state), None

    run_segment = jax.checkpoint(lambda state, some: (jax.lax.scan(body, state, some)[0], None))
    return jax.lax.scan(run_segment, state, (padded, used))[0]
