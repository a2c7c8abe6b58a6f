"""Results as JSON: a versioned contract, documented in docs/results.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from grader.exam import whole
from grader.exam.record import VERSION, Result


def dumps(results: Sequence[Result]) -> str:
    """The document for `results`, in their order."""
    return json.dumps({"version": VERSION, "results": [result.to_json() for result in results]}, indent=2) + "\n"


def write(results: Sequence[Result], path: Path) -> None:
    """Write the document whole or not at all: a reader never sees half of it."""
    whole.write(path, dumps(results), mode=0o644)
