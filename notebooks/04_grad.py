# %% [markdown]
# # 04 · grad: which way, and how steep
#
# *Forty minutes, then [the exercises](../exercises/04_grad/04_grad.ipynb).* Afterwards you can differentiate by what you want and as often as you want, say what a gradient costs and choose the mode that costs least, tell a true zero from a mistake, keep NaN out, hold things constant, and write a derivative of your own.
#
# **Assumed.** Arrays (01), tracers and jaxprs (02), `jit` (03). From school: that a derivative is a slope, and the chain rule. Recall before you go on; answer first, then open the fold.
#
# 1. From 01: how far does a float32 count in ones, and about how many digits is that?
#
# <details><summary>Answer</summary>
#
# To 16,777,216, which is 2**24: seven digits. `jnp.float32(1) + 1e-8` is 1.
# </details>
#
# 2. From 02: why can JAX show the operations of your function, and NumPy cannot?
#
# <details><summary>Answer</summary>
#
# It runs your function on tracers, which write down every operation that they go through.
# </details>
#
# 3. From 03: a compiled function reads a variable from outside. What is that variable, in the program?
#
# <details><summary>Answer</summary>
#
# A constant: its value when the function was traced. Only arguments are followed.
# </details>

# %%
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import jet
from jax.test_util import check_grads

np.set_printoptions(precision=3, suppress=True)


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {str(problem)[:220]}\n")
    else:
        print("No error!")


def flops(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


def operations(function, *arguments):
    return len(jax.make_jaxpr(function)(*arguments).eqns)


# %% [markdown]
# ## The question: which knob, which way, how far?
# A cup of coffee was measured eight times in an hour. A model with three knobs should fit: the temperature of the room, of the coffee at the start, and how fast it cools. The first guess is poor.

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
# We could turn each knob a little and see: `(loss(rate + h) - loss(rate - h)) / 2h`. How little is a little?

# %% [markdown] predict="grad-nudge"
# The slope by `rate`, by nudging it in float32. Which nudge `h` gives the best slope?
#
# - [ ] the smallest, 1e-6 | In exact arithmetic. Here both losses agree in nearly all of their seven digits, and the difference is noise.
# - [x] a middle one, about 1e-3 | Right: large ones miss the bend, small ones drown in rounding. Even the best loses digits.
# - [ ] the largest, 1 | Rounding is no problem then. But the loss is no straight line, and that is.


# %%
def nudged(h, number=np.float32):
    at = lambda rate: {"room": number(15), "start": number(80), "rate": number(rate)}
    xs, ys = np.asarray(hours, number), np.asarray(measured, number)
    return (loss(at(1 + h), xs, ys) - loss(at(1 - h), xs, ys)) / (2 * h)


with jax.enable_x64(True):
    exact = float(nudged(1e-5, np.float64))  # with sixteen digits, nudging is good enough to compare with
for h in (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
    print(f"h = {h:7.0e}   slope {nudged(h):9.3f}   relative error {abs(nudged(h) / exact - 1):.0e}")
gradient = jax.grad(loss)(params, hours, measured)
print(f"jax.grad      slope {gradient['rate']:9.3f}   relative error {abs(gradient['rate'] / exact - 1):.0e}")
print(f"and by the room {gradient['room']:.2f}, by the start {gradient['start']:.2f}")

# %% [markdown]
# `jax.grad(loss)` has no `h`. It is a **function**: with the arguments of `loss`, it gives the slope by the first of them, exact up to rounding. The first argument is a dict, so `gradient` is a dict: above are its slope by `rate` and the two others. More rate lowers the loss, at 216 for each unit; a degree more in the room or at the start raises it by 4 to 5. Downhill is *against* the gradient.
#
# ## What grad takes, and what it gives
# To train one wants more than the gradient. `value_and_grad` gives the loss too, `argnums` chooses the arguments, and `has_aux` lets something else through:


# %%
def loss_with_prediction(params, hours, measured):
    predicted = temperature(params, hours)
    return jnp.mean((predicted - measured) ** 2), predicted


by_params, by_measured = jax.grad(loss, argnums=(0, 2))(params, hours, measured)
(value, predicted), slopes = jax.value_and_grad(loss_with_prediction, has_aux=True)(params, hours, measured)
print("loss", value, "  by measured", by_measured)
print("predicted", predicted)

# %% [markdown]
# It refuses what has no slope: several results at once, and whole numbers. `params` may be nested as you like, but every number in it must be a float; what is not goes in as another argument.

# %%
refusal(lambda: jax.grad(temperature)(params, hours))
refusal(lambda: jax.grad(loss)({"room": 15.0, "start": 80, "rate": 1.0}, hours, measured))


# %% [markdown]
# A step downhill, compiled as a whole (03). The knobs differ in size, and so do their slopes: one step size has to suit the steepest, and the others crawl. (`jax.tree.map`, of 06, calls a function for each knob with its slope.) Remember the number of steps.


# %%
@jax.jit
def descend(params):
    value, slopes = jax.value_and_grad(loss)(params, hours, measured)
    return jax.tree.map(lambda p, slope: p - 0.005 * slope, params, slopes), value


fitted = jax.tree.map(jnp.float32, params)
for step in range(20_001):
    fitted, value = descend(fitted)
    if step in (0, 100, 1000, 5000, 20_000):
        print(f"step {step:6d}  loss {value:8.3f}  ", {knob: round(float(p), 2) for knob, p in fitted.items()})

# %% [markdown]
# ## What happens inside
# No nudging, and no algebra either. Every operation has a rule for its own slope; JAX traces your function and writes the rules down beside the operations, in the order of the chain rule.

# %%
f = lambda x: jnp.sin(x) * x
print(jax.make_jaxpr(f)(2.0))
print(jax.make_jaxpr(lambda x, dx: jax.jvp(f, (x,), (dx,)))(2.0, 1.0))
print(jax.make_jaxpr(jax.grad(f))(2.0))

# %% [markdown]
# There are two ways to walk along the chain. **Forward** (`jax.jvp`): beside each value goes its slope, from the inputs on; above, `d = cos a` and the `mul`s behind it. **Reverse** (`jax.vjp`, and `grad` is made of it): run forward first, keep what the rules will need, then go back from the result.
#
# ![A chain: x, sin, exp, tanh, y. Forward mode: value and slope go along the chain together, from one input; one push gives the slopes of all outputs by that input, a column of the Jacobian. Reverse mode: values first, with what is kept, then slopes go back from one output; one pull gives the slopes of that output by all inputs, a row. Below, the Jacobian of few inputs and many outputs is tall, that of a loss is one row.](../images/grad_modes.svg)

# %%
curve = lambda rate: temperature({"room": 20.0, "start": 85.0, "rate": rate}, hours)
values, pushed = jax.jvp(curve, (1.5,), (1.0,))  # where, and how fast rate moves
print("one push forward: slope of all 8 temperatures by rate", pushed)

values, pull = jax.vjp(lambda params: temperature(params, hours), params)
(pulled,) = pull(jnp.zeros(8).at[7].set(1.0))  # which mix of the outputs
print("one pull back: slope of the last temperature by all knobs", jax.tree.map(lambda s: round(float(s), 2), pulled))

# %% [markdown]
# ## What it costs
# Nudging needs two runs for each knob. A network has thousands.

# %% [markdown] predict="grad-cost"
# The gradient of a loss by its n parameters costs how many times the flops of the loss?
#
# - [x] about 2 to 3 times, whatever n is | Right: one pull passes all of them. That is why networks can be trained.
# - [ ] about n times | That is nudging, or forward mode: a run for each parameter.
# - [ ] as much as the loss | The way forward is needed too, and a matrix product has two rules on the way back.


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
# For more than one output you want the **Jacobian**, all slopes of all outputs. `jax.jacfwd` pushes once for each input, `jax.jacrev` pulls once for each output:

# %%
for inputs, outputs in ((4, 256), (256, 4)):
    matrix = jnp.asarray(rng.normal(size=(outputs, inputs)), jnp.float32)
    tall_or_wide, x = lambda x: jnp.tanh(matrix @ x), jnp.ones(inputs)
    forward, reverse = jax.jacfwd(tall_or_wide), jax.jacrev(tall_or_wide)
    cost = f"jacfwd {flops(forward, x):8,.0f} flops, jacrev {flops(reverse, x):8,.0f}"
    equal = jnp.allclose(forward(x), reverse(x), atol=1e-5)
    print(f"{inputs:3d} inputs, {outputs:3d} outputs:  {cost}   equal: {equal}")

# %% [markdown]
# Few inputs: forward. Few outputs, a loss above all: reverse. But reverse mode pays with **memory**. What the way back needs is kept until then, and `pull` holds it; it is a container like any other:


# %%
def deep(x, layers):
    for _ in range(layers):
        x = jnp.sin(x)
    return x


for layers in (1, 4, 16):
    _, pull = jax.vjp(lambda x: deep(x, layers), jnp.ones(1_000_000))
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(pull))
    print(f"{layers:2d} layers keep {kept / 1e6:4.0f} MB for the way back")

# %% [markdown]
# Four times the depth, four times the memory; lesson 15 is about keeping less.
#
# ## Slopes of slopes
# `grad` gives a function, so it can be given to `grad`. Each level differentiates all the code of the one below. **Taylor mode** pushes the first n derivatives along together instead: `jet` takes the point and the derivatives of x itself, which are 1, 0, 0 …, and gives the value and a list of the n derivatives.

# %%
g = lambda x: jnp.exp(jnp.sin(x))
derivative = g
for order in range(1, 8):
    derivative = jax.grad(derivative)
    taylor = lambda x: jet.jet(g, (x,), ((1.0,) + (0.0,) * (order - 1),))[1][-1]
    sizes = f"{operations(derivative, 1.0):5d} operations nested, {operations(taylor, 1.0):4d} by jet"
    print(f"order {order}: {derivative(1.0):8.3f} and {taylor(1.0):8.3f}, {sizes}")

# %% [markdown]
# Nested, the code more than doubles with each level; `jet` grows slowly. Here it is the shorter from order five on.
#
# Second derivatives by several inputs are the **Hessian**, which knows how slopes change, and so how far to go. Newton's step divides the gradient by it. Our cup again, its knobs as a vector:


# %%
def loss_of(knobs):
    return loss(dict(zip(("room", "start", "rate"), knobs, strict=True)), hours, measured)


newton = jax.jit(lambda knobs: knobs - jnp.linalg.solve(jax.hessian(loss_of)(knobs), jax.grad(loss_of)(knobs)))
for start in ((20.0, 85.0, 2.0), (15.0, 80.0, 1.0)):
    steps = [jnp.array(start)]
    for _ in range(5):
        steps.append(newton(steps[-1]))
    fitted = dict(zip(("room", "start", "rate"), start, strict=True))
    for _ in range(20_001):
        fitted, value = descend(fitted)
    print("from", steps[0], " losses", np.array([loss_of(knobs) for knobs in steps]), " to", steps[-1])
    print(f"    20,000 steps downhill: {value:.4f}")

# %% [markdown]
# From a fair guess, a few steps do what takes 20,000 downhill. From our first one they lead astray: far away, the curvature says little about the bottom. And for n parameters the Hessian has n² entries. `jax.hessian` is `jacfwd` of `jacrev`, n pushes through the gradient:

# %%
for n in (10, 100, 1000):
    chain, x = lambda x: jnp.sum(jnp.sin(x[:-1]) * x[1:]), jnp.ones(n)
    hessian = flops(jax.hessian(chain), x)
    print(f"n = {n:4d}: gradient {flops(jax.grad(chain), x):6,.0f} flops, Hessian {hessian:12,.0f}")

# %% [markdown]
# For a million parameters it does not exist. What one needs is nearly always the Hessian *times a vector*, and an exercise gets that for the price of a few gradients.
#
# ## Four short programs
# A step for the cup, written in a hurry, is the first of them.

# %% [markdown] predict="grad-outer"
# What comes back from `jax.grad(lambda p: loss(params, hours, measured))(params)`?
#
# - [x] zeros | Right: the loss does not depend on `p`. `params` is read from outside, and that makes it a constant.
# - [ ] the gradient as before | It was given `params` in both places. But only what comes in as `p` is followed.
# - [ ] an error: `p` is never used | A function may ignore its argument; its slope is 0.

# %%
print("reads the outer params:", jax.tree.map(float, jax.grad(lambda p: loss(params, hours, measured))(params)))
print("rounds:                ", jax.grad(lambda x: jnp.round(3 * x))(0.4))
print("counts:                ", jax.grad(lambda x: jnp.mean(x > jnp.arange(3.0)))(1.5))


# %% [markdown] predict="grad-branch"
# `square(x)` returns 9 if `x == 3`, else `x**2`. It is the square, everywhere. What is `jax.grad(square)(3.0)`?
#
# - [ ] 6 | The slope of the square. But JAX sees only the operations of this run.
# - [ ] an error, as under `jit` | Under `grad` alone the tracer carries its value, so `if` can look at it.
# - [x] 0 | Right: Python took the branch in which the result is the number 9, and 9 does not depend on x.


# %%
def square(x):
    return 9.0 if x == 3 else x**2


print("slopes at 2 and 3:", jax.grad(square)(2.0), jax.grad(square)(3.0))
refusal(lambda: jax.jit(jax.grad(square))(3.0))

# %% [markdown]
# All four are **true zeros**: right, and useless. JAX differentiates what you wrote, not what you meant. A Python `if` is differentiated along the branch that runs. That is what you want when the branches meet smoothly, and never what you want at an exact `==`. At a **kink** there is no slope, and JAX takes one by convention; a tie shares it out.

# %%
slope_at_0 = {f.__name__: float(jax.grad(f)(0.0)) for f in (jnp.abs, jax.nn.relu, jax.nn.leaky_relu)}
print(slope_at_0, "  max of a tie:", jax.grad(jnp.max)(jnp.array([1.0, 3.0, 3.0])))

# %% [markdown]
# ## At the edge, with where
# The entropy `-x log(x)` is to be 0 at 0, where the logarithm is infinite. So choose, with `where`:

# %% [markdown] predict="grad-where"
# `jnp.where(x > 0, -x * jnp.log(x), 0.0)` at `x = 0` is 0. Its gradient there?
#
# - [ ] 0 | It is the slope of the side that was chosen. But the other side takes part in the sum.
# - [ ] inf | The slope of the logarithm at 0, yes. It is multiplied first.
# - [x] NaN | Right: the side not chosen gets the slope 0, and passes it on times inf.


# %%
def entropy(x):
    return jnp.where(x > 0, -x * jnp.log(x), 0.0)


print("value", entropy(0.0), "  gradient", jax.grad(entropy)(0.0))

# %% [markdown]
# ![One where: on the way forward log(0) is computed and thrown away. On the way back, where sends the slope 1 to the side that was chosen and 0 to the other, and 0 times the slope 1/0 = inf of log is NaN. Two wheres: log sees a harmless 1 in place of 0, its slope there is 1, and 0 times 1 is 0.](../images/grad_where.svg)
#
# `where` computes both sides, and so does its way back. The mend: **the operation must never see the bad value**. A first `where` puts something harmless in, a second picks the result:


# %%
def safe_entropy(x):
    inside = x > 0
    harmless = jnp.where(inside, x, 1.0)
    return jnp.where(inside, -harmless * jnp.log(harmless), 0.0)


print("value", safe_entropy(0.0), "  gradient", jax.grad(safe_entropy)(0.0), "  at 0.5", jax.grad(safe_entropy)(0.5))
print("norm(error)**2:", jax.grad(lambda error: jnp.linalg.norm(error) ** 2)(jnp.zeros(2)))
print("sum(error**2):", jax.grad(lambda error: jnp.sum(error**2))(jnp.zeros(2)))

# %% [markdown]
# (The entropy's slope of 0 at 0 is a convention; the true one is infinite.) `norm(error)**2` is a bug from real training code. As a loss it takes a root and squares it again, and at a perfect fit the slope of the root is infinite. Write what you mean.
#
# ## Holding still
# `jax.lax.stop_gradient(x)` is `x` on the way forward and a constant on the way back. It holds targets still, and it builds deliberate lies. Rounding has no slope, but a network with rounded weights should learn: round forward, and let the slope through as if nothing had happened.

# %%
rounded = lambda x: x + jax.lax.stop_gradient(jnp.round(x) - x)
print("value", rounded(1.3), "  slope", jax.grad(rounded)(1.3), "  of round", jax.grad(jnp.round)(1.3))


# %% [markdown]
# ## Rules of your own
# Sometimes the rules are right one by one, and fail together. `log(1 + exp(x))`, which is `x` where `x` is large:


# %%
def softplus(x):
    return jnp.where(x > 20, x, jnp.log1p(jnp.exp(x)))


own_softplus = jax.custom_jvp(softplus)


@own_softplus.defjvp
def softplus_rule(primals, tangents):
    (x,), (push,) = primals, tangents
    return own_softplus(x), push * jax.nn.sigmoid(x)


for name, function in {"plain": softplus, "own rule": own_softplus, "jax.nn's": jax.nn.softplus}.items():
    slope, bend = jax.grad(function), jax.grad(jax.grad(function))
    for x in (-100.0, 1.0, 100.0):
        print(f"{name:9s} at {x:4.0f}: {function(x):8.4f}, slope {slope(x):.4f}, its slope {bend(x):.4f}")

# %% [markdown]
# `exp(100)` is inf in float32. The value is right, but 0 comes back to the side not chosen, and 0 · inf is NaN. `custom_jvp` takes values and pushes (in JAX's words *primals* and *tangents*), and gives the value and its push. From that JAX makes reverse mode and higher orders as well, so prefer it. Mind that the rule is differentiated too: `push / (1 + jnp.exp(-x))` has the same slope, and NaN for *its* slope at -100. And look first: `jax.nn.softplus` brings such a rule already, by `jnp.logaddexp`.
#
# `custom_vjp` speaks about the way back only: one function runs forward and says what to **keep**, another takes what was kept and the slope that arrives. Nothing forces it to be the true derivative. This one turns the slope round; it teaches a network to be *unable* to tell two kinds of data apart:


# %%
@jax.custom_vjp
def reverse_gradient(x, strength):
    return x


def keep(x, strength):
    return x, strength  # the result, and what is kept


def turn_round(strength, slope):
    return -strength * slope, None  # one for each argument; None stands for 0


reverse_gradient.defvjp(keep, turn_round)
through = lambda x: reverse_gradient(x, 0.5) ** 2
print("value", through(3.0), "  gradient", jax.grad(through)(3.0))
refusal(lambda: jax.jvp(through, (3.0,), (1.0,)))

# %% [markdown]
# Whatever you write, compare it with nudging: `jax.test_util.check_grads` does, in both modes and to any order.

# %%
for x in (-100.0, 1.0, 100.0):
    check_grads(own_softplus, (x,), order=2, modes=("fwd", "rev"), rtol=0.02, eps=0.1)
refusal(lambda: check_grads(through, (3.0,), order=1, modes=("rev",)))

# %% [markdown]
# ## Complex numbers
# A loss of complex parameters is still one real number. Its gradient is complex, and where that points is a matter of convention:

# %% [markdown] predict="grad-complex"
# `jax.grad(lambda z: jnp.abs(z)**2)(3 + 4j)`: the squared distance from 0.
#
# - [ ] `6 + 8j` | That points straight away from 0, as a gradient should; PyTorch gives this one.
# - [x] `6 - 8j` | Right: JAX gives the *conjugate* of the direction of steepest ascent. So step along the conjugate.
# - [ ] an error | Only for a complex *result*: then say `holomorphic=True`, and mean it.

# %%
distance = lambda z: jnp.abs(z) ** 2
z = 3 + 4j
slope = jax.grad(distance)(z)
print("gradient", slope, "  squared distance", distance(z))
print("after a step:", distance(z - 0.1 * slope), "  with conj:", distance(z - 0.1 * jnp.conj(slope)))
refusal(lambda: jax.grad(lambda z: z**2)(3 + 4j))
print("holomorphic:", jax.grad(lambda z: z**2, holomorphic=True)(3 + 4j))

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | loss and gradient | `jax.value_and_grad(loss)(params, …)`; a container in, the same container out |
# | by another argument, by several | `argnums=1`, `argnums=(0, 2)` |
# | something beside the loss | `has_aux=True`, return `(loss, other)` |
# | a Jacobian, few inputs | `jax.jacfwd`: a push for each input |
# | a Jacobian, few outputs | `jax.jacrev`: a pull for each output |
# | one direction, one mix of outputs | `jax.jvp(f, (x,), (push,))`, `jax.vjp(f, x)` |
# | all second derivatives | `jax.hessian`, n² of them |
# | high orders by one number | `jax.experimental.jet` |
# | a gradient that should not be 0 | everything that depends on the parameters inside the loss, from its argument; nothing flat |
# | no NaN | a `where` before the operation, and one after |
# | a constant | `jax.lax.stop_gradient`, or compute it outside |
# | a rule of your own | `jax.custom_jvp`; for the way back alone `jax.custom_vjp`; then `check_grads` |
# | downhill with complex numbers | step along `jnp.conj` of the gradient |
#
# ## What it became
#
# | in older code, or elsewhere | now |
# |---|---|
# | HIPS `autograd.grad`, `elementwise_grad` | `jax.grad`; for each example, with `vmap` (05) |
# | `jax.custom_transforms`, `jax.defjvp`, `jax.defvjp` | `jax.custom_jvp`, `jax.custom_vjp` |
# | `jax.jacobian`, `jax.remat` | aliases of `jax.jacrev` and `jax.checkpoint` (15) |
# | `loss.backward()`, then `p.grad` (PyTorch) | `jax.grad(loss)(params)`: returned, nothing is stored, nothing has to be zeroed |
# | `x.detach()`, `torch.no_grad()` | `jax.lax.stop_gradient(x)`; without `grad` nothing is recorded |
# | `nnx.grad`, `nnx.value_and_grad` | in maintenance: Flax modules are pytrees now, and plain `jax.grad` takes them (10) |
#
# Next: the exercises. The first has one line missing.
