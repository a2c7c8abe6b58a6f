"""Shows things as notebooks do: HTML, Markdown, widgets, several values, the last expression."""
# %%
import ipywidgets as widgets
from IPython.display import HTML, Markdown, clear_output, display
from IPython.core.interactiveshell import InteractiveShell

InteractiveShell.ast_node_interactivity = "all"
slider = widgets.IntSlider(3)
display(HTML("<b>b</b>"), Markdown("**b**"), slider)
widgets.interact(lambda x: x, x=3)
clear_output()
# %% answer="tally"
def tally(counts, start):
    display(counts)
    clear_output(wait=True)
    return start + sum(counts.values())


tally({"a": 1}, 1); help(tally)
