"""Times two versions with `%timeit -o`, keeps the results, and answers with the faster one."""
# %% before="tally"
def by_hand(counts):
    total = 0
    for value in counts.values():
        total += value
    return total


def at_once(counts):
    return sum(counts.values())


example = {str(i): i for i in range(100)}
first = %timeit -o -q by_hand(example)
second = %timeit -o -q -n 10 -r 3 at_once(example)
# %% before="tally"
%%timeit -n 1 -r 1
at_once(example)
# %% answer="tally"
assert first.average > 0 and second.loops == 10 and second.repeat == 3
quicker = min((first.best, by_hand), (second.best, at_once), key=lambda pair: pair[0])[1]


def tally(counts, start):
    return start + quicker(counts)
