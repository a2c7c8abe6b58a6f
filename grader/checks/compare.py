"""Comparison of a result with what is wanted: `compare`, and `require` for any other condition."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grader.checks.outcomes import CheckFailed
from grader.checks.verbs import facts_read, last_value
from grader.core.text import legible
from grader.program.codec import is_key

# Relative and absolute tolerance by the bits of a float's mantissa: two right ways to sum a few hundred float32 differ
# by some units in 1e-5, bfloat16 keeps 8 bits.
TOLERANCES = {"float64": (1e-7, 1e-9), "float32": (1e-4, 1e-5), "float16": (1e-2, 1e-3), "bfloat16": (4e-2, 1e-2)}

MAX_SHOWN = 100
MAX_AXES, MAX_SIZE = 8, 10**9
# The same in hidden checks: a process chooses the shape that it returns, and could reveal by it what it was asked.
HIDDEN_AXES, HIDDEN_SIZE = 4, 1024


def compare(
    got: Any, want: Any, rtol: float | None = None, atol: float | None = None, label: str = "the result"
) -> None:
    """Passes when `got` equals `want`: structure, shape and dtype exactly, then values within a tolerance.

    Args:
        got: the answer's result: an array, a key, a plain value, or a tree of them in tuples, lists and dicts.
        want: what it should be.
        rtol, atol: relative and absolute tolerance; by default those of the dtype of `want` (`TOLERANCES`). NaN equals
            NaN.
        label: how the message calls `got`.

    Raises:
        CheckFailed: with the path, the index, what was found and wanted; in a hidden check path, shape and dtype only.
    """
    _compare(got, want, label, rtol, atol)
    facts_read.clear()


def require(condition: Any, message: str, kind: str = "property") -> None:
    """Passes when `condition` holds.

    Args:
        condition: anything with a truth value.
        message: a sentence about the answer for when it does not hold; hidden checks show it too.
        kind: the kind of difference, by which a misconception can be recognised.

    Raises:
        CheckFailed: `condition` does not hold.
    """
    if not bool(condition):
        raise CheckFailed(message, kind=kind, where=kind, first=message)
    facts_read.clear()


class case:
    """Names the case that the check judges in a `with` statement: messages about a failure inside begin with it.

    Args:
        when: when this case holds, such as "when a row is empty"; hidden checks show it too.
    """

    def __init__(self, when: str) -> None:
        self.when = when

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, place: object) -> None:
        if isinstance(problem, CheckFailed):
            problem.put_in_case(self.when)
        elif isinstance(problem, Exception):
            problem.cases = [*getattr(problem, "cases", []), self.when]  # type: ignore[attr-defined]


def cases_of(problem: BaseException) -> list[str]:
    """Returns the cases in which an exception that is no `CheckFailed` was met, the innermost first."""
    return getattr(problem, "cases", [])


def stumbled(problem: Exception) -> CheckFailed:
    """Returns the failure of a check that raised over a result: by its own assertion, or by an unexpected result."""
    kind = type(problem).__name__
    if isinstance(problem, AssertionError):
        # The text of an assertion of NumPy's contains values: not from a hidden check.
        bare = "Your answer does not meet this condition."
        failed = CheckFailed(str(problem) or bare, kind="property", hidden_message=bare)
    else:
        subject, value = last_value()
        hidden = f"an array {describe_hidden(value)}" if isinstance(value, np.ndarray | jax.Array) else _article(value)
        shown = f"{subject} returned {{}}, which this check cannot judge ({kind}{{}})."
        said = shown.format(_article(value), f": {problem}")
        failed = CheckFailed(said, kind="unjudged", where=kind, hidden_message=shown.format(hidden, ""))
    for when in cases_of(problem):
        failed.put_in_case(when)
    return failed


def _compare(got: Any, want: Any, path: str, rtol: float | None, atol: float | None) -> None:
    if isinstance(want, tuple | list | dict):
        _same_container(got, want, path)
        for step, one, other in _children(got, want):
            _compare(one, other, path.removesuffix(",") + step, rtol, atol)  # a label may end as an apposition does
    elif isinstance(want, np.ndarray | np.generic | jax.Array):
        _same_array(got, want, path, rtol, atol)
    else:
        _same_plain(got, want, path, rtol, atol)


def _same_container(got: Any, want: Any, path: str) -> None:
    if type(got) is not type(want):
        _other_type(got, "structure", path, _article(want))
    if isinstance(want, dict) and set(got) != set(want):
        has = f"{path} {_verb(path, 'has')} {f'the keys {_keys(got)}' if got else 'no keys'}"
        _fail("structure", path, f"{has}; expected {_keys(want)}.", f"The keys of {path} are not right.")
    if len(got) != len(want):
        has = f"{path} {_verb(path, 'has')}"
        message = f"{has} {len(got)} item{'s' * (len(got) != 1)}; expected {len(want)}."
        few = len(got) <= HIDDEN_SIZE
        _fail("structure", path, message, message if few else f"{has} too many items; expected {len(want)}.")


def _other_type(got: Any, kind: str, path: str, wanted: str) -> None:
    found, hidden = _article(got), _article(got)
    if isinstance(got, np.ndarray | jax.Array):
        hidden = f"an array {describe_hidden(got)}"
    begin = f"{path} {_verb(path, 'is')}"
    _fail(kind, path, f"{begin} {found}; expected {wanted}.", f"{begin} {hidden}; expected {wanted}.")


def _keys(value: dict[Any, Any]) -> str:
    return legible(", ".join(sorted(repr(key) for key in value)) or "none", MAX_SHOWN)


def _children(got: Any, want: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(want, dict):
        return [(f"[{key!r}]", got[key], want[key]) for key in want]
    fields = getattr(want, "_fields", None)
    steps = [f".{name}" for name in fields] if fields else [f"[{i}]" for i in range(len(want))]
    return list(zip(steps, got, want, strict=True))


def _same_plain(got: Any, want: Any, path: str, rtol: float | None, atol: float | None) -> None:
    both_dtypes = isinstance(got, np.dtype) and isinstance(want, np.dtype)
    if type(got) is not type(want) and not both_dtypes:
        _other_type(got, "type", path, _article(want))
    number = isinstance(want, float | complex)
    if not (np.isclose(got, want, *_tolerance("float64", rtol, atol), equal_nan=True) if number else got == want):
        one, other = (legible(str(value) if both_dtypes else repr(value), MAX_SHOWN) for value in (got, want))
        begin = f"{path} {_verb(path, 'is')}"
        _fail("values", path, f"{begin} {one}; expected {other}.", f"{begin} not right.", one)


def _same_array(got: Any, want: Any, path: str, rtol: float | None, atol: float | None) -> None:
    if not isinstance(got, np.ndarray | np.generic | jax.Array):
        _other_type(got, "type", path, f"an array {describe_array(want)}")
    if got.shape != want.shape:
        has = f"{path} {_verb(path, 'has')}"
        shown = f"{has} shape {_sizes(got.shape)}; expected {want.shape}."
        hidden = f"{has} {f'shape {got.shape}' if _is_modest(got) else 'a different shape'}; expected {want.shape}."
        _fail("shape", path, shown, hidden, shapes=(got.shape, want.shape))
    if got.dtype != want.dtype:
        _fail("dtype", path, f"{path} {_verb(path, 'has')} dtype {got.dtype}; expected {want.dtype}.")
    if is_key(want):
        near = np.all(np.asarray(jax.random.key_data(got) == jax.random.key_data(want)), axis=-1)
    else:
        near = _near(np.asarray(got), np.asarray(want), rtol, atol)
    if near.all():
        return
    index = tuple(int(i) for i in np.argwhere(~near)[0])
    message, shown, finite = _difference(got, want, near, index, path)
    hidden = f"Values of {path}, {describe_array(want)}, are not right{'' if finite else ' (some are not finite)'}."
    _fail("values", path, message, hidden, f"{index} {shown}")


def _difference(got: Any, want: Any, near: np.ndarray, index: tuple[int, ...], path: str) -> tuple[str, str, bool]:
    """The sentence for the first of the values that are not `near`, its record, and whether it is finite."""
    wrong, total = int((~near).sum()), near.size
    if is_key(want):
        many = f"{wrong} of {total} keys of {path} differ; the first is at {list(index)}."
        return many if index else f"{path} is not the expected key.", str(jax.random.key_data(got)[index]), True
    one, other = np.asarray(got)[index], np.asarray(want)[index]
    value = np.asarray(one).astype(np.complex128)
    if total == 1:
        which = f"{path} at {list(index)}" if index else path
    elif wrong == 1:
        which = f"1 of {total} values differs. The one at {list(index)} of {path}"
    else:
        which = f"{wrong} of {total} values differ. The first, at {list(index)} of {path},"
    return "{} is {}; expected {}.".format(which, *_shown(one, other)), _short(value, got), bool(np.isfinite(value))


def _short(value: np.ndarray, got: Any) -> str:
    """A value in short, and the last one as a share of the largest: two mistakes may agree in one value by chance."""
    wide = np.asarray(got).astype(np.complex128)
    largest = np.max(np.abs(wide), initial=0.0)
    if wide.size == 1 or not 0 < largest < np.inf:
        return f"{value:.3g}"
    return f"{value:.3g} {np.round(wide.flat[-1] / largest, 2) + 0:g}"


def _near(got: np.ndarray, want: np.ndarray, rtol: float | None, atol: float | None) -> np.ndarray:
    if not (jnp.issubdtype(want.dtype, jnp.inexact)):
        return np.asarray(got == want)
    relative, absolute = _tolerance(np.dtype(want.real.dtype).name, rtol, atol)
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    return np.asarray(np.isclose(got.astype(wide), want.astype(wide), rtol=relative, atol=absolute, equal_nan=True))


def _tolerance(dtype: str, rtol: float | None, atol: float | None) -> tuple[float, float]:
    relative, absolute = TOLERANCES.get(dtype, (0.3, 0.1))
    return relative if rtol is None else rtol, absolute if atol is None else atol


def describe_array(value: Any) -> str:
    """Returns dtype and shape, such as `float32[4,3]`."""
    sizes = _sizes(value.shape).strip("(,)").replace(", ", ",")
    return f"{value.dtype}[{sizes}]"


def describe_hidden(value: Any) -> str:
    """Returns the same for a hidden check, without a shape that could hold a message."""
    return describe_array(value) if _is_modest(value) else f"{value.dtype} of a different shape"


def _is_modest(value: Any) -> bool:
    return len(value.shape) <= HIDDEN_AXES and max(value.shape, default=0) <= HIDDEN_SIZE


def _sizes(shape: tuple[int, ...]) -> str:
    """A shape as it is shown, whatever a process claims."""
    return str(shape) if len(shape) <= MAX_AXES and max(shape, default=0) < MAX_SIZE else f"of {len(shape)} axes"


def _shown(one: Any, other: Any) -> tuple[str, str]:
    """Two different values with as few digits as distinguish them, but no fewer than six."""
    if not jnp.issubdtype(np.asarray(one).dtype, jnp.floating):
        return str(one), str(other)
    texts = [tuple(f"{float(value):.{digits}g}" for value in (one, other)) for digits in (6, 9, 17)]
    return next((text for text in texts if text[0] != text[1]), texts[-1])  # type: ignore[return-value]


def _article(value: Any) -> str:
    if isinstance(value, np.ndarray | jax.Array):
        return f"an array {describe_array(value)}"
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _verb(path: str, verb: str) -> str:
    """`has` or `is` as it goes with a label: in "the bars in the trace" the word before " in" is a plural."""
    head = re.split(r",| (?:of|in|at|for|by|with|after|before|on|from|that|when|where) ", path)[0]
    plural = re.fullmatch(r"(?:the|your) [\w' -]*[a-z](?<![aiosu])s", head)
    return {"has": "have", "is": "are"}[verb] if plural else verb


def _sentence(text: str) -> str:
    """With a capital, where it begins with a word: code such as `log2(8)` stays as it is written."""
    return text[0].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def _fail(
    kind: str,
    path: str,
    message: str,
    hidden: str | None = None,
    first: str | None = None,
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> None:
    message, hidden = _sentence(message), hidden and _sentence(hidden)
    raise CheckFailed(message, kind=kind, where=path, first=first or message, hidden_message=hidden, shapes=shapes)
