"""A notebook cell as plain Python: what IPython adds is left out, as none of it can matter to an answer."""

from __future__ import annotations

import re

from IPython.core.inputtransformer2 import TransformerManager

# These cell magics run their cell's text in the notebook's namespace; the others (%%timeit, %%bash ...) bind nothing.
_RUNNING = re.compile(r"\A\s*%%(?:time|capture|prun)\b[^\n]*\n")
_TIMED_LINE = re.compile(r"^([ \t]*)%time[ \t]+(?=\S)", re.M)
# A line that may be IPython's: it begins with a magic, a shell escape or "?", has one behind "=", or ends in "?".
_IPYTHON = re.compile(r"^[ \t]*[%!?]|^[^#\n]*[%!]\w|\?[ \t]*$", re.M)
_CALL = re.compile(r"get_ipython\(\)\.(?:run_line_magic|run_cell_magic|system|getoutput)\(")


def plain_python(source: str) -> str:
    """`source` with line and cell magics, shell escapes and help requests replaced by None; same number of lines."""
    cell = _RUNNING.sub("\n", source)
    cell = _TIMED_LINE.sub(r"\1", cell)
    if cell.lstrip().startswith("%%"):
        return "\n" * source.count("\n")
    if _IPYTHON.search(cell):
        cell = TransformerManager().transform_cell(cell)
    return _CALL.sub("(lambda *ignored: None)(", cell)
