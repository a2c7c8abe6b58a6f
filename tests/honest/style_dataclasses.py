"""Uses dataclasses, enums, protocols, slots and logging in answers."""

# %% answer="tally"
from __future__ import annotations
import logging, enum, dataclasses
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, Generic, Self, ClassVar

log = logging.getLogger(__name__)
logging.basicConfig(level=logging.INFO, force=True)
T = TypeVar("T")


class How(enum.IntFlag):
    SUM = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally(Generic[T]):
    start: T
    how: ClassVar[How] = How.SUM

    def of(self, counts: dict[str, T]) -> T:
        log.info("%s", counts)
        return self.start + sum(counts.values())


def tally(counts: dict[str, int], start: int) -> int:
    """Sums."""
    return Tally(start=start).of(counts)
