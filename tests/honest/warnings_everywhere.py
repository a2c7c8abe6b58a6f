"""Warns when it is imported, traced and called, and writes to stderr."""
# %%
import sys, warnings

warnings.simplefilter("always")
warnings.warn("careful")
print("hello", file=sys.stderr)
# %% answer="affine"
def affine(x):
    warnings.warn("deprecated", DeprecationWarning)
    print("tracing", x, file=sys.stderr)
    return 3 * x + 1
# %% answer="tally"
def tally(counts, start):
    warnings.warn("slow")
    return start + sum(counts.values())
