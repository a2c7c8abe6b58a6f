"""The course map of the start notebook, and the learner's small file under work/ that it is read from.

The file contains progress and predictions; it can be deleted.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from grader.core import files
from grader.core.layout import COURSE_FILE, course_above, course_source
from grader.core.notebook import MAX_BYTES, part
from grader.core.points import is_full, number, total

STATE = ".jaxercise.json"
VERSION = 1
GRADED = "graded"  # part of the learner's file: by lesson, [earned, points] of each exercise
NOTHING = "This folder is not in a course, so there is no map."
# JupyterLab's own colours where there are any, so that it is legible in its dark theme; place and words say the same.
TILE = (
    "width:160px;box-sizing:border-box;padding:8px 10px;border-radius:6px;border:1px solid var(--jp-border-color1,#999)"
)
BAR = "height:6px;border-radius:3px"
SMALL = "font-size:85%;color:var(--jp-ui-font-color2,#666)"


def state_path(here: Path | None = None) -> Path:
    """Returns the file's path: in work/ of the course above `here` (the current folder), else in `here` itself."""
    here = here or Path.cwd()
    root = course_above(here)
    return root / "work" / STATE if root is not None else here / STATE


def _state(here: Path | None) -> dict[str, Any]:
    path = state_path(here)
    with contextlib.suppress(OSError, ValueError, RecursionError):
        readable = path.is_file() and path.stat().st_size <= MAX_BYTES  # a pipe would be waited for
        content = json.loads(path.read_text(encoding="utf-8")) if readable else None
        if isinstance(content, dict) and content.get("version") == VERSION:
            return content
    return {"version": VERSION}


def read_state(name: str, here: Path | None = None) -> dict[str, Any]:
    """Returns one part of the file; empty where there is none that this version can read."""
    return dict(part(_state(here), name))


@contextlib.contextmanager
def change_state(name: str, here: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yields one part of the file to be changed, then writes the file. One that cannot be written stays as it is."""
    content = _state(here)
    content[name] = dict(part(content, name))
    yield content[name]
    with contextlib.suppress(OSError):
        files.write(state_path(here), json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True)
class Tile:
    """One lesson: its file, "" where it is not in this folder, and the points earned and possible."""

    id: str
    title: str
    part: str
    link: str
    earned: float
    points: float
    written: bool = True

    @property
    def status(self) -> str:
        """The points in words, with a check mark if all are earned."""
        if not self.written:
            return "coming"
        if not self.points:
            return ""
        done = "✓ " if is_full(self.earned, self.points) else ""
        return f"{done}{number(self.earned)} of {number(self.points)} points"

    def html(self) -> str:
        name, bar = f"{self.id[:2]} · {escape(self.title)}", ""
        if self.link:
            name = f'<a href="{escape(self.link)}">{name}</a>'
        if self.written:
            share = self.earned / self.points if self.points else 0.0
            bar = f'<div style="{BAR};background:#2e9e6b;width:{share:.0%}"></div>'
            bar = f'<div style="{BAR};margin:6px 0 4px;background:var(--jp-border-color2,#ccc)">{bar}</div>'
        return f'<div style="{TILE}">{name}{bar}<div style="{SMALL}">{self.status or "&nbsp;"}</div></div>'


@dataclass(frozen=True)
class Map:
    """The lessons in their order. Notebooks show it as HTML, terminals as text."""

    tiles: tuple[Tile, ...]

    def _repr_html_(self) -> str:
        parts = [] if self.tiles else [f"<p>{NOTHING}</p>"]
        for name, tiles in groupby(self.tiles, lambda tile: tile.part):
            parts.append(f'<div style="margin:14px 0 6px;font-weight:600">{escape(name)}</div>')
            parts.append(f'<div style="display:flex;flex-wrap:wrap;gap:8px">{"".join(t.html() for t in tiles)}</div>')
        return f"<div>{''.join(parts)}</div>"

    def __repr__(self) -> str:
        lines = (f"{tile.id[:2]} {tile.title:28s} {tile.status}".rstrip() for tile in self.tiles)
        return "\n".join(lines) if self.tiles else NOTHING


def course_map() -> Map:
    """Returns the map of the course that the current folder is in; an empty one where there is none. Lessons that are
    built are files in the current folder, or on Colab in the installed course. Progress is what `grader check` has
    seen."""
    here = Path.cwd()
    root = course_above(here)
    graded = read_state(GRADED)
    try:
        source = course_source(root) if root else here
        lessons = tomllib.loads((source / COURSE_FILE).read_text("utf-8"))["lesson"] if root else []
        return Map(tuple(_tile(lesson, here, source, graded.get(lesson["id"])) for lesson in lessons))
    except (OSError, ValueError, KeyError, TypeError):  # another project's course.toml
        return Map(())


def _tile(lesson: dict[str, str], here: Path, source: Path, graded: object) -> Tile:
    try:
        both = [(float(earned), float(points)) for earned, points in graded.values()]  # type: ignore[attr-defined]
        pairs = [(max(0.0, earned), max(0.0, points)) for earned, points in both]  # 0 for what is no number (NaN)
    except (AttributeError, ValueError, TypeError, OverflowError):  # the file was edited into something else
        pairs = []
    earned, points = total(min(pair) for pair in pairs), total(points for _, points in pairs)
    link = f"{lesson['id']}.ipynb"
    link = link if (here / link).is_file() else ""
    # On Colab, the notebooks are not in the kernel's folder. There is no file to link to.
    written = bool(link) or (
        source != course_above(here) and (source / "notebooks" / f"{lesson['id']}.ipynb").is_file()
    )
    return Tile(lesson["id"], lesson["title"], lesson["part"], link, earned, points, written)
