"""Captures what a cell prints and shows, and uses it in an answer; a helper is defined in such a cell."""
# %% before="affine"
%%capture out
import sys
from IPython.display import HTML, display

print(3)
print("warned", file=sys.stderr)
display(HTML("<b>1</b>"))
!echo 1
slope_of = lambda text: int(text.split()[0])
# %% answer="affine"
assert out.stderr.startswith("warned\n") and out.outputs[0].data["text/html"] == "<b>1</b>"


def affine(x):
    return slope_of(out.stdout) * x + int(out.stdout.split()[1])
# %% answer="tally"
%%capture --no-stderr shown
def tally(counts, start):
    return start + sum(counts.values())


print(tally({"a": 1}, 2))
# %% answer="keep"
from IPython.utils.capture import capture_output

assert shown() is None and shown.stdout == "3\n"
with capture_output() as inner:
    print("inside")
assert inner.stdout == "inside\n"


def doubled(tree):
    return {name: value * 2 for name, value in tree.items()}
