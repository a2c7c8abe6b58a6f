"""Never ends, in Python and in C, catching every exception that would stop it."""
# tally: timeout, timeout
# affine: timeout, timeout
# %% answer="affine"
def affine(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue
# %% answer="tally"
def tally(counts, start):
    return sum(10 ** (10**9).bit_length() for _ in iter(int, 1))
