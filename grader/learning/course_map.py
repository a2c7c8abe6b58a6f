"""In the start notebook: the lessons of the course, and how far one has come, as a picture made of HTML."""

from __future__ import annotations

import contextlib
import tomllib
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from grader.core.layout import course_above
from grader.learning import state

GRADED = "graded"  # written by `grader check`: by lesson, [earned, points] of each exercise
NOTHING = "There is no course above this folder, so there is no map to draw."
# JupyterLab's own colours where there are any, so that it is legible in its dark theme; the green is told from grey by
# its place and by the words too.
STYLE = {
    "part": "margin:14px 0 6px;font-weight:600",
    "row": "display:flex;flex-wrap:wrap;gap:8px",
    "tile": "width:160px;box-sizing:border-box;padding:8px 10px;border-radius:6px;"
    "border:1px solid var(--jp-border-color1,#999)",
    "bar": "height:6px;border-radius:3px;margin:6px 0 4px;background:var(--jp-border-color2,#ccc)",
    "done": "height:6px;border-radius:3px;background:#2e9e6b",
    "small": "font-size:85%;color:var(--jp-ui-font-color2,#666)",
}


@dataclass(frozen=True)
class Tile:
    """One lesson: where it can be opened, "" where it is still to come, and the points earned of it."""

    id: str
    title: str
    part: str
    link: str
    earned: float
    points: float

    @property
    def says(self) -> str:
        """How far one has come, in words."""
        if not self.link:
            return "coming"
        if not self.points:
            return ""
        return f"{'✓ ' if self.earned >= self.points else ''}{self.earned:g} of {self.points:g} points"


@dataclass(frozen=True)
class Map:
    """Shown by a notebook as HTML, elsewhere as text."""

    tiles: tuple[Tile, ...]

    def _repr_html_(self) -> str:
        if not self.tiles:
            return f"<p>{NOTHING}</p>"
        parts = []
        for part, tiles in groupby(self.tiles, lambda tile: tile.part):
            row = "".join(_tile(tile) for tile in tiles)
            parts.append(f'<div style="{STYLE["part"]}">{escape(part)}</div><div style="{STYLE["row"]}">{row}</div>')
        return f"<div>{''.join(parts)}</div>"

    def __repr__(self) -> str:
        if not self.tiles:
            return NOTHING
        return "\n".join(f"{tile.id[:2]} {tile.title:28s} {tile.says}".rstrip() for tile in self.tiles)


def course_map() -> Map:
    """The lessons in their order, with what `grader check` has seen of their exercises.

    Lessons that are built lie beside the notebook that asks. Without a course above it the map is empty.
    """
    here = Path.cwd()
    root = course_above(here)
    graded = state.read(GRADED)
    try:
        lessons = tomllib.loads((root / "course.toml").read_text(encoding="utf-8"))["lesson"] if root else []
        return Map(tuple(_of(lesson, here, graded.get(lesson["id"])) for lesson in lessons))
    except (OSError, ValueError, KeyError, TypeError):  # another project's course.toml
        return Map(())


def _of(lesson: dict[str, str], here: Path, graded: object) -> Tile:
    earned, points = _sums(graded)
    link = f"{lesson['id']}.ipynb"
    return Tile(lesson["id"], lesson["title"], lesson["part"], link if (here / link).is_file() else "", earned, points)


def _sums(graded: object) -> tuple[float, float]:
    """Earned and possible points; nothing, where the file says what it never wrote."""
    with contextlib.suppress(ValueError, TypeError):
        pairs = (
            [(float(earned), float(points)) for earned, points in graded.values()] if isinstance(graded, dict) else []
        )
        return sum(min(pair) for pair in pairs), sum(points for _, points in pairs)
    return 0.0, 0.0


def _tile(tile: Tile) -> str:
    name = f"{tile.id[:2]} · {escape(tile.title)}"
    share = tile.earned / tile.points if tile.points else 0.0
    bar = (
        f'<div style="{STYLE["bar"]}"><div style="{STYLE["done"]};width:{share:.0%}"></div></div>' if tile.link else ""
    )
    head = f'<a href="{escape(tile.link)}">{name}</a>' if tile.link else name
    return f'<div style="{STYLE["tile"]}">{head}{bar}<div style="{STYLE["small"]}">{tile.says or "&nbsp;"}</div></div>'
