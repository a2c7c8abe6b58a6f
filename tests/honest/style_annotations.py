"""Reads its own annotations at run time, as dispatchers and validators do."""
# %% answer="tally"
import functools


@functools.singledispatch
def number(value: int) -> int:
    return value


@number.register
def _(value: str) -> int:
    return int(value)


def tally(counts: dict[str, int], start: int) -> int:
    kind = tally.__annotations__["start"]
    return kind(number(str(start))) + sum(map(number, counts.values()))
