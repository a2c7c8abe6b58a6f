"""Sets flags that end XLA with an error, dump its programs, or take other numbers of devices."""
# affine: passed, passed
# tally: failed, failed
# says tally-example: ValueError: 8 devices
# mean: passed, passed
# %%
import os

os.environ["XLA_FLAGS"] = "--xla_no_such_flag --xla_force_host_platform_device_count=3 --xla_dump_to=@OUTSIDE@/dump"
os.environ["JAX_PLATFORMS"] = "nowhere"
os.environ["JAX_COMPILATION_CACHE_DIR"] = "@OUTSIDE@/cache"
jax.config.update("jax_compilation_cache_dir", "@OUTSIDE@/cache")
jax.config.update("jax_dump_ir_to", "@OUTSIDE@/ir")
# %% answer="affine"
def affine(x):
    return 3 * x + 1
# %% answer="tally"
def tally(counts, start):
    raise ValueError(f"{len(jax.devices())} devices")
# %% answer="mean"
def mean(x, mesh):
    return jax.shard_map(lambda x: jax.lax.pmean(x.mean(), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
