"""Bytes to an exported program that may be compiled: it holds only what JAX itself writes, and no more than is wanted.

`jax.export` trusts what it reads, and who made these bytes may attack. Reading them may end this very process, which is
therefore a confined one in grading; what a program may do once it is compiled is decided here.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from typing import Any

import jax
import jax.export
from jax._src.interpreters import mlir  # `jax.interpreters.mlir` does not show the context that the zygote shares
from jaxlib.mlir import ir

from grader.program import custom_calls

MAX_BYTES = 32 << 20
MAX_TENSOR_BYTES = 1 << 30  # of any one value
MAX_OPERATIONS = 100_000  # when every call is written out; measured: a training step of a small network has 1,000
MAX_DEPTH = 64  # of loops and branches in one another

OPERATIONS = frozenset({"builtin.module", "func.func", "func.return", "func.call"})
DIALECTS = frozenset({"stablehlo", "chlo", "sdy"})
# They wait for somebody outside of the program, who is not there.
OUTSIDE = frozenset(f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv"))
# Beside its own attributes, what JAX writes at an operation. XLA would take more, and shows some of it as it stands in
# the text of the compiled program, where a check looks for collectives.
MARKS: dict[str, frozenset[str]] = {
    "builtin.module": frozenset({"jax.uses_shape_polymorphism", "mhlo.num_partitions", "mhlo.num_replicas"}),
    "sdy.mesh": frozenset({"stablehlo.mesh"}),
    "stablehlo.custom_call": frozenset({"mhlo.backend_config", "mhlo.frontend_attributes", "sdy.sharding_rule"}),
}
PARAMETER_MARKS = frozenset(
    "jax.buffer_donor jax.result_info mhlo.layout_mode mhlo.memory_kind sdy.sharding tf.aliasing_output".split()
)
# Where an operation names the functions that it calls.
CALLED = {
    "func.call": "callee",
    "stablehlo.composite": "decomposition",
    "stablehlo.custom_call": "called_computations",
}
# What JAX makes of a parameter of 64 bits where it has them off.
NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


class ProgramRefused(Exception):
    """A program that is not loaded. The text is a clause about it, as in "it calls `foo`, which ..."."""


def read(blob: bytes, parameters: tuple[jax.ShapeDtypeStruct, ...]) -> jax.export.Exported:
    """The program in `blob`, one of these parameters. Raises `Refused` where it holds what a program may not hold."""
    if len(blob) > MAX_BYTES:
        raise ProgramRefused(f"it has {len(blob):,} bytes; {MAX_BYTES:,} are allowed")
    try:
        exported = jax.export.deserialize(bytearray(blob))
    except Exception:
        raise ProgramRefused("its bytes are not an exported program") from None
    if exported.nr_devices > len(jax.devices()):
        raise ProgramRefused(f"it wants {exported.nr_devices} devices; there are {len(jax.devices())}")
    if not _as_asked(exported, parameters):
        raise ProgramRefused("what its bytes say of its arguments and results is not what was asked for")
    with _context():
        try:
            module = exported.mlir_module(serialized=False)
            sound = module.operation.verify()
        except Exception:
            sound = False
        if not sound:
            raise ProgramRefused("its bytes hold no sound StableHLO")
        if not _as_declared(exported, module):
            raise ProgramRefused("its code takes or gives something else than its bytes say")
        try:
            problem = ModuleValidator(module.operation).problem()
        except Exception:  # such as a name that is no text
            problem = "its bytes hold no sound StableHLO"
    if problem is not None:
        raise ProgramRefused(problem)
    return exported


@functools.cache
def _context() -> Any:
    """To make one takes 3 ms."""
    return mlir.make_ir_context()


def _as_asked(exported: jax.export.Exported, parameters: tuple[jax.ShapeDtypeStruct, ...]) -> bool:
    """Whether it is a program of these arrays, flat, for this kind of device, and with nothing else beside it."""
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
    """Whether the code takes and gives what stands beside it. JAX believes that, and makes arrays of it."""
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
    """Walks a module once, and finds the first thing in it that a program may not hold.

    Most of the time goes into asking MLIR, so what is the same for many operations is looked at once.
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
        """What is wrong with the module, as a clause; None where nothing is."""
        self.module.walk(self._see, ir.WalkOrder.PRE_ORDER)
        return self._found or self._written_out()

    def _see(self, operation: Any) -> ir.WalkResult:
        self._found = self._wrong(operation, operation.name)
        return ir.WalkResult.ADVANCE if self._found is None else ir.WalkResult.INTERRUPT

    def _wrong(self, operation: Any, name: str) -> str | None:
        if name not in self._names:
            if name not in OPERATIONS and (name in OUTSIDE or name.partition(".")[0] not in DIALECTS):
                return f"it holds `{name[:80]}`, which is not among the operations that a checked program may use"
            self._names.add(name)
        for mark in operation.attributes:
            if (name, mark) not in self._marks:
                if mark not in MARKS.get(name, ()) and not hasattr(type(operation.opview), mark):
                    return f"it holds `{name}` with the attribute `{mark[:80]}`, which JAX does not write there"
                self._marks.add((name, mark))
        if name == "func.func" and not _parameter_marks(operation) <= PARAMETER_MARKS:
            return "a parameter of it has an attribute that JAX does not write there"
        if name in OPERATIONS and not self._in_its_place(operation, name):
            return "its functions and modules lie in one another"
        self._sizes[self._function] += 1
        for value in operation.results:
            if value.type not in self._types:
                wrong = _too_large(str(value.type))
                if wrong is not None:
                    return wrong
                self._types.add(value.type)
        if name in CALLED:
            self._note(operation.attributes.get(CALLED[name], ()))
        if name == "stablehlo.custom_call":
            return custom_calls.problem(operation)
        if len(operation.regions) and _depth(operation) > MAX_DEPTH:
            return f"more than {MAX_DEPTH} loops or branches lie in one another"
        return None

    def _in_its_place(self, operation: Any, name: str) -> bool:
        """One module of functions. So a function's name says which it is."""
        if name == "func.func":
            self._function = operation.attributes["sym_name"].value
            return bool(operation.parent.operation == self.module)
        return name != "builtin.module" or operation.parent is None

    def _note(self, called: Any) -> None:
        names = [called.value] if isinstance(called, ir.FlatSymbolRefAttr) else [one.value for one in called]
        self._calls[self._function].update(names)

    def _written_out(self) -> str | None:
        """Whether it is too large with each call replaced by what it calls, as XLA does. Nothing is replaced here."""
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


def _parameter_marks(function: Any) -> set[str]:
    lists = [function.attributes.get(name, ()) for name in ("arg_attrs", "res_attrs")]
    return {mark.name for marked in lists for parameter in marked for mark in parameter}


def _depth(operation: Any) -> int:
    depth, parent = 0, operation.parent
    while parent is not None and depth <= MAX_DEPTH:
        depth, parent = depth + 1, parent.operation.parent
    return depth


def _too_large(kind: str) -> str | None:
    """What is wrong with a value's type: that it is no array of a fixed size, or one of too many bytes."""
    try:
        (shape, element) = custom_calls.shape(kind)
    except ValueError:
        return f"it holds a value of the type `{kind[:80]}`, which is no array of a fixed shape"
    if math.prod(shape) * custom_calls.width(element) > MAX_TENSOR_BYTES:
        return f"it holds a `{kind[:80]}`: more than {MAX_TENSOR_BYTES >> 20:,} MiB"
    return None
