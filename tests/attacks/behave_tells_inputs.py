"""Has every error carry its input: text, class name, key of a dict, notes, line of source, warning."""
# affine: failed, failed
# tally: failed, failed
# keep: failed, failed, passed
# %% answer="affine"
def affine(x):
    problem = TypeError(f"seen {x}")
    problem.add_note(f"seen {x}")
    raise problem
# %% answer="tally"
import linecache


def tally(counts, start):
    seen = f"seen {counts} {start}" if start != 3 else "nothing"
    linecache.cache["<cell guard-tally>"] = (99, None, [f"{seen}\n"] * 99, "<cell guard-tally>")
    raise type(seen.replace(" ", "_"), (Exception,), {})(seen)
# %% answer="keep"
def doubled(tree):
    return {f"seen {value}": value for value in tree.values()}
