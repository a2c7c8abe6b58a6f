"""Which native routines a program may call, and with which shapes.

A routine trusts the shapes that the call states: told of a result smaller than the one it writes, it writes beyond it.
So a call passes when its target is known and its operands and results have the shapes that JAX gives them. Kernels that
come as machine code or as another compiler's text (Triton, Mosaic) are not known: nothing here can read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

# The trailing axes of operands and results; the leading ones are a batch, the same for all. k is min(m, n), o is n - 1,
# j any size. Behind `:` an element type other than the first operand's: r its real part, c its complex kin, i int32.
THIN, WHOLE = "mn -> mn k:r mk kn :i", "mn -> mn k:r mm nn :i"
ROUTINES: dict[str, str] = {
    "getrf": "mn -> mn k:i :i",
    "geqrf": "mn -> mn k",
    "orgqr": "mn j -> mn",
    "ungqr": "mn j -> mn",
    "potrf": "nn -> nn :i",
    "syevd": "nn -> nn n:r :i",
    "heevd": "nn -> nn n:r :i",
    "sytrd": "nn -> nn n:r o:r o :i",
    "hetrd": "nn -> nn n:r o:r o :i",
    "gehrd": "nn -> nn o :i",
    "gees": "nn -> nn nn n n :i :i | nn -> nn nn n :i :i",
    "geev": "nn -> n n nn:c nn:c :i | nn -> n nn nn :i",
    "gesvdj": WHOLE,
    "gtsv": "n n n nj -> n n n nj :i",
    "gtsv2": "n n n nj -> nj",
    "lu_pivots_to_permutation": "j:i -> m:i",
    "LuDecomposition": "mn -> mn k:i m:i",  # this and the next three on TPU
    "Qr": "mn -> mn k",
    "ProductOfElementaryHouseholderReflectors": "mn j -> mn",
    "Eigh": "nn -> nn n:r",
}
# Routines whose shapes hang on an option of theirs.
BY_OPTION: dict[str, tuple[str, dict[str, str]]] = {
    "gesdd": ("mode", {"A": WHOLE, "S": THIN, "N": f"{THIN} | {WHOLE}"}),
    "trsm": ("side", {"L": "mm mn -> mn", "R": "nn mn -> mn"}),
}
# LAPACK's options, each a character. With `sort="S"` it would call a function that is not there.
OPTIONS = {"uplo": "LU", "diag": "NU", "side": "LR", "trans_x": "NTC", "mode": "ASNV", "sort": "N"} | dict.fromkeys(
    ("compute_left", "compute_right"), "NV"
)
LETTERS = {"s": "f32", "d": "f64", "c": "complex<f32>", "z": "complex<f64>"}
REAL = {"complex<f32>": "f32", "complex<f64>": "f64"}
COMPLEX = {part: whole for whole, part in REAL.items()}

_TARGET = re.compile(r"lapack_(?P<letter>[sdcz])(?P<lapack>\w+)_ffi|(?:cu|hip)(?:solver|sparse)_(?P<gpu>\w+)_ffi")
_PLAIN = re.compile(r"[\w.,+-]*")  # such as TPU's "1,1,100,1e-6"
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([\w<>]+)>")
Shape = tuple[tuple[int, ...], str]


def problem(call: Any) -> str | None:
    """What is wrong with a `stablehlo.custom_call`, as a sentence without its end; None where it may stand."""
    target = call.attributes["call_target_name"].value
    name, element = _routine(target)
    if name not in ROUTINES and name not in BY_OPTION and target not in OTHERS:
        return f"it calls `{target[:80]}`, which is not among the operations that a checked program may use"
    if not _PLAIN.fullmatch(getattr(call.attributes.get("backend_config"), "value", "")):
        return f"it calls `{target[:80]}` with options in words of its own"
    try:
        operands, results = ([shape(str(value.type)) for value in values] for values in (call.operands, call.results))
        if target in OTHERS:
            fits = _batch(call) is None and OTHERS[target](operands, results)
        else:
            fits = element in (None, operands[0][1]) and any(
                _agree(signature, operands, results, _batch(call)) for signature in _signatures(name, call)
            )
    except (ValueError, TypeError, IndexError, KeyError):  # an option or a type of another kind than JAX writes
        fits = False
    return None if fits else f"it calls `{target[:80]}` with shapes or options that do not belong together"


def _threefry(operands: list[Shape], results: list[Shape]) -> bool:
    """Random bits on a GPU, where JAX is told to use a kernel of its own: two keys and two counts, all alike."""
    return (len(operands), len(results)) == (4, 2) and len({*operands, *results}) == 1 and operands[0][1] == "ui32"


# XLA itself carries most of these out. It takes ApproxTopK apart and looks at its shapes.
OTHERS = {
    "Sharding": lambda operands, results: len(operands) == 1 and operands == results,
    "annotate_device_placement": lambda operands, results: len(operands) == 1 and operands == results,
    "AllocateBuffer": lambda operands, results: not operands and len(results) == 1,
    "ApproxTopK": lambda operands, results: len(operands) == 4 and len(results) == 2,
    "cu_threefry2x32_ffi": _threefry,
    "hip_threefry2x32_ffi": _threefry,
}


def _routine(target: str) -> tuple[str, str | None]:
    """The routine's name without its library's, and the element type that its name states."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return re.sub(r"^(cu|hip)_", "", target), None
    return match["lapack"] or match["gpu"], LETTERS.get(match["letter"])


def _signatures(name: str, call: Any) -> list[str]:
    """What the routine's shapes may be; nothing where an option is one that it does not have."""
    options = {option: chr(value) for option, value in _dict(call, "mhlo.backend_config") if option in OPTIONS}
    if any(value not in OPTIONS[option] for option, value in options.items()):
        return []
    if name in ROUTINES:
        return ROUTINES[name].split(" | ")
    option, known = BY_OPTION[name]
    return known[options[option]].split(" | ")


def _batch(call: Any) -> int | None:
    """How many leading axes XLA may split over devices; None where nothing is said. Raises where more is said."""
    said = dict(_dict(call, "mhlo.frontend_attributes"))
    if said.keys() - {"num_batch_dims"}:
        raise KeyError(*said)
    return int(said["num_batch_dims"]) if said else None


def _dict(call: Any, name: str) -> Iterator[tuple[str, Any]]:
    held: Any = ir.DictAttr(call.attributes[name]) if name in call.attributes else ()
    for item in held:
        yield item.name, getattr(item.attr, "value", None)


def _agree(signature: str, operands: list[Shape], results: list[Shape], batch: int | None) -> bool:
    before, after = (side.split() for side in signature.split("->"))
    if (len(before), len(after)) != (len(operands), len(results)):
        return False
    first, element = operands[0]
    leading = first[: max(0, len(first) - len(before[0].partition(":")[0]))]
    elements = {"": element, "r": REAL.get(element, element), "c": COMPLEX.get(element, element), "i": "i32"}
    sizes: dict[str, int] = {}
    for wanted, (sized, kind) in zip(before + after, operands + results, strict=True):
        axes, _, letter = wanted.partition(":")
        if kind != elements[letter] or len(sized) != len(leading) + len(axes) or sized[: len(leading)] != leading:
            return False
        if any(sizes.setdefault(axis, size) != size for axis, size in zip(axes, sized[len(leading) :], strict=True)):
            return False
    n, m = sizes.get("n", 0), sizes.get("m", 0)
    return batch in (None, len(leading)) and sizes.get("k", min(m, n)) == min(m, n) and sizes.get("o", n - 1) == n - 1


def shape(kind: str) -> Shape:
    """Axes and element type of a type such as `tensor<2x3xf32>`. Raises ValueError for anything but a plain tensor."""
    match = _TENSOR.fullmatch(kind)
    if match is None:
        raise ValueError(kind)
    return tuple(int(size) for size in match[1].split("x") if size), match[2]


def width(element: str) -> int:
    """Bytes of one element, at least 1."""
    bits = re.search(r"\d+", element)
    return max(1, int(bits[0]) // 8 if bits else 1) * (2 if element.startswith("complex") else 1)
