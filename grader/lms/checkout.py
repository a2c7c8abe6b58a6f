"""What the checkout of the grader has that an installed package lacks: versions, ranges, the licence."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grader.core import layout

HERE = Path(__file__).parent
LOCK = "requirements.lock"
TORCH_LOCK = "requirements-torch.lock"


class NoBundle(Exception):
    """A bundle cannot be made; the text says why and what to do."""


def file(name: str) -> bytes:
    """A file at the top of the checkout. Raises NoBundle."""
    path = layout.SOURCE / name
    try:
        return path.read_bytes()
    except OSError:
        text = f"There is no {path}. Bundles are made by a checkout of the grader, not by an installed package."
        raise NoBundle(text) from None


def project() -> dict[str, Any]:
    """The `[project]` table of pyproject.toml. Raises NoBundle."""
    found: dict[str, Any] = tomllib.loads(file("pyproject.toml").decode())["project"]
    return found


def package() -> dict[str, bytes]:
    """All files of the package by their paths."""
    found = sorted(path for path in layout.PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return _contents(path.relative_to(layout.PACKAGE) for path in found)


def learner_package() -> dict[str, bytes]:
    """The files of the package that a learner's machine needs, by their paths."""
    return _contents(layout.learner_files())


def _contents(names: Iterable[Path]) -> dict[str, bytes]:
    return {f"grader/{name.as_posix()}": (layout.PACKAGE / name).read_bytes() for name in names}
