"""What the checkout of the grader has that an installed package lacks: versions, ranges, the licence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import grader

HERE = Path(__file__).parent
LEARNERS_ROOMS = ("checks", "lessons", "program")
LOCK = "requirements.lock"
TORCH_LOCK = "requirements-torch.lock"


class NoBundle(Exception):
    """A bundle cannot be made; the text says why and what to do."""


def file(name: str) -> bytes:
    """A file at the top of the checkout. Raises NoBundle."""
    path = Path(grader.__file__).resolve().parents[1] / name
    try:
        return path.read_bytes()
    except OSError:
        text = f"There is no {path}. Bundles are made by a checkout of the grader, not by an installed package."
        raise NoBundle(text) from None


def project() -> dict[str, Any]:
    """The `[project]` table of pyproject.toml. Raises NoBundle."""
    found: dict[str, Any] = tomllib.loads(file("pyproject.toml").decode())["project"]
    return found


def package(rooms: tuple[str, ...] | None = None) -> dict[str, bytes]:
    """The files of the package by their paths: of these rooms and its `__init__`, or all of it."""
    top = Path(grader.__file__).resolve().parent
    found = sorted(path for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    names = {path: path.relative_to(top) for path in found}
    return {
        f"grader/{name.as_posix()}": path.read_bytes()
        for path, name in names.items()
        if rooms is None or name.parts[0] in rooms or name.as_posix() == "__init__.py"
    }
