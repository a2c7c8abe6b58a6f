"""Sphinx extension: code that names a function of JAX, Flax or Optax links to the documentation of the function.

Inline code such as `jnp.where(x > 0, x, 0)` becomes one link. In a code block, each name of a function becomes a link.
A name that the notebook imports, such as `P`, is looked up under its full name, such as `jax.sharding.PartitionSpec`.
"""

import functools
import re
from pathlib import Path
from typing import Any

from cross_references import function, notebook_names
from docutils import nodes
from inventory import address
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = re.compile(r"@?([A-Za-z_][\w.]*)(\(.*\))?", re.DOTALL)  # a name, or a call of it
BLOCK = re.compile(r'(<div class="highlight-(?:ipython3|python) notranslate">.*?<pre>)(.*?)(</pre>)', re.DOTALL)
NAME = re.compile(
    r'(?<!<span class="o">\.</span>)<span class="n[a-z]*">@?[A-Za-z_]\w*</span>'
    r'(?:<span class="o">\.</span><span class="n[a-z]*">\w+</span>)*'
)
NOTEBOOK = re.compile(r'href="(\d\d_\w+)\.ipynb"')
VIEWER = re.compile(r'<iframe\b[^>]*\bsrc="http[^>]*>.*?</iframe>', re.DOTALL)  # a page of a server that has stopped
PLACES = (
    nodes.reference,
    nodes.title,
    nodes.target,
)  # literals that link elsewhere, or that the table of contents repeats


@functools.cache
def names(page: str) -> "dict[str, str]":
    """What each imported name of a page stands for."""
    return notebook_names(ROOT / f"{page}.ipynb")


class InlineLinks(SphinxPostTransform):
    """Makes inline code a link if it names a documented function, or a call of it."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        """Replaces the literals of a page."""
        for literal in list(self.document.findall(nodes.literal)):
            found = WRITTEN.fullmatch(literal.astext())
            parent, inside = literal.parent, False
            while parent is not None and not inside:
                inside, parent = isinstance(parent, PLACES), parent.parent
            if not found or inside:
                continue
            official, _ = function(found[1], names(self.env.docname))
            if target := official and address(official):
                link = nodes.reference("", "", literal.deepcopy(), refuri=target, internal=False, classes=["function"])
                literal.replace_self(link)


def linked_block(code: str, imported: "dict[str, str]") -> str:
    """Highlighted code with a link around each documented function."""

    def replace(found: "re.Match[str]") -> str:
        spans = re.findall(r"<span[^>]*>.*?</span>", found[0])
        parts = [re.sub(r"<[^>]+>|@", "", span) for span in spans[::2]]
        for end in range(len(parts), 0, -1):
            official, full = function(".".join(parts[:end]), imported)
            stands_for = ".".join([imported.get(parts[0], parts[0]), *parts[1:end]])
            if official and full == stands_for and (target := address(official)):
                cut = 2 * end - 1
                return f'<a class="function" href="{target}">{"".join(spans[:cut])}</a>{"".join(spans[cut:])}'
        return found[0]

    return NAME.sub(replace, code)


def page_link(app: Sphinx, page: str, name: str) -> str:
    """The attribute of a link to another notebook in an output. There is no link if the site does not have its page."""
    other = (Path(page).parent / name).as_posix()
    return f'href="{app.builder.get_relative_uri(page, other)}"' if other in app.env.found_docs else ""


def finish_page(
    app: Sphinx, page: str, _template: str, context: "dict[str, Any]", doctree: "nodes.document | None"
) -> None:
    """Links the functions in the code blocks of a page, and corrects its outputs, before it is written."""
    if doctree is not None and "body" in context:
        imported = names(page)
        context["body"] = VIEWER.sub("<p><em>Run the notebook to see this page.</em></p>", context["body"])
        context["body"] = NOTEBOOK.sub(lambda found: page_link(app, page, found[1]), context["body"])
        context["body"] = BLOCK.sub(
            lambda found: found[1] + linked_block(found[2], imported) + found[3], context["body"]
        )


def setup(app: Sphinx) -> "dict[str, bool]":
    """Registers the extension."""
    app.add_post_transform(InlineLinks)
    app.connect("html-page-context", finish_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
