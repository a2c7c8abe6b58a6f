"""Text as it is shown: a learner's text bounded and made printable, and the mark of each status."""

from __future__ import annotations

MAX_TEXT = 4_000
# The mark and colour of each status; the mark alone says enough.
MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "error": ("!", "magenta"),
    "timeout": ("✗", "red"),
    "crashed": ("✗", "red"),
    "blocked": ("↑", "yellow"),
    "not attempted": ("○", "yellow"),
    "skipped": ("–", "yellow"),
}


def legible(text: str, most: int = MAX_TEXT) -> str:
    """Returns `text` as any terminal and file can show it: at most `most` characters, all of them printable.

    A learner's process may send control characters, surrogate halves and text without end.
    """
    start = text[:most].replace("\r\n", "\n").expandtabs(4)
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in start)
    return shown if len(text) <= most >= len(shown) else f"{shown[:most]} ..."
