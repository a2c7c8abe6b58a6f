"""Explanations of the errors that JAX, Flax and NumPy are known for: one sentence each, from errors.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple


class Cause(NamedTuple):
    """An exception class by its name, a piece of its text (any text where empty), and our sentence about it."""

    kind: str
    piece: str
    sentence: str

    def beyond(self, text: str) -> str:
        """Returns what an error's text holds beyond the piece that the sentence covers: shapes, sizes, names."""
        _, piece, rest = text.partition(self.piece) if self.piece else ("", "", text)
        return f"{self.kind}: {'… ' * bool(piece)}{' '.join(rest.split()).lstrip(' .,:')}".rstrip(" …:")


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
QUESTIONS: dict[str, str] = _TABLE["questions"]
CAUSES = tuple(
    Cause(kind, piece.strip(), entry["sentence"])
    for entry in _TABLE["cause"]
    for kind, _, piece in (error.partition(":") for error in entry["errors"])
)


def explained(kind: str, text: str) -> Cause | None:
    """Returns the cause of an exception of the class `kind` with this text; None where the table has none."""
    return next((cause for cause in CAUSES if cause.kind == kind and cause.piece in text), None)
