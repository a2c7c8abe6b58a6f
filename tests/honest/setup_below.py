"""Has cells above the setup: one that clears everything, and one that uses the setup's names for other things."""
# %% notebook
mine = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
notebook["cells"][0:0] = [
    {**mine, "id": "mine-1", "source": "%reset -f"},
    {**mine, "id": "mine-2", "source": "np = jnp = SCALE = P = None\nfrom math import *"},
]
# %% answer="affine"
@jax.jit
def affine(x):
    return SCALE * jnp.asarray(x) + 1
