"""Annotates everything, with imports of typing, dataclasses and a generic class."""
# %%
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Box(Generic[T]):
    value: T
# %% answer="tally"
def tally(counts: Mapping[str, int], start: int) -> int:
    box: Box[int] = Box(start + sum(counts.values()))
    return box.value
# %% answer="each"
def each(f: Callable[[jax.Array], jax.Array], xs: jax.Array) -> jax.Array:
    return jax.vmap(f)(xs)
