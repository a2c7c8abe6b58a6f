"""One sentence of ours for an error that an answer raises: what happened, and what to do."""

from __future__ import annotations

from typing import NamedTuple

from grader.checks.error_table import TABLE


class Cause(NamedTuple):
    """An exception class by its name, a piece of its text (any text where empty), and what is said of it."""

    kind: str
    piece: str
    sentence: str

    def beyond(self, text: str) -> str:
        """What an error's text holds beyond the piece that the sentence stands for: shapes, sizes, names."""
        _, piece, rest = text.partition(self.piece) if self.piece else ("", "", text)
        return f"{self.kind}: {'… ' * bool(piece)}{' '.join(rest.split()).lstrip(' .,:')}".rstrip(" …:")


def _causes(table: str) -> tuple[Cause, ...]:
    causes: list[Cause] = []
    places: list[tuple[str, str]] = []
    said = ""
    for line in [*table.splitlines(), "end"]:
        if line.startswith(" "):
            said = f"{said} {line.strip()}".lstrip()
            continue
        if said:
            causes += (Cause(*place, said) for place in places)
            places, said = [], ""
        kind, _, piece = line.partition(":")
        if kind and not line.startswith("#"):
            places.append((kind, piece.strip()))
    return tuple(causes)


CAUSES = _causes(TABLE)


def explained(kind: str, text: str) -> Cause | None:
    """What we say of an exception of a class of this name with this text; None where we have nothing to say."""
    return next((cause for cause in CAUSES if cause.kind == kind and cause.piece in text), None)
