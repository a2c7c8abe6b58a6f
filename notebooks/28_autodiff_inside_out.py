# %% [markdown]
# # 28 · Autodiff inside out
#
# *The core takes about 35 minutes. Nine "Deeper" sections can be skipped. Then do [the exercises](../exercises/28_autodiff_inside_out/28_autodiff_inside_out.ipynb). The last two need the Deeper sections about primitives and shardings.* After the core, you can run forward and backward passes as separate programs in any order, add gradients in place, log from the backward pass, and define your own differentiation rules.
#
# **Prerequisites.** `jax.vjp` and custom rules (lesson 04 and its *Deeper: a backward pass of your own*), Refs (12), residuals (15). Try to answer these questions from memory.
#
# 1. From 15: What is a residual?
#
# <details><summary>Answer</summary>
#
# A value of the forward pass that is stored because the backward pass needs it.
# </details>
#
# 2. From 12: What happens to a Ref that is an argument of a compiled function?
#
# <details><summary>Answer</summary>
#
# The function changes it in place, and the caller sees the new values.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: one section uses eight simulated devices

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.experimental.hijax import VJPHiPrimitive
from jax.test_util import check_grads

from grader.learning import plots
from grader.learning.inspection import list_collectives, primitives, print_error, time_ms

# %% [markdown]
# ## What `jax.vjp` returns
# `jax.grad` runs both passes in one call. If a model is split over machines (lesson 21), a machine runs several forward passes before it receives the first gradient. `jax.vjp` runs the forward pass and returns the value and an object. A call of this object runs the backward pass. **What does it contain?**

# %%
_, small = jax.vjp(lambda x: x * jnp.sin(x), jnp.float32(2.0))  # the derivative is sin x + x cos x
print(type(small).__name__, "with", len(jax.tree.leaves(small)), "leaves")
print("an argument:", small.args_res, "  computed:", small.opaque_residuals)
print("sin(2) =", jnp.sin(2.0), "  cos(2) =", jnp.cos(2.0))
print("linear program:", [str(equation.primitive) for equation in small.jaxpr.eqns])

# %% [markdown]
# A **[VJP object](../docs/glossary.md#vjp-object)** is a pytree. Its leaves are the residuals, in two groups. `args_res` has an entry for each argument. `opaque_residuals` contains what the forward pass has computed for the backward pass. The rest of the object is its tree structure, which contains a jaxpr. This jaxpr maps the tangents of the arguments to the tangent of the result, and is linear.


# %%
def stage(params, x):
    """One stage of a network: {"w": (d, h), "b": (h,), "v": (h, d)}, x (n, d) -> (n, d)"""
    return x + jnp.sin(x @ params["w"] + params["b"]) @ params["v"]


rng = np.random.default_rng(28)
draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5, jnp.float32)
params, x = {"w": draw(64, 256), "b": draw(256), "v": draw(256, 64)}, draw(128, 64)
y, vjp = jax.vjp(stage, params, x)
print("arguments it needs:", jax.tree.map(jnp.shape, vjp.args_res))
print("other residuals:   ", [leaf.shape for leaf in vjp.opaque_residuals])
print("the argument x itself is stored:", vjp.args_res[1] is x)

# %% [markdown]
# A dict becomes a tuple, sorted by key, so the first entry contains `b`, `v` and `w`. An array that is not needed, such as the bias, is replaced by `NotNeeded()`. Without `jit`, these residuals are the arguments themselves and need no extra memory. The other residuals are the sine, for the gradient of `v`, and the cosine, its derivative.

# %%
print("linear program:", [str(equation.primitive) for equation in vjp.jaxpr.eqns])
print("backward pass: ", primitives(vjp, y))

# %% [markdown]
# The backward pass runs the linear program from the end to the beginning and *transposes* each operation (lesson 04). For example, the transpose of `t @ w`, for a tangent t, is `g @ w.T`, for a cotangent g.
#
# You can call the object many times, also under `vmap`.

# %%
rows = jax.vmap(lambda i: vjp(jnp.zeros_like(y).at[0, i].set(1.0))[1])(jnp.arange(3))  # three rows of the Jacobian
print("three backward passes at once:", rows.shape)

# %% [markdown] predict="autodiff-compiles"
# ## Two programs
# A VJP object can be an argument of a compiled function. We run `jax.vjp(stage, params, x)` for five micro-batches without `jit`, and pass each object to the same compiled `backward`. How many times is `backward` compiled?
#
# - [ ] once, because all shapes are equal | The cache key also contains the tree structure, and each call of `jax.vjp` traces a new jaxpr.
# - [x] five times | Right. Each call of `jax.vjp` traces `stage` again, and the new jaxpr is part of the tree structure.
# - [ ] never, because a VJP object is compiled already | The object contains a jaxpr, which is not compiled.


# %%
def run_backward(forward, micro_batches):
    traced = []

    @jax.jit
    def backward(vjp, g):
        traced.append(1)  # runs only while JAX traces
        return vjp(g)

    for x in micro_batches:
        y, vjp = forward(params, x)
        backward(vjp, y)
    return len(traced)


# %% [markdown]
# We pass the plain `jax.vjp`, and a compiled one.

# %%
micro_batches = [draw(128, 64) for _ in range(5)]
plain, compiled = functools.partial(jax.vjp, stage), jax.jit(functools.partial(jax.vjp, stage))
print("without jit:", run_backward(plain, micro_batches), " compiled:", run_backward(compiled, micro_batches))

# %% [markdown]
# **Compile the forward pass too.** It is traced once, so all its VJP objects have the same tree structure. `jax.fwd_and_bwd` returns both compiled functions.

# %%
forward, backward = jax.fwd_and_bwd(stage, argnums=(0, 1))
y, vjp = forward(params, x)
by_params, by_x = backward(vjp, y)
expected = jax.vjp(stage, params, x)[1](y)[0]["w"]
print("largest difference:", jnp.abs(by_params["w"] - expected).max())
same_memory = vjp.args_res[0][2].unsafe_buffer_pointer() == params["w"].unsafe_buffer_pointer()
print("the weights in the VJP object share the memory of the parameters:", same_memory)
one_program = jax.jit(lambda params, x: jax.vjp(stage, params, x)[1](y))
times = time_ms(
    lambda: one_program(params, x), lambda: backward(forward(params, x)[1], y), lambda: plain(params, x)[1](y)
)
print("one program {:.2f} ms, two programs {:.2f} ms, without jit {:.2f} ms".format(*times))

# %% [markdown]
# On an idle machine, two compiled programs take slightly longer than one. Without `jit`, each call traces `stage` again.
#
# A compiled function returns new arrays, so a VJP object that it returns contains *copies* of the arguments that the backward pass needs. *Deeper: weights that are not copied* avoids them.
#
# ![A forward program takes the parameters and a micro-batch. It returns y and a VJP object, a pytree. The leaves of the object are the needed arguments and other residuals, and its tree structure contains the linear jaxpr. A backward program takes the object and the cotangent of y, and returns the cotangents of parameters and micro-batch. Below, a queue of VJP objects in 1F1B order: the passes F0, F1, B0, F2, B1, F3, B2, B3 store one, two, one, two, one, two, one and no objects.](../images/autodiff_vjp_object.svg)
#
# ## A schedule of your own
# With separate programs, the order of the passes is a Python loop. Two schedules are common (lesson 21). *GPipe* runs all forward passes first, and *1F1B* starts backward passes as early as possible. We run both for one stage with twelve *micro-batches*, the parts of a batch, and measure the bytes of the stored sines and cosines after each pass.


# %%
def run(order, micro_batches):
    waiting, stored, total = {}, [], jax.tree.map(jnp.zeros_like, params)
    for kind, i in order:
        if kind == "F":
            _, waiting[i] = forward(params, micro_batches[i])
        else:
            gradients, _ = backward(waiting.pop(i), jnp.ones((128, 64)))  # a real stage receives this cotangent
            total = jax.tree.map(jnp.add, total, gradients)
        # only the sines and cosines have this shape, and no argument
        stored.append(sum(array.nbytes for array in jax.live_arrays() if array.shape == (128, 256)))
    return total, np.array(stored) / 1e6


# %% [markdown]
# A VJP object frees its residuals when the last reference to it is gone.

# %%
many, ahead = [draw(128, 64) for _ in range(12)], 3
gpipe = [("F", i) for i in range(12)] + [("B", i) for i in range(12)]
one_f_one_b = [("F", i) for i in range(ahead)]
for i in range(12):
    one_f_one_b += [("B", i)] + [("F", i + ahead)] * (i + ahead < 12)
del vjp, y, by_params, by_x  # so that their residuals are freed, too
_, axes = plots.subplots(height=2.4)
results = {"GPipe": run(gpipe, many), "1F1B": run(one_f_one_b, many)}
outside = min(stored.min() for _, stored in results.values())  # objects of earlier cells
for (name, (_, stored)), marker in zip(results.items(), "os", strict=True):
    axes.plot(np.arange(1, 25), stored - outside, marker=marker, markersize=4, label=name)
axes.set(xlabel="passes that have run", ylabel="sines and cosines, MB")
axes.legend()
difference = jnp.abs(results["GPipe"][0]["w"] - results["1F1B"][0]["w"]).max()
peaks = ", ".join(f"{name} {(stored - outside).max():.2f} MB" for name, (_, stored) in results.items())
print(f"largest: {peaks}. Difference of the gradients: {difference:.1e}")
plots.show(f"Bytes of computed residuals after each of 24 passes. The largest value of each schedule: {peaks}.")

# %% [markdown]
# GPipe stores the residuals of up to twelve micro-batches, and 1F1B those of three. The gradients are equal.

# %% [markdown] predict="autodiff-refs-memory"
# ## Gradients that are added in place
# A step adds the gradients of many micro-batches to one buffer (lesson 09, *Deeper*). Our network has 16 equal layers, stacked and run by a `scan`. For one micro-batch, a compiled function calls the VJP object and adds the result to a Ref in place. How much temporary memory does it need?
#
# - [ ] almost none, because the Ref is updated in place | The gradient that the VJP object returns is a separate array.
# - [x] as much as all parameters, or more | Right. The backward loop over the layers stacks their gradients, and the complete stack is then added.
# - [ ] as much as one layer | The backward loop could add the gradient of one layer at a time. But the VJP object returns the gradients of all layers.


# %%
def loss(layers, x):
    return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)[0] ** 2)


@functools.partial(jax.jit, static_argnames="in_place")
def add_gradient(layers, total_ref, batch, in_place):
    value, vjp = jax.vjp(loss, layers, batch)
    if in_place:
        vjp.with_refs(total_ref, jax.ad.DontWant())(jnp.ones_like(value))
    else:
        total_ref[...] += vjp(jnp.ones_like(value))[0]
    return value


# %% [markdown]
# We add the gradients of four micro-batches in both ways.

# %%
layers, batches = jnp.stack([draw(128, 128) for _ in range(16)]), [draw(8, 128) for _ in range(4)]
totals = []
for in_place in (False, True):
    totals.append(jax.new_ref(jnp.zeros_like(layers)))
    made = add_gradient.lower(layers, totals[-1], batches[0], in_place).compile().memory_analysis()
    for batch in batches:
        add_gradient(layers, totals[-1], batch, in_place)
    print(f"with_refs: {in_place!s:5}  temporary memory / parameters: {made.temp_size_in_bytes / layers.nbytes:.2f}")
print("largest difference:", jnp.abs(totals[0][...] - totals[1][...]).max())

# %% [markdown]
# **`with_refs` passes the Ref on to the rules of the backward pass.** The backward loop over the layers adds the gradient of a layer to its slice of the Ref, so a complete gradient never exists. Most of the memory that is left stores the residuals and the gradient of one layer.
#
# `with_refs` takes one entry for each argument: a tree of Refs, `jax.ad.DontWant()` to compute no cotangent, or `jax.ad.GradValue()` for a cotangent that is returned. Its result is a function, which you call with the cotangent.

# %%
value, vjp = jax.vjp(loss, layers, batches[0])
total = jax.new_ref(jnp.zeros_like(layers))
placeholder, by_batch = vjp.with_refs(total, jax.ad.GradValue())(jnp.ones_like(value))
print("returned:", placeholder, by_batch.shape, "  in the Ref:", jnp.linalg.norm(total[...]))
print_error(lambda: vjp.with_refs(total, jax.ad.GradValue())(jnp.ones(3)))
print_error(lambda: vjp.with_refs(jax.new_ref(jnp.zeros(3)), jax.ad.DontWant())(jnp.ones_like(value)))
print_error(lambda: vjp.with_refs(total)(jnp.ones_like(value)))  # an entry is missing

# %% [markdown]
# In JAX 0.10.2, the errors for a Ref of another shape and for too few entries have no message.
#
# ## Log from the backward pass
# In deep networks, cotangents may vanish or explode, but they exist only inside the backward pass. To log one, apply a `jax.custom_vjp` function that returns its argument unchanged. Its backward rule receives the cotangent at this point of the network. The rule can write to a Ref, because `jax.custom_vjp` allows Refs as arguments and as residuals.


# %%
@jax.custom_vjp
def log_cotangent(ref, x):
    return x


def log_backward(ref, g):
    ref[...] = jnp.stack([jnp.linalg.norm(g), jnp.abs(g).max()])
    return None, g  # no cotangent for the Ref, and the cotangent that arrived


log_cotangent.defvjp(lambda ref, x: (x, ref), log_backward)


# %% [markdown]
# Here, the network has one Ref for each layer. Such a rule also works in a `scan`. The cotangent of an integer argument is None.


# %%
@jax.jit
def logged_loss_gradient(layers, x):
    refs = [jax.new_ref(jnp.zeros(2)) for _ in layers]

    def loss(layers):
        result = x
        for ref, w in zip(refs, layers, strict=True):
            result = log_cotangent(ref, jnp.tanh(result @ w))
        return jnp.mean(result**2)

    gradient = jax.grad(loss)(layers)
    return gradient, jnp.stack([ref[...] for ref in refs])


# %% [markdown]
# We scale the initial weights by three factors, and also print the norms of two gradients.

# %%
_, axes = plots.subplots(height=2.4)
described = []
for scale, marker in ((0.7, "o"), (1.0, "s"), (1.5, "^")):
    gradient, logged = logged_loss_gradient(scale * layers, batches[0])
    first, last = jnp.linalg.norm(gradient[0]), jnp.linalg.norm(gradient[-1])
    print(f"weights x {scale}: norm of the gradient {first:.1e} in the first layer, {last:.1e} in the last")
    axes.plot(logged[:, 0], marker=marker, markersize=4, label=f"weights x {scale}")
    described.append(f"{scale}: from {logged[0, 0]:.1e} in the first to {logged[-1, 0]:.1e} in the last layer")
axes.set(yscale="log", xlabel="layer", ylabel="norm of the cotangent")
axes.legend()
plots.show(
    f"The norm of the cotangent of the result of each layer, for initial weights with a factor. {'; '.join(described)}."
)

# %% [markdown]
# With the factor 0.7, the cotangent of the first layer is about 50 times smaller than that of the last. Its gradient is nevertheless larger. The gradient of a weight matrix is the product of a layer's input and a cotangent, and the inputs shrink in the opposite direction. So log cotangents and gradients before you change an initialization.
#
# ## Rules of your own
# Your own rule helps if operations overflow, store too much, or cannot be differentiated. Our example is an equation that is solved by iteration. Kepler's equation E - e sin(E) = M describes the orbit of a planet. The number e determines the shape of the orbit, the angle M the time, and the angle E the position of the planet. We solve for E, and need its derivatives with respect to e and M.


# %%
def newton(residual, start):
    """A zero of residual(x), by Newton's method in a while_loop, which reverse mode cannot differentiate"""
    step = lambda x: x - residual(x) / jax.grad(residual)(x)
    not_done = lambda state: jnp.abs(state[1] - state[0]) > 1e-6
    return jax.lax.while_loop(not_done, lambda state: (state[1], step(state[1])), (start, step(start)))[1]


kepler = lambda E, e, M: E - e * jnp.sin(E) - M
print("E:", E := newton(lambda E: kepler(E, 0.3, 1.0), jnp.float32(1.0)), "  residual:", kepler(E, 0.3, 1.0))
print_error(lambda: jax.grad(lambda M: newton(lambda E: kepler(E, 0.3, M), M))(1.0), length=160)

# %% [markdown]
# The **[implicit](../docs/glossary.md#implicit-differentiation)** derivative needs no iterations. From g(x, params) = 0 follows dx = -(∂g/∂x)⁻¹ ∂g/∂params dparams. For a number x, the backward rule divides the cotangent by the derivative ∂g/∂x. For a vector x, it solves a linear system with the transposed matrix: (∂g/∂x)ᵀ w = cotangent. Then w takes the place of the quotient.
#
# `nondiff_argnums=(0,)` declares that `g`, a function, is not differentiated. The backward rule gets it as its first argument.


# %%
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def root(g, params, start):
    return newton(lambda x: g(x, params), start)


def root_forward(g, params, start):
    x = root(g, params, start)  # `root`, not `newton`: the rule is then differentiable, too
    return x, (params, x)


def root_backward(g, residuals, cotangent):
    params, x = residuals
    slope = jax.grad(g)(x, params)
    _, vjp = jax.vjp(lambda params: g(x, params), params)
    return vjp(-cotangent / slope)[0], jnp.zeros_like(x)  # the start does not matter


root.defvjp(root_forward, root_backward)

# %% [markdown]
# We compute both derivatives, and the second derivative with respect to M.

# %%
solve = lambda e, M: root(lambda E, p: kepler(E, *p), (e, M), M)
print("dE/de, dE/dM:", *jax.grad(solve, argnums=(0, 1))(0.3, 1.0))
print("second derivative:", jax.grad(jax.grad(solve, 1), 1)(0.3, 1.0))
check_grads(solve, (0.3, 1.0), order=2, modes=("rev",), rtol=0.02, eps=0.05)
print("agrees with finite differences up to the second order")

# %% [markdown]
# `check_grads` compares a rule with finite differences. **Always check the second order as well.** With `newton` instead of `root` in the forward rule, only first derivatives would work.
#
# A rule returns cotangents for its arguments only. A value that `g` closes over is not an argument. If it is traced, JAX raises an `UnexpectedTracerError`, whose message mentions a side effect. `jax.closure_convert` returns a function that takes such values as further arguments, and a list of the values. We add them to the parameters.

# %%
closing_over = lambda e, M: root(lambda E, M: kepler(E, e, M), M, M)  # e is not in params
print_error(lambda: jax.grad(closing_over)(0.3, 1.0), length=140)


def safe_root(g, params, start):
    converted, values = jax.closure_convert(g, start, params)

    def without_closure(x, params_and_values):
        params, values = params_and_values
        return converted(x, params, *values)

    return root(without_closure, (params, values), start)


print("dE/de:", jax.grad(lambda e: safe_root(lambda E, M: kepler(E, e, M), 1.0, jnp.float32(1.0)))(0.3))

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | the residuals of a function | the leaves of `jax.vjp(f, *args)[1]`: `args_res` and `opaque_residuals` |
# | two compiled programs | `jax.fwd_and_bwd(f, argnums)`, or `jit` of `jax.vjp` and `jit` of a call of the VJP object |
# | another order of passes | a queue of VJP objects |
# | gradients added in place | `vjp.with_refs(refs, ...)(cotangent)`, with `jax.ad.DontWant()` or `jax.ad.GradValue()` for other arguments |
# | data from the backward pass | a `custom_vjp` identity whose backward rule writes to a Ref |
# | the derivative of a solution | an implicit rule that calls itself, and `jax.closure_convert` |
# | rules for reverse mode and `vmap` in one place | `VJPHiPrimitive` (experimental, *Deeper*) |
# | a delayed reduction | `jax.reshard(params, P(reduced={"data"}))` and one `reshard` of the sum (*Deeper*) |
# | trust in a rule | `check_grads(f, args, order=2, modes=("rev",))` |
#
# JAX's documentation describes [VJP objects](https://docs.jax.dev/en/latest/301/vjp-objects.html), [Refs in the backward pass](https://docs.jax.dev/en/latest/301/refs.html), [custom rules](https://docs.jax.dev/en/latest/301/custom-derivatives.html) and [sharding in the backward pass](https://docs.jax.dev/en/latest/301/sharding-ad.html) for its newest version. Newer than 0.10.2: `jax.vjp(..., saveable_args=)` excludes arguments from a VJP object, and `with_refs` accepts arguments that are Refs.
#
# The core ends here.
#
# ## Deeper: weights that are not copied
# With a compiled forward pass, every VJP object that waits contains a copy of the weights. `args_res` is a list, so `forward` can remove an entry, and `backward` can insert it again.

# %%


@jax.jit
def light_forward(params, x):
    y, vjp = jax.vjp(stage, params, x)
    vjp.args_res[0] = ()  # no leaves
    return y, vjp


@jax.jit
def light_backward(params, vjp, g):
    vjp.args_res[0] = params
    return vjp(g)


# %% [markdown]
# We compare the bytes of twelve VJP objects.

# %%
for name, forward_pass in {"copies": jax.fwd_and_bwd(stage, argnums=(0, 1))[0], "no copies": light_forward}.items():
    waiting = [forward_pass(params, batch)[1] for batch in many]
    print(f"{name:10s} {sum(leaf.nbytes for leaf in jax.tree.leaves(waiting)) / 1e6:.2f} MB in 12 VJP objects")
by_params, by_x = light_backward(params, waiting[0], jnp.ones((128, 64)))
expected = jax.vjp(stage, params, many[0])[1](jnp.ones((128, 64)))[0]
print("largest difference:", jnp.abs(by_params["w"] - expected["w"]).max())

# %% [markdown]
# The backward pass must get the same weights as the forward pass. This edit depends on details of version 0.10.2, so compare the gradients after an update of JAX.
#
# ## Deeper: residuals in other places
# The leaves of a VJP object are arrays, and can be stored anywhere. We move them to NumPy arrays in host memory, free those on the device, and restore them. `jax.tree.unflatten` needs the tree structure, which is not stored with the arrays.

# %%
hosted_forward, hosted_backward = jax.fwd_and_bwd(stage, argnums=(0, 1))
y, vjp = hosted_forward(params, many[0])
before = hosted_backward(vjp, y)[1]
leaves, treedef = jax.tree.flatten(vjp)
on_host = [np.array(leaf) for leaf in leaves]
for leaf in leaves:
    leaf.delete()
replayed = jax.tree.unflatten(treedef, on_host)
same = jnp.array_equal(hosted_backward(replayed, y)[1], before)
print(f"{sum(leaf.nbytes for leaf in on_host) / 1e6:.2f} MB on the host. Equal gradients after the replay: {same}")
abstract = jax.eval_shape(functools.partial(jax.vjp, stage), params, many[0])[1]
print("without computing anything:", [leaf.shape for leaf in abstract.opaque_residuals])

# %% [markdown]
# `jax.tree.map` can edit the residuals, for example to store them in fewer bits. We round the residuals of networks of 1 to 16 layers to three formats, and compare the gradients.


# %%
def rounding_error(depth, dtype):
    x = jnp.linspace(-1, 1, 256)
    _, vjp = jax.vjp(lambda x: jax.lax.fori_loop(0, depth, lambda _, x: jnp.sin(1.2 * x), x).sum(), x)
    exact = vjp(jnp.float32(1))[0]
    to_dtype = lambda leaf: leaf.astype(dtype).astype(leaf.dtype) if leaf.dtype == jnp.float32 else leaf
    rounded = jax.tree.map(to_dtype, vjp)(jnp.float32(1))[0]
    return jnp.linalg.norm(rounded - exact) / jnp.linalg.norm(exact)


depths, described = (1, 2, 4, 8, 16), []
_, axes = plots.subplots(height=2.3)
for dtype, marker in ((jnp.float16, "o"), (jnp.bfloat16, "s"), (jnp.float8_e4m3fn, "^")):
    errors = [float(rounding_error(depth, dtype)) for depth in depths]
    axes.plot(depths, errors, marker=marker, label=dtype.__name__)
    described.append(f"{dtype.__name__} {errors[0]:.4f} to {errors[-1]:.4f}")
axes.set(yscale="log", xlabel="layers", ylabel="relative error", xticks=depths)
axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))  # above the plot
plots.show(f"Error of the gradient for rounded residuals, with 1 to 16 layers: {', '.join(described)}.")

# %% [markdown]
# ## Deeper: one rule for both modes
# A rule of `jax.custom_jvp` maps tangents forward. It is linear in the tangents, so JAX transposes it for the backward pass, and the VJP object contains exactly the values that the rule multiplies with a tangent. For example, the derivative of sin(x) / x needs a rule, because the formula divides by zero at 0.


# %%
@jax.custom_jvp
def sinc(x):
    return jnp.sin(x) / x


@sinc.defjvp
def sinc_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    safe = jnp.where(x == 0, 1.0, x)
    value = jnp.where(x == 0, 1.0, jnp.sin(safe) / safe)
    derivative = jnp.where(x == 0, 0.0, (jnp.cos(safe) - value) / safe)
    return value, derivative * t


for function in (lambda x: jnp.sin(x) / x, sinc):
    print("value and derivative at 0:", *jax.jvp(function, (0.0,), (1.0,)), "  gradient:", jax.grad(function)(0.0))
print("residuals:", jax.tree.leaves(jax.vjp(sinc, 2.0)[1]), "  derivative:", np.cos(2) / 2 - np.sin(2) / 4)
check_grads(sinc, (2.0,), order=2, modes=("fwd", "rev"), rtol=0.02, eps=0.05)
print("agrees with finite differences in both modes")

# %% [markdown]
# The rule also returns the value, so it corrects the value at 0 if the function is differentiated. Without a derivative, `sinc(0.0)` is still NaN.

# %% [markdown]
# ## Deeper: cotangents that are known to be zero
# A backward rule also computes cotangents of arguments that are not differentiated. With `symbolic_zeros=True`, the forward rule gets objects with the attributes `value` and `perturbed`. `perturbed` is False if no cotangent is needed, and then its residual can be omitted. The backward rule gets a `SymbolicZero` in place of an array of zeros, for results that are not used.

# %%
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values


@jax.custom_vjp
def product(w, x):
    return x @ w


def product_forward(*args):
    w, x = custom_vjp_primal_tree_values(args)  # the values of all arguments, also in trees
    return x @ w, (w if args[1].perturbed else None, x if args[0].perturbed else None)


def product_backward(residuals, g):
    w, x = residuals
    return None if x is None else x.T @ g, None if w is None else g @ w.T


product.defvjp(product_forward, product_backward, symbolic_zeros=True)

# %% [markdown]
# Only the residual of the other argument is stored.

# %%
w = params["w"]
for name, function, arg in (("w", lambda w: product(w, x), w), ("x", lambda x: product(w, x), x)):
    leaves = jax.tree.leaves(jax.vjp(function, arg)[1])
    print(f"differentiated with respect to {name}: residuals", [leaf.shape for leaf in leaves])

# %% [markdown]
# Without `symbolic_zeros`, both arguments would be residuals. Results that are not used have a `SymbolicZero` as cotangent.


# %%
@jax.custom_vjp
def sine_and_cosine(x):
    return jnp.sin(x), jnp.cos(x)


def both_forward(x):
    return sine_and_cosine(x.value), x.value


def both_backward(x, cotangents):
    print("cotangents:", [type(one).__name__ for one in cotangents])
    terms = [jnp.cos(x), -jnp.sin(x)]
    return (sum(term * g for term, g in zip(terms, cotangents, strict=True) if not isinstance(g, SymbolicZero)),)


sine_and_cosine.defvjp(both_forward, both_backward, symbolic_zeros=True)
print("gradient:", jax.grad(lambda x: sine_and_cosine(x)[0])(1.0), "expected:", np.cos(1.0))

# %% [markdown]
# ## Deeper: what `check_grads` finds
# `check_grads` compares derivatives in random directions with finite differences, at one point. It finds wrong factors and signs. It cannot find a mistake that is invisible at this point. The next rule is wrong for negative numbers only.


# %%
@jax.custom_vjp
def leaky_relu(x):
    return jnp.where(x > 0, x, 0.1 * x)


leaky_relu.defvjp(lambda x: (leaky_relu(x), x), lambda x, g: (jnp.where(x > 0, g, 0.0),))
for point in (2.0, -2.0):
    print(f"at {point}:", end=" ")
    print_error(lambda point=point: check_grads(leaky_relu, (point,), order=1, modes=("rev",)), length=150)
shift = jax.custom_vjp(lambda x: jnp.sin(x))
shift.defvjp(lambda x: (jnp.sin(x), jax.lax.stop_gradient(jnp.cos(x))), lambda cosine, g: (g * cosine,))
for order in (1, 2):
    print(f"order {order}:", end=" ")
    print_error(lambda order=order: check_grads(shift, (0.5,), order=order, modes=("rev",)), length=150)

# %% [markdown]
# So check several points, one for each branch, and the second order. The last rule has the right first derivative. Its second derivative is 0, because of the `stop_gradient`.
#
# ## Deeper: a primitive with its own rules
# *`jax.experimental.hijax` is experimental. Its names and signatures may change in any release.* A subclass of **[VJPHiPrimitive](../docs/glossary.md#hijax-primitive)** is a primitive that you define in Python. `expand` computes it with ordinary JAX operations. The other methods are rules. An instance stores the types of its arguments and results, and static parameters. We define a smooth maximum along the last axis with three rules.
#
# - `vjp_fwd(self, nonzeros, *args)` returns the result and the residuals. `nonzeros` contains a bool for each argument, False if it is not differentiated.
# - `vjp_bwd_retval(self, residuals, cotangent)` returns a tuple with the cotangent of each argument.
# - `batch(self, axis_data, args, dims)` is the rule for `vmap`. `dims` contains the position of the batch axis of each argument, or None if the argument is not batched. `axis_data.size` is the size of the batch. The rule returns the batched result and the position of its batch axis.


# %%
class SmoothMax(VJPHiPrimitive):
    def __init__(self, x, sharpness):
        self.in_avals = (x,)
        self.out_aval = jax.typeof(jax.eval_shape(lambda x: x[..., 0], x))
        self.params = {"sharpness": sharpness}  # hashable; also an attribute
        super().__init__()

    def expand(self, x):
        return jax.nn.logsumexp(self.sharpness * x, axis=-1) / self.sharpness

    def vjp_fwd(self, nonzeros, x):
        return self(x), x  # the primitive itself, so a gradient under vmap uses `batch` too

    def vjp_bwd_retval(self, x, g):
        return (g[..., None] * jax.nn.softmax(self.sharpness * x, axis=-1),)

    def batch(self, axis_data, args, dims):
        return smooth_max(jnp.moveaxis(args[0], dims[0], 0), self.sharpness), 0  # the result, and its batch axis


# %% [markdown]
# A function creates the instance for the type of its argument. In jaxprs, the primitive is one equation, also under `vmap`.


# %%
def smooth_max(x, sharpness=4.0):
    return SmoothMax(jax.typeof(x), sharpness)(x)


print(jax.make_jaxpr(jax.vmap(smooth_max, in_axes=1))(jnp.ones((3, 5))))
numbers = draw(3, 5)
print("gradient:", jax.grad(lambda x: smooth_max(x).sum())(numbers)[0])
check_grads(smooth_max, (numbers,), order=2, modes=("rev",), rtol=0.02, eps=0.01)
print_error(lambda: jax.jvp(smooth_max, (numbers,), (numbers,)))

# %% [markdown]
# If a rule is missing, the error contains the name of the method. `vjp_fwd` may also compute its result with other operations, for example to compute a value only once that both the result and the residuals need. Then the primitive does not appear in the gradient's program.
#
# A batching rule may rearrange the work, such as solving all right-hand sides of a batch together. For all other cases, it can return `super().batch(axis_data, args, dims)`, which applies `vmap` to the other rules. This needs the method `batch_dim_rule(self, axis_data, dims)`, which returns the position of the batch axis of the result.
#
# ## Deeper: more rules for a primitive
# A `VJPHiPrimitive` can have rules for all modes. `jvp` is used by `jax.jvp`. `lin` and `linearized` are used by `jax.linearize`, in the same way as `vjp_fwd` and `vjp_bwd_retval`. Instead of `vjp_bwd_retval`, `vjp_bwd` gets an accumulator for each argument and adds to it, which works with Refs of `with_refs`. Instead of `batch`, `batch_dim_rule` returns only the position of the batch axis, and JAX applies `vmap` to the other rules.


# %%
class Scaled(VJPHiPrimitive):
    def __init__(self, w, x):
        self.in_avals, self.out_aval, self.params = (w, x), x, {}
        super().__init__()

    def expand(self, w, x):
        return w * x  # the backward pass uses x in bfloat16

    def jvp(self, primals, tangents):
        return self(*primals), tangents[0] * primals[1] + primals[0] * tangents[1]

    def vjp_fwd(self, nonzeros, w, x):
        return self(w, x), (w, x.astype(jnp.bfloat16))

    def vjp_bwd(self, residuals, g, w_total, x_total):
        w_total.accum(jnp.vdot(residuals[1].astype(jnp.float32), g))
        x_total.accum(residuals[0] * g)

    def batch_dim_rule(self, axis_data, dims):
        return 0 if dims[1] is None else dims[1]


# %% [markdown]
# We use every rule once.

# %%
scaled = lambda w, x: Scaled(jax.typeof(w), jax.typeof(x))(w, x)
w, x = jnp.float32(3), draw(4)
print("jvp:", jax.jvp(scaled, (w, x), (jnp.float32(1), 0 * x))[1] - x)
value, vjp = jax.vjp(scaled, w, x)
print("residuals:", [leaf.dtype.name for leaf in jax.tree.leaves(vjp)])
w_ref = jax.new_ref(jnp.float32(100))
vjp.with_refs(w_ref, jax.ad.DontWant())(x)
print(f"added to a Ref: {w_ref[...] - 100:.4f}, expected about {x @ x:.4f}")
print("vmap:", jax.vmap(scaled, (None, 0))(w, draw(5, 4)).shape)
print_error(lambda: jax.grad(lambda w: jax.vmap(scaled, (None, 0))(w, draw(5, 4)).sum())(w))

# %% [markdown]
# The printed differences of `jvp` are zero, and the gradient with respect to `w` differs from the expected one, because its residual is in bfloat16. The error shows a limit of JAX 0.10.2: with `batch_dim_rule`, gradients under `vmap` need `vjp_bwd_retval`.
#
# ## Deeper: shardings of cotangents
# With Explicit axes (lesson 17), the type of a value determines the type of its cotangent. In an unreduced array, each device stores partial sums. The value is their sum along a mesh axis, which has not been computed yet.

# %%
mesh = jax.make_mesh((4, 2), ("data", "model"))
jax.set_mesh(mesh)
batch = jax.device_put(np.asarray(many[0]), P("data"))
project = lambda w: jnp.sum(jnp.sin(batch @ w))
for name, spec in {"replicated": P(), "partitioned": P(None, "model"), "reduced": P(reduced={"data"})}.items():
    w = jax.reshard(jax.device_put(np.asarray(params["w"]), P()), spec)
    print(f"{name:12s} {jax.typeof(w).str_short():28s} cotangent {jax.typeof(jax.grad(project)(w)).str_short()}")

# %% [markdown]
# A partitioned array has a partitioned cotangent. A replicated array has a replicated cotangent, so the backward pass sums the contributions of all devices at once, with an all-reduce. The entries of a **reduced** array are also the same on all devices. Only the cotangent differs: it is **unreduced**, so each device stores the gradient of its own examples, and you choose when these partial sums are added.

# %% [markdown] predict="autodiff-delayed"
# We compile `forward` and `backward` for parameters that are reduced along `data`, with four devices along `data`. We run both for five micro-batches, and add the gradients that `backward` returns. What does one call of `backward` communicate?
#
# - [ ] an all-reduce of the gradients | The cotangents of the parameters are unreduced, so the partial sums stay on their devices.
# - [x] nothing | Right. Each device adds its own partial sums. One reduction follows after the last micro-batch.
# - [ ] an all-reduce of the activations | The activations are partitioned along `data`, and so are their cotangents.

# %%
layer = lambda p, x: jnp.sin(x @ p["w"]) @ p["v"]
weights = {name: jax.device_put(np.asarray(params[name]), P()) for name in "wv"}
as_reduced = jax.tree.map(lambda leaf: jax.reshard(leaf, P(reduced={"data"})), weights)
finish = jax.jit(lambda total: jax.tree.map(lambda leaf: jax.reshard(leaf, P()), total))
sums = {}
for name, p in {"replicated": weights, "reduced": as_reduced}.items():
    forward, backward = jax.fwd_and_bwd(layer, argnums=(0,))
    total = None
    for _ in range(5):
        y, vjp = forward(p, batch)
        (gradients,) = backward(vjp, jnp.ones_like(y))
        total = gradients if total is None else jax.tree.map(jnp.add, total, gradients)
    for part, found in (("backward", list_collectives(backward, vjp, y)), ("finish", list_collectives(finish, total))):
        print(f"{name:10s} {part:8s}", [(one.kind, one.elements) for one in found])
    sums[name] = finish(total)
print("largest difference:", jnp.abs(sums["replicated"]["w"] - sums["reduced"]["w"]).max())

# %% [markdown]
# With replicated parameters, each of the five calls of `backward` all-reduces both gradients. With reduced ones, only `finish` does.
#
# A matrix product accepts a reduced and a partitioned argument. In JAX 0.10.2, an addition does not, so a reduced bias cannot be added to a partitioned array. The message recommends to partition the reduced array, but every example needs the whole bias. Write the addition as a product with a column of ones, or use `jax.shard_map` (lesson 19).

# %%
bias = jax.reshard(jax.device_put(np.ones(64, np.float32), P()), P(reduced={"data"}))
ones = jnp.ones((len(batch), 1), out_sharding=P("data", None))
print_error(lambda: batch + bias, length=140)
print("cotangent of the bias:", jax.typeof(jax.grad(lambda bias: jnp.sum(jnp.sin(batch + ones @ bias[None])))(bias)))
jax.set_mesh(None)

# %% [markdown]
# ## Deeper: which tool, and older code
#
# | you need | use |
# |---|---|
# | a better formula for both modes | `custom_jvp`: one rule, and reverse mode follows from it |
# | control of residuals or cotangents | `custom_vjp`, reverse mode only |
# | an implicit derivative in both modes | `jax.lax.custom_root`, `jax.lax.custom_linear_solve` |
# | rules for `vmap` too, or a name in jaxprs | `VJPHiPrimitive`, experimental |
# | a type of value with rules of its own, such as a quantized array | `HiType` of `jax.experimental.hijax`, experimental and not used in this course |
#
# | in older code | here |
# |---|---|
# | `jax.custom_transforms`, `jax.defvjp`, `jax.defvjp_all` | `jax.custom_vjp` and its method `defvjp` |
# | `jax.core.Primitive` with `ad.primitive_jvps`, `batching.primitive_batchers` and a lowering | `VJPHiPrimitive` (experimental) |
# | `jax.vjp(..., reduce_axes=)`, `jax.grad(..., reduce_axes=)` | reduced and unreduced types, or `jax.lax.pcast` in `shard_map` |
# | `jax.linear_util`, `jax.interpreters.ad` to collect residuals | the leaves of a VJP object |
# | a list of gradients, added with `jax.tree.map` | `with_refs` |
# | `jax.custom_gradient` | `jax.custom_vjp` |
