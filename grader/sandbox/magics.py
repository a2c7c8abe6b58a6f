"""A notebook cell as plain Python: what IPython adds is left out, as none of it can matter to an answer."""

from __future__ import annotations

import re

from IPython.core.inputtransformer2 import TransformerManager

# These cell magics run their cell's text in the notebook's namespace; the others (%%timeit, %%bash ...) bind nothing.
_RUNNING = re.compile(r"\A\s*%%(?:time|capture|prun)\b[^\n]*\n")
_TIMED_LINE = re.compile(r"^(\s*)%time\s+(?=\S)", re.M)
_CALL = re.compile(r"get_ipython\(\)\.(?:run_line_magic|run_cell_magic|system|getoutput)\(")


def plain_python(source: str) -> str:
    """`source` with line and cell magics, shell escapes and help requests replaced by None; same number of lines."""
    cell = _RUNNING.sub("\n", source)
    cell = _TIMED_LINE.sub(r"\1", cell)
    if cell.lstrip().startswith("%%"):
        return "\n" * source.count("\n")
    if not re.search(r"^\s*(?:[%!?]|[^#\n]*[%!]\w|.*\?\s*$)", cell, re.M):
        return cell
    return _CALL.sub("(lambda *ignored: None)(", TransformerManager().transform_cell(cell))
