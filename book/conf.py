"""Sphinx's configuration of the site. `make book` (tools/book.py) copies the pages to build/book/source first."""

import os
import sys
from pathlib import Path
from typing import Any

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))

import inventory  # in tools/, as is the extension code_links

project = "Jaxercise"
html_title = "Jaxercise"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx", "code_links"]
intersphinx_mapping = inventory.write(Path(os.environ["JAXERCISE_BOOK"]) / "inventory")
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
templates_path: list[str] = []
exclude_patterns = ["**/_*"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
add_module_names = False

myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 4  # links such as glossary.md#pytree
myst_links_external_new_tab = False
html_math_renderer = "mathml"

# Lessons run as learners run them. An execution is stored by its code, so a change runs one lesson again.
nb_execution_mode = "cache"
nb_execution_excludepatterns = ["exercises/**"]
nb_execution_timeout = 240
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing is loaded from other hosts
nb_render_image_options = {"align": "center"}
nb_merge_streams = True
nb_output_stderr = "show"  # lesson 03 reads the log of compilations
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]

suppress_warnings = [
    "myst.header",  # a title below an exercise's title, such as that of a hint
    "mystnb.unknown_mime_type",
]


def visit_math(writer: Any, node: nodes.math) -> None:
    """Writes inline math as MathML, which browsers draw without a script."""
    writer.body.append(latex2mathml.converter.convert(node.astext()))
    raise nodes.SkipNode


def visit_displayed_math(writer: Any, node: nodes.math_block) -> None:
    """Writes a formula in its own line as MathML."""
    writer.body.append(f"<div>{latex2mathml.converter.convert(node.astext(), display='block')}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Registers the renderer of math."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displayed_math, None))
