"""Loading of a program from bytes: compiled for the devices of this process, with the facts that checks judge."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from grader.program import validate
from grader.program.hlo import Collective, Sizes, collectives, largest, loops, operations, sizes

WIDE = frozenset({"float64", "int64", "uint64", "complex128"})  # exist only where JAX has 64 bits on
# A check runs a program a few times on small inputs, so its machine code need not be fast. Measured on five programs of
# lesson 05: 15 to 27 ms to compile instead of 37 to 116. Collectives, bytes and flops are decided before this.
QUICK: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": "1",
}


@dataclass(frozen=True)
class Facts:
    """What a compiled program states.

    Attributes:
        devices: number of devices that it runs on.
        loops, operations: counts in its StableHLO, before XLA optimizes it, so of what was written; constants are no
            operations. A function that is called n times counts n times.
        intermediates: elements of the largest array in its StableHLO.
        collectives: those in its optimized HLO, so of what is executed. An entry that is wider than float32 and than
            every entry of its arguments and results counts as several elements, since it can contain several.
        argument_bytes, output_bytes, temp_bytes, alias_bytes: memory per device.
        flops: floating-point operations per device and call, with one iteration of each loop; None where XLA does not
            state them.
    """

    devices: int
    loops: int
    operations: int
    intermediates: int
    collectives: tuple[Collective, ...]
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    flops: float | None

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Facts:
        """Undoes `dataclasses.asdict`."""
        return cls(**{**data, "collectives": tuple(Collective(**item) for item in data["collectives"])})


class Loaded:
    """A program rebuilt from its bytes alone and compiled for the devices of this process.

    Args:
        blob: an exported program.
        parameters: its abstract arrays in order.
        donated: positions among `parameters` that are donated.

    Attributes:
        facts: what its compiled form states.
        outputs: shape, dtype and sharding of each result.

    Raises:
        ProgramRefused: the program may not be compiled (`grader.program.validate`).
    """

    def __init__(self, blob: bytes, parameters: tuple[jax.ShapeDtypeStruct, ...], donated: tuple[int, ...]) -> None:
        exported = validate.read(blob, parameters)
        self._parameters = exported.in_avals
        self._wide = any(str(aval.dtype) in WIDE for aval in (*exported.in_avals, *exported.out_avals))
        shapes = [shape.update(dtype=aval.dtype) for shape, aval in zip(parameters, exported.in_avals, strict=True)]
        with jax.enable_x64(True) if self._wide else contextlib.nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that a donated array could not be used: the facts say so
            lowered = jax.jit(exported.call, donate_argnums=donated).lower(*_placed(shapes, exported.nr_devices))
            self._compiled = lowered.compile(QUICK if exported.platforms == ("cpu",) else None)
        # The lowered text is the exported module called once; to print that one again takes ten times as long.
        module, memory = lowered.as_text(), self._compiled.memory_analysis()
        assert memory is not None  # every backend that JAX ships for CPU, GPU and TPU states it
        text = self._compiled.as_text() or ""
        held = sizes(text) or Sizes(
            memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.alias_size_in_bytes
        )
        flops = (self._compiled.cost_analysis() or {}).get("flops")
        widest = max([4, *(aval.dtype.itemsize for aval in (*exported.in_avals, *exported.out_avals))])
        self.facts = Facts(
            devices=exported.nr_devices,
            loops=loops(module),
            operations=operations(module),
            intermediates=largest(module),
            collectives=tuple(_unpacked(one, widest) for one in collectives(text, exported.nr_devices)),
            argument_bytes=held.arguments,
            output_bytes=held.outputs,
            temp_bytes=memory.temp_size_in_bytes,
            alias_bytes=held.aliased,
            flops=None if flops is None else float(flops),
        )
        shardings = [
            sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
            for sharding in jax.tree.leaves(self._compiled.output_shardings)
        ]
        self.outputs = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding)
            for aval, sharding in zip(exported.out_avals, shardings, strict=True)
        ]

    def run(self, arrays: list[Any]) -> list[jax.Array]:
        """Returns the results for `arrays`, one for each parameter with its shape and dtype, in order."""
        places = self._compiled.input_shardings[0]
        fitting = [_fitting(*each) for each in zip(arrays, self._parameters, places, strict=True)]
        with jax.enable_x64(True) if self._wide else contextlib.nullcontext():
            return list(self._compiled(*fitting))


def _fitting(array: Any, parameter: Any, place: jax.sharding.Sharding) -> Any:
    """NumPy's 64 bits as the program takes them, and an array of one device on the devices of the program."""
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array, parameter.dtype)
    elsewhere = array.committed and not isinstance(array.sharding, jax.sharding.NamedSharding)
    return jax.device_put(array, place) if elsewhere else array


def _unpacked(collective: Collective, widest: int) -> Collective:
    """The collective with at least one element for each `widest` bytes."""
    return replace(collective, elements=max(collective.elements, -(-collective.bytes // widest)))


def _placed(parameters: list[jax.ShapeDtypeStruct], devices: int) -> list[jax.ShapeDtypeStruct]:
    """Parameters without a sharding are replicated when the program shards things itself."""
    if devices == 1 or any(shape.sharding is not None for shape in parameters):
        return parameters
    # With the smallest axes that there are: JAX refuses arguments on a mesh of 8 for a program on one of 4 x 2.
    sizes = _prime_factors(devices)
    names = tuple(f"devices_{i}" for i in range(len(sizes)))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]).reshape(sizes), names)
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return [shape.update(sharding=everywhere) for shape in parameters]


def _prime_factors(number: int) -> list[int]:
    divisor = next((one for one in range(2, number + 1) if number % one == 0), None)
    return [] if divisor is None else [divisor, *_prime_factors(number // divisor)]
