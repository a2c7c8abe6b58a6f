"""Figures that a reader can step through: plain data from Python, drawn by a short script in the browser.

A figure is data (numbers, texts, lists and dicts), a script that draws them, and a static picture. Notebooks and the
book run the script from HTML, which contains the data. So the figure also works without a kernel and after a notebook
is opened again, where JupyterLab shows an error in place of a widget. Front ends that run no script show the picture or
its description. The scripts have the form that anywidget expects, and `Figure.widget` returns such a widget.
"""

from __future__ import annotations

import base64
import functools
import json
import uuid
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# The end of every script: the entry point that anywidget calls.
ENTRY = "\nexport default { render: ({ model, el }) => show(el, model.get('data')) };\n"


class Figure:
    """An interactive figure, shown as the result of a cell.

    Attributes:
        data: what the script draws. It can be printed and compared, and contains no array.
        alt: a description of the static picture.
        svg: the static picture, for front ends that run no script.
    """

    def __init__(self, script: str, data: dict[str, Any], alt: str, svg: str) -> None:
        self._script = script
        self.data, self.alt, self.svg = data, " ".join(alt.split()), svg

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.alt, "image/svg+xml": self.svg, "text/html": self.html()}

    def widget(self) -> Any:
        """The figure as a widget, to combine with other widgets of a notebook. Requires the package anywidget."""
        return widget_class()(script(self._script) + ENTRY, self.data)

    def html(self) -> str:
        """The figure as a part of a page. It loads nothing, and shows the static picture until its script has run."""
        name = f"figure-{uuid.uuid4().hex[:12]}"
        picture = base64.b64encode(self.svg.encode()).decode()
        data = json.dumps(self.data, separators=(",", ":")).replace("<", "\\u003c")
        call = f"show(document.getElementById({json.dumps(name)}), {data});"
        return (
            f"<style>{read('figure.css')}</style>"
            f'<div id="{name}"><img alt="{escape(self.alt)}" src="data:image/svg+xml;base64,{picture}"></div>'
            f'<script type="module">\n{script(self._script)}\n{call}\n</script>'
        )


@functools.cache
def read(name: str) -> str:
    """The text of a file beside this module."""
    return (HERE / name).read_text(encoding="utf-8")


def script(name: str) -> str:
    """The script of a figure, after the parts that all figures share."""
    return read("figure.js") + read(name)


@functools.cache
def widget_class() -> Any:
    """The class of the widgets. Raises ImportError if anywidget is not installed."""
    import anywidget
    import traitlets

    class FigureWidget(anywidget.AnyWidget):
        """A figure in a notebook."""

        _css = read("figure.css")
        data = traitlets.Dict().tag(sync=True)

        def __init__(self, source: str, data: dict[str, Any]) -> None:
            self.add_traits(_esm=traitlets.Unicode(source).tag(sync=True))
            super().__init__(data=data)

    return FigureWidget
