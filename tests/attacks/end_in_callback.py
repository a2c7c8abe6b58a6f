"""Never ends, or ends its process, in a host function that a compiled program calls."""
# tally: timeout, timeout
# keep: crashed, crashed, crashed
# %% answer="tally"
def forever():
    while True:
        pass


def tally(counts, start):
    return int(jax.jit(lambda: jax.pure_callback(forever, jax.ShapeDtypeStruct((), jnp.int32)))())
# %% answer="keep"
import os


def doubled(tree):
    return jax.pure_callback(lambda: os._exit(0), jax.ShapeDtypeStruct((), jnp.int32))
