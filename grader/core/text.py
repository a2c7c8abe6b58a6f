"""Text as it is shown: a learner's text bounded, printable and no command to a CI log."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator
from typing import Any, TextIO

MAX_TEXT = 4_000
MAX_LINE = 1_000  # characters of a line of code that a lexer reads
MAX_ACCENTS = 4  # on one letter; written languages have up to three
# Printable to Python, and nothing on a screen: letters without a glyph, and selectors of a variant (not of an emoji).
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
    "|(?<![\u203c-\u3299\U0001f000-\U0001faff])[\ufe00-\ufe0f]"
)
# What begins a command to a CI service: first of all on a line (GitHub, whatever the indent; Buildkite; Travis), or
# anywhere (`##[` of GitHub and Azure, `##vso[` of Azure, `##teamcity[`).
_FIRST = r"^((?:\x1b\[[\d;]*m|[^\S\n])*)(?=::|(?:---|\+\+\+|~~~|\^\^\^) |travis_(?:fold|time):)"
_LOG_COMMAND = re.compile(rf"{_FIRST}|##(?=[\w.-]*\[)", re.MULTILINE)
# Markdown within a line. Emphasis has no space just inside its marks, so `a ** b` and `a * b` in code are left alone.
_MARKDOWN = re.compile(
    r"(?P<cyan>`[^`\n]+`)"
    r"|(?<![\w*])\*\*(?P<bold>[^\s*](?:[^*\n]*[^\s*])?)\*\*(?![\w*])"
    r"|(?<![\w*])\*(?P<italic>[^\s*](?:[^*\n]*[^\s*])?)\*(?![\w*])"
    r"|(?<![\w\])])\[(?P<link>[^\]\n]+)\]\((?P<url>\w+:[^)\s]+|[\w./#-]+)\)"
)
_LOG_COMMAND_IN_MARKUP = re.compile(rf"{_FIRST}(.)|##", re.MULTILINE)


def legible(text: str, most: int = MAX_TEXT) -> str:
    """Returns `text` as any terminal and file can show it: at most `most` characters, all of them printable.

    A learner's process may send control characters, surrogate halves and text without end.
    """
    start = text[:most].replace("\r\n", "\n").expandtabs(4)
    shown = "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in start)
    shown = shown if shown.isascii() else "".join(_low(shown))
    shown = _BLANK.sub(lambda blank: _escape(blank[0]), shown)
    return shown if len(text) <= most >= len(shown) else f"{shown[:most]} ..."


def trimmed_lines(code: str) -> str:
    """Returns code that Pygments reads fast: long lines are cut, and spaces at the ends of lines removed. At each line,
    its lexer for Python looks for a docstring behind all blank lines that follow, and takes the square of their number.
    """
    return "\n".join(line[:MAX_LINE].rstrip() for line in code.split("\n"))


def _low(text: str) -> Iterator[str]:
    """Letters of a text with no more than a few accents on each: a stack of them would paint over other lines."""
    stacked = 0
    for character in text:
        stacked = stacked + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        yield character if stacked <= MAX_ACCENTS else _escape(character)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def from_markdown(text: str) -> list[tuple[str, str]]:
    """Returns Markdown as pieces of text, each with the name of its style in rich.

    Only for texts of the course: emphasis and links lose their marks. Code keeps its backticks, which say so without
    colour too.
    """
    pieces, end = [], 0
    for found in _MARKDOWN.finditer(text):
        style = found.lastgroup or ""
        shown = f"{found['link']} ({found['url']})" if style == "url" else found[style]
        pieces += [(text[end : found.start()], ""), (shown, "" if style == "url" else style)]
        end = found.end()
    return [*pieces, (text[end:], "")]


def inert(text: str) -> str:
    """Returns `text` so that no CI service takes a part of it for a command: `\\::error::`, `# #[error]`."""
    return _LOG_COMMAND.sub(lambda found: "# #" if found[1] is None else f"{found[1]}\\", text)


def inert_markup(text: str) -> str:
    """Returns HTML or XML as `inert` does, by character references, so that it reads as before."""
    escape = lambda found: "#&#35;" if found[2] is None else f"{found[1]}&#{ord(found[2])};"
    return _LOG_COMMAND_IN_MARKUP.sub(escape, text)


class LogStream:
    """A text stream into which everything is written as `inert` returns it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(inert(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def stop_commands(stream: TextIO | None) -> None:
    """Has GitHub take nothing that follows in the log for a command, also of child processes, until this one ends."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        token = secrets.token_hex(16)
        print(f"::stop-commands::{token}", file=stream, flush=True)
        atexit.register(print, f"::{token}::", file=stream, flush=True)
