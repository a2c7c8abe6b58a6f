"""Plots of lessons: one style, and words for learners who do not see the picture.

    from grader.learning import plots
    _, axes = plots.subplots(height=2.6)
    axes.plot(losses, label="loss")
    plots.show(f"The loss falls from {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps.")

Lines differ in colour and in dashes, areas in colour and in hatching. The background is opaque and light, as in the
course's other pictures (images/src/style.py), so that a plot reads the same in JupyterLab's light and dark theme.
"""

from __future__ import annotations

import base64
import io
from html import escape
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart (https://jfly.uni-koeln.de/color/), darker first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
# For areas that dark words stand beside: fill and hatching.
FILLS = (("#f0c75e", ""), ("#7fcba4", "//"), ("#c9a3dc", ".."))
PAPER, INK, QUIET = "#fbfaf7", "#1d2430", "#5a6270"
WIDTH, HEIGHT = 7.0, 2.8  # inches: as wide as a narrow window's cell
DOTS = 144  # for each inch; shown at SHOWN for each inch, so it is sharp on a fine screen
SHOWN = 96
STYLE = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "text.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), QUIET),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.titlesize": 10,
    "font.size": 9.5,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.8,
}


def subplots(rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = HEIGHT, **options: Any) -> Any:
    """Calls `matplotlib.pyplot.subplots` in the course's style; sizes in inches. Returns the figure and its axes."""
    import matplotlib.pyplot as plt
    from matplotlib.rcsetup import cycler

    plt.style.use({**STYLE, "axes.prop_cycle": cycler(color=COLOURS, linestyle=DASHES)})
    return plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **options)


def show(alt: str) -> None:
    """Shows the figure that was drawn last, then closes it. `alt` tells what there is to see, with numbers of this run;
    notebook pages, PDF and plain terminals contain it too."""
    import matplotlib.pyplot as plt
    from IPython.display import display

    figure, drawn = plt.gcf(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS, bbox_inches="tight")
    plt.close(figure)
    words, picture = " ".join(alt.split()), base64.b64encode(drawn.getvalue()).decode()
    width = int.from_bytes(drawn.getvalue()[16:20], "big") * SHOWN // DOTS  # a PNG states its width there
    # JupyterLab has no place for words beside image/png, so there it is HTML; nbconvert reads them from the metadata.
    page = f'<img alt="{escape(words)}" width="{width}" src="data:image/png;base64,{picture}">'
    data = {"text/html": page, "image/png": picture, "text/plain": words}
    display(data, metadata={"image/png": {"alt": words, "width": width}}, raw=True)
