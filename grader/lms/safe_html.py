"""Learners' text as HTML in which nothing runs, nothing is loaded, and nothing leaves its place on the page."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from grader.core.text import legible

if TYPE_CHECKING:
    from bleach.sanitizer import Cleaner

MOST = 20_000  # characters of one cell; parsers of Markdown and of Python are slow on what is made to be
TAGS = frozenset(
    "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s span strong "
    "sub summary sup table tbody td th thead tr ul".split()
)
# What a learner may link to; only a click follows it. Nothing relative: beside the page may lie files of theirs.
LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*")
ATTACHED = ("image/png", "image/jpeg", "image/gif", "image/webp")


def markdown(source: str, attachments: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Markdown with HTML in it, rendered and reduced to tags that only shape text. Formulas stay as they were typed.

    What is not allowed is shown as the text that it is. `attachments` are a cell's own pictures, by name.
    """
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    text = legible(source, MOST)
    own = {  # in the forms that may be shown; the renderer wants one
        name: {kind: "".join(data) for kind, data in kinds.items() if kind in ATTACHED} or {ATTACHED[0]: ""}
        for name, kinds in (attachments or {}).items()
    }
    renderer = IPythonRenderer(escape=False, exclude_anchor_links=True, attachments=own)
    try:
        return str(_cleaner().clean(MarkdownWithMath(renderer).render(text)))
    except Exception:  # nested too deeply, or a fault of the parser's: it must not cost a learner the page
        return plain(text)


def code(source: str) -> str:
    """Python as coloured HTML, for a `<pre>`; its colours are those of `colours`."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return str(highlight(legible(source, MOST), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))


def escape_names(nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A step of nbconvert's for Formgrader, whose templates put a learner's name into the page as it stands."""
    for name in ("student", "last_name", "first_name"):
        if resources.get(name):
            resources[name] = html.escape(resources[name])
    return nb, resources


def plain(text: str) -> str:
    """Text as it stands."""
    return f"<pre>{html.escape(text)}</pre>"


def colours() -> str:
    """The style sheet of what `code` returns, for light and for dark pages."""
    from pygments.formatters import HtmlFormatter

    light, dark = (
        [rule for rule in rules.splitlines() if rule.startswith("pre.code .")]
        for style in ("xcode", "github-dark")
        for rules in [HtmlFormatter(style=style, nobackground=True).get_style_defs("pre.code")]
    )
    return "\n".join([*light, "@media screen and (prefers-color-scheme: dark) {", *dark, "}"])


@cache
def _cleaner() -> Cleaner:
    from bleach.sanitizer import Cleaner

    return Cleaner(tags=TAGS, attributes=_allowed, protocols={"http", "https", "mailto", "data"}, strip=False)


def _allowed(tag: str, name: str, value: str) -> bool:
    """No attribute that styles, names or places an element: learners' text shall not look like the page around it."""
    if tag == "a" and name == "href":
        return LINK.match(value) is not None
    if tag == "img" and name == "src":
        return PICTURE.fullmatch(value) is not None
    return (tag, name) in (("img", "alt"), ("td", "align"), ("th", "align"))
