"""Relies on what a notebook's main module is: pickles, processes, sources, data classes, `__name__`, no `__file__`."""
# %%
import dataclasses, inspect, multiprocessing, pickle, sys, textwrap, typing

try:
    here = __file__
except NameError:
    here = "a notebook"
assert here == "a notebook" and __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()


@dataclasses.dataclass
class Pair:
    left: int
    right: int = 0

    def total(self):
        return self.left + self.right


def square(number):
    return number**2
# %% answer="tally"
def tally(counts, start):
    """Adds up."""
    pair = pickle.loads(pickle.dumps(Pair(start, sum(counts.values()))))
    return pair.total()


assert inspect.getsource(tally).startswith("def tally") and inspect.getsource(tally).count("\n") == 4
assert "return self.left" in inspect.getsource(Pair.total)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
if __name__ == "__main__":
    main_ran = True
# %% answer="keep"
assert main_ran and typing.get_type_hints(Pair)["left"] is int
namespace = {}
exec(textwrap.dedent("""
    def double(tree):
        return {name: value * 2 for name, value in tree.items()}
"""), namespace)


def doubled(tree):
    return namespace["double"](tree)
