"""Random inputs for checks, the same again for the same learner, cells and course secret."""

from __future__ import annotations

import hashlib

import jax
import numpy as np

_seed = b""
_drawn = 0


def begin(seed: str) -> None:
    """Starts the stream of one check. A grader passes secret, exercise, learner and cells; a kernel the cell's text."""
    global _seed, _drawn
    _seed, _drawn = seed.encode(errors="surrogatepass"), 0  # a learner's name is a folder's, in any encoding


def drawn() -> int:
    """Returns how often the check that runs now, or ran last, has drawn."""
    return _drawn


def _next() -> int:
    global _drawn
    _drawn += 1
    digest = hashlib.blake2b(_drawn.to_bytes(4, "little"), key=hashlib.sha256(_seed).digest()).digest()
    return int.from_bytes(digest[:8], "little")


def rng() -> np.random.Generator:
    """Returns a NumPy generator with a new stream at each call."""
    return np.random.default_rng(_next())


def key() -> jax.Array:
    """Returns a typed JAX PRNG key (scalar), a new one at each call."""
    return jax.random.key(_next() >> 33)
