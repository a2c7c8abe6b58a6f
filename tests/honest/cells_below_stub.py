"""Leaves the stub as it is and writes the answer into the cell below it."""
# note: The answer cell of guard-tally is as it was released. The definition in code cell 6 was graded instead.
# %% answer="tally"
def tally(counts, start):
    """The sum of start and of all values of counts, an int."""
    # YOUR CODE HERE
    raise NotImplementedError()
# %% after="tally"
import functools, operator


def tally(counts, start):
    return functools.reduce(operator.add, counts.values(), start)
