"""Keeps a hidden check's input, and raises it as the number of a line: in cells of its own, and where a name is missing."""
# tally: failed, failed
# each: blocked|failed, blocked|failed, blocked|failed
# %% answer="tally"
seen = [1]


def tally(counts, start):
    seen.append(counts["a"])
    return 0
# %% before="each"
exec(compile("\n" * (max(seen) - 1) + "raise ValueError", "<mine>", "exec"))
# %% before="each"
helper = exec(compile("\n" * (max(seen) - 1) + "raise ValueError", "<mine>", "exec"))
# %% before="each"
exec(compile("\n" * (max(seen) - 1) + "x = (", "<mine>", "exec"))
# %% answer="each"
def each(f, xs):
    return helper(f, xs)
