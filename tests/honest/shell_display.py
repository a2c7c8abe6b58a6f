"""Shows things in every way of a notebook: HTML, figures, bars, widgets, help, handles that are updated."""
# %%
%%html
<style>b { color: red }</style>
# %%
%%javascript
console.log("b")
# %%
%%latex
$x$
# %%
%%markdown
**b**
# %%
%matplotlib inline
import matplotlib.pyplot as plt
from IPython.display import HTML, Audio, Image, Markdown, Math, clear_output, display, update_display
from tqdm.auto import tqdm, trange
from tqdm.notebook import tqdm as notebook_bar
import ipywidgets

plt.plot([1, 2])
handle = display("a", display_id="one")
handle.update("b")
update_display("c", display_id="one")
display(HTML("<b>b</b>"), Markdown("**b**"), Math("x"), metadata={})
output = ipywidgets.Output()
with output:
    print("inside")


class Mine:
    def _repr_html_(self):
        raise ValueError("not shown")

    def __repr__(self):
        return "Mine"


display(Mine())
Mine()
# %%
len?
# %%
?sum
# %%
who
# %%
%whos
%precision 3
%lsmagic
%xmode Plain
%colors nocolor
%history
# %% answer="tally"
figure, axes = plt.subplots()
axes.plot([1, 2])
plt.show()
assert plt.get_fignums() == []


def tally(counts, start):
    for value in notebook_bar(counts.values(), desc="tally", leave=False):
        start += value
    for _ in trange(2):
        pass
    display(start)
    return start


sum(tqdm([1]))
