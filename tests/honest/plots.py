"""Plots in cells of its own and within an answer."""
# %%
%matplotlib inline
import matplotlib.pyplot as plt

plt.plot([1, 2, 3])
plt.show()
# %% answer="tally"
def tally(counts, start):
    figure, axes = plt.subplots()
    axes.bar(list(counts), list(counts.values()))
    plt.show()
    plt.close(figure)
    return start + sum(counts.values())
# %% after="tally"
plt.hist([1, 1, 2])
