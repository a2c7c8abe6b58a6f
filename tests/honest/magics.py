"""Uses magics, shell escapes and questions, in cells of its own and around its answers."""
# %%
%load_ext autoreload
%autoreload 2
%config InlineBackend.figure_format = "retina"
!pip list | head -3
files = !ls
np.mean?
# %% answer="tally"
%pip --version
def tally(counts, start):
    total = start + sum(counts.values())
    %time sum(counts.values())
    return total
%timeit -n 1 -r 1 tally({}, 1)
# %% answer="affine"
%%time
def affine(x):
    return 3 * x + 1
# %% answer="keep"
%%capture shown
def doubled(tree):
    return {name: value * 2 for name, value in tree.items()}
