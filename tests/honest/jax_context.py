"""Works within contexts: default devices, matmul precision, named scopes, evaluation at compile time."""
# %% answer="affine"
def affine(x):
    with jax.named_scope("all-reduce"), jax.default_matmul_precision("highest"):
        return 3 * x + 1
# %% answer="each"
def each(f, xs):
    with jax.named_scope("while loop"):
        return jax.vmap(f)(xs)
# %% answer="mean"
def mean(x, mesh):
    with jax.named_scope("all-reduce"), jax.ensure_compile_time_eval():
        print(mesh)
    return jax.shard_map(lambda x: jax.lax.pmean(x.mean(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
