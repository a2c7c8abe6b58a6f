"""The errors that JAX, Flax and NumPy are known for, and one sentence for each: what happened, and what to do.

Which of several causes it was is told by a piece of the error's text, as jax 0.10 and 0.11 write it; a test provokes
each. That text is a learner's process's, so nothing of it goes into a sentence: a hidden check may show one.
"""

# Each line is a cause, a class and a piece of its text; the sentence for it stands below, indented. The first that fits
# counts.
TABLE = r"""
# What only the running program knows.
TracerBoolConversionError:
    Python decides (`if`, `while`, `and`) by a value known only when the program runs: use `jnp.where`, `lax.cond` or
    `while_loop`, or make it static.
TracerIntegerConversionError:
    Python wants a whole number (an index, `range`), and while tracing there is none: use `jnp` and `fori_loop`, or
    make that argument static.
TracerArrayConversionError:
    NumPy was given a value that is known only when the program runs: use what `jnp` has of the same name.
ConcretizationTypeError: The problem arose with the `float` function.
ConcretizationTypeError: The problem arose with the `int` function.
ConcretizationTypeError: The problem arose with the `
    `float` or `int` wants a number, and while tracing there is none: keep the array; `.astype` changes its dtype.
ConcretizationTypeError: item()
    While tracing, an array has no value for Python (`.item()`): go on with the array itself.
ConcretizationTypeError: tolist()
    While tracing, an array has no values for Python (`.tolist()`): go on with the array itself.
ConcretizationTypeError: size argument
    How many entries there are depends on values, but shapes have to be fixed: give `size=`, or choose by `jnp.where`.
ConcretizationTypeError:
    A length, an axis or a count has to be known while tracing: take it from a shape, or make that argument static.
NonConcreteBooleanIndexError:
    How many entries a mask picks depends on values, but shapes have to be fixed: use `jnp.where(mask, x, 0)`.
TypeError: Shapes must be 1D sequences of concrete
    A shape has to be known while tracing, and this one holds a value of the program: take it from an array's shape,
    or make that argument static.
IndexError: Slice entries must be static integers.
IndexError: Array slice indices must have static
    The bounds of a slice have to be known while tracing: use `lax.dynamic_slice`, whose size is fixed, or a mask.
TypeError: Tracer.__format__
    While tracing there is no number to format: `jax.debug.print("{x}", x=x)` prints it when the program runs.
UnexpectedTracerError: nondiff_argnums
    An argument in `nondiff_argnums` is traced, and must not be: make it an ordinary one, with a gradient of zeros.
UnexpectedTracerError:
Exception: Leaked trace
    A value of a traced function was kept outside of it (a list, an attribute, a global) and used later: return it.

# Donation.
RuntimeError: Array has been deleted
ValueError: Buffer has been deleted or donated
    This array was donated to a call, or deleted, and is gone: go on with what that call returned, or do not donate.
JaxRuntimeError: Attempt to donate the same buffer twice
    One array was donated twice in a call: donate it once, and hand over a copy for the other.
JaxRuntimeError: RESOURCE_EXHAUSTED
    No memory holds an array of this size: where only shapes matter, `jax.eval_shape` makes none.

# Loops and branches.
TypeError: scan body output must be a pair
    The body of `lax.scan` returns a pair, what is handed on and what is collected: `return carry, None` if nothing.
TypeError: carry input and carry output must have the same pytree structure, but they differ:
    The carry leaves the loop's body in another form than it came in: return the same containers, and from a scan the
    pair `carry, collected`.
TypeError: carry input and carry output must have equal types, but they differ:
    The carry leaves the loop's body with another shape or dtype than it came in: let the first one have those too.
TypeError: branches must have equal output types but they differ.
TypeError: branch outputs must have the same pytree structure, but they differ:
    The branches of `cond` or `switch` return unlike results: let all return the same containers, shapes, dtypes.
TypeError: Pred must be a scalar
    `lax.cond` takes one branch for everything, so it wants a single bool: for a choice per entry use `jnp.where`.
TypeError: arguments should be callable
    `lax.cond` wants functions for its branches, not their results: `lax.cond(c, f, g, x)`.
TypeError: cond_fun must return a boolean scalar
    The condition of `while_loop` returns a single bool: compare, and for an array ask `jnp.any` or `jnp.all`.
ValueError: got values with different leading axis sizes
    The arrays that `lax.scan` goes through have unlike lengths: each step takes one entry of each, along axis 0.
ValueError: no leading axis to scan over
    `lax.scan` goes along axis 0, and a scalar has none: put it into the carry.
ValueError: scan got no values to scan over
    `lax.scan` does not know how often to go around: give it arrays to go through, or `length=`.
ValueError: Reverse-mode differentiation does not work for
    A loop of unknown length has no gradient backwards: use `lax.scan`, fixed bounds, or a rule of your own.

# vmap.
ValueError: vmap got inconsistent sizes for array axes to be mapped:
    `vmap` wants axes of one size: what is not mapped gets `None` in `in_axes`.
ValueError: vmap was requested to map its argument along
    `vmap` is to go along an axis that is not there: `in_axes` may be `None`.
ValueError: vmap in_axes must be an int, None, or
TypeError: vmap in_axes must be an int, None, or
    `in_axes` wants one entry for each argument of the mapped function: a number, `None`, or a tree of them.
ValueError: vmap in_axes specification must be a tree
    `in_axes` does not fit: its dicts and tuples have to be the argument's; one number may stand for a whole tree.
ValueError: vmap out_axes specification must be a tree
    `out_axes` does not fit: its dicts and tuples have to be the result's; one number may stand for a whole tree.
ValueError: at least one non-None value in in_axes
    `vmap` has nothing to map over: an entry of `in_axes` has to be an axis.
ValueError: at vmap out_axes, got axis spec None
    `out_axes=None` is for what is the same for each example, and this result differs: give it an axis.

# Derivatives.
TypeError: Expected a callable value
    A function was wanted, and this is no function but its result: `jax.grad(f)(x)`, not `jax.grad(f(x))`.
TypeError: Gradient only defined for scalar-output
    `grad` wants a function that returns one number: take the mean or the sum; what else it returns is for `has_aux`.
TypeError: requires real- or complex-valued inputs
    `grad` goes by floats only, and here are whole numbers or bools: leave them out (by `argnums`, by `nnx.split`).
TypeError: requires real-valued outputs
    `grad` wants a real float for a result: this one is whole, bool or complex.
TypeError: expected function with aux output
    With `has_aux=True` a function returns a pair: the number to differentiate, and the rest.
TypeError: primal and tangent arguments to jax.jvp
ValueError: jvp called with different primal and tangent
    Tangents have to have the shapes and dtypes of the point they belong to: `jnp.ones_like(x)` has them.
ValueError: for argument to VJP function
ValueError: argument to a VJP function
    What is pulled back has to have the containers, shapes and dtypes of the function's result.
TypeError: bwd rule must produce an output with the same container
    The backward rule returns a tuple with a gradient for each argument: `(gradient,)` for a single one.
ValueError: type as the args tuple of the primal function, but
    The backward rule returns a gradient of another shape or dtype than the argument that it is by.
TypeError: Custom VJP fwd rule
    The forward rule returns a pair: the result, and what the other rule needs.
TypeError: to a custom_vjp function
    A `custom_vjp` has no forward mode (`jvp`, `jacfwd`): use `jax.custom_jvp`, or go backwards (`grad`, `jacrev`).

# Arguments of jit.
TypeError: as an abstract array.
    An argument of a compiled function is no array and no tree of arrays: close over it, make it static, or a pytree.
ValueError: Non-hashable static arguments
    A static argument is compared by its hash, and this one has none: leave arrays traced, and make lists tuples.
ValueError: Jitted function has
    `static_argnums` or `static_argnames` names an argument that is not there; positions begin with 0.
TypeError: differ from the types for which this computation was
    A program that was compiled ahead takes the shapes and dtypes that it was compiled for, and no others.
TypeError: is not a valid JAX type
    A transformed function takes and returns arrays and trees of them, and this is something else.

# Arrays, indices, trees.
TypeError: JAX arrays are immutable and do not support in-place item assignment.
    JAX's arrays do not change in place: `x = x.at[i].set(y)` makes a new one.
TypeError: Indexer must have integer or boolean type
    An index is a whole number or a mask, and this is a float: `//` and `.astype(int)` make whole numbers.
TypeError: got incompatible shapes for broadcasting
ValueError: Incompatible shapes for broadcasting
    Two shapes do not go together: from the last axis on, sizes are equal or 1.
TypeError: requires contracting dimensions to have the same shape
    The inner axes of a product differ: (n, k) @ (k, m) has the same k twice.
TypeError: cannot reshape array
    The new shape holds another number of entries than the array has.
TypeError: requires ndarray or scalar arguments
    A list or a tuple is no array for `jnp`: make it one, `jnp.array(...)`.
ValueError: Invalid shapes for solve:
    `jnp.linalg.solve` takes vectors in a batch as columns: hand over `b[..., None]`, and take that axis away again.
ValueError: setting an array element with a sequence.
    A NumPy array holds neither traced values nor rows of unlike lengths: build it with `jnp`, and pad what is short.
DTypePromotionError:
    NumPy knows no common dtype of these, JAX may: `jnp.promote_types(a, b)`.
TypeError: Only scalar arrays can be converted
    `float` or `int` takes an array with a single entry only.
TypeError: iteration over a 0-d array
TypeError: len() of unsized object
    A scalar has nothing to go through: `for`, `len`, unpacking want an axis.
ValueError: truth value of an array with more than one element is ambiguous.
    `if`, `and`, `or` want one bool, and this is an array: `jnp.where` goes by entry, `.any()` and `.all()` make it one.
TypeError: unhashable type: 'jaxlib
TypeError: unhashable type: 'DynamicJaxprTracer'
    An array is no key of a dict or a set, and no argument of a cached function: use a number or a tuple.
ValueError: pytree structure error:
    Two trees differ where they are gone through together: at one place they have other containers, keys or lengths.
TypeError: JAX encountered invalid PRNG key data
TypeError: unexpected PRNG key type
    A key was wanted here, and this is none: `jax.random.key(seed)` makes one.
ValueError: accepts a single key, but was given
    One key was wanted, and these are many: take one of them, or use `vmap`.
TypeError: does not accept dtypes key<
    A key is no number: `jax.random.split` and `fold_in` make new ones of it.

# Many devices.
IndivisibleError: implies that
    A spec cuts an axis into pieces that do not divide its size: pad it, cut another axis, or leave it whole (`None`).
ValueError: is only valid for values of
    A spec has more entries than the array has axes; that of a scalar is `P()`.
ValueError: is not found in mesh
    A spec names an axis that the mesh has not: `mesh.axis_names` has the names.
DuplicateSpecError:
    A spec names an axis of the mesh twice: each can cut one axis of an array.
RuntimeError: requires a non-empty mesh in context
    A bare `P(...)` says nothing without a mesh: use `NamedSharding(mesh, P(...))`, or `jax.set_mesh`.
ValueError: Received incompatible devices for jitted computation.
    Arrays on unlike devices meet in one program: `jax.device_put` them onto one mesh first.
ValueError: Sharding passed to jit does not match the sharding on the respective arg.
    `in_shardings` is another layout than the argument has: place it so before, or leave `in_shardings` out.
ValueError: must be >= the product of mesh_shape
    The mesh wants more devices than there are (`len(jax.devices())` of them).
ShardingTypeError: Contracting dimensions are sharded
    Both factors are cut along the axis that is summed over, so the result's layout has to be said: `out_sharding=`.
ShardingTypeError:
    On explicit axes a layout is part of the type, and these do not go together: use `jax.sharding.reshard` first.
AssertionError: acts as an assert when all axes
    On explicit axes `with_sharding_constraint` only compares: `jax.sharding.reshard` changes the layout.
ValueError: not evenly divisible by the corresponding mesh axis sizes:
    `in_specs` cuts an axis into pieces that do not divide its size: pad it, or leave it whole (`None`).
ValueError: require replication which can't be
    `out_specs` says that all devices have the same result, and they may not: `lax.psum` it, or name the axis.
ValueError: out_specs entry which is too long
    `out_specs` has more entries than a device's result has axes: give it an axis, or add the results up, with `P()`.
NameError: unbound axis name
    A collective names an axis that nothing maps here: call it inside `jax.shard_map`, or a `vmap` with `axis_name=`.

# Flax.
TraceContextError:
    A traced function changes a module from outside of it: hand the module over as an argument, and return it too.
ValueError: assigned to static attribute
    NNX takes a plain list or dict for a setting, and a setting holds no arrays: use `nnx.List(...)` or `nnx.Dict(...)`.
TypeError: Missing required argument `wrt`
    An optimizer has to know what learns: `nnx.Optimizer(model, tx, wrt=nnx.Param)`.
TypeError: keyword-only argument: 'rngs'
    A layer draws its first weights from `rngs`: hand it `rngs=nnx.Rngs(seed)`, or those that you were given.
"""

# Beside the bare class, where the text is not shown: a hidden check's own question to the answer.
QUESTIONS = {
    "AttributeError": "This value does not have what is asked of it: which types and containers does the task allow?",
    "TypeError": "Something does not take what it was given: which types and containers does the task allow?",
    "ValueError": "Something does not take this value or this shape: which shapes and values does the task allow?",
    "KeyError": "A key is asked for that is not there: which keys does the task promise?",
    "IndexError": "An index does not fit: how many axes, and how many entries, does the task promise?",
    "NameError": "A name is used that nothing has bound there.",
    "UnboundLocalError": "A name is used before it is bound: is there a way through the code that leaves it out?",
    "ZeroDivisionError": "Something is divided by 0: what may be 0 or empty, by the task?",
    "AssertionError": "An `assert` does not hold here: does the task promise what it says?",
    "JaxRuntimeError": "The compiled program failed: which sizes does the task allow?",
}
