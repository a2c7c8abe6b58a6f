"""nbgrader's own release steps, used as a library: what `nbgrader generate_assignment` does, without its database."""

from __future__ import annotations

import copy
import warnings
from functools import cache
from typing import Any

import nbformat


def source(notebook: dict[str, Any]) -> nbformat.NotebookNode:
    """The notebook as nbgrader's source, with its checksums."""
    return _run(notebook, ("CheckCellMetadata", "ComputeChecksums"))


def release(notebook: dict[str, Any]) -> nbformat.NotebookNode:
    """The notebook as a learner gets it."""
    return _run(
        notebook,
        (
            # generate_assignment's list without IncludeHeaderFooter and InstantiateTests, which find nothing to do in
            # our notebooks, and without SaveCells, which writes a gradebook.
            "LockCells",
            "ClearSolutions",
            "ClearOutput",
            "CheckCellMetadata",
            "ComputeChecksums",
            "ClearHiddenTests",
            "ClearMarkScheme",
            "ComputeChecksums",
            "CheckCellMetadata",
        ),
    )


def text(notebook: dict[str, Any]) -> str:
    """The notebook's bytes, as nbgrader and Jupyter write them: sorted keys, one space, a line end."""
    return nbformat.writes(nbformat.from_dict(copy.deepcopy(notebook)), version=4) + "\n"


def _run(notebook: dict[str, Any], steps: tuple[str, ...]) -> nbformat.NotebookNode:
    preprocessors = _preprocessors()
    node = nbformat.from_dict(copy.deepcopy(notebook))
    for step in steps:
        node, _ = getattr(preprocessors, step)().preprocess(node, {})
    return node


@cache
def _preprocessors() -> Any:
    """nbgrader's preprocessors. Importing them takes nearly two seconds, so only building does it."""
    with warnings.catch_warnings():
        # nbgrader and what it imports still use names that Python and setuptools have deprecated.
        warnings.simplefilter("ignore")
        import nbgrader.preprocessors
    return nbgrader.preprocessors
