"""Counting how often Python runs a function: under `jit` and `vmap` that is how often it is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class counted:
    """Wrap `function` and count its calls in `.calls`.

    A counter lives beside the answer, so what it says is observed: an answer that attacks the grader could forge it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)
