"""Defines its helpers in cells that are timed, captured, profiled, or nested in one another."""
# %% before="affine"
%%time
SLOPE = 3
def scaled(x):
    return SLOPE * x
# %% before="affine"
%%capture
%%time
OFFSET = 1
# %% before="affine"
%time doubling = 2
%prun -q powers = [n**2 for n in range(3)]
# %% before="affine"
%%prun -q
profiled = 1
# %% answer="affine"
%%time
def affine(x):
    return scaled(x) + OFFSET * profiled
# %% answer="tally"
if True:
    %time count = sum


def tally(counts, start):
    %time found = 1
    return start + count(counts.values())
# %% answer="keep"
def doubled(tree):
    return {name: value * doubling for name, value in tree.items()}
