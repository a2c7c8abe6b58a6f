"""Turns a feature of a later Python on in an early cell, and writes annotations that only hold with it."""
# %%
from __future__ import annotations
# %% answer="tally"
def tally(counts: dict[str, Number] | Nothing, start: Number) -> Number:
    return start + sum(counts.values())


class Later:
    other: NotThereYet = 3
# %% answer="affine"
import dataclasses


@dataclasses.dataclass
class Line:
    slope: Unknown
    offset: AnotherUnknown = 1


def affine(x: Array) -> Array:
    line = Line(3)
    return line.slope * x + line.offset
