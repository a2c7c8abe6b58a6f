"""Fill a learner's notebook with answers, for the example class, tests and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def fill(released: Path, answers: Mapping[str, str]) -> dict[str, Any]:
    """The notebook in `released` with the answer cell of each exercise id in `answers` replaced.

    Raises KeyError for an exercise that the notebook does not have.
    """
    notebook: dict[str, Any] = json.loads(released.read_text(encoding="utf-8"))
    cells = {cell.get("metadata", {}).get("nbgrader", {}).get("grade_id"): cell for cell in notebook["cells"]}
    for exercise, source in answers.items():
        cells[exercise]["source"] = source.splitlines(keepends=True)
    return notebook


def write(notebook: Mapping[str, Any], path: Path) -> Path:
    """Write a notebook, making its folder; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
