"""`compare` and `require`: what a check says about a result."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grader.checks.outcomes import CheckFailed
from grader.program.codec import is_key

# Relative and absolute tolerance by the bits of a float's mantissa: two right ways to sum a few hundred float32 differ
# by some units in 1e-5, bfloat16 keeps 8 bits.
TOLERANCES = {"float64": (1e-7, 1e-9), "float32": (1e-4, 1e-5), "float16": (1e-2, 1e-3), "bfloat16": (4e-2, 1e-2)}


def compare(
    got: Any, want: Any, rtol: float | None = None, atol: float | None = None, label: str = "the result"
) -> None:
    """Pass when `got` equals `want`: structure, shape and dtype exactly, then values within a tolerance.

    The tolerance comes from the dtype of `want` unless given. NaN equals NaN. Raises `CheckFailed` that names the
    path, the index, what came and what was wanted; in a hidden check the path, shape and dtype only.
    """
    _compare(got, want, label, rtol, atol)


def require(condition: Any, message: str, kind: str = "property") -> None:
    """Pass when `condition` holds; else fail with `message`, a sentence about the answer, shown also when hidden."""
    if not bool(condition):
        raise CheckFailed(message, kind=kind, where=kind, first=message)


def _compare(got: Any, want: Any, path: str, rtol: float | None, atol: float | None) -> None:
    if _is_container(want):
        _same_container(got, want, path)
        for step, one, other in _children(got, want):
            _compare(one, other, path + step, rtol, atol)
    elif isinstance(want, np.ndarray | np.generic | jax.Array):
        _same_array(got, want, path, rtol, atol)
    else:
        _same_plain(got, want, path, rtol, atol)


def _is_container(value: Any) -> bool:
    return isinstance(value, tuple | list | dict)


def _same_container(got: Any, want: Any, path: str) -> None:
    if type(got) is not type(want):
        _fail("structure", path, f"{path} is {_article(got)}; wanted {_article(want)}.")
    if isinstance(want, dict) and set(got) != set(want):
        _fail("structure", path, f"{path} has the keys {_keys(got)}; wanted {_keys(want)}.")
    if len(got) != len(want):
        _fail("structure", path, f"{path} has {len(got)} items; wanted {len(want)}.")


def _keys(value: dict[Any, Any]) -> str:
    return ", ".join(sorted(repr(key) for key in value)) or "none"


def _children(got: Any, want: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(want, dict):
        return [(f"[{key!r}]", got[key], want[key]) for key in want]
    fields = getattr(want, "_fields", None)
    steps = [f".{name}" for name in fields] if fields else [f"[{i}]" for i in range(len(want))]
    return list(zip(steps, got, want, strict=True))


def _same_plain(got: Any, want: Any, path: str, rtol: float | None, atol: float | None) -> None:
    if type(got) is not type(want):
        _fail("type", path, f"{path} is {_article(got)}; wanted {_article(want)}.")
    same = (
        bool(np.isclose(got, want, rtol=rtol or 1e-7, atol=atol or 1e-9, equal_nan=True))
        if isinstance(want, float | complex)
        else got == want
    )
    if not same:
        _fail("values", path, f"{path} is {got!r}; wanted {want!r}.", f"{path} is not right.", repr(got)[:100])


def _same_array(got: Any, want: Any, path: str, rtol: float | None, atol: float | None) -> None:
    if not isinstance(got, np.ndarray | np.generic | jax.Array):
        _fail("type", path, f"{path} is {_article(got)}; wanted an array {describe_array(want)}.")
    if got.shape != want.shape:
        _fail("shape", path, f"{path} has shape {got.shape}; wanted {want.shape}.")
    if got.dtype != want.dtype:
        _fail("dtype", path, f"{path} has dtype {got.dtype}; wanted {want.dtype}.")
    if is_key(want):
        got, want = jax.random.key_data(got), jax.random.key_data(want)
    first, second = np.asarray(got), np.asarray(want)
    near = _near(first, second, rtol, atol)
    if near.all():
        return
    index = tuple(int(i) for i in np.argwhere(~near)[0]) if near.ndim else ()
    place = f" at {list(index)}" if index else ""
    wrong, total = int((~near).sum()), near.size
    count = f"{wrong} of {total} values differ; the first" if total > 1 else "The value"
    nan = " (NaN)" if not np.isfinite(np.asarray(first[index], dtype=np.complex128)) else ""
    _fail(
        "values",
        path,
        f"{count}{place} of {path} is {_short(first[index])}; wanted {_short(second[index])}.",
        f"Values of {path}, {describe_array(want)}, are not right{' (some are not finite)' if nan else ''}.",
        f"{index} {np.asarray(first[index]).astype(np.complex128):.3g}",
    )


def _near(got: np.ndarray, want: np.ndarray, rtol: float | None, atol: float | None) -> np.ndarray:
    if not (jnp.issubdtype(want.dtype, jnp.inexact)):
        return np.asarray(got == want)
    relative, absolute = TOLERANCES.get(np.dtype(want.real.dtype).name, (0.3, 0.1))
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    relative = relative if rtol is None else rtol
    absolute = absolute if atol is None else atol
    return np.asarray(np.isclose(got.astype(wide), want.astype(wide), rtol=relative, atol=absolute, equal_nan=True))


def describe_array(value: Any) -> str:
    """Such as `float32[4,3]`."""
    return f"{value.dtype}[{','.join(str(n) for n in value.shape)}]"


def _short(value: Any) -> str:
    number = np.asarray(value)
    return f"{number.astype(np.float64):.6g}" if jnp.issubdtype(number.dtype, jnp.floating) else str(number)


def _article(value: Any) -> str:
    if isinstance(value, np.ndarray | jax.Array):
        return f"an array {describe_array(value)}"
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _fail(kind: str, path: str, message: str, hidden: str | None = None, first: str | None = None) -> None:
    message = message[0].upper() + message[1:]
    hidden = None if hidden is None else hidden[0].upper() + hidden[1:]
    raise CheckFailed(message, kind=kind, where=path, first=first or message, hidden_message=hidden)
