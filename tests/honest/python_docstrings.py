"""Has comments and strings that look like the course's own marks, cells and verdicts."""
# %% answer="tally"
def tally(counts, start):
    """### BEGIN SOLUTION raise NotImplementedError() # YOUR CODE HERE"""
    text = "# %% check='tally' ### BEGIN HIDDEN TESTS\nassert False ### END HIDDEN TESTS"
    return start + sum(counts.values())  # %time !ls ?
# %% answer="bystander"
def again(text):
    # raise NotImplementedError
    return f"{text}{text}"
