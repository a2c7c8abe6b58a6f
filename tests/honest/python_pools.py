"""Maps over a pool of threads and over one of processes."""
# %%
from concurrent.futures import ThreadPoolExecutor
import multiprocessing as mp
def square(x): return x * x
with mp.get_context("fork").Pool(2) as pool:
    squares = pool.map(square, range(4))
# %% answer="tally"
def tally(counts, start):
    with ThreadPoolExecutor(2) as pool:
        return start + sum(pool.map(int, counts.values()))
