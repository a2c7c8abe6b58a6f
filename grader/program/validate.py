"""Validation of untrusted programs: what is compiled contains only what JAX itself writes, within bounds.

`jax.export` trusts what it reads, and whoever made these bytes may attack. Reading them may end this very process,
which is therefore a confined one in grading; what a program may do once it is compiled is decided here.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import jax
import jax.export
from jax._src.interpreters import mlir  # `jax.interpreters.mlir` does not show the context that the zygote shares
from jaxlib.mlir import ir

MAX_BYTES = 32 << 20
MAX_TENSOR_BYTES = 1 << 30  # of any one value
MAX_OPERATIONS = 100_000  # when every call is written out; measured: a training step of a small network has 1,000
MAX_DEPTH = 64  # of loops and branches in one another

OPERATIONS = frozenset({"builtin.module", "func.func", "func.return", "func.call"})
DIALECTS = frozenset({"stablehlo", "chlo", "sdy"})
# They wait for something outside of the program, which is not there.
OUTSIDE = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))
# What JAX writes at an operation besides its own attributes. XLA would accept more, and copies some of it into the text
# of the compiled program, where a check looks for collectives.
MARKS: dict[str, frozenset[str]] = {
    "builtin.module": frozenset({"jax.uses_shape_polymorphism", "mhlo.num_partitions", "mhlo.num_replicas"}),
    # The mesh of an exported program that this one calls is private. MLIR knows three visibilities, and no other text.
    "sdy.mesh": frozenset({"stablehlo.mesh", "sym_visibility"}),
    "stablehlo.custom_call": frozenset({"mhlo.backend_config", "mhlo.frontend_attributes", "sdy.sharding_rule"}),
}
PARAMETER_MARKS = frozenset(
    "jax.buffer_donor jax.result_info mhlo.layout_mode mhlo.memory_kind sdy.sharding tf.aliasing_output".split()
)
# The attribute in which an operation names the functions that it calls.
CALLED = {"func.call": "callee", "stablehlo.composite": "decomposition"}
CALLED |= {"stablehlo.custom_call": "called_computations"}
# The dtype that JAX gives a 64-bit parameter where it has 64 bits off.
NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


class ProgramRefused(Exception):
    """A program that is not loaded; the text is a clause about it, such as "it calls `foo`, which ..."."""


def read(blob: bytes, parameters: tuple[jax.ShapeDtypeStruct, ...]) -> jax.export.Exported:
    """Returns the program in `blob`.

    Args:
        blob: an exported program, at most `MAX_BYTES` long.
        parameters: the abstract arrays that it has to take, in order.

    Raises:
        ProgramRefused: it has other parameters, or contains what a program may not contain.
    """
    if len(blob) > MAX_BYTES:
        raise ProgramRefused(f"it has {len(blob):,} bytes; {MAX_BYTES:,} are allowed")
    try:
        exported = jax.export.deserialize(bytearray(blob))
    except Exception:
        raise ProgramRefused("its bytes are not an exported program") from None
    if exported.nr_devices > len(jax.devices()):
        raise ProgramRefused(f"it needs {exported.nr_devices} devices; there are {len(jax.devices())}")
    if not _as_asked(exported, parameters):
        raise ProgramRefused("its declared arguments, results or platforms differ from those that were requested")
    with _context():
        problem: str | None = "its bytes contain no valid StableHLO"
        with contextlib.suppress(Exception):  # a parser's, or one over a name that is no text: refused all the same
            module = exported.mlir_module(serialized=False)
            if module.operation.verify():
                declared = _as_declared(exported, module)
                other = "the types in its code differ from those that its bytes declare"
                problem = ModuleValidator(module.operation).problem() if declared else other
    if problem is not None:
        raise ProgramRefused(problem)
    return exported


_context = functools.cache(mlir.make_ir_context)  # to make one takes 3 ms


def _as_asked(exported: jax.export.Exported, parameters: tuple[jax.ShapeDtypeStruct, ...]) -> bool:
    """Whether it is a program of these arrays, flat, for this platform, with no effects and nothing else beside it."""
    arguments, results = len(exported.in_avals), len(exported.out_avals)
    trees: tuple[Any, Any] = exported.in_tree, exported.out_tree
    return (
        exported.platforms == (jax.export.default_export_platform(),)
        and exported.nr_devices > 0
        and not (exported.ordered_effects or exported.unordered_effects or exported.disabled_safety_checks)
        and not (exported.uses_global_constants or exported.has_vjp())
        and trees == (jax.tree.structure(((0,) * arguments, {})), jax.tree.structure([0] * results))
        and arguments == len(parameters)
        and all(
            aval.shape == wanted.shape
            and (aval.dtype == wanted.dtype or str(aval.dtype) == NARROW.get(str(wanted.dtype)))
            for aval, wanted in zip(exported.in_avals, parameters, strict=True)
        )
    )


def _as_declared(exported: jax.export.Exported, module: Any) -> bool:
    """Whether the code has the declared types, which JAX trusts and makes arrays of."""
    kept = exported.module_kept_var_idx
    if list(kept) != sorted(set(kept)) or any(place >= len(exported.in_avals) for place in kept):
        return False
    symbols = ir.SymbolTable(module.operation)
    if "main" not in symbols:
        return False
    types: Any = symbols["main"].operation.attributes["function_type"]
    return [str(one) for one in types.value.inputs] == [_kind(exported.in_avals[place]) for place in kept] and [
        str(one) for one in types.value.results
    ] == [_kind(aval) for aval in exported.out_avals]


def _kind(aval: Any) -> str:
    """The type of an array in the program's code, such as `tensor<2x3xf32>`."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return f"tensor<{''.join(f'{size}x' for size in aval.shape)}{mlir.dtype_to_ir_type(aval.dtype)}>"


class ModuleValidator:
    """Finds the first thing in a module that a program may not contain.

    Most of the time goes into queries to MLIR, so names, attributes and types are looked at once each.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self._found: str | None = None
        self._function = ""
        self._names: set[str] = set()
        self._marks: set[tuple[str, str]] = set()
        self._types: set[Any] = set()
        self._sizes: Counter[str] = Counter()
        self._calls: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def problem(self) -> str | None:
        """Returns what is wrong with the module, as a clause; None where nothing is."""
        self.module.walk(self._see, ir.WalkOrder.PRE_ORDER)
        return self._found or self._written_out()

    def _see(self, operation: Any) -> ir.WalkResult:
        self._found = self._wrong(operation, operation.name)
        return ir.WalkResult.ADVANCE if self._found is None else ir.WalkResult.INTERRUPT

    def _wrong(self, operation: Any, name: str) -> str | None:
        if name not in self._names:
            if name not in OPERATIONS and (name in OUTSIDE or name.partition(".")[0] not in DIALECTS):
                return f"it contains `{name[:80]}`, which is not among the operations that a checked program may use"
            self._names.add(name)
        for mark in operation.attributes:
            if (name, mark) not in self._marks:
                if mark not in MARKS.get(name, ()) and not _is_own(operation, mark):
                    return f"it contains `{name}` with the attribute `{mark[:80]}`, which JAX does not write there"
                self._marks.add((name, mark))
        if name == "func.func" and not _parameter_marks(operation) <= PARAMETER_MARKS:
            return "a parameter of it has an attribute that JAX does not write there"
        if name in OPERATIONS and not self._in_its_place(operation, name):
            return "its functions and modules are nested"
        self._sizes[self._function] += 1
        for value in operation.results:
            if value.type not in self._types:
                wrong = _too_large(str(value.type))
                if wrong is not None:
                    return wrong
                self._types.add(value.type)
        if name in CALLED:
            called = operation.attributes.get(CALLED[name], ())
            symbols = [called] if isinstance(called, ir.FlatSymbolRefAttr) else called
            self._calls[self._function].update(symbol.value for symbol in symbols)
        if name == "stablehlo.custom_call":
            return _custom_call_problem(operation)
        if len(operation.regions) and _depth(operation) > MAX_DEPTH:
            return f"more than {MAX_DEPTH} nested loops or branches"
        return None

    def _in_its_place(self, operation: Any, name: str) -> bool:
        """Whether it is in the one flat module of functions, where a function's name identifies it."""
        if name == "func.func":
            self._function = operation.attributes["sym_name"].value
            return bool(operation.parent.operation == self.module)
        return name != "builtin.module" or operation.parent is None

    def _written_out(self) -> str | None:
        """What is wrong with its size once XLA has inlined every call. Nothing is inlined here."""
        try:
            order = list(TopologicalSorter(self._calls).static_order())
        except CycleError:
            return "a function of it calls itself"
        whole: dict[str, int] = {}
        for name in order:
            size = self._sizes[name] + sum(whole[called] * times for called, times in self._calls.get(name, {}).items())
            whole[name] = min(size, MAX_OPERATIONS + 1)
        if max((*whole.values(), self._sizes.total())) > MAX_OPERATIONS:
            return f"it has more than {MAX_OPERATIONS:,} operations when its calls are written out"
        return None


def _is_own(operation: Any, mark: str) -> bool:
    """Whether operations of this kind have such an attribute. Members of their common class do not count."""
    kinds = (kind for kind in type(operation.opview).__mro__ if kind not in ir.OpView.__mro__)
    return any(isinstance(vars(kind).get(mark), property) for kind in kinds)


def _parameter_marks(function: Any) -> set[str]:
    lists = [function.attributes.get(name, ()) for name in ("arg_attrs", "res_attrs")]
    return {mark.name for marked in lists for parameter in marked for mark in parameter}


def _depth(operation: Any) -> int:
    depth, parent = 0, operation.parent
    while parent is not None and depth <= MAX_DEPTH:
        depth, parent = depth + 1, parent.operation.parent
    return depth


def _too_large(kind: str) -> str | None:
    try:
        shape, element = _tensor(kind)
    except ValueError:
        return f"it contains a value of the type `{kind[:80]}`, which is not an array of a fixed shape"
    bits = re.search(r"\d+", element)
    width = max(1, int(bits[0]) // 8 if bits else 1) * (2 if element.startswith("complex") else 1)
    if math.prod(shape) * width > MAX_TENSOR_BYTES:
        return f"it contains a `{kind[:80]}`: more than {MAX_TENSOR_BYTES >> 20:,} MiB"
    return None


# Native routines. A routine trusts the shapes that the call states: told of a result smaller than the one it writes, it
# writes beyond it. So a call passes when its target is known and its operands and results have the shapes that JAX
# gives them. Kernels that come as machine code or as another compiler's text (Triton, Mosaic) are unknown: nothing here
# can read them.

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


def _custom_call_problem(call: Any) -> str | None:
    target = call.attributes["call_target_name"].value
    name, element = _routine(target)
    if name not in ROUTINES and name not in BY_OPTION and target not in OTHERS:
        return f"it calls `{target[:80]}`, which is not among the operations that a checked program may use"
    if not _PLAIN.fullmatch(getattr(call.attributes.get("backend_config"), "value", "")):
        return f"it calls `{target[:80]}` with options of its own"
    try:
        operands, results = ([_tensor(str(value.type)) for value in values] for values in (call.operands, call.results))
        if target in OTHERS:
            fits = _batch(call) is None and OTHERS[target](operands, results)
        else:
            fits = element in (None, operands[0][1]) and any(
                _agree(signature, operands, results, _batch(call)) for signature in _signatures(name, call)
            )
    except (ValueError, TypeError, IndexError, KeyError):  # an option or a type of another kind than JAX writes
        fits = False
    return None if fits else f"it calls `{target[:80]}` with inconsistent shapes or options"


def _threefry(operands: list[Shape], results: list[Shape]) -> bool:
    """Random bits by a GPU kernel of JAX's own: two keys and two counts, all alike."""
    return (len(operands), len(results)) == (4, 2) and len({*operands, *results}) == 1 and operands[0][1] == "ui32"


# XLA itself carries most of these out. It takes ApproxTopK apart and looks at its shapes.
OTHERS = {
    "Sharding": lambda operands, results: len(operands) == 1 and operands == results,
    "annotate_device_placement": lambda operands, results: len(operands) == 1 and operands == results,
    "AllocateBuffer": lambda operands, results: not operands and len(results) == 1,
    "ApproxTopK": lambda operands, results: len(operands) == 4 and len(results) == 2,
    **dict.fromkeys(("cu_threefry2x32_ffi", "hip_threefry2x32_ffi"), _threefry),
}


def _routine(target: str) -> tuple[str, str | None]:
    """The routine's name without its library's, and the element type in its name."""
    match = _TARGET.fullmatch(target)
    if match is None:
        return re.sub(r"^(cu|hip)_", "", target), None
    return match["lapack"] or match["gpu"], LETTERS.get(match["letter"])


def _signatures(name: str, call: Any) -> list[str]:
    """The shapes that the routine may have; none where an option has an unknown value."""
    options = {option: chr(value) for option, value in _dict(call, "mhlo.backend_config") if option in OPTIONS}
    if any(value not in OPTIONS[option] for option, value in options.items()):
        return []
    if name in ROUTINES:
        return ROUTINES[name].split(" | ")
    option, known = BY_OPTION[name]
    return known[options[option]].split(" | ")


def _batch(call: Any) -> int | None:
    """The number of leading axes that XLA may split over devices; None where nothing states it."""
    attributes = dict(_dict(call, "mhlo.frontend_attributes"))
    if attributes.keys() - {"num_batch_dims"}:
        raise KeyError(*attributes)
    return int(attributes["num_batch_dims"]) if attributes else None


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


def _tensor(kind: str) -> Shape:
    """Axes and element type of a type such as `tensor<2x3xf32>`. Raises ValueError for anything but a plain tensor."""
    match = _TENSOR.fullmatch(kind)
    if match is None:
        raise ValueError(kind)
    return tuple(int(size) for size in match[1].split("x") if size), match[2]
