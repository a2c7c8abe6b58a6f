# %% [markdown]
# # 22 · Exercises: Pallas
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# `pallas_call` of the setup is `pl.pallas_call` with `interpret=True`. Use it also if you have an accelerator, because the checks export and inspect your program, and cannot inspect a compiled kernel. In each exercise, `block` or `blocks` is a tuple of Python ints.
#
# `kernels(function, *args)` of the setup lists the kernels in the jaxpr of `function(*args)`. Each is a dict with its `grid`, the shapes of its `inputs`, the `blocks` and `dtypes` of its inputs and outputs, its `scratch` arrays, its `aliases`, the block of each output in every step of the grid (`visits`), the shapes of the arrays that it tests for NaN (`nan_tests`), and the shapes of the masks that it converts to numbers (`weights`).

# %% setup
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from grader.checks import ask, case, compare, inputs, program, require

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")
pallas_call = functools.partial(pl.pallas_call, interpret=True)


def equations(jaxpr):
    """The equations of a jaxpr and of the jaxprs in it, without the bodies of kernels."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        if equation.primitive.name != "pallas_call":
            inner = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns"))
            for leaf in inner:
                if hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr"):
                    yield from equations(leaf)


def tests_nan(equation):
    """Whether an equation tests for NaN, which is the only number that differs from itself."""
    compares = equation.primitive.name in ("ne", "eq") and equation.invars[0] is equation.invars[1]
    return compares or equation.primitive.name == "is_finite"


def weighs(equation):
    """Whether an equation converts a mask to floating-point numbers."""
    if equation.primitive.name != "convert_element_type":
        return False
    return equation.invars[0].aval.dtype == "bool" and equation.outvars[0].aval.dtype in ("float32", "bfloat16")


def described(equation):
    """The grid, arrays, blocks, dtypes, scratch arrays, aliases, visits, NaN tests and masks of a pallas_call, as data."""
    mapping = equation.params["grid_mapping"]
    sizes = [tuple(getattr(one, "block_size", 1) for one in block.block_shape) for block in mapping.block_mappings]
    steps = list(itertools.product(*map(range, mapping.grid)))
    evaluate = lambda block, step: jax.core.eval_jaxpr(
        block.index_map_jaxpr.jaxpr, block.index_map_jaxpr.consts, *map(np.int32, step)
    )
    return {
        "grid": tuple(mapping.grid),
        "inputs": [tuple(one.aval.shape) for one in equation.invars],
        "blocks": sizes,
        "dtypes": [str(one.aval.dtype) for one in (*equation.invars, *equation.outvars)],
        "scratch": [(tuple(one.shape), str(one.dtype)) for one in mapping.scratch_avals],
        "aliases": [tuple(pair) for pair in equation.params["input_output_aliases"]],
        "visits": [
            [tuple(int(index) for index in evaluate(block, step)) for step in steps]
            for block in mapping.block_mappings[mapping.num_inputs :]
        ],
        "nan_tests": [one.invars[0].aval.shape for one in equations(equation.params["jaxpr"]) if tests_nan(one)],
        "weights": [one.invars[0].aval.shape for one in equations(equation.params["jaxpr"]) if weighs(one)],
    }


def kernels(function, *args):
    """The kernels in the jaxpr of function(*args), each as a dict, in order."""
    found = equations(jax.make_jaxpr(function)(*args))
    return [described(one) for one in found if one.primitive.name == "pallas_call"]


def outside(function, *args):
    """The names of the primitives in the jaxpr of function(*args) that are not inside a kernel."""
    return [one.primitive.name for one in equations(jax.make_jaxpr(function)(*args))]


def revisits(visits):
    """Whether a kernel writes to a block of its result again after it has written to another one."""
    changes = [block for block, _ in itertools.groupby(visits)]
    return len(changes) != len(set(changes))


def add_kernel(x_ref, y_ref, out_ref):
    """One block of x + y.T."""
    if y_ref.shape != x_ref.shape[::-1]:
        raise ValueError(f"y_spec selects blocks of shape {y_ref.shape}. The kernel needs {x_ref.shape[::-1]}.")
    out_ref[...] = x_ref[...] + y_ref[...].T


def squash_kernel(x_ref, s_ref, y_ref):
    """One block of rows of tanh(x * s)."""
    y_ref[...] = jnp.tanh(x_ref[...] * s_ref[...])


def squash_forward(x, s, rows):
    """tanh(x * s) in blocks of `rows` rows: x float32[M,N], s float32[N] -> float32[M,N]"""
    some_rows, all_scales = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec((len(s),), lambda i: (0,))
    return pallas_call(
        squash_kernel,
        grid=pl.cdiv(x.shape[0], rows),
        in_specs=[some_rows, all_scales],
        out_specs=some_rows,
        out_shape=jax.eval_shape(lambda: x),
    )(x, s)


# %% [markdown] task="pallas-add" stars=1 minutes=10 skills="12_state"
# ## A sum in blocks
# **Goal.** Add a matrix and the transpose of another one, one block at a time. The kernel `add_kernel` is in the setup. Two lines are missing: `grid`, and `y_spec`, which selects the block of `y` in each step.
#
# **Signature.** `add_transposed(x, y, block)` takes `x`, a `float32[M,N]`, `y`, a `float32[N,M]`, and `block`, the shape of a block of `x`. It returns `x + y.T`, a `float32[M,N]`. The block divides the shape of `x`.
#
# **Example.** `x` of zeros with shape (4, 12), `y = np.arange(48).reshape(12, 4)` and `block = (2, 3)` give `y.T`. The result has two by four blocks, so the kernel runs eight times. The upper right block of the result needs the lower left block of `y`.
#
# **Judged.** The values. There is one kernel, whose grid has one step for each block of the result. Each step reads a block of `x` of shape `block`, and a block of `y` with as many elements. The kernel gets `y` itself, without a transposed copy. **Not judged.** The order of the steps, and the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many blocks are next to each other along each axis of the result? Which rows and columns of `y` does the block (i, j) of the result need?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A `BlockSpec` has a block shape and an index map. The index map takes the indices of the grid and returns the position of the block, counted in blocks.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The grid is the number of rows divided by the rows of a block, and the same for columns. The block shape of `y` is `(columns, rows)`, and its index map returns `(j, i)`.
#
# </details>


# %% answer="pallas-add"
def add_transposed(x, y, block):
    """x float32[M,N], y float32[N,M] -> x + y.T float32[M,N], in blocks of this shape."""
    rows, columns = block
    ### BEGIN SOLUTION
    grid = x.shape[0] // rows, x.shape[1] // columns
    y_spec = pl.BlockSpec((columns, rows), lambda i, j: (j, i))
    ### END SOLUTION
    x_spec = pl.BlockSpec(block, lambda i, j: (i, j))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas_call(add_kernel, grid=grid, in_specs=[x_spec, y_spec], out_specs=x_spec, out_shape=shape)(x, y)


# %% check="pallas-add" name="example" points=1
"""The example, and a sum of other numbers."""
y = np.arange(48, dtype=np.float32).reshape(12, 4)
compare(ask(add_transposed, np.zeros((4, 12), np.float32), y, (2, 3)), y.T, label="the sum")
x = inputs.rng().normal(size=(4, 12)).astype(np.float32)
compare(ask(add_transposed, x, y, (2, 3)), x + y.T, label="the sum of other numbers")

# %% hidden="pallas-add" name="values" points=1
"""Right for other shapes and blocks."""
rng = inputs.rng()
for down, across, block in (
    (int(rng.integers(2, 4)), int(rng.integers(4, 6)), (3, 2)),
    (int(rng.integers(4, 6)), int(rng.integers(2, 4)), (2, 5)),
    (1, int(rng.integers(2, 4)), (4, 3)),
    (int(rng.integers(2, 4)), 1, (1, 7)),
):
    shape = down * block[0], across * block[1]
    x, y = rng.normal(size=shape).astype(np.float32), rng.normal(size=shape[::-1]).astype(np.float32)
    with case(f"for {down} by {across} blocks of shape {block}"):
        made = program(add_transposed, x, y, block)
        compare(made.run(x, y, block), x + y.T, label="the sum")

# %% hidden="pallas-add" name="grid" points=1 observed=true
"""One kernel, with one step for each block of the result."""
for shape, block in (((6, 20), (3, 5)), ((8, 6), (2, 6)), ((5, 12), (5, 2))):
    with case(f"for the shape {shape} and blocks of shape {block}"):
        x, y = np.zeros(shape, np.float32), np.zeros(shape[::-1], np.float32)
        found = ask(lambda x, y, block: kernels(lambda x, y: add_transposed(x, y, block), x, y), x, y, block)
        require(len(found) == 1, f"the jaxpr contains {len(found)} kernels. It should contain one.")
        [kernel] = found
        steps, wanted = int(np.prod(kernel["grid"])), (shape[0] // block[0]) * (shape[1] // block[1])
        require(steps == wanted, f"the grid {kernel['grid']} has {steps} steps, but the result has {wanted} blocks.")
        sizes = [int(np.prod(one)) for one in kernel["blocks"]]
        require(
            dict(zip(kernel["inputs"], kernel["blocks"], strict=False)).get(shape) == block
            and sizes == [block[0] * block[1]] * 3,
            f"the blocks of the kernel have the shapes {kernel['blocks']}.",
        )
        around = ask(lambda x, y, block: outside(lambda x, y: add_transposed(x, y, block), x, y), x, y, block)
        require("transpose" not in around, "the whole matrix is transposed outside of the kernel.")

# %% [markdown] why="pallas-add"
# The index map decides where the data of a step come from. Here it exchanges the two indices, so a transpose of the whole matrix is never computed. Each step transposes one block. **Next:** The index map of `y` could also return `(0, i)` for every j. What would the kernel compute?


# %% wrong="pallas-add" because="Exchanges the shape of the block of `y`, but not its position. Outside of the diagonal, the blocks of `y` are wrong."
def add_transposed(x, y, block):
    rows, columns = block
    x_spec, y_spec = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((columns, rows), lambda i, j: (i, j))
    grid = x.shape[0] // rows, x.shape[1] // columns
    return pallas_call(add_kernel, jax.typeof(x), grid=grid, in_specs=[x_spec, y_spec], out_specs=x_spec)(x, y)


# %% wrong="pallas-add" because="Exchanges the position of the block of `y`, but not its shape. The shapes of the blocks do not match if they are not square."
def add_transposed(x, y, block):
    rows, columns = block
    x_spec, y_spec = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec(block, lambda i, j: (j, i))
    grid = x.shape[0] // rows, x.shape[1] // columns
    return pallas_call(add_kernel, jax.typeof(x), grid=grid, in_specs=[x_spec, y_spec], out_specs=x_spec)(x, y)


# %% wrong="pallas-add" because="Returns elements from the index map. It has to return the position counted in blocks."
def add_transposed(x, y, block):
    rows, columns = block
    x_spec = pl.BlockSpec(block, lambda i, j: (i, j))
    y_spec = pl.BlockSpec((columns, rows), lambda i, j: (j * columns, i * rows))
    grid = x.shape[0] // rows, x.shape[1] // columns
    return pallas_call(add_kernel, jax.typeof(x), grid=grid, in_specs=[x_spec, y_spec], out_specs=x_spec)(x, y)


# %% wrong="pallas-add" because="Uses the shape of a block as the grid. The grid is the number of blocks along each axis."
def add_transposed(x, y, block):
    rows, columns = block
    x_spec, y_spec = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((columns, rows), lambda i, j: (j, i))
    return pallas_call(
        add_kernel,
        grid=block,
        in_specs=[x_spec, y_spec],
        out_specs=x_spec,
        out_shape=jax.typeof(x),
    )(x, y)


# %% wrong="pallas-add" because="Exchanges the two axes of the grid. Some blocks of the result are never written, and steps outside of the result repeat its last blocks."
def add_transposed(x, y, block):
    rows, columns = block
    x_spec, y_spec = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((columns, rows), lambda i, j: (j, i))
    return pallas_call(
        add_kernel,
        grid=(x.shape[1] // columns, x.shape[0] // rows),
        in_specs=[x_spec, y_spec],
        out_specs=x_spec,
        out_shape=jax.typeof(x),
    )(x, y)


# %% wrong="pallas-add" because="Has no grid, so one step reads the whole matrices. On an accelerator, they would have to fit into the fast memory."
def add_transposed(x, y, block):
    return pallas_call(
        add_kernel,
        out_shape=jax.typeof(x),
    )(x, y)


# %% wrong="pallas-add" because="Reads the whole `y` in every step, instead of the block that the step needs."
def add_transposed(x, y, block):
    rows, columns = block

    def kernel(x_ref, y_ref, out_ref):
        i, j = pl.program_id(0), pl.program_id(1)
        out_ref[...] = x_ref[...] + y_ref[pl.ds(j * columns, columns), pl.ds(i * rows, rows)].T

    x_spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=(x.shape[0] // rows, x.shape[1] // columns),
        in_specs=[x_spec, pl.BlockSpec(y.shape, lambda i, j: (0, 0))],
        out_specs=x_spec,
    )(x, y)


# %% wrong="pallas-add" because="Computes the sum without a kernel."
def add_transposed(x, y, block):
    return x + y.T


# %% wrong="pallas-add" because="Has a grid along the rows only, so the other blocks of each row are never written."
def add_transposed(x, y, block):
    rows, columns = block
    x_spec, y_spec = pl.BlockSpec(block, lambda i: (i, 0)), pl.BlockSpec((columns, rows), lambda i: (0, i))
    return pallas_call(
        add_kernel,
        grid=x.shape[0] // rows,
        in_specs=[x_spec, y_spec],
        out_specs=x_spec,
        out_shape=jax.typeof(x),
    )(x, y)


# %% wrong="pallas-add" because="Adds a step along each axis, as if the block did not divide the shape."
def add_transposed(x, y, block):
    rows, columns = block
    x_spec, y_spec = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((columns, rows), lambda i, j: (j, i))
    return pallas_call(
        add_kernel,
        grid=(x.shape[0] // rows + 1, x.shape[1] // columns + 1),
        in_specs=[x_spec, y_spec],
        out_specs=x_spec,
        out_shape=jax.typeof(x),
    )(x, y)


# %% wrong="pallas-add" because="Divides both sizes of the matrix by the same size of a block. The rows need the rows of a block, and the columns its columns."
def add_transposed(x, y, block):
    rows, columns = block
    x_spec, y_spec = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((columns, rows), lambda i, j: (j, i))
    return pallas_call(
        add_kernel,
        grid=(pl.cdiv(x.shape[0], columns), pl.cdiv(x.shape[1], columns)),
        in_specs=[x_spec, y_spec],
        out_specs=x_spec,
        out_shape=jax.typeof(x),
    )(x, y)


# %% wrong="pallas-add" because="Transposes `y` in a kernel of its own, which writes the transposed matrix to memory before the sum."
def add_transposed(x, y, block):
    rows, columns = block
    grid = x.shape[0] // rows, x.shape[1] // columns
    x_spec, y_spec = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((columns, rows), lambda i, j: (j, i))

    def flip_kernel(y_ref, out_ref):
        out_ref[...] = y_ref[...].T

    def sum_kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    flipped = pallas_call(flip_kernel, jax.typeof(x), grid=grid, in_specs=[y_spec], out_specs=x_spec)(y)
    return pallas_call(sum_kernel, jax.typeof(x), grid=grid, in_specs=[x_spec] * 2, out_specs=x_spec)(x, flipped)


# %% wrong="pallas-add" because="Transposes the whole `y` before the kernel, which writes the transposed matrix to memory."
def add_transposed(x, y, block):
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    same = pl.BlockSpec(block, lambda i, j: (i, j))
    grid = x.shape[0] // block[0], x.shape[1] // block[1]
    return pallas_call(kernel, jax.typeof(x), grid=grid, in_specs=[same, same], out_specs=same)(x, y.T)


# %% wrong="pallas-add" because="Uses the grid of the example. The grid is the number of blocks along each axis."
def add_transposed(x, y, block):
    rows, columns = block
    grid = (2, 4)  # two by four blocks
    y_spec = pl.BlockSpec((columns, rows), lambda i, j: (j, i))
    x_spec = pl.BlockSpec(block, lambda i, j: (i, j))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas_call(add_kernel, grid=grid, in_specs=[x_spec, y_spec], out_specs=x_spec, out_shape=shape)(x, y)


# %% wrong="pallas-add" because="Has a step for each element of the result. The grid is the number of blocks along each axis."
def add_transposed(x, y, block):
    rows, columns = block
    grid = x.shape
    y_spec = pl.BlockSpec((columns, rows), lambda i, j: (j, i))
    x_spec = pl.BlockSpec(block, lambda i, j: (i, j))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas_call(add_kernel, grid=grid, in_specs=[x_spec, y_spec], out_specs=x_spec, out_shape=shape)(x, y)


# %% right="pallas-add"
def add_transposed(x, y, block):
    rows, columns = block

    def kernel(y_ref, x_ref, out_ref):
        out_ref[:, :] = jnp.swapaxes(y_ref[:, :], 0, 1) + x_ref[:, :]

    flip = lambda x, y: pallas_call(
        kernel,
        grid=(pl.cdiv(x.shape[1], columns), pl.cdiv(x.shape[0], rows)),  # column after column
        in_specs=[pl.BlockSpec((columns, rows), lambda j, i: (j, i)), pl.BlockSpec(block, lambda j, i: (i, j))],
        out_specs=pl.BlockSpec(block, lambda j, i: (i, j)),
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
    )(y, x)
    return jax.jit(flip)(x, y)


# %% right="pallas-add"
def add_transposed(x, y, block):
    def kernel(x_ref, y_ref, out_ref):
        for row in range(block[0]):
            out_ref[row] = x_ref[row] + y_ref[:, row]

    across = y.shape[0] // block[1]
    return pallas_call(
        kernel,
        grid=(x.shape[0] // block[0] * across,),
        in_specs=[
            pl.BlockSpec(block, lambda step: (step // across, step % across)),
            pl.BlockSpec(block[::-1], lambda step: (step % across, step // across)),
        ],
        out_specs=pl.BlockSpec(block, lambda step: (step // across, step % across)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, y)


# %% [markdown] task="pallas-bias-relu" stars=2 minutes=15 skills="pallas-add"
# ## A fused layer, in place
# *Needs: Deeper: overwrite an input.*
#
# **Goal.** Add a bias to the rows of a matrix and apply ReLU, in one kernel that overwrites its input. The blocks do not divide the matrix, and the dtypes differ.
#
# **Signature.** `fused_bias_relu(x, b, block)` takes `x` of shape (M, N), a `float32` or `bfloat16`, the bias `b`, a `float32[N]`, and the shape of a block. It computes `max(x + b, 0)` in float32, and returns it with the shape and the dtype of `x`.
#
# **Example.** `x = [[1, -2, 3], [-4, 5, -6]]`, `b = [1, 1, -5]` and `block = (2, 2)` give `[[2, 0, 0], [0, 6, 0]]`.
#
# **Judged.** The values and the dtype, also for blocks that do not divide the matrix or are larger than it. There is one kernel with one step for each block. Each step uses blocks of `x` and of the result of shape `block`, and as many entries of `b` as the block has columns. The result uses the memory of `x` (`input_output_aliases`). **Not judged.** Whether the block of `b` has one or two axes.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which entries of `b` does the block (i, j) of `x` need? How many blocks cover five columns if each has two?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The index map of `b` ignores i. `pl.cdiv` divides and rounds up. A Ref accepts only values of its own dtype.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `b` has the spec `pl.BlockSpec((columns,), lambda i, j: (j,))`. Write `jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)`, and pass `input_output_aliases={0: 0}`, from the position of the input to that of the output. Elements past the edge are not written, so they need no mask.
#
# </details>


# %% answer="pallas-bias-relu"
def fused_bias_relu(x, b, block):
    """x float32|bfloat16[M,N], b float32[N] -> max(x + b, 0) in the dtype of x, in the memory of x."""
    ### BEGIN SOLUTION

    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        grid=(pl.cdiv(x.shape[0], block[0]), pl.cdiv(x.shape[1], block[1])),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases={0: 0},
    )(x, b)
    ### END SOLUTION


# %% check="pallas-bias-relu" name="example" points=1
"""The example in both dtypes."""
x, b = np.array([[1, -2, 3], [-4, 5, -6]], np.float32), np.array([1, 1, -5], np.float32)
wanted = np.array([[2, 0, 0], [0, 6, 0]], np.float32)
compare(ask(fused_bias_relu, x, b, (2, 2)), wanted, label="the layer")
halves = jnp.asarray(x, jnp.bfloat16)
compare(ask(fused_bias_relu, halves, b, (2, 2)), jnp.asarray(wanted, jnp.bfloat16), label="the layer in bfloat16")

# %% hidden="pallas-bias-relu" name="values" points=2
"""Right for other shapes, blocks and dtypes."""
rng = inputs.rng()
for shape, block, dtype, words in (
    ((6, 10), (3, 5), "float32", "if the block divides the matrix"),
    ((5, int(rng.integers(7, 9))), (2, 3), "float32", "if the block does not divide the matrix"),
    ((int(rng.integers(16, 18)), 9), (3, 2), "bfloat16", "in bfloat16"),
    ((3, 4), (4, 8), "float32", "if the block is larger than the matrix"),
):
    x, b = rng.normal(size=shape).astype(np.float32), rng.normal(size=shape[1]).astype(np.float32)
    if dtype == "bfloat16":  # of a magnitude at which a rounded bias changes many sums
        b = rng.uniform(1, 2, size=shape[1]).astype(np.float32)
    x = jnp.asarray(x, dtype)
    wanted = np.maximum(np.asarray(x, np.float32) + b, 0)
    with case(words):
        made = program(fused_bias_relu, x, b, block)
        got = made.run(x, b, block)
        compare(got, jnp.asarray(wanted, dtype), label="the layer", rtol=1e-6 if dtype == "float32" else 1e-8, atol=0)

# %% hidden="pallas-bias-relu" name="kernel" points=1 observed=true
"""One kernel with the right blocks, whose result uses the memory of the input."""


def looked_at(x, b, block):
    run = lambda x, b: fused_bias_relu(x, b, block)
    made = [one for one in equations(jax.make_jaxpr(run)(x, b)) if one.outvars]
    return kernels(run, x, b), [(one.primitive.name, tuple(one.outvars[0].aval.shape)) for one in made]


for shape, block, steps, dtype in (
    ((5, 8), (2, 3), 9, "float32"),
    ((4, 6), (4, 2), 3, "bfloat16"),
    ((3, 4), (4, 8), 1, "float32"),
):
    with case(f"for a {dtype} of shape {shape} and blocks of shape {block}"):
        x, b = jnp.zeros(shape, dtype), np.zeros(shape[1], np.float32)
        found, made = ask(looked_at, x, b, block)
        require(len(found) == 1, f"the jaxpr contains {len(found)} kernels. It should contain one.")
        [kernel] = found
        count = int(np.prod(kernel["grid"]))
        require(count == steps, f"the grid {kernel['grid']} has {count} steps, but the matrix has {steps} blocks.")
        sizes = sorted(int(np.prod(one)) for one in kernel["blocks"])
        require(
            kernel["blocks"].count(block) == 2 and sizes == [block[1], block[0] * block[1], block[0] * block[1]],
            f"the blocks of the kernel have the shapes {kernel['blocks']}.",
        )
        require(
            shape in kernel["inputs"],
            f"the inputs of the kernel have the shapes {kernel['inputs']}, so it does not read `x` itself.",
        )
        aliased = kernel["aliases"] == [(kernel["inputs"].index(shape), 0)]
        require(aliased, "the result does not use the memory of `x`.")
        copied = sorted({name for name, size in made if size == shape} & {"copy", "convert_element_type"})
        require(not copied, f"outside of the kernel, the matrix is copied or converted: {', '.join(copied)}.")

# %% [markdown] why="pallas-bias-relu"
# The product `x @ w` is often followed by operations that only read and write memory. A fused kernel reads and writes each element once. The alias also saves the memory of the result, because step (i, j) reads only the block that it overwrites. **Next:** Which kernel would be wrong with an alias, because a step reads what an earlier step has overwritten?


# %% wrong="pallas-bias-relu" because="Rounds the number of blocks down, so the last rows and columns are never written."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=(x.shape[0] // block[0], x.shape[1] // block[1]),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Selects the wrong entries of the bias. The index map of `b` has to return the column j of the block."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (i,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Selects the wrong entries of the bias. The index map of `b` has to return the column j of the block."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (0,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Does not convert the sum, which is float32, to the dtype of the result. A Ref of bfloat16 does not accept it."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Returns float32, whatever the dtype of `x` is. Such a result cannot use the memory of a bfloat16 array."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct(x.shape, jnp.float32),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
        input_output_aliases={0: 0} if x.dtype == jnp.float32 else {},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Rounds the bias to the dtype of `x` first, so the sum is not computed in float32."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...].astype(x_ref.dtype), 0)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Writes the result to new memory. Without `input_output_aliases`, the kernel overwrites nothing."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
    )(x, b)


# %% wrong="pallas-bias-relu" because="Reads the whole bias in each step and adds it to a block, so the shapes do not match."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(b.shape, lambda i, j: (0,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Adds the bias outside of the kernel, so the sum is another array in memory."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec],
        out_specs=spec,
    )(x + b)


# %% wrong="pallas-bias-relu" because="Applies ReLU before it adds the bias."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = (jnp.maximum(x_ref[...], 0) + b_ref[...]).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Converts `x` before the kernel, so the result uses the memory of a copy. A kernel can convert its blocks."
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct(x.shape, jnp.float32),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x.astype(jnp.float32), b).astype(x.dtype)


# %% wrong="pallas-bias-relu" because="Makes a block that is larger than the matrix smaller. A block may extend past the edge."
def fused_bias_relu(x, b, block):
    block = min(block[0], x.shape[0]), min(block[1], x.shape[1])

    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=tuple(map(pl.cdiv, x.shape, block)),
        in_specs=[spec, pl.BlockSpec(block[1:], lambda i, j: (j,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)


# %% wrong="pallas-bias-relu" because="Pads the matrix before the kernel, so the result uses the memory of a copy. A block may extend past the edge."
def fused_bias_relu(x, b, block):
    (m, n), (rows, columns) = x.shape, block
    x = jnp.pad(x, ((0, -m % rows), (0, -n % columns)))
    b = jnp.pad(b, (0, -n % columns))

    def kernel(x_ref, b_ref, out_ref):
        out_ref[...] = jnp.maximum(x_ref[...] + b_ref[...], 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    padded = pallas_call(
        kernel,
        jax.typeof(x),
        grid=(x.shape[0] // rows, x.shape[1] // columns),
        in_specs=[spec, pl.BlockSpec((columns,), lambda i, j: (j,))],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x, b)
    return padded[:m, :n]


# %% wrong="pallas-bias-relu" because="Reads the whole bias in each step and selects its part in the kernel. The index map of `b` can select it."
def fused_bias_relu(x, b, block):
    rows, columns = block
    grid = (pl.cdiv(x.shape[0], rows), pl.cdiv(x.shape[1], columns))
    b = jnp.pad(b, (0, grid[1] * columns - len(b)))

    def kernel(x_ref, b_ref, out_ref):
        part = b_ref[pl.ds(pl.program_id(1) * columns, columns)]
        out_ref[...] = jnp.maximum(x_ref[...] + part, 0).astype(out_ref.dtype)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        grid=grid,
        in_specs=[spec, pl.BlockSpec(b.shape, lambda i, j: (0,))],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases={0: 0},
    )(x, b)


# %% right="pallas-bias-relu"
def fused_bias_relu(x, b, block):
    def kernel(b_ref, x_ref, out_ref):
        total = x_ref[...].astype(jnp.float32) + b_ref[...]
        out_ref[...] = jnp.where(total > 0, total, 0.0).astype(x.dtype)

    (m, n), (rows, columns) = x.shape, block
    return pl.pallas_call(
        kernel,
        grid=(-(-n // columns), -(-m // rows)),
        in_specs=[pl.BlockSpec((1, columns), lambda j, i: (0, j)), pl.BlockSpec(block, lambda j, i: (i, j))],
        out_specs=pl.BlockSpec(block, lambda j, i: (i, j)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases={1: 0},
        interpret=True,
    )(b[None], x)


# %% right="pallas-bias-relu"
def fused_bias_relu(x, b, block):
    def kernel(x_ref, b_ref, out_ref):
        out_ref[:] = jax.nn.relu(x_ref[:].astype("float32") + b_ref[:]).astype(out_ref.dtype)

    across = pl.cdiv(x.shape[1], block[1])
    spec = pl.BlockSpec(block, lambda step: (step // across, step % across))
    call = pallas_call(
        kernel,
        grid=pl.cdiv(x.shape[0], block[0]) * across,
        in_specs=[spec, pl.BlockSpec((block[1],), lambda step: (step % across,))],
        out_specs=spec,
        out_shape=jax.eval_shape(lambda: x),
        input_output_aliases={0: 0},
    )
    return jax.jit(call)(x, b)


# %% [markdown] task="pallas-row-sums" stars=2 minutes=20 skills="pallas-bias-relu"
# ## Sums past the edge
# **Goal.** Add the elements of each row of a matrix, block by block. The last blocks extend past the edge of the matrix, where their elements are undefined.
#
# **Signature.** `row_sums(x, block)` takes `x`, a `float32[M,N]`, and the shape of a block. It returns the sum of each row, a `float32[M]`.
#
# **Example.** `x = [[1, 2, 3], [4, 5, 6], [7, nan, 9]]` and `block = (2, 2)` give `[6, 15, nan]`. Two by two blocks cover the matrix, so the grid has four steps.
#
# **Judged.** The values. A row that contains NaN or infinity gives what `np.sum` gives, and the other rows are not affected. There is one kernel, with one step for each block. It reads `x` itself, without a padded copy, in blocks of the given shape. The kernel selects elements past the edge by their position, and does not test for NaN. The steps that write the same block of sums are consecutive. Outside of the kernel, the jaxpr contains no arithmetic. **Not judged.** The order of the additions within a row.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which steps of the grid contribute to the same sums? What does the block of the result contain when the first of them begins?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Set the sums to 0 in the first step of each row of blocks. Before you add a block, replace the elements past the edge with `jnp.where`. Multiplying by 0 may not remove NaN.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The column of an element in the whole matrix is `pl.program_id(1) * columns + jax.lax.broadcasted_iota(jnp.int32, block, 1)`. Rows past the edge need no mask, because their sums are not written.
#
# </details>


# %% answer="pallas-row-sums"
def row_sums(x, block):
    """x float32[M,N] -> the sum of each row, float32[M]; the blocks do not have to divide the matrix."""
    ### BEGIN SOLUTION
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros_like(sums_ref)

        column = pl.program_id(1) * columns + jax.lax.broadcasted_iota(jnp.int32, block, 1)
        sums_ref[...] += jnp.where(column < n, x_ref[...], 0).sum(axis=1)

    specs = {
        "in_specs": [pl.BlockSpec(block, lambda i, j: (i, j))],
        "out_specs": pl.BlockSpec((rows,), lambda i, j: (i,)),
    }
    shape = jax.ShapeDtypeStruct((m,), x.dtype)
    return pallas_call(kernel, grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)), out_shape=shape, **specs)(x)
    ### END SOLUTION


# %% check="pallas-row-sums" name="example" points=1
"""The example, and a matrix that the block divides."""
x = np.array([[1, 2, 3], [4, 5, 6], [7, np.nan, 9]], np.float32)
compare(ask(row_sums, x, (2, 2)), np.array([6, 15, np.nan], np.float32), label="the sums")
compare(ask(row_sums, np.ones((4, 6), np.float32), (2, 3)), np.full(4, 6, np.float32), label="sums of ones")

# %% hidden="pallas-row-sums" name="values" points=2
"""Right for other shapes and blocks, and for rows that contain NaN or infinity."""
rng = inputs.rng()
for shape, block, words in (
    ((6, 8), (3, 2), "if the block divides the matrix"),
    ((int(rng.integers(4, 7)), int(rng.integers(9, 12))), (8, 16), "if the block is larger than the matrix"),
    ((6, 11), (3, 4), "if the block does not divide the columns"),
    ((7, 8), (3, 4), "if the block does not divide the rows"),
):
    x = rng.normal(size=shape).astype(np.float32)
    with case(words):
        compare(program(row_sums, x, block).run(x, block), x.sum(axis=1), label="the sums")
odd = rng.uniform(1, 2, size=(5, 7)).astype(np.float32)
odd[0, 3], odd[2, 6], odd[3, 0], odd[4, 6] = np.nan, np.inf, -np.inf, np.nan
with case("if some rows contain NaN or infinity"):
    compare(program(row_sums, odd, (2, 3)).run(odd, (2, 3)), odd.sum(axis=1), label="the sums")

# %% hidden="pallas-row-sums" name="kernel" points=1 observed=true
"""One kernel that reads the matrix itself, and finishes the sums of some rows before it begins those of others."""
ARITHMETIC = ["add", "mul", "reduce_sum", "dot_general"]


def looked_at(x, block):
    run = lambda x: row_sums(x, block)
    return kernels(run, x), outside(run, x)


for shape, block, steps in (((7, 11), (2, 4), 12), ((9, 4), (3, 2), 6), ((3, 4), (4, 8), 1)):
    with case(f"for the shape {shape} and blocks of shape {block}"):
        found, primitives = ask(looked_at, np.zeros(shape, np.float32), block)
        require(len(found) == 1, f"the jaxpr contains {len(found)} kernels. It should contain one.")
        [kernel] = found
        require(
            kernel["inputs"][:1] == [shape],
            f"the inputs of the kernel have the shapes {kernel['inputs']}, so it does not read `x` itself.",
        )
        require(kernel["blocks"][0] == block, f"the blocks of the kernel have the shapes {kernel['blocks']}.")
        count = int(np.prod(kernel["grid"]))
        require(count == steps, f"the grid {kernel['grid']} has {count} steps, but the matrix has {steps} blocks.")
        require(
            block not in kernel["nan_tests"],
            "the kernel tests a block for NaN. Elements past the edge may be any numbers, so select them by position.",
        )
        require(
            block not in kernel["weights"],
            "the kernel converts a mask to numbers. 0 times NaN is NaN, so a product does not remove elements past the "
            "edge. Select them with `jnp.where`.",
        )
        require(
            not revisits(kernel["visits"][0]),
            "a block of the result is written again after another one. The columns have to be the last axis of the grid.",
        )
        extra = [name for name in primitives if name in ARITHMETIC]
        require(not extra, f"there is arithmetic outside of the kernel: {', '.join(sorted(set(extra)))}.")

# %% [markdown] why="pallas-row-sums"
# A block of the result stays in fast memory while consecutive steps use it, so it can serve as an accumulator. Interpret mode fills elements past the edge with NaN. On an accelerator they may be anything, so a forgotten mask may remain unnoticed. **Next:** Which value would you write instead of 0 for the maximum of each row, and which for the product?


# %% wrong="pallas-row-sums" because="Does not remove the elements past the edge. They are undefined, and NaN in interpret mode, also after a product with 0."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros(rows)

        sums_ref[...] += x_ref[...].sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Does not remove the elements past the edge. They are undefined, and NaN in interpret mode, also after a product with 0."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros(rows)

        column = pl.program_id(1) * columns + jnp.arange(columns)
        sums_ref[...] += (x_ref[...] * jnp.minimum(1.0, jnp.maximum(n - column, 0))).sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Multiplies by the mask. On an accelerator, elements past the edge may be NaN, and 0 times NaN is NaN."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros_like(sums_ref)

        column = pl.program_id(1) * columns + jax.lax.broadcasted_iota(jnp.int32, block, 1)
        sums_ref[...] += ((column < n) * x_ref[...]).sum(axis=1)

    return pallas_call(
        kernel,
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
        out_shape=jax.ShapeDtypeStruct((m,), x.dtype),
    )(x)


# %% wrong="pallas-row-sums" because="Ignores every NaN, also those in the matrix. The mask has to depend on the position."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros(rows)

        sums_ref[...] += jnp.nansum(x_ref[...], axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Compares the column within the block with N, instead of the column in the whole matrix."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros(rows)

        column = jnp.arange(columns)
        sums_ref[...] += jnp.where(column < n, x_ref[...], 0).sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Never sets the sums to 0. New memory is undefined, and interpret mode fills it with NaN."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        column = pl.program_id(1) * columns + jnp.arange(columns)
        sums_ref[...] += jnp.where(column < n, x_ref[...], 0).sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Sets the sums to 0 in the first step of the whole grid only. Each block of the result needs it."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _():
            sums_ref[...] = jnp.zeros_like(sums_ref)

        column = pl.program_id(1) * columns + jnp.arange(columns)
        sums_ref[...] += jnp.where(column < n, x_ref[...], 0).sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Overwrites the sums in each step, so only the last block of each row counts."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        column = pl.program_id(1) * columns + jnp.arange(columns)
        sums_ref[...] = jnp.where(column < n, x_ref[...], 0).sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Ignores the columns that do not fill a block."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros(rows)

        sums_ref[...] += x_ref[...].sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), max(n // columns, 1)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Pads the matrix before the kernel, which copies all of it."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block
    x = jnp.pad(x, ((0, 0), (0, -n % columns)))

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros_like(sums_ref)

        sums_ref[...] += x_ref[...].sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), x.shape[1] // columns),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Has the rows as the last axis of the grid, so a block of sums is written, left and written again. Interpret mode accepts this, but accelerators do not."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            sums_ref[...] = jnp.zeros_like(sums_ref)

        column = pl.program_id(0) * columns + jnp.arange(columns)
        sums_ref[...] += jnp.where(column < n, x_ref[...], 0).sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(n, columns), pl.cdiv(m, rows)),
        in_specs=[pl.BlockSpec(block, lambda j, i: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda j, i: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Ignores NaN in the last blocks, also those in the matrix. The mask has to depend on the position."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        j, values = pl.program_id(1), x_ref[...]

        @pl.when(j == 0)
        def _():
            sums_ref[...] = jnp.zeros_like(sums_ref)

        sums_ref[...] += jnp.where(j < pl.num_programs(1) - 1, values.sum(axis=1), jnp.nansum(values, axis=1))

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% wrong="pallas-row-sums" because="Writes a sum for each block, and adds these sums outside of the kernel."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        column = pl.program_id(1) * columns + jnp.arange(columns)
        sums_ref[...] = jnp.where(column < n, x_ref[...], 0).sum(axis=1, keepdims=True)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m, pl.cdiv(n, columns)), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows, 1), lambda i, j: (i, j)),
    )(x).sum(axis=1)


# %% wrong="pallas-row-sums" because="Writes a sum for each block, and adds these sums in a second kernel."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block
    across = pl.cdiv(n, columns)

    def part_kernel(x_ref, parts_ref):
        column = pl.program_id(1) * columns + jnp.arange(columns)
        parts_ref[...] = jnp.where(column < n, x_ref[...], 0).sum(axis=1, keepdims=True)

    def sum_kernel(parts_ref, sums_ref):
        sums_ref[...] = parts_ref[...].sum(axis=1)

    parts = pallas_call(
        part_kernel,
        jax.ShapeDtypeStruct((m, across), x.dtype),
        grid=(pl.cdiv(m, rows), across),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows, 1), lambda i, j: (i, j)),
    )(x)
    return pallas_call(
        sum_kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=pl.cdiv(m, rows),
        in_specs=[pl.BlockSpec((rows, across), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((rows,), lambda i: (i,)),
    )(parts)


# %% wrong="pallas-row-sums" because="Assumes that elements past the edge are NaN. Only interpret mode fills them with NaN."
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, sums_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sums_ref[...] = jnp.zeros(rows)

        values = x_ref[...]
        outside = pl.program_id(1) * columns + jnp.arange(columns) >= n
        sums_ref[...] += jnp.where(jnp.isnan(values) & outside, 0, values).sum(axis=1)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((m,), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
    )(x)


# %% right="pallas-row-sums"
def row_sums(x, block):
    rows, columns = block
    last = pl.cdiv(x.shape[1], columns) - 1

    def kernel(x_ref, sums_ref, total_ref):
        j = pl.program_id(1)
        rest = x.shape[1] - j * columns
        part = jnp.sum(x_ref[...], axis=1, keepdims=True, where=jnp.arange(columns) < rest)
        total_ref[...] = jnp.where(j == 0, 0, total_ref[...]) + part

        @pl.when(j == last)
        def _():
            sums_ref[...] = total_ref[:, 0]

    return pallas_call(
        kernel,
        grid=(pl.cdiv(x.shape[0], rows), last + 1),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows,), lambda i, j: (i,)),
        out_shape=jax.ShapeDtypeStruct(x.shape[:1], x.dtype),
        scratch_shapes=[pltpu.VMEM((rows, 1), x.dtype)],
    )(x)


# %% right="pallas-row-sums"
def row_sums(x, block):
    (m, n), (rows, columns) = x.shape, block
    full, rest = divmod(n, columns)

    def kernel(x_ref, sums_ref):
        j = pl.program_id(1)

        @pl.when(j == 0)
        def start():
            sums_ref[:, :] = jnp.zeros((rows, 1), x.dtype)

        @pl.when(j < full)
        def whole_block():
            sums_ref[:, :] += x_ref[:, :].sum(1, keepdims=True)

        if rest:

            @pl.when(j == full)
            def last_block():
                sums_ref[:, :] += x_ref[:, :rest].sum(1, keepdims=True)

    sums = pallas_call(
        kernel,
        grid=(-(-m // rows), -(-n // columns)),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((rows, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, 1), x.dtype),
    )(x)
    return sums[:, 0]


# %% equivalent="pallas-row-sums" because="float32 represents these positions exactly."
# swapped function, int32 -> float32: column = pl.program_id(1) * columns + jax.lax.broadcasted_iota(jnp.int32, block, 1)

# %% [markdown] task="pallas-matmul" stars=3 minutes=25 skills="pallas-row-sums"
# ## A product with an accumulator
# **Goal.** Multiply two bfloat16 matrices block by block. Each block of the result is a sum over many steps, so add in float32 and round only once.
#
# **Signature.** `matmul(a, b, blocks)` takes `a`, a `bfloat16[M,K]`, `b`, a `bfloat16[K,N]`, and `blocks = (bm, bk, bn)`. It returns `a @ b`, a `bfloat16[M,N]`. The block sizes divide M, K and N.
#
# **Example.** For `a` of ones with shape (4, 400), `b` of ones with shape (400, 6) and `blocks = (2, 1, 3)`, each entry of the result is 400. With a bfloat16 accumulator it would be 256, because bfloat16 has no number between 256 and 258. The grid has 2 · 2 · 400 steps.
#
# **Judged.** The values, which are those of a sum in float32 that is rounded once. All products and sums in the kernel are float32. There is one kernel, with one step for each triple of blocks, which reads blocks (bm, bk) and (bk, bn) and writes blocks (bm, bn) of the bfloat16 result. The steps that write the same block are consecutive. **Not judged.** The dtype of the blocks that a step reads, which of the other axes of the grid comes first, and what a step writes to a block of the result that a later step overwrites.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which of the three axes of the grid does the block of the result not depend on? In which steps along it do you start, and finish, a sum?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The axis of the sum comes last in the grid. Keep the sum in a scratch array, which persists from step to step: `scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)]`. The kernel gets its Ref as the last argument.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Let k be the index of the step along the sum. If k is 0, write zeros to the scratch array. In each step, add `jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)`. If k is `pl.num_programs(2) - 1`, convert the sum and write it to the result.
#
# </details>


# %% answer="pallas-matmul" timeout=20
def matmul(a, b, blocks):
    """a bfloat16[M,K], b bfloat16[K,N] -> a @ b bfloat16[M,N], added in float32."""
    ### BEGIN SOLUTION
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        k = pl.program_id(2)

        @pl.when(k == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(k == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)
    ### END SOLUTION


# %% check="pallas-matmul" name="example" points=1
"""The example, and a product of other numbers."""
a, b = jnp.ones((4, 400), jnp.bfloat16), jnp.ones((400, 6), jnp.bfloat16)
compare(ask(matmul, a, b, (2, 1, 3)), jnp.full((4, 6), 400, jnp.bfloat16), label="the product")
whole = lambda *shape: jnp.asarray(inputs.rng().integers(-4, 5, size=shape), jnp.bfloat16)
a, b = whole(4, 12), whole(12, 6)
wanted = jnp.asarray(np.asarray(a, np.float32) @ np.asarray(b, np.float32), jnp.bfloat16)
compare(ask(matmul, a, b, (2, 3, 6)), wanted, label="the product of other numbers")

# %% hidden="pallas-matmul" name="values" points=2
"""Right for other shapes and blocks, and as precise as a sum in float32."""
rng = inputs.rng()
for down, across, along, blocks, words in (
    (3, 2, int(rng.integers(3, 6)), (2, 5, 3), "for several blocks along each axis"),
    (2, 4, 1, (3, 6, 2), "for one block along the sum"),
    (1, 3, int(rng.integers(3, 6)), (4, 2, 5), "for one block of rows"),
    (2, 1, 40, (2, 8, 4), "for a long sum"),
):
    bm, bk, bn = blocks
    low, scale = (0, 64) if along == 40 else (-4, 1)  # 64: the product of two blocks is too large for float16
    a = jnp.asarray(scale * rng.integers(low, 5, size=(down * bm, along * bk)), jnp.bfloat16)
    b = jnp.asarray(scale * rng.integers(low, 5, size=(along * bk, across * bn)), jnp.bfloat16)
    wanted = jnp.asarray(np.asarray(a, np.float32) @ np.asarray(b, np.float32), jnp.bfloat16)
    with case(words):
        compare(program(matmul, a, b, blocks).run(a, b, blocks), wanted, label="the product", rtol=1e-6, atol=0)
with case("if the sum of one step is not a bfloat16 number"):  # 257 in the first step, and -256 in the second
    a, b = (
        jnp.ones((2, 514), jnp.bfloat16),
        jnp.asarray(np.repeat([[1], [-1], [0]], (257, 256, 1), axis=0), jnp.bfloat16),
    )
    product = program(matmul, a, b, (2, 257, 1)).run(a, b, (2, 257, 1))
    compare(product, jnp.ones((2, 1), jnp.bfloat16), label="the product", rtol=1e-6, atol=0)

# %% hidden="pallas-matmul" name="kernel" points=1 observed=true
"""One kernel with one step for each triple of blocks, which finishes each block of the result before the next one."""
a, b, blocks = jnp.zeros((6, 20), jnp.bfloat16), jnp.zeros((20, 12), jnp.bfloat16), (2, 5, 6)


def looked_at(a, b, blocks):
    run = lambda a, b: matmul(a, b, blocks)
    bodies = [one.params["jaxpr"] for one in equations(jax.make_jaxpr(run)(a, b)) if "grid_mapping" in one.params]
    halves = lambda one: any(getattr(out.aval, "dtype", None) == jnp.bfloat16 for out in one.outvars)
    return kernels(run, a, b), [one.primitive.name for body in bodies for one in equations(body) if halves(one)]


found, rounded = ask(looked_at, a, b, blocks)
require(len(found) == 1, f"The jaxpr contains {len(found)} kernels. It should contain one.")
[kernel] = found
count = int(np.prod(kernel["grid"]))
require(count == 24, f"The grid {kernel['grid']} has {count} steps. There are 3 · 4 · 2 triples of blocks.")
require(
    sorted(kernel["blocks"][:2]) == [(2, 5), (5, 6)] and kernel["blocks"][2:] == [(2, 6)],
    f"For blocks = (2, 5, 6), the blocks of the kernel have the shapes {kernel['blocks']}.",
)
require(
    not revisits(kernel["visits"][0]),
    "A block of the result is written again after another one. The axis of the sum has to be the last axis of the grid.",
)
written = kernel["dtypes"][-1]
require(written == "bfloat16", f"The kernel writes {written}, and not the bfloat16 result.")
extra = [name for name in rounded if name in ("dot_general", "add", "mul", "reduce_sum")]
require(not extra, f"The kernel computes in bfloat16, which rounds: {', '.join(sorted(set(extra)))}.")

# %% [markdown] why="pallas-matmul"
# A step reads bm · bk + bk · bn elements and performs 2 · bm · bk · bn operations. Larger blocks therefore need less memory traffic for each operation, as long as the blocks fit into fast memory. Products of bfloat16 numbers are exact in float32, so only the sum rounds. **Next:** How many elements does the whole kernel read from slow memory, as a function of the block sizes? Does bk matter?


# %% wrong="pallas-matmul" because="Sets the sum to 0 in each step, so only the last block of the sum remains."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        sum_ref[...] = jnp.zeros((bm, bn))
        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Never sets the sum to 0. A scratch array is undefined at first, and keeps the sum of the previous block later."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Sets the sum to 0 in the first step of the whole grid only, so each block also contains the sums of the blocks before it."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        i, j, k = pl.program_id(0), pl.program_id(1), pl.program_id(2)

        @pl.when((i == 0) & (j == 0) & (k == 0))
        def _():
            sum_ref[...] = jnp.zeros((bm, bn))

        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(k == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Adds in bfloat16, which rounds the sum in each step."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(a_ref[...], b_ref[...])

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
    )(a, b)


# %% wrong="pallas-matmul" because="Adds in bfloat16, which rounds the sum in each step."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        k = pl.program_id(2)

        @pl.when(k == 0)
        def _():
            sum_ref[...] = jnp.zeros((bm, bn))

        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...])

        @pl.when(k == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...]

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), a.dtype)],
    )(a, b)


# %% wrong="pallas-matmul" because="Writes the result in the first step of the sum, before the other blocks are added."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        k = pl.program_id(2)

        @pl.when(k == 0)
        def _():
            sum_ref[...] = jnp.zeros((bm, bn))

        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(k == 0)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Exchanges the indices of the blocks of `b`. Its rows are along the sum, and its columns along those of the result."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        k = pl.program_id(2)

        @pl.when(k == 0)
        def _():
            sum_ref[...] = jnp.zeros((bm, bn))

        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(k == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (j, k))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Has the axis of the sum first in the grid. The scratch array then mixes the sums of different blocks."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        k = pl.program_id(0)

        @pl.when(k == 0)
        def _():
            sum_ref[...] = jnp.zeros((bm, bn))

        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(k == pl.num_programs(0) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[1] // bk, a.shape[0] // bm, b.shape[1] // bn),
        in_specs=[pl.BlockSpec((bm, bk), lambda k, i, j: (i, k)), pl.BlockSpec((bk, bn), lambda k, i, j: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda k, i, j: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Reads whole rows of `a` and whole columns of `b` in each step, which may not fit into fast memory."
def matmul(a, b, blocks):
    bm, _, bn = blocks

    def kernel(a_ref, b_ref, out_ref):
        out_ref[...] = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32).astype(out_ref.dtype)

    return pallas_call(
        kernel,
        grid=(a.shape[0] // bm, b.shape[1] // bn),
        in_specs=[
            pl.BlockSpec((bm, a.shape[1]), lambda i, j: (i, 0)),
            pl.BlockSpec((a.shape[1], bn), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.eval_shape(jnp.dot, a, b),
    )(a, b)


# %% wrong="pallas-matmul" because="Returns the sum in float32, but the result should be bfloat16."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), jnp.float32),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
    )(a, b)


# %% wrong="pallas-matmul" because="Returns the float32 sum from the kernel and converts it afterwards, so the kernel does not write the bfloat16 result."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    return pallas_call(
        kernel,
        jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), jnp.float32),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
    )(a, b).astype(a.dtype)


# %% wrong="pallas-matmul" because="Adds in float32, but rounds the product of two blocks. The product of bfloat16 matrices is bfloat16 without `preferred_element_type`."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sum_ref[...] = jnp.zeros((bm, bn))

        sum_ref[...] += jnp.dot(a_ref[...], b_ref[...])

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Adds in float32, but rounds the product of two blocks. The product of bfloat16 matrices is bfloat16 without `preferred_element_type`."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        product = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)
        sum_ref[...] += product.astype(a.dtype).astype(jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Leaves a block of the result and comes back to it, with a scratch array for the sums of a whole row of blocks."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        here = pl.ds(pl.program_id(2) * bn, bn)
        product = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)
        sum_ref[:, here] = jnp.where(pl.program_id(1) == 0, 0, sum_ref[:, here]) + product
        out_ref[...] = sum_ref[:, here].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, a.shape[1] // bk, b.shape[1] // bn),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, k, j: (i, k)), pl.BlockSpec((bk, bn), lambda i, k, j: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, k, j: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, b.shape[1]), jnp.float32)],
    )(a, b)


# %% wrong="pallas-matmul" because="Adds in float32, but rounds each product of two numbers to bfloat16 first."
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sum_ref[...] = jnp.zeros((bm, bn))

        products = a_ref[...][:, :, None] * b_ref[...][None]
        sum_ref[...] += products.astype(jnp.float32).sum(axis=1)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    return pallas_call(
        kernel,
        jax.eval_shape(jnp.dot, a, b),
        grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )(a, b)


# %% right="pallas-matmul"
def matmul(a, b, blocks):
    (m, n), (bm, bk, bn) = (a.shape[0], b.shape[1]), blocks
    last = a.shape[1] // bk - 1

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        k = pl.program_id(2)
        product = a_ref[...].astype(jnp.float32) @ b_ref[...].astype(jnp.float32)
        total = jnp.where(k == 0, product, sum_ref[...] + product)
        sum_ref[...] = total

        @pl.when(k == last)
        def _():
            out_ref[...] = total.astype(jnp.bfloat16)

    return pallas_call(
        kernel,
        grid=(n // bn, m // bm, last + 1),
        in_specs=[pl.BlockSpec((bm, bk), lambda j, i, k: (i, k)), pl.BlockSpec((bk, bn), lambda j, i, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda j, i, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        scratch_shapes=[pltpu.VMEM((bm, bn), "float32")],
    )(a, b)


# %% right="pallas-matmul"
def matmul(a, b, blocks):
    bm, bk, bn = blocks

    def kernel(a_ref, b_ref, out_ref, sum_ref):
        @pl.when(pl.program_id(2) == 0)
        def start():
            sum_ref[...] = jnp.zeros((bm, bn))

        dims = (((1,), (0,)), ((), ()))
        sum_ref[...] += jax.lax.dot_general(a_ref[...], b_ref[...], dims, preferred_element_type=jnp.float32)
        out_ref[...] = sum_ref[...].astype(out_ref.dtype)  # the last step writes the complete sum

    return jax.jit(
        pallas_call(
            kernel,
            grid=(a.shape[0] // bm, b.shape[1] // bn, a.shape[1] // bk),
            in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        )
    )(a, b)


# %% [markdown] task="pallas-kernel-vjp" stars=3 minutes=25 skills="pallas-row-sums,04_grad"
# ## The gradient of a kernel
# **Goal.** Make a kernel differentiable. The setup contains the forward kernel. Write a kernel for the backward pass, and connect the two with `jax.custom_vjp`.
#
# **Signature.** `squash(x, s, rows)` takes `x`, a `float32[M,N]`, the scales `s`, a `float32[N]`, and a Python int `rows`. It returns `y = tanh(x * s)`, as `squash_forward` of the setup does with the same arguments, in blocks of `rows` rows that do not have to divide M. For a cotangent `g` of `y`, the cotangent of `x` is `g * (1 - y²) * s`, and that of `s` is the sum of `g * (1 - y²) * x` over all rows.
#
# A kernel may have several results. `out_specs` and `out_shape` are then lists, and the kernel gets a Ref for each result.
#
# **Example.** For `x` of zeros with shape (5, 3) and `s = [1, 2, 3]`, `jax.grad` of the sum of `squash(x, s, 2)` with respect to `x` has five rows `[1, 2, 3]`. With respect to `s` it is `[0, 0, 0]`, because `x` is zero.
#
# **Judged.** The values and both gradients, also if `rows` does not divide M. `jax.vjp` and a call of its pullback run two kernels: the forward kernel once, and one backward kernel. The backward kernel has one step for each block of rows and returns both cotangents. It selects rows past the edge by their position, and does not test for NaN. Outside of the kernels, the jaxpr contains no arithmetic. **Not judged.** Which arrays the forward pass stores for the backward pass.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which cotangent has a block for each step, and which one is a sum over all steps? What do rows past the edge add to this sum?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `rows` is not an array. Either use `nondiff_argnums` of `jax.custom_vjp`, or define the differentiable function of `x` and `s` inside `squash`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Inside `squash`, define `run(x, s)` with `@jax.custom_vjp`, the functions `forward(x, s)` and `backward(stored, g)`, connect them with `run.defvjp`, and return `run(x, s)`. The backward kernel sets the cotangent of `s` to 0 in step 0, and adds the sum of `jnp.where(inside, ..., 0)` in each step, where `inside` states which rows of the block are above row M.
#
# </details>


# %% answer="pallas-kernel-vjp" timeout=20
def squash(x, s, rows):
    """x float32[M,N], s float32[N] -> tanh(x * s) float32[M,N], whose backward pass is one kernel."""
    ### BEGIN SOLUTION

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            ds_ref[...] = jnp.zeros_like(ds_ref)

        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]
        inside = pl.program_id(0) * rows + jax.lax.broadcasted_iota(jnp.int32, inner.shape, 0) < len(x)
        ds_ref[...] += jnp.where(inside, inner * x_ref[...], 0).sum(axis=0)

    def forward(x, s):
        y = squash_forward(x, s, rows)
        return y, (x, s, y)

    def backward(stored, g):
        block, whole = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
        specs = {"in_specs": [block, whole, block, block], "out_specs": (block, whole)}
        shapes = jax.eval_shape(lambda: (x, s))
        return pallas_call(kernel, grid=pl.cdiv(len(x), rows), out_shape=shapes, **specs)(*stored, g)

    run = jax.custom_vjp(lambda x, s: squash_forward(x, s, rows))
    run.defvjp(forward, backward)
    return run(x, s)
    ### END SOLUTION


# %% check="pallas-kernel-vjp" name="example" points=1
"""The example, and the values and a gradient for other numbers."""
x, s = np.zeros((5, 3), np.float32), np.array([1, 2, 3], np.float32)
numbers = inputs.rng().normal(size=(5, 3)).astype(np.float32)
compare(ask(squash, numbers, s, 2), np.tanh(numbers * s), label="the result")
dx, ds = ask(lambda x, s: jax.grad(lambda x, s: squash(x, s, 2).sum(), argnums=(0, 1))(x, s), x, s)
compare(dx, np.tile(s, (5, 1)), label="the gradient with respect to x")
compare(ds, np.zeros(3, np.float32), label="the gradient with respect to s")
ds = ask(lambda x, s: jax.grad(lambda s: squash(x, s, 2).sum())(s), numbers, s)
wanted = ((1 - np.tanh(numbers * s) ** 2) * numbers).sum(axis=0)
compare(ds, wanted, label="the gradient with respect to s, for other numbers", rtol=1e-4, atol=1e-5)

# %% hidden="pallas-kernel-vjp" name="gradients" points=2
"""The values and both cotangents are right for other shapes, blocks and cotangents."""


def pullback(x, s, g, rows):
    y, pull = jax.vjp(lambda x, s: squash(x, s, rows), x, s)
    return (y, *pull(g))


rng = inputs.rng()
for shape, rows, words in (
    ((6, 4), 2, "if the blocks divide the rows"),
    ((7, int(rng.integers(2, 4))), 3, "if the blocks do not divide the rows"),
    ((int(rng.integers(4, 7)), 5), 8, "if the block is larger than the matrix"),
    ((3, int(rng.integers(4, 6))), 1, "for blocks of one row"),
):
    x, g = rng.normal(size=(2, *shape)).astype(np.float32)
    s = rng.uniform(0.3, 1.2, size=shape[1]).astype(np.float32)
    with case(words):
        y, dx, ds = program(pullback, x, s, g, rows).run(x, s, g, rows)
        wanted = np.tanh(x * s)
        inner = g * (1 - wanted**2)
        compare(y, wanted, label="the result", rtol=1e-4, atol=1e-5)
        compare(dx, inner * s, label="the cotangent of x", rtol=1e-4, atol=1e-5)
        compare(ds, (inner * x).sum(axis=0), label="the cotangent of s", rtol=1e-4, atol=1e-5)

# %% hidden="pallas-kernel-vjp" name="kernels" points=2 observed=true
"""The forward kernel and one backward kernel, and no arithmetic outside of them."""
ARITHMETIC = ["add", "sub", "mul", "div", "neg", "tanh", "reduce_sum", "dot_general", "integer_pow", "pow", "square"]


def looked_at(x, s, rows):
    def both(x, s, g):
        y, pull = jax.vjp(lambda x, s: squash(x, s, rows), x, s)
        return (y, *pull(g))

    return kernels(both, x, s, x), outside(both, x, s, x)


for shape, rows, steps in (((7, 3), 2, 4), ((6, 5), 3, 2)):
    with case(f"for the shape {shape} and blocks of {rows} rows"):
        found, primitives = ask(looked_at, np.zeros(shape, np.float32), np.zeros(shape[1], np.float32), rows)
        again = sum(one == found[0] for one in found)
        require(again < 2, f"`jax.vjp` with its pullback runs the forward kernel {again} times. It should run it once.")
        require(len(found) == 2, f"`jax.vjp` with its pullback runs {len(found)} kernels. It should run two.")
        grid = found[1]["grid"]
        require(grid == (steps,), f"the grid of the backward kernel is {grid}; expected {(steps,)}.")
        require(len(found[1]["visits"]) == 2, "the backward kernel does not return both cotangents.")
        require(
            (rows, shape[1]) not in found[1]["nan_tests"],
            "the kernel tests a block for NaN. Elements past the edge may be any numbers, so select them by position.",
        )
        extra = [name for name in primitives if name in ARITHMETIC]
        require(not extra, f"there is arithmetic outside of the kernels: {', '.join(sorted(set(extra)))}.")

# %% [markdown] why="pallas-kernel-vjp"
# The backward kernel reads each block once and uses it for both cotangents. Broadcasting in the forward pass became a sum in the backward pass, so it needs an accumulator, and therefore a mask at the edge. **Next:** The forward pass stores y. Could the backward pass do without it, and what would it compute instead?


# %% wrong="pallas-kernel-vjp" because="Relies on JAX to differentiate the kernel. JAX 0.10.2 cannot transpose a `pallas_call`."
def squash(x, s, rows):
    return squash_forward(x, s, rows)


# %% wrong="pallas-kernel-vjp" because="Adds rows past the edge to the cotangent of the scales, so it is NaN if the blocks do not divide the rows."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s, y = stored

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            ds_ref[...] = jnp.zeros_like(ds_ref)

        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]
        ds_ref[...] += (inner * x_ref[...]).sum(axis=0)

    block, whole = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
    specs = {"in_specs": [block, whole, block, block], "out_specs": (block, whole)}
    return pallas_call(kernel, jax.eval_shape(lambda: (x, s)), grid=pl.cdiv(len(x), rows), **specs)(x, s, y, g)


squash.defvjp(lambda x, s, rows: (y := squash_forward(x, s, rows), (x, s, y)), backward)


# %% wrong="pallas-kernel-vjp" because="Overwrites the cotangent of the scales in each step, so only the last block of rows counts."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s, y = stored

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]
        inside = pl.program_id(0) * rows + jnp.arange(rows)[:, None] < len(x)
        ds_ref[...] = jnp.where(inside, inner * x_ref[...], 0).sum(axis=0)

    block, whole = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
    specs = {"in_specs": [block, whole, block, block], "out_specs": (block, whole)}
    return pallas_call(kernel, jax.eval_shape(lambda: (x, s)), grid=pl.cdiv(len(x), rows), **specs)(x, s, y, g)


squash.defvjp(lambda x, s, rows: (y := squash_forward(x, s, rows), (x, s, y)), backward)


# %% wrong="pallas-kernel-vjp" because="Never sets the cotangent of the scales to 0 before it adds to it."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s, y = stored

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]
        inside = pl.program_id(0) * rows + jnp.arange(rows)[:, None] < len(x)
        ds_ref[...] += jnp.where(inside, inner * x_ref[...], 0).sum(axis=0)

    block, whole = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
    specs = {"in_specs": [block, whole, block, block], "out_specs": (block, whole)}
    return pallas_call(kernel, jax.eval_shape(lambda: (x, s)), grid=pl.cdiv(len(x), rows), **specs)(x, s, y, g)


squash.defvjp(lambda x, s, rows: (y := squash_forward(x, s, rows), (x, s, y)), backward)


# %% wrong="pallas-kernel-vjp" because="Computes the backward pass with `jnp` instead of a kernel, so it is not fused."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s, y = stored
    inner = g * (1 - y**2)
    return inner * s, (inner * x).sum(axis=0)


squash.defvjp(lambda x, s, rows: (y := squash_forward(x, s, rows), (x, s, y)), backward)


# %% wrong="pallas-kernel-vjp" because="Writes parts of the sum to memory, and adds them outside of the kernel."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s, y = stored

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, parts_ref):
        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]
        parts_ref[...] = inner * x_ref[...]

    block, whole = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
    dx, parts = pallas_call(
        kernel,
        jax.eval_shape(lambda: (x, x)),
        grid=pl.cdiv(len(x), rows),
        in_specs=[block, whole, block, block],
        out_specs=(block, block),
    )(x, s, y, g)
    return dx, parts.sum(axis=0)


squash.defvjp(lambda x, s, rows: (y := squash_forward(x, s, rows), (x, s, y)), backward)


# %% wrong="pallas-kernel-vjp" because="Forgets the cotangent `g`, so the gradients are those of the sum of the result."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s, y = stored

    def kernel(x_ref, s_ref, y_ref, dx_ref, ds_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            ds_ref[...] = jnp.zeros_like(ds_ref)

        inner = 1 - y_ref[...] ** 2
        dx_ref[...] = inner * s_ref[...]
        inside = pl.program_id(0) * rows + jnp.arange(rows)[:, None] < len(x)
        ds_ref[...] += jnp.where(inside, inner * x_ref[...], 0).sum(axis=0)

    block, whole = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
    return pallas_call(
        kernel,
        jax.eval_shape(lambda: (x, s)),
        grid=pl.cdiv(len(x), rows),
        in_specs=[block, whole, block],
        out_specs=(block, whole),
    )(x, s, y)


squash.defvjp(lambda x, s, rows: (y := squash_forward(x, s, rows), (x, s, y)), backward)


# %% wrong="pallas-kernel-vjp" because="Exchanges the factors. The cotangent of `x` contains `s`, and that of `s` contains `x`."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s, y = stored

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            ds_ref[...] = jnp.zeros_like(ds_ref)

        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * x_ref[...]
        inside = pl.program_id(0) * rows + jnp.arange(rows)[:, None] < len(x)
        ds_ref[...] += jnp.where(inside, inner * s_ref[...], 0).sum(axis=0)

    block, whole = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
    specs = {"in_specs": [block, whole, block, block], "out_specs": (block, whole)}
    return pallas_call(kernel, jax.eval_shape(lambda: (x, s)), grid=pl.cdiv(len(x), rows), **specs)(x, s, y, g)


squash.defvjp(lambda x, s, rows: (y := squash_forward(x, s, rows), (x, s, y)), backward)


# %% wrong="pallas-kernel-vjp" because="Uses a second kernel for the cotangent of the scales, so each block is read twice."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s, y = stored
    block, whole = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))

    def for_x(s_ref, y_ref, g_ref, dx_ref):
        dx_ref[...] = g_ref[...] * (1 - y_ref[...] ** 2) * s_ref[...]

    def for_s(x_ref, y_ref, g_ref, ds_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            ds_ref[...] = jnp.zeros_like(ds_ref)

        parts = g_ref[...] * (1 - y_ref[...] ** 2) * x_ref[...]
        inside = pl.program_id(0) * rows + jnp.arange(rows)[:, None] < len(x)
        ds_ref[...] += jnp.where(inside, parts, 0).sum(axis=0)

    run = functools.partial(pallas_call, grid=pl.cdiv(len(x), rows))
    dx = run(for_x, in_specs=[whole, block, block], out_specs=block, out_shape=jax.eval_shape(lambda: x))(s, y, g)
    ds = run(for_s, in_specs=[block] * 3, out_specs=whole, out_shape=jax.eval_shape(lambda: s))(x, y, g)
    return dx, ds


squash.defvjp(lambda x, s, rows: (y := squash_forward(x, s, rows), (x, s, y)), backward)


# %% wrong="pallas-kernel-vjp" because="Runs the forward kernel again in the backward pass, instead of storing its result."
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def backward(rows, stored, g):
    x, s = stored

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]
        inside = pl.program_id(0) * rows + jnp.arange(rows)[:, None] < len(x)
        part = jnp.where(inside, inner * x_ref[...], 0).sum(axis=0)
        ds_ref[...] = jnp.where(pl.program_id(0) == 0, 0, ds_ref[...]) + part

    block, whole = pl.BlockSpec((rows, len(s)), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
    return pallas_call(
        kernel,
        jax.eval_shape(lambda: (x, s)),
        grid=pl.cdiv(len(x), rows),
        in_specs=[block, whole, block, block],
        out_specs=(block, whole),
    )(x, s, squash_forward(x, s, rows), g)


squash.defvjp(lambda x, s, rows: (squash_forward(x, s, rows), (x, s)), backward)


# %% wrong="pallas-kernel-vjp" because="Leaves out the last block of rows if it extends past the edge, also its rows above the edge."
def squash(x, s, rows):
    m, n = x.shape

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            ds_ref[...] = jnp.zeros_like(ds_ref)

        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]

        @pl.when((pl.program_id(0) + 1) * rows <= m)
        def _():
            ds_ref[...] += (inner * x_ref[...]).sum(axis=0)

    def forward(x, s):
        y = squash_forward(x, s, rows)
        return y, (x, s, y)

    def backward(stored, g):
        some, all_scales = pl.BlockSpec((rows, n), lambda i: (i, 0)), pl.BlockSpec((n,), lambda i: (0,))
        return pallas_call(
            kernel,
            (jax.typeof(x), jax.typeof(s)),
            grid=pl.cdiv(m, rows),
            in_specs=[some, all_scales, some, some],
            out_specs=(some, all_scales),
        )(*stored, g)

    run = jax.custom_vjp(lambda x, s: squash_forward(x, s, rows))
    run.defvjp(forward, backward)
    return run(x, s)


# %% wrong="pallas-kernel-vjp" because="Assumes that elements past the edge are NaN. Only interpret mode fills them with NaN."
def squash(x, s, rows):
    m, n = x.shape

    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            ds_ref[...] = jnp.zeros_like(ds_ref)

        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]
        ds_ref[...] += jnp.nansum(inner * x_ref[...], axis=0)

    def forward(x, s):
        y = squash_forward(x, s, rows)
        return y, (x, s, y)

    def backward(stored, g):
        some, all_scales = pl.BlockSpec((rows, n), lambda i: (i, 0)), pl.BlockSpec((n,), lambda i: (0,))
        return pallas_call(
            kernel,
            (jax.typeof(x), jax.typeof(s)),
            grid=pl.cdiv(m, rows),
            in_specs=[some, all_scales, some, some],
            out_specs=(some, all_scales),
        )(*stored, g)

    run = jax.custom_vjp(lambda x, s: squash_forward(x, s, rows))
    run.defvjp(forward, backward)
    return run(x, s)


# %% wrong="pallas-kernel-vjp" because="Computes the derivative of tanh outside of the kernels, and stores it for the backward pass."
def squash(x, s, rows):
    m, n = x.shape

    def kernel(x_ref, s_ref, factor_ref, g_ref, dx_ref, ds_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            ds_ref[...] = jnp.zeros_like(ds_ref)

        inner = g_ref[...] * factor_ref[...]
        dx_ref[...] = inner * s_ref[...]
        row = pl.program_id(0) * rows + jax.lax.broadcasted_iota(jnp.int32, inner.shape, 0)
        ds_ref[...] += jnp.where(row < m, inner * x_ref[...], 0).sum(axis=0)

    def forward(x, s):
        y = squash_forward(x, s, rows)
        return y, (x, s, 1 - y**2)

    def backward(stored, g):
        some, all_scales = pl.BlockSpec((rows, n), lambda i: (i, 0)), pl.BlockSpec((n,), lambda i: (0,))
        return pallas_call(
            kernel,
            (jax.typeof(x), jax.typeof(s)),
            grid=pl.cdiv(m, rows),
            in_specs=[some, all_scales, some, some],
            out_specs=(some, all_scales),
        )(*stored, g)

    run = jax.custom_vjp(lambda x, s: squash_forward(x, s, rows))
    run.defvjp(forward, backward)
    return run(x, s)


# %% wrong="pallas-kernel-vjp" because="Has no grid, so one step of the backward kernel reads the whole matrices."
def squash(x, s, rows):
    def kernel(x_ref, s_ref, y_ref, g_ref, dx_ref, ds_ref):
        inner = g_ref[...] * (1 - y_ref[...] ** 2)
        dx_ref[...] = inner * s_ref[...]
        ds_ref[...] = (inner * x_ref[...]).sum(axis=0)

    def forward(x, s):
        y = squash_forward(x, s, rows)
        return y, (x, s, y)

    def backward(stored, g):
        return pallas_call(kernel, out_shape=(jax.typeof(x), jax.typeof(s)))(*stored, g)

    run = jax.custom_vjp(lambda x, s: squash_forward(x, s, rows))
    run.defvjp(forward, backward)
    return run(x, s)


# %% right="pallas-kernel-vjp"
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def squash(x, s, rows):
    return squash_forward(x, s, rows)


def forward(x, s, rows):
    return squash_forward(x, s, rows), (x, s)


def backward(rows, stored, g):
    x, s = stored
    m, n = x.shape

    def kernel(x_ref, s_ref, g_ref, dx_ref, ds_ref, sum_ref):
        i = pl.program_id(0)
        inner = g_ref[...] / jnp.cosh(x_ref[...] * s_ref[...]) ** 2
        dx_ref[...] = inner * s_ref[...]
        left = jnp.where(jnp.arange(rows)[:, None] < m - i * rows, inner * x_ref[...], 0)
        sum_ref[...] = jnp.where(i == 0, 0, sum_ref[...]) + left.sum(0)

        @pl.when(i == pl.num_programs(0) - 1)
        def _():
            ds_ref[...] = sum_ref[...]

    block, whole = pl.BlockSpec((rows, n), lambda i: (i, 0)), pl.BlockSpec((n,), lambda i: (0,))
    dx, ds = pallas_call(
        kernel,
        grid=(pl.cdiv(m, rows),),
        in_specs=[block, whole, block],
        out_specs=[block, whole],
        out_shape=[jax.ShapeDtypeStruct((m, n), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)],
        scratch_shapes=[pltpu.VMEM((n,), jnp.float32)],
    )(x, s, g)
    return dx, ds


squash.defvjp(forward, backward)


# %% right="pallas-kernel-vjp"
def squash(x, s, rows):
    @jax.custom_vjp
    def run(x, s):
        return squash_forward(x, s, rows)

    def forward(x, s):
        y = squash_forward(x, s, rows)
        return y, (x, s, y)

    def backward(stored, g):
        def kernel(x_ref, s_ref, y_ref, g_ref, ds_ref, dx_ref):
            i = pl.program_id(0)
            inner = g_ref[...] - g_ref[...] * y_ref[...] * y_ref[...]
            dx_ref[...] = inner * s_ref[...]
            row = i * rows + jnp.arange(rows)[:, None]
            total = jnp.sum(inner * x_ref[...], axis=0, where=row < x.shape[0])

            @pl.when(i == 0)
            def start():
                ds_ref[...] = total

            @pl.when(i > 0)
            def go_on():
                ds_ref[...] += total

        block, whole = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0)), pl.BlockSpec(s.shape, lambda i: (0,))
        ds, dx = pallas_call(
            kernel,
            grid=pl.cdiv(x.shape[0], rows),
            in_specs=[block, whole, block, block],
            out_specs=(whole, block),
            out_shape=(jax.ShapeDtypeStruct(s.shape, s.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype)),
        )(*stored, g)
        return dx, ds

    run.defvjp(forward, backward)
    return run(x, s)


# %% equivalent="pallas-kernel-vjp" because="float32 represents these positions exactly."
# swapped function, int32 -> float32: inside = pl.program_id(0) * rows + jax.lax.broadcasted_iota(jnp.int32, inner.shape, 0) < len(x)

# %% equivalent="pallas-kernel-vjp" because="In interpret mode, XLA replaces the product of a boolean and a number by a selection."
# product for where, where(X, Y, 0) -> X * Y: ds_ref[...] += jnp.where(inside, inner * x_ref[...], 0).sum(axis=0)

# %% [markdown] task="pallas-online-softmax" stars=3 minutes=30 skills="pallas-matmul,pallas-row-sums"
# ## Softmax in two sweeps
# **Goal.** Compute the softmax of rows that are too long for fast memory. As in flash attention, compute the maximum and the sum of a row in one sweep over its blocks, and correct the sum when the maximum changes. Each element of the result needs the final maximum and sum, so a second sweep writes the result.
#
# **Signature.** `online_softmax(x, block)` takes `x`, a `float32[M,N]` without NaN and infinity, and the shape of a block. It returns the softmax of each row, a `float32[M,N]`. The blocks do not have to divide the matrix.
#
# **Example.** `x = [[1000, 1000, 0], [0, 0, 0]]` and `block = (1, 2)` give `[[0.5, 0.5, 0], [1/3, 1/3, 1/3]]`.
#
# **Judged.** The values, also for numbers near 10⁷ and -10⁷. You may use one kernel whose grid has an axis for the sweeps, or two kernels. Each kernel reads `x` itself, in blocks of the shape `block`. The kernels select elements past the edge by their position, and do not test `x` for NaN. Together, the kernels have at most two steps for each block. Outside of the kernels, the jaxpr contains no arithmetic. **Not judged.** What the first sweep writes to blocks of the result that the second sweep overwrites.
#
# <details><summary>Hint 1 · a question</summary>
#
# After some blocks, you know the maximum m and the sum s of `exp(x - m)` of the elements so far. The next block has a larger maximum. By which factor do you multiply s?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Start with the maximum -inf and the sum 0, in scratch arrays of shape `(rows, 1)`. Replace elements past the edge with -inf, so that they change neither the maximum nor the sum.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# A block with the maximum t changes m to `new = maximum(m, t)` and s to `s * exp(m - new) + sum(exp(values - new))`. With the grid (blocks of rows, 2, blocks of columns), `pl.program_id(1)` is the sweep. `pl.when(sweep == 0)` updates m and s, and `pl.when(sweep == 1)` writes `exp(values - m) / s`. With the index map `(i, sweep * j)` of the result, the first sweep stays at one block.
#
# </details>


# %% answer="pallas-online-softmax" timeout=20
def online_softmax(x, block):
    """x float32[M,N] -> the softmax of each row float32[M,N], with two sweeps over blocks of this shape."""
    ### BEGIN SOLUTION
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        column = j * columns + jax.lax.broadcasted_iota(jnp.int32, block, 1)
        values = jnp.where(column < n, x_ref[...], -jnp.inf)

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...] = jnp.full_like(top_ref, -jnp.inf)
            sum_ref[...] = jnp.zeros_like(sum_ref)

        @pl.when(sweep == 0)
        def _():
            new = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))
            scale = jnp.exp(top_ref[...] - new)
            sum_ref[...] = sum_ref[...] * scale + jnp.exp(values - new).sum(axis=1, keepdims=True)
            top_ref[...] = new

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    grid, scratch = (pl.cdiv(m, rows), 2, pl.cdiv(n, columns)), [pltpu.VMEM((rows, 1), jnp.float32)] * 2
    specs = {
        "in_specs": [pl.BlockSpec(block, lambda i, sweep, j: (i, j))],
        "out_specs": pl.BlockSpec(block, lambda i, sweep, j: (i, sweep * j)),
    }
    return pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), grid=grid, scratch_shapes=scratch, **specs)(x)
    ### END SOLUTION


# %% check="pallas-online-softmax" name="example" points=1
"""The example, and a softmax whose maximum is in the last block."""
x = np.array([[1000, 1000, 0], [0, 0, 0]], np.float32)
wanted = np.array([[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], np.float32)
compare(ask(online_softmax, x, (1, 2)), wanted, label="the softmax")
x = np.log(np.arange(1, 9, dtype=np.float32)).reshape(1, 8)
compare(ask(online_softmax, x, (1, 2)), np.arange(1, 9, dtype=np.float32)[None] / 36, label="another softmax")

# %% hidden="pallas-online-softmax" name="values" points=2
"""Right for other shapes and blocks, and for very large and very small numbers."""


def by_rows(x):
    shifted = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return (shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32)


rng = inputs.rng()
for shape, block, scale, shift, words in (
    ((6, 9), (2, 3), 1, 0, "if the block divides the matrix"),
    ((int(rng.integers(4, 6)), 11), (3, 4), 1, 0, "if the block does not divide the matrix"),
    ((3, int(rng.integers(4, 7))), (4, 8), 1, 0, "if the block is larger than the matrix"),
    ((4, 10), (2, 3), 1, [[0], [40000]] * 2, "for rows of very different magnitude"),
    (
        (4, 10),
        (2, 3),
        9,
        [500 * np.linspace(-1, 1, 10), 500 * np.linspace(1, -1, 10)] * 2,
        "for a large range in a row",
    ),
    ((4, 10), (2, 3), 1, -1e7, "for numbers near -10,000,000"),
    ((4, 10), (2, 3), 1, 1e7, "for numbers near 10,000,000"),
):
    x = (scale * rng.normal(size=shape) + shift).astype(np.float32)
    x = x + 2 * np.linspace(-1, 1, shape[1], dtype=np.float32) * rng.choice([-1, 1], size=(shape[0], 1))
    x = x.astype(np.float32)
    with case(words):
        compare(program(online_softmax, x, block).run(x, block), by_rows(x), label="the softmax", rtol=1e-4, atol=1e-6)

# %% hidden="pallas-online-softmax" name="sweeps" points=2 observed=true
"""At most two steps for each block of the matrix, and no arithmetic outside of the kernels."""
ARITHMETIC = ["add", "sub", "mul", "div", "exp", "log", "max", "reduce_sum", "reduce_max"]
for shape, block, count in (((5, 11), (2, 4), 9), ((4, 6), (4, 2), 3), ((3, 4), (4, 8), 1)):
    with case(f"for the shape {shape} and blocks of shape {block}"):
        found, primitives = ask(
            lambda x, block: (
                kernels(lambda x: online_softmax(x, block), x),
                outside(lambda x: online_softmax(x, block), x),
            ),
            np.zeros(shape, np.float32),
            block,
        )
        require(len(found) > 0, "the jaxpr contains no kernel.")
        require(
            all(shape in one["inputs"] and one["blocks"][one["inputs"].index(shape)] == block for one in found),
            f"a kernel does not read `x` in blocks of this shape. Its blocks are {[one['blocks'] for one in found]}.",
        )
        steps = sum(int(np.prod(one["grid"])) for one in found)
        require(
            steps <= 2 * count,
            f"the kernels have {steps} steps. Two sweeps over {count} blocks need {2 * count}.",
        )
        require(
            all(block not in one["nan_tests"] for one in found),
            "a kernel tests a block for NaN. Elements past the edge may be any numbers, so select them by position.",
        )
        extra = [name for name in primitives if name in ARITHMETIC]
        require(not extra, f"there is arithmetic outside of the kernels: {', '.join(sorted(set(extra)))}.")

# %% [markdown] why="pallas-online-softmax"
# A sum that was computed with an old maximum is corrected by one factor, so the maximum does not need a sweep of its own. Flash attention goes further. It multiplies the weights by the values, so the second sweep disappears, and only a division remains. The index map `(i, sweep * j)` keeps the first sweep at one block of the result. With `(i, j)`, both sweeps select each block, and the stricter interpreter of the lesson rejects the second visit. **Next:** Why does the logarithm of the sum of exponentials of each row need only one sweep?


# %% wrong="pallas-online-softmax" because="Computes the softmax of each block. The maximum and the sum have to be those of the whole row."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref):
        column = pl.program_id(1) * columns + jax.lax.broadcasted_iota(jnp.int32, block, 1)
        out_ref[...] = jax.nn.softmax(jnp.where(column < n, x_ref[...], -jnp.inf), axis=1)

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[spec],
        out_specs=spec,
    )(x)


# %% wrong="pallas-online-softmax" because="Does not rescale the sum when the maximum grows."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf)

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...], sum_ref[...] = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1))

        @pl.when(sweep == 0)
        def _():
            top_ref[...] = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))
            sum_ref[...] += jnp.exp(values - top_ref[...]).sum(axis=1, keepdims=True)

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec, grid = pl.BlockSpec(block, lambda i, sweep, j: (i, j)), (pl.cdiv(m, rows), 2, pl.cdiv(n, columns))
    scratch = [pltpu.VMEM((rows, 1), jnp.float32)] * 2
    return pallas_call(kernel, jax.typeof(x), grid=grid, in_specs=[spec], out_specs=spec, scratch_shapes=scratch)(x)


# %% wrong="pallas-online-softmax" because="Does not subtract the maximum, so the exponentials of large numbers overflow."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        values = jnp.exp(jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf))

        @pl.when((sweep == 0) & (j == 0))
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        @pl.when(sweep == 0)
        def _():
            sum_ref[...] += values.sum(axis=1, keepdims=True)

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = values / sum_ref[...]

    spec = pl.BlockSpec(block, lambda i, sweep, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=(pl.cdiv(m, rows), 2, pl.cdiv(n, columns)),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32)],
    )(x)


# %% wrong="pallas-online-softmax" because="Uses a third sweep: one for the maximum, one for the sum, and one for the result."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf)

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...], sum_ref[...] = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1))

        @pl.when(sweep == 0)
        def _():
            top_ref[...] = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))

        @pl.when(sweep == 1)
        def _():
            sum_ref[...] += jnp.exp(values - top_ref[...]).sum(axis=1, keepdims=True)

        @pl.when(sweep == 2)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec = pl.BlockSpec(block, lambda i, sweep, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=(pl.cdiv(m, rows), 3, pl.cdiv(n, columns)),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32)] * 2,
    )(x)


# %% wrong="pallas-online-softmax" because="Replaces elements past the edge with 0. They change the maximum of negative numbers, and each of them adds to the sum."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], 0)

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...], sum_ref[...] = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1))

        @pl.when(sweep == 0)
        def _():
            new = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))
            scale = jnp.exp(top_ref[...] - new)
            sum_ref[...] = sum_ref[...] * scale + jnp.exp(values - new).sum(axis=1, keepdims=True)
            top_ref[...] = new

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec, grid = pl.BlockSpec(block, lambda i, sweep, j: (i, j)), (pl.cdiv(m, rows), 2, pl.cdiv(n, columns))
    scratch = [pltpu.VMEM((rows, 1), jnp.float32)] * 2
    return pallas_call(kernel, jax.typeof(x), grid=grid, in_specs=[spec], out_specs=spec, scratch_shapes=scratch)(x)


# %% wrong="pallas-online-softmax" because="Does not replace elements past the edge, which are undefined. Interpret mode fills them with NaN."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        values = x_ref[...]

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...], sum_ref[...] = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1))

        @pl.when(sweep == 0)
        def _():
            new = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))
            scale = jnp.exp(top_ref[...] - new)
            sum_ref[...] = sum_ref[...] * scale + jnp.exp(values - new).sum(axis=1, keepdims=True)
            top_ref[...] = new

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec, grid = pl.BlockSpec(block, lambda i, sweep, j: (i, j)), (pl.cdiv(m, rows), 2, pl.cdiv(n, columns))
    scratch = [pltpu.VMEM((rows, 1), jnp.float32)] * 2
    return pallas_call(kernel, jax.typeof(x), grid=grid, in_specs=[spec], out_specs=spec, scratch_shapes=scratch)(x)


# %% wrong="pallas-online-softmax" because="Starts with the maximum 0, so the exponentials of very small numbers vanish and the sum is 0."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf)

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...] = jnp.zeros_like(top_ref)
            sum_ref[...] = jnp.zeros_like(sum_ref)

        @pl.when(sweep == 0)
        def _():
            new = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))
            scale = jnp.exp(top_ref[...] - new)
            sum_ref[...] = sum_ref[...] * scale + jnp.exp(values - new).sum(axis=1, keepdims=True)
            top_ref[...] = new

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec, grid = pl.BlockSpec(block, lambda i, sweep, j: (i, j)), (pl.cdiv(m, rows), 2, pl.cdiv(n, columns))
    scratch = [pltpu.VMEM((rows, 1), jnp.float32)] * 2
    return pallas_call(kernel, jax.typeof(x), grid=grid, in_specs=[spec], out_specs=spec, scratch_shapes=scratch)(x)


# %% wrong="pallas-online-softmax" because="Starts the maximum and the sum once for the whole grid. Each block of rows needs its own start."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        i, sweep, j = (pl.program_id(axis) for axis in range(3))
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf)

        @pl.when((i == 0) & (sweep == 0) & (j == 0))
        def _():
            top_ref[...], sum_ref[...] = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1))

        @pl.when(sweep == 0)
        def _():
            new = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))
            scale = jnp.exp(top_ref[...] - new)
            sum_ref[...] = sum_ref[...] * scale + jnp.exp(values - new).sum(axis=1, keepdims=True)
            top_ref[...] = new

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec, grid = pl.BlockSpec(block, lambda i, sweep, j: (i, j)), (pl.cdiv(m, rows), 2, pl.cdiv(n, columns))
    scratch = [pltpu.VMEM((rows, 1), jnp.float32)] * 2
    return pallas_call(kernel, jax.typeof(x), grid=grid, in_specs=[spec], out_specs=spec, scratch_shapes=scratch)(x)


# %% wrong="pallas-online-softmax" because="Reads whole rows, which may not fit into fast memory."
def online_softmax(x, block):
    def kernel(x_ref, out_ref):
        out_ref[...] = jax.nn.softmax(x_ref[...], axis=1)

    spec = pl.BlockSpec((block[0], x.shape[1]), lambda i: (i, 0))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=pl.cdiv(x.shape[0], block[0]),
        in_specs=[spec],
        out_specs=spec,
    )(x)


# %% wrong="pallas-online-softmax" because="Has one sweep and normalizes each block with the sum so far. The blocks before the last one are too large."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        j = pl.program_id(1)
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf)

        @pl.when(j == 0)
        def _():
            top_ref[...], sum_ref[...] = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1))

        new = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))
        scale = jnp.exp(top_ref[...] - new)
        sum_ref[...] = sum_ref[...] * scale + jnp.exp(values - new).sum(axis=1, keepdims=True)
        top_ref[...] = new
        out_ref[...] = jnp.exp(values - new) / sum_ref[...]

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32)] * 2,
    )(x)


# %% wrong="pallas-online-softmax" because="Stores the maximum and the sum as one logarithm. Near a large maximum, float32 has no digits left for the sum."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block
    grid = pl.cdiv(m, rows), pl.cdiv(n, columns)
    blocks, stats = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((rows, 1), lambda i, j: (i, 0))
    column_of_rows = jax.ShapeDtypeStruct((m, 1), jnp.float32)

    def first(x_ref, log_sum_ref):
        j = pl.program_id(1)
        inside = jnp.arange(columns) < n - j * columns
        part = jax.nn.logsumexp(x_ref[...], axis=1, keepdims=True, where=inside)
        log_sum_ref[...] = jnp.where(j == 0, part, jnp.logaddexp(log_sum_ref[...], part))

    def second(x_ref, log_sum_ref, out_ref):
        out_ref[...] = jnp.exp(x_ref[...] - log_sum_ref[...])

    log_sum = pallas_call(first, grid=grid, in_specs=[blocks], out_specs=stats, out_shape=column_of_rows)(x)
    last = pallas_call(
        second,
        grid=grid,
        in_specs=[blocks, stats],
        out_specs=blocks,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
    )
    return last(x, log_sum)


# %% wrong="pallas-online-softmax" because="Uses one maximum for all rows of a block. The exponentials of a row with much smaller numbers all vanish."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        i, sweep, j = (pl.program_id(axis) for axis in range(3))
        inside = (jnp.arange(rows)[:, None] < m - i * rows) & (jnp.arange(columns) < n - j * columns)
        values = jnp.where(inside, x_ref[...], -jnp.inf)

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...], sum_ref[...] = jnp.full_like(top_ref, -jnp.inf), jnp.zeros_like(sum_ref)

        @pl.when(sweep == 0)
        def _():
            new = jnp.maximum(top_ref[...], values.max())
            scale = jnp.exp(top_ref[...] - new)
            sum_ref[...] = sum_ref[...] * scale + jnp.exp(values - new).sum(axis=1, keepdims=True)
            top_ref[...] = new

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec = pl.BlockSpec(block, lambda i, sweep, j: (i, j))
    return pallas_call(
        kernel,
        jax.typeof(x),
        grid=(pl.cdiv(m, rows), 2, pl.cdiv(n, columns)),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((1, 1), jnp.float32), pltpu.VMEM((rows, 1), jnp.float32)],
    )(x)


# %% wrong="pallas-online-softmax" because="Computes the result outside of the kernels. The second sweep has to be a kernel, too."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block
    grid = pl.cdiv(m, rows), pl.cdiv(n, columns)
    blocks, stats = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((rows, 1), lambda i, j: (i, 0))
    column_of_rows = jax.ShapeDtypeStruct((m, 1), jnp.float32)

    def first(x_ref, top_ref, sum_ref):
        j = pl.program_id(1)
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf)
        old = jnp.where(j == 0, -jnp.inf, top_ref[...])
        new = jnp.maximum(old, values.max(axis=1, keepdims=True))
        kept = jnp.where(j == 0, 0, sum_ref[...] * jnp.exp(old - new))
        sum_ref[...] = kept + jnp.exp(values - new).sum(axis=1, keepdims=True)
        top_ref[...] = new

    top, total = pallas_call(
        first, grid=grid, in_specs=[blocks], out_specs=[stats] * 2, out_shape=[column_of_rows] * 2
    )(x)
    return jnp.exp(x - top) / total


# %% wrong="pallas-online-softmax" because="Subtracts the maximum of the first block only, so the exponentials of larger numbers in later blocks overflow."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf)

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...], sum_ref[...] = values.max(axis=1, keepdims=True), jnp.zeros((rows, 1))

        @pl.when(sweep == 0)
        def _():
            sum_ref[...] += jnp.exp(values - top_ref[...]).sum(axis=1, keepdims=True)

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec, grid = pl.BlockSpec(block, lambda i, sweep, j: (i, j)), (pl.cdiv(m, rows), 2, pl.cdiv(n, columns))
    scratch = [pltpu.VMEM((rows, 1), jnp.float32)] * 2
    return pallas_call(kernel, jax.typeof(x), grid=grid, in_specs=[spec], out_specs=spec, scratch_shapes=scratch)(x)


# %% wrong="pallas-online-softmax" because="Assumes that elements past the edge are NaN. Only interpret mode fills them with NaN."
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        sweep, j = pl.program_id(1), pl.program_id(2)
        values = jnp.where(jnp.isnan(x_ref[...]), -jnp.inf, x_ref[...])

        @pl.when((sweep == 0) & (j == 0))
        def _():
            top_ref[...], sum_ref[...] = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1))

        @pl.when(sweep == 0)
        def _():
            new = jnp.maximum(top_ref[...], values.max(axis=1, keepdims=True))
            scale = jnp.exp(top_ref[...] - new)
            sum_ref[...] = sum_ref[...] * scale + jnp.exp(values - new).sum(axis=1, keepdims=True)
            top_ref[...] = new

        @pl.when(sweep == 1)
        def _():
            out_ref[...] = jnp.exp(values - top_ref[...]) / sum_ref[...]

    spec, grid = pl.BlockSpec(block, lambda i, sweep, j: (i, j)), (pl.cdiv(m, rows), 2, pl.cdiv(n, columns))
    scratch = [pltpu.VMEM((rows, 1), jnp.float32)] * 2
    return pallas_call(kernel, jax.typeof(x), grid=grid, in_specs=[spec], out_specs=spec, scratch_shapes=scratch)(x)


# %% right="pallas-online-softmax"
def online_softmax(x, block):
    (m, n), (rows, columns) = x.shape, block
    grid = pl.cdiv(m, rows), pl.cdiv(n, columns)
    blocks, stats = pl.BlockSpec(block, lambda i, j: (i, j)), pl.BlockSpec((rows, 1), lambda i, j: (i, 0))
    column_of_rows = jax.ShapeDtypeStruct((m, 1), jnp.float32)

    def first(x_ref, top_ref, sum_ref):
        j = pl.program_id(1)
        values = jnp.where(jnp.arange(columns) < n - j * columns, x_ref[...], -jnp.inf)
        old = jnp.where(j == 0, -jnp.inf, top_ref[...])
        new = jnp.maximum(old, values.max(axis=1, keepdims=True))
        kept = jnp.where(j == 0, 0, sum_ref[...] * jnp.exp(old - new))
        sum_ref[...] = kept + jnp.exp(values - new).sum(axis=1, keepdims=True)
        top_ref[...] = new

    def second(x_ref, top_ref, sum_ref, out_ref):
        out_ref[...] = jnp.exp(x_ref[...] - top_ref[...]) / sum_ref[...]

    top, total = pallas_call(
        first, grid=grid, in_specs=[blocks], out_specs=[stats] * 2, out_shape=[column_of_rows] * 2
    )(x)
    return pallas_call(
        second,
        grid=grid,
        in_specs=[blocks, stats, stats],
        out_specs=blocks,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
    )(x, top, total)


# %% right="pallas-online-softmax"
def online_softmax(x, block):
    rows, columns = block
    across = pl.cdiv(x.shape[1], columns)

    def kernel(x_ref, out_ref, top_ref, sum_ref):
        step = pl.program_id(1)
        j = step % across
        values = jnp.where(jnp.arange(columns) < x.shape[1] - j * columns, x_ref[...], -jnp.inf)

        @pl.when(step < across)
        def first_sweep():
            old = jnp.where(step == 0, -jnp.inf, top_ref[:, 0])
            top = jnp.maximum(old, values.max(1))
            kept = jnp.where(step == 0, 0, sum_ref[:, 0]) * jnp.exp(old - top)
            top_ref[:, 0] = top
            sum_ref[:, 0] = kept + jnp.exp(values - top[:, None]).sum(1)

        @pl.when(step >= across)
        def second_sweep():
            out_ref[...] = jnp.exp(values - top_ref[...] - jnp.log(sum_ref[...]))

    spec = pl.BlockSpec(block, lambda i, step: (i, step % across))
    return pallas_call(
        kernel,
        grid=(pl.cdiv(x.shape[0], rows), 2 * across),
        in_specs=[spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((rows, 1), jnp.float32), pltpu.VMEM((rows, 1), jnp.float32)],
    )(x)


# %% equivalent="pallas-online-softmax" because="float32 represents these positions exactly."
# swapped function, int32 -> float32: column = j * columns + jax.lax.broadcasted_iota(jnp.int32, block, 1)
