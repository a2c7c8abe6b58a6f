"""Calls Python from compiled programs: a host function with a result, and an ordered log in a loop."""
# %% answer="tally"
from jax.experimental import io_callback

lines = []


@jax.jit
def logged_sum(numbers):
    def step(total, number):
        io_callback(lambda total: lines.append(int(total)), None, total, ordered=True)
        return total + number, None

    return jax.lax.scan(step, jnp.int32(0), numbers)[0]


def tally(counts, start):
    total = logged_sum(jnp.array([start, *counts.values()], jnp.int32))
    jax.effects_barrier()
    assert len(lines) >= 1 + len(counts)
    return int(jax.pure_callback(lambda total: np.asarray(total), jax.ShapeDtypeStruct((), jnp.int32), total))
