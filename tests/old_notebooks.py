"""Notebooks as instructors have them from years with nbgrader, made by hand: its documentation's, and an odd one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FLAGS: dict[str, tuple[str, ...]] = {
    "locked": ("locked",),
    "answer": ("solution",),
    "check": ("grade",),
    "manual": ("grade", "solution"),
    "task": ("task", "locked"),
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def cell(
    source: str, role: str = "", name: str = "", points: float | None = None, kind: str = "code", **more: Any
) -> Any:
    """One cell in the newest format; `role` is one of FLAGS."""
    metadata: dict[str, Any] = more.pop("metadata", {})
    if role:
        said: dict[str, Any] = {"schema_version": 3, "grade_id": name}
        said |= {flag: flag in FLAGS[role] for flag in ("grade", "solution", "locked", "task")}
        metadata = metadata | {"nbgrader": said if points is None else said | {"points": points}}
    made = {"cell_type": kind, "metadata": metadata, "source": source, **more}
    return made | {"execution_count": None, "outputs": made.get("outputs", [])} if kind == "code" else made


def prose(source: str, role: str = "", name: str = "", points: float | None = None, **more: Any) -> Any:
    """A Markdown cell."""
    return cell(source, role, name, points, "markdown", **more)


def write(path: Path, cells: list[Any], **metadata: Any) -> Path:
    """A notebook file of these cells."""
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = {"cells": cells, "metadata": kernel | metadata, "nbformat": 4, "nbformat_minor": 4}
    path.write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")
    return path


RAISES = "try:\n    squares({})\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError('did not raise')\n"
RELIES = """\
\"\"\"The sum uses squares.\"\"\"
kept = squares
del squares
try:
    sum_of_squares(1)
except NameError:
    pass
else:
    raise AssertionError("sum_of_squares does not use squares")
finally:
    squares = kept"""

# The roles, points and ids of problem1 and problem2 in nbgrader's user guide, in shorter words.
ROOTS = """\
def squares(n):
    \"\"\"The squares of 1 to n.
    
    \"\"\"
    ### BEGIN SOLUTION
    if n < 1:
        raise ValueError("n must be at least 1")
    return [i ** 2 for i in range(1, n + 1)]
    ### END SOLUTION"""  # noqa: W293
SUM = "def sum_of_squares(n):\n    ### BEGIN SOLUTION\n    return sum(squares(n))\n    ### END SOLUTION"
SEVERAL = '"""Several inputs"""\nassert squares(1) == [1]\nassert squares(3) == [1, 4, 9]'
INVALID = f'"""Invalid inputs"""\n{RAISES.format(0)}\n{RAISES.format(-4)}'.rstrip()
VARIOUS = '"""Various inputs"""\nassert sum_of_squares(1) == 1\nassert sum_of_squares(10) == 385'
PLOT = "## Part E\n\nPlot it.\n\n### BEGIN MARK SCHEME\nLabels on both axes.\n### END MARK SCHEME"
SQUARES = [
    prose("# Squares\n\nWe use the Jupyter notebook.", "locked", "jupyter"),
    prose("---\n## Part A (2 points)\n\nThe list of $i^2$ for $1\\leq i \\leq n$; a `ValueError` where $n<1$."),
    cell(ROOTS, "answer", "squares"),
    prose("It should print `[1, 4, 9]` for $n=3$. Does it?"),
    cell("squares(3)"),
    cell(SEVERAL, "check", "correct_squares", 1),
    cell(INVALID, "check", "squares_invalid_input", 1),
    prose("---\n\n## Part B (1 point)\n\nNow their sum, by calling `squares`."),
    cell(SUM, "answer", "sum_of_squares"),
    cell("sum_of_squares(10)"),
    cell(VARIOUS, "check", "sums", 0.5),
    cell(RELIES, "check", "sum_of_squares_uses_squares", 0.5),
    prose("---\n## Part C (1 point)\n\nThe equation in LaTeX."),
    prose("$\\sum_{i=1}^n i^2$", "manual", "sum_of_squares_equation", 1),
    prose("---\n## Part D (2 points)\n\nA use of it, and its output."),
    cell("print(sum_of_squares(2))", "manual", "sum_of_squares_application", 2),
    prose(PLOT, "task", "cell-93", 4),
]
EXPLAIN = [
    prose("What does this do?\n\n```python\ndef f(x):\n    return x if x < 2 else f(x - 1) + f(x - 2)\n```"),
    prose("It computes Fibonacci numbers.", "manual", "part-a", 1),
    prose("For which inputs does it fail?\n"),
    prose("For those below zero.", "manual", "part-b", 2),
]
# One of each thing that a cell can be or hold.
TITLE = '# Odd · ünïcode ✓ \u2028 and a line that looks like ours:\n\n# %% answer="x"\n#\n   \n\ttab\n'
REGIONS = """\
value = 7  ### BEGIN SOLUTION
other = math.pi
### END SOLUTION
def two(n):
    if n:
        # BEGIN SOLUTION
        return limit + n
        # END SOLUTION
    return 0

"""
BOTH = "assert two(1) == 4\n### BEGIN HIDDEN TESTS\nassert two(5) == value + 1\n### END HIDDEN TESTS"
FAR = "### BEGIN HIDDEN TESTS\nassert whole(3, b=3) == 9\n### END HIDDEN TESTS"
BY_HAND = "print('mine')\n### BEGIN HIDDEN TESTS\n1 / 1\n### END HIDDEN TESTS"
IMAGE = {"image.png": {"image/png": PIXEL}}
OTHER_IMAGE = {"image.png": {"image/png": PIXEL[:-8] + "AAAAAAA="}}
OLD = [{"output_type": "stream", "name": "stdout", "text": "old"}]
ODD = [
    prose(TITLE, "locked", "-Top_1"),
    cell("%matplotlib inline\nimport math\nlimit = 3", "locked", "setup"),
    cell("%%time\nsum(range(10))", metadata={"tags": ["slow", "a]b"], "slideshow": {"slide_type": "skip"}}),
    cell("# %% a line as in an editor\nx = 1\n\n# %%\ny = 2\n\n", metadata={"tags": ["raises-exception"]}),
    cell("<b>raw</b>\n", kind="raw", metadata={"raw_mimetype": "text/html"}),
    cell("", metadata={"collapsed": True, "deletable": False}),
    prose(""),
    prose("![](attachment:image.png)", attachments=IMAGE),
    prose("![](attachment:image.png)", "locked", "seen", attachments=OTHER_IMAGE),
    cell("def whole(a, b=2):\n    return a * b", "answer", "Q1_a"),
    cell(REGIONS, "answer", "Q1-b", outputs=OLD, metadata={"scrolled": True}),
    cell(BOTH, "check", "Q1-b-test", 1.25),
    cell(FAR, "check", "far_from_its_answer", 2),
    cell("assert abs(other - math.pi) < 1e-9", "check", "zero", 0),
    cell(BY_HAND, "manual", "by_hand", 3.5),
    prose("Yours.\n\n### BEGIN SOLUTION\nours\n### END SOLUTION\n\nEnd.", "manual", "words", 1),
]
NOTEBOOKS = {"squares": SQUARES, "explain": EXPLAIN, "odd": ODD}
