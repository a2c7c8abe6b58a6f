"""A small SVG writer for the static pictures of figures: boxes, lines and texts on the course's light paper."""

from __future__ import annotations

from html import escape

from grader.learning.plots import INK, PAPER

FONT = 13  # pixels; a letter of the monospaced font is LETTER wide
LETTER = 7.9
MARGIN = 14


class Drawing:
    """Collects shapes, and grows with them. Coordinates are in pixels, from the upper left corner."""

    def __init__(self) -> None:
        self._shapes: list[str] = []
        self.width = self.height = 0.0

    def box(self, x: float, y: float, width: float, height: float, fill: str, label: str = "") -> None:
        """A filled rectangle with a label in its middle."""
        self._grow(x + width, y + height)
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{INK}"/>'
        )
        if label:
            self.text(x + width / 2, y + height / 2 + FONT / 3, label, anchor="middle")

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", bold: bool = False) -> None:
        """Words in the monospaced font; `y` is their baseline."""
        self._grow(x + LETTER * len(words) / (2 if anchor == "middle" else 1), y + FONT / 3)
        weight = ' font-weight="bold"' if bold else ""
        words = escape(words.replace(" ", "\u00a0"))  # browsers collapse other spaces
        self._shapes.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{words}</text>')

    def path(self, points: list[tuple[float, float]], colour: str, dashes: str = "") -> None:
        """A line through the points."""
        for x, y in points:
            self._grow(x, y)
        drawn = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._shapes.append(
            f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        )

    def svg(self) -> str:
        """The picture as an SVG document."""
        width, height = round(self.width + MARGIN), round(self.height + MARGIN)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="{FONT}" fill="{INK}">'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>{"".join(self._shapes)}</svg>'
        )

    def _grow(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)
