"""Parts of a payload: its limits, its errors, and devices (PartitionSpec, Mesh, shardings) as plain lists, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding


@dataclass(frozen=True)
class PayloadLimits:
    """Upper bounds for one payload."""

    depth: int = 64  # of containers in one another
    values: int = 200_000
    arrays: int = 10_000
    axes: int = 64  # of one array
    bits: int = 256  # of an int
    head: int = 8 << 20  # bytes
    buffers: int = 512 << 20  # bytes of all arrays together; a replicated one counts once for each device
    seconds: float = math.inf  # of processor time to read it


LIMITS = PayloadLimits()


DONATED = "donated array"
DIVERGED = "replicated array with different copies"


class Unsendable(Exception):
    """A value that is not data; the text is what a reader would call it, such as the name of its class."""


class Malformed(Exception):
    """Bytes that are not a payload of ours, or one beyond the limits."""


def axes(numbers: Any) -> tuple[int, ...]:
    """Returns a list with a natural number for each axis of an array or a mesh as a tuple. Raises `Malformed`."""
    return _natural(_few(numbers))


def _natural(numbers: Any) -> tuple[int, ...]:
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise Malformed("not a list of natural numbers")
    return tuple(numbers)


def _few(items: Any) -> Any:
    if not isinstance(items, list) or len(items) > LIMITS.axes:
        raise Malformed("not a list, or more axes than there can be")
    return items


def _strings(names: Any) -> tuple[str, ...]:
    if not all(type(name) is str for name in _few(names)):
        raise Malformed("not a list of strings")
    return tuple(names)


def tagged(value: PartitionSpec | Mesh | NamedSharding | SingleDeviceSharding) -> list[Any]:
    """Returns a list that JSON can hold and `READERS` read. Raises `Unsendable` where there are no devices in it."""
    if isinstance(value, PartitionSpec):
        return ["spec", *_spec_parts(value)]
    if isinstance(value, Mesh):
        return ["mesh", *_mesh_parts(value)]
    if isinstance(value, SingleDeviceSharding):
        device: Any = next(iter(value.device_set))
        return ["device", device.platform, [device.id]]
    if not isinstance(value.mesh, Mesh):
        raise Unsendable("sharding on an abstract mesh")
    return ["sharding", _mesh_parts(value.mesh), _spec_parts(value.spec), value.memory_kind]


def place(array: jax.Array) -> list[Any] | None:
    """Returns an array's sharding as a list; None where it is not committed to a device. Raises `Unsendable`."""
    if isinstance(array.sharding, NamedSharding):
        return tagged(array.sharding)
    if isinstance(array.sharding, SingleDeviceSharding):
        return tagged(array.sharding) if array.committed else None
    raise Unsendable(f"array with a {type(array.sharding).__name__}")


def read_place(tag: Any) -> NamedSharding | SingleDeviceSharding | None:
    """Undoes `place`. Raises `Malformed` for anything else, and for devices that are not here."""
    if tag is None:
        return None
    kind, *parts = tag
    if kind not in ("sharding", "device"):
        raise Malformed("not a sharding")
    return READERS[kind](*parts)


def _spec_parts(spec: PartitionSpec) -> list[Any]:
    free = PartitionSpec.UNCONSTRAINED
    parts = [0 if part is free else list(part) if isinstance(part, tuple) else part for part in spec.partitions]
    return [parts, sorted(spec.unreduced), sorted(spec.reduced)]


def _mesh_parts(mesh: Mesh) -> list[Any]:
    if mesh.empty:
        raise Unsendable("empty mesh")
    if any(type(name) is not str for name in mesh.axis_names):
        raise Unsendable("mesh with an axis name that is no str")
    devices = list(mesh.devices.flat)
    where = [devices[0].platform, [device.id for device in devices]]
    return [list(mesh.axis_names), list(mesh.devices.shape), [kind.name for kind in mesh.axis_types], where]


def _read_spec(parts: Any, unreduced: Any, reduced: Any) -> PartitionSpec:
    extra = {"unreduced": set(_strings(unreduced)), "reduced": set(_strings(reduced))}
    return PartitionSpec(*map(_read_entry, _few(parts)), **{name: found for name, found in extra.items() if found})


def _read_entry(part: Any) -> Any:
    if type(part) is int and part == 0:
        return PartitionSpec.UNCONSTRAINED
    return part if part is None or type(part) is str else _strings(part)


def _read_devices(platform: Any, ids: Any) -> list[Any]:
    """The devices with these ids; ids of different platforms are different devices."""
    if platform not in ("cpu", "gpu", "tpu"):
        raise Malformed("unknown platform")
    by_id = {device.id: device for device in jax.devices(platform)}
    if any(number not in by_id for number in _natural(ids)) or len(set(ids)) < len(ids):
        raise Malformed("a device that is not here, or one twice")
    return [by_id[number] for number in ids]


def _read_mesh(names: Any, sizes: Any, types: Any, where: Any) -> Mesh:
    devices = np.array(_read_devices(*where), dtype=object).reshape(axes(sizes))
    return Mesh(devices, _strings(names), axis_types=tuple(AxisType[kind] for kind in _strings(types)))


def _read_sharding(mesh: Any, spec: Any, memory: Any) -> NamedSharding:
    if memory not in (None, "device", "pinned_host", "unpinned_host"):
        raise Malformed("unknown kind of memory")
    return NamedSharding(_read_mesh(*mesh), _read_spec(*spec), memory_kind=memory)


def _read_device(platform: Any, ids: Any) -> SingleDeviceSharding:
    [device] = _read_devices(platform, ids)
    return SingleDeviceSharding(device)


READERS: dict[str, Any] = {"spec": _read_spec, "mesh": _read_mesh, "sharding": _read_sharding, "device": _read_device}
