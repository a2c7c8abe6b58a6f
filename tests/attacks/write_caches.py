"""Leaves entries in the caches that a later run would read: notes, results, compiled programs."""
# tally: failed, failed
# %%
import os

for place in ("misconceptions/01_guarded.json", "graded/01_guarded/zz-neighbour.json", "cache/entry", "compiled/entry"):
    try:
        os.makedirs(os.path.dirname("@COURSE@/build/" + place), exist_ok=True)
        with open("@COURSE@/build/" + place, "w") as stream:
            stream.write("jaxercise-attack")
    except OSError:
        pass
folder = jax.config.jax_compilation_cache_dir
if folder:
    for name in [*os.listdir(folder), "jaxercise-attack"]:
        try:
            with open(os.path.join(folder, name), "wb") as stream:
                stream.write(b"jaxercise-attack")
        except OSError:
            pass
# %% answer="tally"
def tally(counts, start):
    return 0
