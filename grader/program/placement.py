"""Placement of data on devices (PartitionSpec, Mesh, shardings) as plain lists, and back."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from grader.program.limits import Malformed, Unsendable, few, natural, strings

AXIS_TYPES = {kind.name: kind for kind in AxisType}


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
    extra = {"unreduced": set(strings(unreduced)), "reduced": set(strings(reduced))}
    return PartitionSpec(*map(_read_entry, few(parts)), **{name: axes for name, axes in extra.items() if axes})


def _read_entry(part: Any) -> Any:
    if type(part) is int and part == 0:
        return PartitionSpec.UNCONSTRAINED
    return part if part is None or type(part) is str else strings(part)


def _read_devices(platform: Any, ids: Any) -> list[Any]:
    """The devices with these ids; ids of different platforms are different devices."""
    if platform not in ("cpu", "gpu", "tpu"):
        raise Malformed("unknown platform")
    by_id = {device.id: device for device in jax.devices(platform)}
    if any(number not in by_id for number in natural(ids)) or len(set(ids)) < len(ids):
        raise Malformed("a device that is not here, or one twice")
    return [by_id[number] for number in ids]


def _read_mesh(names: Any, sizes: Any, types: Any, where: Any) -> Mesh:
    devices = np.array(_read_devices(*where), dtype=object).reshape(natural(few(sizes)))
    return Mesh(devices, strings(names), axis_types=tuple(AXIS_TYPES[kind] for kind in strings(types)))


def _read_sharding(mesh: Any, spec: Any, memory: Any) -> NamedSharding:
    if memory not in (None, "device", "pinned_host", "unpinned_host"):
        raise Malformed("unknown kind of memory")
    return NamedSharding(_read_mesh(*mesh), _read_spec(*spec), memory_kind=memory)


def _read_device(platform: Any, ids: Any) -> SingleDeviceSharding:
    [device] = _read_devices(platform, ids)
    return SingleDeviceSharding(device)


READERS: dict[str, Any] = {"spec": _read_spec, "mesh": _read_mesh, "sharding": _read_sharding, "device": _read_device}
