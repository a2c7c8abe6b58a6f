# %% [markdown]
# # 04 · grad: derivatives of your functions
#
# *The core takes about 35 minutes. Ten "Deeper" sections can be skipped. Then do [the exercises](../exercises/04_grad/04_grad.ipynb).* After the core, you can differentiate a function with respect to any argument, state what a gradient costs, find out why a gradient is zero or NaN, and hold a value constant.
#
# **Prerequisites.** Arrays (lesson 01), [tracers](../docs/glossary.md#tracer) and [jaxprs](../docs/glossary.md#jaxpr) (02) and `jit` (03). From school, you need derivatives and the chain rule. Answer these questions from memory.
#
# 1. From 01: Up to which number can float32 represent every integer, and about how many decimal digits is that?
#
# <details><summary>Answer</summary>
#
# Up to 2**24, which is 16,777,216, so about seven digits.
# </details>
#
# 2. From 02: How does JAX find out which operations your function performs?
#
# <details><summary>Answer</summary>
#
# JAX runs the function on tracers, which record every operation that is applied to them.
# </details>
#
# 3. From 03: A compiled function reads a variable from the enclosing scope. What does the compiled program contain for it?
#
# <details><summary>Answer</summary>
#
# A constant, the value at the time of tracing. Only arguments can change later.
# </details>

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import jet
from jax.test_util import check_grads

# Helpers of this course, which plot, print errors, count operations and list them:
from grader.learning import plots
from grader.learning.inspection import flops, primitives, print_error

np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## Which parameter, and in which direction?
# To fit a model, you need to know how its loss changes with each parameter. Here, the temperature of a cup of coffee was measured eight times in an hour. The model has three parameters: the room temperature, the starting temperature, and the cooling rate. The first guess is poor.

# %%
hours = jnp.linspace(0, 1, 8)
measured = jnp.array([84.9, 70.1, 58.6, 50.7, 44.1, 39.2, 35.1, 32.6])


def temperature(params, hours):
    return params["room"] + (params["start"] - params["room"]) * jnp.exp(-params["rate"] * hours)


def loss(params, hours, measured):
    return jnp.mean((temperature(params, hours) - measured) ** 2)


params = {"room": 15.0, "start": 80.0, "rate": 1.0}
print("loss", loss(params, hours, measured))

# %% [markdown]
# `jax.grad(f)` is a **function** that takes the same arguments as `f` and returns the derivative with respect to the first one. The first argument of `loss` is a dict of three numbers, so the result is a dict with the same keys and a derivative for each number. This result is called the **gradient**.

# %%
print("derivative of x**2 at 3:", jax.grad(lambda x: x**2)(3.0))
gradient = jax.grad(loss)(params, hours, measured)
print("gradient of the loss:", {name: round(float(each), 2) for name, each in gradient.items()})

# %% [markdown]
# The derivative with respect to `rate` is negative, so a small increase of `rate` lowers the loss. To lower the loss, change the parameters *against* the gradient. The result of `jax.grad` is exact up to rounding (Deeper).

# %% [markdown]
# ## What grad takes and returns
# Training needs more than the gradient. `jax.value_and_grad` also returns the loss. `argnums` selects another argument, or several. With `has_aux=True`, your function returns a pair of the loss and an auxiliary result, which is not differentiated.


# %%
def loss_with_prediction(params, hours, measured):
    predicted = temperature(params, hours)
    return jnp.mean((predicted - measured) ** 2), predicted


for_params, for_measured = jax.grad(loss, argnums=(0, 2))(params, hours, measured)
print("gradient with respect to measured:", for_measured)
(value, predicted), gradient = jax.value_and_grad(loss_with_prediction, has_aux=True)(params, hours, measured)
print("loss", value, "  predicted", predicted)

# %% [markdown]
# `jax.grad` rejects functions that return several numbers. It also rejects integer inputs.

# %%
print_error(lambda: jax.grad(temperature)(params, hours))
print_error(lambda: jax.grad(loss)({"room": 15.0, "start": 80, "rate": 1.0}, hours, measured))

# %% [markdown]
# `params` may consist of nested containers (06), but every number in it must be a float. Pass integers, such as labels, in another argument.
#
# **Gradient descent** repeats a small step against the gradient. Here the **step size** is 0.005. `jax.tree.map` applies a function to each parameter and its derivative (06).


# %%
@jax.jit
def descend(params):
    value, gradient = jax.value_and_grad(loss)(params, hours, measured)
    return jax.tree.map(lambda p, g: p - 0.005 * g, params, gradient), value


fitted = jax.tree.map(jnp.float32, params)  # arrays, so that `descend` is compiled only once
losses, predictions = [], {}
for step in range(20_001):
    if step in (0, 100, 20_000):
        predictions[step] = temperature(fitted, hours)
    fitted, value = descend(fitted)
    losses.append(value)
print({name: round(float(p), 2) for name, p in fitted.items()})

# %%
_, (left, right) = plots.subplots(1, 2, height=2.7)
left.plot(hours, measured, "o", label="measured")
for line, (step, predicted) in enumerate(predictions.items(), start=1):
    left.plot(hours, predicted, color=plots.COLOURS[line], linestyle=plots.DASHES[line], label=f"step {step:,}")
left.set(xlabel="hours", ylabel="temperature")
left.legend()
right.loglog(losses)
right.set_xscale("symlog", linthresh=1)
right.set(xlabel="step", ylabel="loss")
plots.show(
    f"Left: eight measured temperatures, from {measured[0]:.0f} to {measured[-1]:.0f} degrees, and the model at three "
    f"steps. At step 0 it ends at {predictions[0][-1]:.0f} degrees, and at step 20,000 it is within "
    f"{abs(predictions[20_000] - measured).max():.1f} degrees of all points. "
    f"Right: the loss rises from {losses[0]:.0f} to {losses[1]:.0f} in the first step. After 100 steps it is "
    f"{losses[100]:.1f}, and after 20,000 steps {losses[-1]:.2f}."
)

# %% [markdown]
# The first step is too long, so the loss rises. Later it falls, but slowly. The second derivatives explain both.

# %% [markdown]
# ## Second derivatives
# `jax.grad` returns a function, so you can differentiate again. For several inputs, the second derivatives form a matrix, the **Hessian**, which `jax.hessian` computes.


# %%
def loss_of(vector):  # room, start, rate
    return loss(dict(zip(("room", "start", "rate"), vector, strict=True)), hours, measured)


loss_of_rate = lambda rate: loss_of((15.0, 80.0, rate))
first, second = jax.grad(loss_of_rate), jax.grad(jax.grad(loss_of_rate))
print(f"derivatives with respect to rate: first {first(1.0):.1f}, second {second(1.0):.1f}")
hessian = jax.hessian(loss_of)(jnp.array([15.0, 80.0, 1.0]))
print(hessian)

# %% [markdown]
# The last entry of the matrix is the second derivative with respect to `rate`. It is by far the largest, so the loss curves most strongly along `rate`.
#
# Below, the straight line approximates the loss by its gradient, and the parabola also uses the Hessian.

# %%
rates = np.linspace(0.2, 2.6, 100)
straight = loss_of_rate(1.0) + first(1.0) * (rates - 1.0)
parabola = straight + 0.5 * hessian[2, 2] * (rates - 1.0) ** 2
stepped, lowest = 1.0 - 0.005 * first(1.0), 1.0 - first(1.0) / hessian[2, 2]
_, axes = plots.subplots(height=3.2)
axes.plot(rates, [loss_of_rate(rate) for rate in rates], label="loss")
axes.plot(rates, straight, label="line, from the gradient")
axes.plot(rates, parabola, label="parabola, from the Hessian")
points = {"first guess": (1.0, 0.9, 190), "lowest point of the parabola": (lowest, 1.55, -65)}
for words, (x, left, height) in {**points, "after the first step": (stepped, 2.1, 5)}.items():
    axes.plot(x, loss_of_rate(x), "o", color=plots.INK)
    axes.annotate(words, (x, loss_of_rate(x)), xytext=(left, height), arrowprops={"arrowstyle": "-"})
axes.set(xlabel="rate", ylabel="loss", ylim=(-150, 420))
axes.legend(loc="lower left")
plots.show(
    f"The loss against rate. At rate 1 it is {loss_of_rate(1.0):.0f}, and the straight line falls by {-first(1.0):.0f} "
    f"for each unit. The parabola is close to the loss near rate 1. Its lowest point is at rate {lowest:.2f}, where the "
    f"loss is {loss_of_rate(lowest):.0f}. The first step of gradient descent goes to rate {stepped:.2f}, where the loss is "
    f"{loss_of_rate(stepped):.0f}."
)

# %% [markdown]
# The first step went past the minimum. A smaller step size would prevent this, but then `room` and `start` would change even more slowly. The lowest point of the parabola is a better next guess. Newton's method goes to this point, for all parameters together (Deeper).

# %% [markdown]
# ## How JAX computes derivatives
# To train, `jax.grad` is enough. This section explains its cost and terms. Each primitive has a rule for its derivative. JAX traces your function and combines these rules by the chain rule, so the derivative is again a program of primitives.
#
# There are two ways to apply the chain rule.
#
# - In **forward mode**, `jax.jvp`, JAX computes each value together with its derivative, the **tangent**.
# - In **reverse mode**, `jax.vjp`, a forward pass computes the values and stores those that the rules need. Then the **backward pass** goes from the result back to the inputs. For each value it computes the derivative of the result with respect to this value, the **cotangent**.
#
# `jax.grad` uses reverse mode. The tangents of the results depend linearly on those of the inputs, so they are computed by a linear program. The backward pass runs this program from the end to the beginning and **transposes** each operation. The transpose of `t @ w` is `g @ w.T`.
#
# Compare the jaxprs of `f`, of its forward mode and of its gradient.

# %%
f = lambda x: jnp.sin(x) * x
print(jax.make_jaxpr(f)(2.0))
print(jax.make_jaxpr(lambda x, dx: jax.jvp(f, (x,), (dx,)))(2.0, 1.0))
print(jax.make_jaxpr(jax.grad(f))(2.0))

# %% [markdown]
# The derivatives of all outputs with respect to all inputs form the **Jacobian**, with a row for each output and a column for each input. `jax.jvp` computes a Jacobian-vector product (JVP), and `jax.vjp` a vector-Jacobian product (VJP). A vector with a single 1 selects a column or a row.
#
# ![A chain of x, sin, exp, tanh and y. Forward mode: values and tangents are computed along the chain together, from one input. One JVP gives the derivatives of all outputs with respect to this input, a column of the Jacobian. Reverse mode: values are computed first and some are stored, then derivatives are computed backward from one output. One VJP gives the derivatives of this output with respect to all inputs, a row. Below, the Jacobian of a function with few inputs and many outputs is tall, that of a loss is one row.](../images/grad_modes.svg)

# %%
curve = lambda rate: temperature({"room": 20.0, "start": 85.0, "rate": rate}, hours)
values, tangents = jax.jvp(curve, (1.5,), (1.0,))  # the point, and the tangent of `rate`
print("one JVP: derivatives of all 8 temperatures with respect to rate\n  ", tangents)

values, vjp = jax.vjp(lambda params: temperature(params, hours), params)
(cotangents,) = vjp(jnp.zeros(8).at[7].set(1.0))  # the cotangents of the outputs
print("one VJP: derivatives of the last temperature with respect to all parameters")
print("  ", {name: round(float(each), 2) for name, each in cotangents.items()})

# %% [markdown]
# What does a gradient cost? A **finite difference** estimates a derivative by changing one parameter a little. The loss is evaluated again for each parameter.

# %% [markdown] predict="grad-cost"
# A loss has n parameters. How many floating-point operations (flops) does its gradient need, compared with the loss?
#
# - [x] about 2 to 3 times as many, whatever n is | Right. One backward pass computes all derivatives, which is why large networks can be trained.
# - [ ] about n times as many | This holds for finite differences and for forward mode, which need a run for each parameter.
# - [ ] as many as the loss | The forward pass is needed too, and the backward pass of a matrix product consists of two matrix products.


# %%
def network(weights, x):
    return jnp.sum(jnp.tanh(weights["second"] @ jnp.tanh(weights["first"] @ x)) ** 2)


rng = np.random.default_rng(4)
for width in (10, 100, 1000):
    x = jnp.ones(width)
    weights = {name: jnp.asarray(rng.normal(size=(width, width)), jnp.float32) for name in ("first", "second")}
    ratio = flops(jax.grad(network), weights, x) / flops(network, weights, x)
    print(f"{2 * width**2:9,d} parameters: the gradient costs {ratio:.1f} times the loss")

# %% [markdown]
# Reverse mode also needs memory for the stored values (Deeper).

# %% [markdown]
# ## What is differentiated
# JAX differentiates the program that it traces, which is not always the function that you have in mind. Four short programs show the difference.

# %% [markdown] predict="grad-outer"
# What does `jax.grad(lambda p: loss(params, hours, measured))(params)` return?
#
# - [x] zeros | Right. The function reads `params` from the enclosing scope, which is a constant, and ignores `p`.
# - [ ] the same gradient as before | The values are the same, but JAX differentiates only what is computed from `p`.
# - [ ] an error, because `p` is never used | A function may ignore an argument. The derivative with respect to it is 0.

# %%
print("outer parameters:", jax.tree.map(float, jax.grad(lambda p: loss(params, hours, measured))(params)))
print("rounding:        ", jax.grad(lambda x: jnp.round(3 * x))(0.4))
print("counting:        ", jax.grad(lambda x: jnp.mean(x > jnp.arange(3.0)))(1.5))


# %% [markdown] predict="grad-branch"
# `square(x)` returns 9 if `x == 3`, and `x**2` otherwise. What is `jax.grad(square)(3.0)`?
#
# - [ ] 6 | This is the derivative of the square. JAX differentiates only the operations of the branch that runs.
# - [ ] an error, as under `jit` | Under `grad` alone, the tracer has a concrete value, so the `if` can use it.
# - [x] 0 | Right. Python runs the branch that returns the constant 9, which does not depend on `x`.


# %%
def square(x):
    return 9.0 if x == 3 else x**2


print("derivatives at 2 and 3:", jax.grad(square)(2.0), jax.grad(square)(3.0))
print_error(lambda: jax.jit(jax.grad(square))(3.0), length=200)

# %% [markdown]
# All four zeros are **correct** derivatives of the code, but they are useless for training. Rounded values and counts are constant between jumps. With an `if`, JAX differentiates the branch that runs, which must be right near `x`, not only at `x`.
#
# At a **kink**, such as `abs` at 0, the function has no derivative, and JAX returns a value by convention. `jnp.max` shares its derivative equally among tied entries.

# %%
at_0 = {f.__name__: float(jax.grad(f)(0.0)) for f in (jnp.abs, jax.nn.relu, jax.nn.leaky_relu)}
print("derivatives at 0:", at_0, "  max of a tie:", jax.grad(jnp.max)(jnp.array([1.0, 3.0, 3.0])))

# %% [markdown]
# ## Choose with where
# `jnp.where` selects one of two values. The entropy `-x log(x)` is defined as 0 at `x = 0`, where the logarithm is infinite, so you select 0 there.

# %% [markdown] predict="grad-where"
# The value of `jnp.where(x > 0, -x * jnp.log(x), 0.0)` at `x = 0` is 0. What is its gradient there?
#
# - [ ] 0 | This is the derivative of the selected side. The other side contributes to the gradient too.
# - [ ] inf | This is the derivative of the logarithm at 0, but the backward pass multiplies it by 0.
# - [x] NaN | Right. The backward pass sends 0 to the side that is not selected, and multiplies it there by inf.


# %%
def entropy(x):
    return jnp.where(x > 0, -x * jnp.log(x), 0.0)


print("value", entropy(0.0), "  gradient", jax.grad(entropy)(0.0))

# %% [markdown]
# The figure shows `log(x)` alone.
#
# ![One where: the forward pass computes log(0), and where discards it. In the backward pass, where sends the derivative 1 to the selected side and 0 to the other. There, 0 times the derivative of log, 1/0 = inf, is NaN. Two wheres: log gets a 1 instead of the 0, its derivative there is 1, and 0 times 1 is 0.](../images/grad_where.svg)
#
# Both passes run through both sides of `where`. A second `where` before the operation solves this, because **the logarithm never gets a 0**.


# %%
def safe_entropy(x):
    inside = x > 0
    safe_x = jnp.where(inside, x, 1.0)
    return jnp.where(inside, -safe_x * jnp.log(safe_x), 0.0)


print("value", safe_entropy(0.0), "  gradient", jax.grad(safe_entropy)(0.0), "  at 0.5", jax.grad(safe_entropy)(0.5))
print("norm(error)**2:", jax.grad(lambda error: jnp.linalg.norm(error) ** 2)(jnp.zeros(2)))
print("sum(error**2): ", jax.grad(lambda error: jnp.sum(error**2))(jnp.zeros(2)))

# %% [markdown]
# The true derivative of the entropy at 0 is infinite, so the gradient 0 is a convention. `norm(error)**2` also has a NaN gradient at 0. It squares a square root, whose derivative at 0 is infinite. A sum of squares avoids the root.

# %% [markdown]
# ## Hold a value constant
# `jax.lax.stop_gradient(x)` returns `x`, but its derivative is 0. Use it for a part of a loss that should be constant, or to replace a derivative. A network with rounded weights would not learn, because the derivative of rounding is 0. The **straight-through estimator** `x + stop_gradient(round(x) - x)` has the value `round(x)`, but the derivative 1, because only the first `x` is differentiated.

# %%
held = lambda x: x * jax.lax.stop_gradient(x)
print("value of x * stop_gradient(x) at 3:", held(3.0), "  derivative", jax.grad(held)(3.0))
rounded = lambda x: x + jax.lax.stop_gradient(jnp.round(x) - x)
print("rounded at 1.3:", rounded(1.3), "  derivative", jax.grad(rounded)(1.3))
print("derivative of jnp.round:", jax.grad(jnp.round)(1.3))

# %% [markdown]
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: finite differences
# You can check a derivative with a finite difference, here `(loss(rate + h) - loss(rate - h)) / (2 * h)`. The next plot shows the error of this finite difference for many values of `h`, and the error of `jax.grad`, which needs no `h`.

# %% [markdown] predict="grad-nudge"
# Which `h` gives the most accurate finite difference in float32?
#
# - [ ] the smallest, 1e-6 | This holds in exact arithmetic. In float32, the two losses agree in about five of their seven digits, so their difference is accurate to only two.
# - [x] a middle one, about 1e-3 | Right. A large `h` ignores the curvature of the loss, and a small `h` loses digits to rounding.
# - [ ] the largest, 1 | Rounding is no problem there, but over this distance the loss is far from a straight line.


# %%
def finite_difference(h, number=np.float32):
    at = lambda rate: {"room": number(15), "start": number(80), "rate": number(rate)}
    xs, ys = np.asarray(hours, number), np.asarray(measured, number)
    return (loss(at(1 + h), xs, ys) - loss(at(1 - h), xs, ys)) / (2 * h)


with jax.enable_x64(True):  # sixteen digits instead of seven, for a reference value
    exact = float(finite_difference(1e-5, np.float64))
widths = 10.0 ** -np.arange(0, 6.25, 0.25)
errors = np.array([abs(finite_difference(h) / exact - 1) for h in widths])
error_of_grad = abs(float(jax.grad(loss)(params, hours, measured)["rate"]) / exact - 1)

# %%
_, axes = plots.subplots(height=2.6)
axes.loglog(widths, errors, "o-", markersize=4, label="finite difference")
axes.axhline(error_of_grad, color=plots.COLOURS[1], linestyle="--", label="jax.grad")
axes.set(xlabel="h", ylabel="relative error")
axes.legend()
plots.show(
    f"Relative error of the finite difference against h, both on logarithmic scales. It is {errors[0]:.0e} at h = 1, "
    f"falls to {errors.min():.0e} at h = {widths[errors.argmin()]:.0e}, and rises to {errors[-1]:.0e} at h = 1e-06. "
    f"The error of jax.grad is a line at {error_of_grad:.0e}."
)

# %% [markdown]
# The error of `jax.grad` is that of float32 rounding. Finite differences are useful as a check, as in `check_grads`, which we use below.

# %% [markdown]
# ## Deeper: Jacobians
# `jax.jacfwd` and `jax.jacrev` compute the whole Jacobian. `jacfwd` needs one JVP for each input, and `jacrev` needs one VJP for each output.

# %%
for inputs, outputs in ((4, 256), (256, 4)):
    matrix = jnp.asarray(rng.normal(size=(outputs, inputs)), jnp.float32)
    layer, x = lambda x: jnp.tanh(matrix @ x), jnp.ones(inputs)
    forward, reverse = jax.jacfwd(layer), jax.jacrev(layer)
    cost = f"jacfwd {flops(forward, x):8,.0f} flops, jacrev {flops(reverse, x):8,.0f}"
    equal = jnp.allclose(forward(x), reverse(x), atol=1e-5)
    print(f"{inputs:3d} inputs, {outputs:3d} outputs:  {cost}   equal: {equal}")

# %% [markdown]
# Use `jacfwd` for few inputs and `jacrev` for few outputs. Both accept containers. `jax.jvp` and `jax.vjp` multiply by the same Jacobian without computing the whole matrix.

# %%
print(jax.tree.map(jnp.shape, jax.jacrev(temperature)(params, hours)))
jacobian = jax.jacfwd(layer)(x)  # (4, 256)
v, w = jnp.asarray(rng.normal(size=256), jnp.float32), jnp.asarray(rng.normal(size=4), jnp.float32)
print("jvp is J @ v:", bool(jnp.allclose(jax.jvp(layer, (x,), (v,))[1], jacobian @ v, atol=1e-5)))
print("vjp is w @ J:", bool(jnp.allclose(jax.vjp(layer, x)[1](w)[0], w @ jacobian, atol=1e-5)))

# %% [markdown]
# To multiply the Jacobian at one point by many vectors, use `jax.linearize`. It evaluates the function once and returns the result and a linear function, which computes only tangents. The linear function has fewer primitives than `jax.jvp`, because the values are already computed.
#
# The transpose of the linear function computes a VJP. JAX builds reverse mode from these two steps, linearize and transpose. `jax.vmap` (05) applies the linear function to many vectors together. `jacfwd` computes all its JVPs together in the same way.

# %%
result, linear = jax.linearize(layer, x)
print("jvp:      ", primitives(lambda v: jax.jvp(layer, (x,), (v,)), v))
print("linearize:", primitives(linear, v))
(transposed,) = jax.linear_transpose(linear, x)(w)
print("transpose gives w @ J:", bool(jnp.allclose(transposed, w @ jacobian, atol=1e-5)))
columns = jax.vmap(linear)(jnp.eye(256))
print("vmap gives the columns of J:", bool(jnp.allclose(columns.T, jacobian, atol=1e-5)))

# %% [markdown]
# ## Deeper: the memory of the backward pass
# The values that the backward pass needs are called **residuals**. The function that `jax.vjp` returns contains them. It is a pytree (06), a container of arrays, so you can add up their sizes.


# %%
def deep(x, layers):
    for _ in range(layers):
        x = jnp.sin(x)
    return x


for layers in (1, 4, 16):
    _, vjp = jax.vjp(lambda x: deep(x, layers), jnp.ones(1_000_000))
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(vjp))
    print(f"{layers:2d} layers store {stored / 1e6:4.0f} MB for the backward pass")

# %% [markdown]
# Four times the depth needs four times the memory. `jax.checkpoint` stores less and recomputes the rest (lesson 15).

# %% [markdown]
# ## Deeper: high orders
# Each nested `grad` differentiates all operations of the previous derivative, so the program grows quickly. **Taylor mode** computes the first n derivatives together. `jet` takes the point and the derivatives of `x` itself, which are 1, 0, 0 and so on. It returns the value and a list of the derivatives.

# %%
g = lambda x: jnp.exp(jnp.sin(x))
derivative = g
for order in range(1, 8):
    derivative = jax.grad(derivative)
    taylor = lambda x: jet.jet(g, (x,), ((1.0,) + (0.0,) * (order - 1),))[1][-1]
    nested, by_jet = len(primitives(derivative, 1.0)), len(primitives(taylor, 1.0))
    print(
        f"order {order}: {derivative(1.0):8.3f} and {taylor(1.0):8.3f}, {nested:5d} operations nested, {by_jet:4d} by jet"
    )

# %% [markdown]
# The nested program more than doubles with each order. The program of `jet` grows more slowly, and it is shorter from order 5 on.

# %% [markdown]
# ## Deeper: Newton's method
# A Newton step approximates the loss by its gradient and its Hessian, and goes to the point where the gradient of this approximation is 0. It solves a system of linear equations with the Hessian.

# %%
newton = jax.jit(lambda v: v - jnp.linalg.solve(jax.hessian(loss_of)(v), jax.grad(loss_of)(v)))
for start in ((20.0, 85.0, 2.0), (15.0, 80.0, 1.0)):
    steps = [jnp.array(start)]
    for _ in range(5):
        steps.append(newton(steps[-1]))
    fitted = dict(zip(("room", "start", "rate"), start, strict=True))
    for _ in range(20_001):
        fitted, value = descend(fitted)
    print("from", steps[0], " Newton losses", np.array([loss_of(v) for v in steps]), " ends at", steps[-1])
    print(f"    20,000 steps of gradient descent: {value:.4f}")

# %% [markdown]
# From a good guess, a few Newton steps reach the result of 20,000 steps of gradient descent. From our first guess, the first two steps help, but the next two raise the loss to more than 600. The approximation holds only near the point, and nothing limits the length of the step.
#
# For n parameters, the Hessian has n² entries. `jax.hessian(f)` is `jax.jacfwd(jax.jacrev(f))`, which needs n JVPs of the gradient.

# %%
for n in (10, 100, 1000):
    chain, x = lambda x: jnp.sum(jnp.sin(x[:-1]) * x[1:]), jnp.ones(n)
    cost_of_hessian = flops(jax.hessian(chain), x)
    print(f"n = {n:4d}: gradient {flops(jax.grad(chain), x):6,.0f} flops, Hessian {cost_of_hessian:12,.0f}")

# %% [markdown]
# For a million parameters, the Hessian is too large to store. Many methods need only the Hessian *times a vector*. In an exercise you compute this product at the cost of a few gradients.

# %% [markdown]
# ## Deeper: differentiate a training step
# A training step is a function like any other, so you can differentiate through it. Meta-learning methods such as MAML do this with respect to the parameters before the step. Here we differentiate the loss after the first step with respect to the step size.


# %%
def loss_after_step(step_size):
    gradient = jax.grad(loss)(params, hours, measured)
    moved = jax.tree.map(lambda p, g: p - step_size * g, params, gradient)
    return loss(moved, hours, measured)


for step_size in (0.001, 0.0015, 0.002):
    value, derivative = jax.value_and_grad(loss_after_step)(step_size)
    print(f"step size {step_size}: loss {value:6.2f}, derivative with respect to the step size {derivative:9.1f}")

# %% [markdown]
# The derivative changes its sign between 0.0015 and 0.002, so the best step size for the first step lies between these values. It is well below 0.005, the step size in the core.

# %% [markdown]
# ## Deeper: a derivative rule of your own
# Sometimes every rule is right, but their combination overflows. An example is *softplus*, `log(1 + exp(x))`. It is nearly equal to `x` if `x` is large, so we return `x` there. `jax.custom_jvp` attaches a rule for forward mode. The rule takes the inputs (**primals**) and their tangents, and returns the result and its tangent.


# %%
def softplus(x):
    return jnp.where(x > 20, x, jnp.log1p(jnp.exp(x)))


own_softplus = jax.custom_jvp(softplus)


@own_softplus.defjvp
def softplus_rule(primals, tangents):
    (x,), (tangent,) = primals, tangents
    return own_softplus(x), tangent * jax.nn.sigmoid(x)


for name, function in {"plain": softplus, "own rule": own_softplus, "jax.nn": jax.nn.softplus}.items():
    first, second = jax.grad(function), jax.grad(jax.grad(function))
    for x in (-100.0, 1.0, 100.0):
        print(f"{name:8s} at {x:4.0f}: {function(x):8.4f}, first derivative {first(x):.4f}, second {second(x):.4f}")

# %% [markdown]
# The derivative of the plain version at 100 is NaN, although its value is right. In float32, `exp(100)` is inf, and the backward pass multiplies it by 0.
#
# JAX derives reverse mode from this one rule. It also differentiates the rule itself for higher orders, so the rule must not overflow there either. The formula `1 / (1 + jnp.exp(-x))` has the same value as `jax.nn.sigmoid(x)`, but its derivative at -100 is NaN.

# %%
logistic = lambda x: 1 / (1 + jnp.exp(-x))
print("at -100:", jax.grad(logistic)(-100.0), " with jax.nn.sigmoid:", jax.grad(jax.nn.sigmoid)(-100.0))

# %% [markdown]
# Compare every rule with finite differences. `check_grads` does so in both modes and up to the order that you choose. Before you write a rule, look for an existing function. `jax.nn.softplus`, for example, already has the right derivatives at 100.

# %%
for x in (-100.0, 1.0, 100.0):
    check_grads(own_softplus, (x,), order=2, modes=("fwd", "rev"), rtol=0.02, eps=0.1)
print("The rule agrees with finite differences.")

# %% [markdown]
# ## Deeper: a backward pass of your own
# `jax.custom_vjp` defines only the backward pass. It needs two functions. The first runs in the forward pass and returns the result together with the residuals, which are the values to store. The second takes the residuals and the gradient that arrives from the result. It returns a gradient for each argument, where `None` means 0.
#
# JAX does not check that this gradient is the true derivative. The following function reverses the gradient, which is used to train a network *not* to distinguish two kinds of data.


# %%
@jax.custom_vjp
def reverse_gradient(x, strength):
    return x


def forward(x, strength):
    return x, strength  # the result and the residuals


def backward(strength, g):
    return -strength * g, None  # for x and for strength


reverse_gradient.defvjp(forward, backward)
through = lambda x: reverse_gradient(x, 0.5) ** 2
print("value", through(3.0), "  gradient", jax.grad(through)(3.0))
print_error(lambda: jax.jvp(through, (3.0,), (1.0,)))
print_error(lambda: check_grads(through, (3.0,), order=1, modes=("rev",)))

# %% [markdown]
# Forward mode fails, because there is no rule for it. Therefore, prefer `custom_jvp` for true derivatives. `check_grads` detects that this gradient is not the derivative.
#
# A Python value that is not an array, such as a function or a string, is declared with `nondiff_argnums`. The backward function then takes it as its first argument and returns no gradient for it.

# %%
from functools import partial


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def watch(name, x):
    return x


def print_gradient(name, residuals, g):
    jax.debug.print("gradient with respect to " + name + ": {}", g)
    return (g,)


watch.defvjp(lambda name, x: (x, None), print_gradient)
jax.grad(lambda x: jnp.sin(watch("the square", x**2)))(2.0)
jax.effects_barrier()  # wait for the print

# %% [markdown]
# ## Deeper: complex numbers
# A loss of complex parameters is still a real number. Its gradient is complex, and its direction is a matter of convention.

# %% [markdown] predict="grad-complex"
# `abs(z)**2` is the squared distance of `z` from 0. What is `jax.grad(lambda z: jnp.abs(z) ** 2)(3 + 4j)`?
#
# - [ ] `6 + 8j` | This is the direction of steepest ascent, away from 0. PyTorch returns it.
# - [x] `6 - 8j` | Right. JAX returns the *conjugate* of the direction of steepest ascent.
# - [ ] an error | Only a complex *result* raises an error, unless you pass `holomorphic=True`.

# %%
distance = lambda z: jnp.abs(z) ** 2
z = 3 + 4j
gradient = jax.grad(distance)(z)
print("gradient", gradient, "  squared distance", distance(z))
print("after a step:", distance(z - 0.1 * gradient), "  with conj:", distance(z - 0.1 * jnp.conj(gradient)))
print_error(lambda: jax.grad(lambda z: z**2)(3 + 4j), length=220)
print("holomorphic:", jax.grad(lambda z: z**2, holomorphic=True)(3 + 4j))

# %% [markdown]
# For gradient descent with complex parameters, step against `jnp.conj` of the gradient. A function with a complex result needs `holomorphic=True`, and the derivative is then right only if the function is holomorphic.

# %% [markdown]
# ## Deeper: older code and other libraries
#
# | in older code or elsewhere | now |
# |---|---|
# | HIPS `autograd.grad`, `elementwise_grad` | `jax.grad`, for each element with `vmap` (05) |
# | `jax.custom_transforms`, `jax.defjvp`, `jax.defvjp` | `jax.custom_jvp`, `jax.custom_vjp` |
# | `jax.jacobian`, `jax.remat` | aliases of `jax.jacrev` and `jax.checkpoint` (15) |
# | `loss.backward()`, then `p.grad` (PyTorch) | `jax.grad(loss)(params)` returns the gradient, so nothing is stored or reset |
# | `x.detach()` (PyTorch) | `jax.lax.stop_gradient(x)` |
# | `torch.no_grad()` | not needed, because only code under `grad` is differentiated |
# | `nnx.grad`, `nnx.value_and_grad` | still available; modules are pytrees now, so `jax.grad` accepts them too (10) |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | loss and gradient | `jax.value_and_grad(loss)(params, …)`; the gradient has the structure of `params` |
# | another argument, or several | `argnums=1`, `argnums=(0, 2)` |
# | another result in addition to the loss | `has_aux=True`, return `(loss, other)` |
# | a second derivative | `jax.grad(jax.grad(f))`; for several inputs `jax.hessian(f)`, with n² entries |
# | the Jacobian times a vector | `jax.jvp(f, (x,), (v,))` |
# | a vector times the Jacobian | `jax.vjp(f, x)` |
# | the whole Jacobian | `jax.jacfwd` for few inputs, `jax.jacrev` for few outputs (Deeper) |
# | high orders with respect to one number | `jax.experimental.jet` (Deeper) |
# | a gradient that is not 0 | compute the loss from the argument that you differentiate, without rounding or comparisons |
# | a gradient that is not NaN | a `where` before the operation and one after it |
# | a constant in the loss | `jax.lax.stop_gradient` |
# | a rule of your own | `jax.custom_jvp`, or `jax.custom_vjp` for the backward pass alone; then `check_grads` (Deeper) |
#
# Continue with [the exercises](../exercises/04_grad/04_grad.ipynb).
