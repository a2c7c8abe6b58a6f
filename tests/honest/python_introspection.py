"""Looks at itself: its source, its module, its globals, pickles of its own classes and functions."""
# %%
import inspect, pickle
from dataclasses import dataclass


@dataclass
class Counter:
    start: int
# %% answer="tally"
def tally(counts, start):
    assert "def tally" in inspect.getsource(tally) and tally.__module__ == "__main__"
    assert pickle.loads(pickle.dumps(tally)) is tally
    counter = pickle.loads(pickle.dumps(Counter(start)))
    return counter.start + sum(counts.values())


if __name__ == "__main__":
    assert globals()["tally"] is tally
    print(tally({"a": 1}, 2))
