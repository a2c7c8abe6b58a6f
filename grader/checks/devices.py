"""Devices that lessons and checks run on: real ones where there are enough, else simulated CPU devices."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.extend.backend import clear_backends
from jax.sharding import AxisType, Mesh, NamedSharding

from grader.checks.outcomes import Ended, Skipped
from grader.program.environment import simulate


class TooLate(Ended):
    """`start` was called after JAX had already counted its devices."""


def start(count: int = 8, keep: bool = False) -> None:
    """Provides `count` devices and prints which: real ones where there are as many, else simulated CPU devices.

    With simulated ones everything runs on CPUs. Call it in the first cell: JAX counts its devices once, at first use.

    Args:
        count: number of devices.
        keep: whether fewer accelerators stay the default devices. Then `mesh` consists of simulated CPU devices, and
            everything else runs on the first accelerator.

    Raises:
        TooLate: JAX has counted fewer devices before.
    """
    if jax.config.values["jax_num_cpu_devices"] == count:
        jax.devices()  # from now on, nothing can change their number
        return
    try:
        simulate(count)
        if jax.config.values["jax_platforms"] == "cpu":
            return
        real = _accelerators()
        if 0 < len(real) < count and keep:
            print(f"{describe()}, and {count} x simulated CPU devices for meshes")
        elif 0 < len(real) < count:  # a program for them does not run on CPU devices
            jax.config.update("jax_platforms", "cpu")
            clear_backends()
            print(f"{describe()}, because there are only {len(real)} x {real[0].device_kind}")
        else:
            print(describe())
    except RuntimeError:  # JAX has started
        if len(_accelerators()) >= count:
            print(describe())
        elif len(jax.devices("cpu")) < count:
            raise TooLate(
                f"JAX has already started with {len(jax.devices('cpu'))} CPU device(s); the number is fixed.\n"
                f"Restart the kernel and run this cell first. It requests {count} devices."
            ) from None


def _accelerators() -> list[jax.Device]:
    return [device for device in jax.devices() if device.platform != "cpu"]


def mesh(shape: tuple[int, ...], names: tuple[str, ...], explicit: bool = False) -> Mesh:
    """Returns a mesh of the devices.

    Args:
        shape: number of devices along each axis.
        names: names of the axes.
        explicit: whether the axes are Explicit; they are Auto otherwise.

    Raises:
        Skipped: there are too few devices.
    """
    wanted = math.prod(shape)
    found = jax.devices()
    if len(found) < wanted:
        found = jax.devices("cpu")
    if len(found) < wanted:
        raise Skipped(
            f"This check needs {wanted} devices, but there are {len(found)}. Call `devices.start({wanted})` first."
        )
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return Mesh(np.array(found[:wanted], dtype=object).reshape(shape), names, axis_types=(kind,) * len(names))


def entries_of(array: Any) -> tuple[Any, ...] | None:
    """Returns the entries of an array's spec, one for each axis of the array.

    Args:
        array: a JAX array or `jax.ShapeDtypeStruct`.

    Returns:
        For each axis None, the name of a mesh axis, or a tuple of names. None if the array has no `NamedSharding`.
    """
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    found = [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry or None for entry in sharding.spec]
    return (*found, *[None] * (array.ndim - len(found)))


def in_types(shape: tuple[int, ...], entries: tuple[Any, ...] | None) -> str:
    """Returns the type of a float32 array as JAX shows it, such as "float32[8@data,4]".

    Args:
        shape: the shape of the array.
        entries: what `entries_of` returns for it.
    """
    written = [
        f"{size}@({','.join(entry)})" if isinstance(entry, tuple) else f"{size}@{entry}" if entry else f"{size}"
        for size, entry in zip(shape, entries or [None] * len(shape), strict=True)
    ]
    return f"float32[{','.join(written)}]"


def describe() -> str:
    """Returns the default devices in words, such as "8 x simulated CPU devices"."""
    found = jax.devices()
    kind = "simulated CPU devices" if found[0].platform == "cpu" and len(found) > 1 else found[0].device_kind
    return f"{len(found)} x {kind}"


def skip(reason: str) -> None:
    """Ends this check as skipped. Raises `Skipped` with `reason`, a sentence."""
    raise Skipped(reason)
