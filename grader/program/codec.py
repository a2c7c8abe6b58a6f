"""Data to bytes and back: the closed set of values that may cross between processes.

A payload is a little-endian uint32 (the length of the head), a JSON head, then raw array buffers. The head is
`{"value": tagged, "sizes": [bytes of each buffer]}`. Nothing in it can name code: a decoder builds only None, bool,
int, float, complex, str, `...`; tuple, list, dict with str or int keys; named tuples of the setup's classes (those of a
notebook's own cross as tuples); NumPy and JAX arrays, PRNG keys, dtypes, ShapeDtypeStruct, PartitionSpec,
NamedSharding, Mesh. Limits are checked before anything is allocated.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import struct
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.array import ArrayImpl  # weak types have no public maker
from jax._src.literals import TypedNdArray  # what a function with a custom derivative gets for a NumPy argument
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from grader.core.faults import Fault
from grader.program.payload import (
    DIVERGED,
    DONATED,
    LIMITS,
    READERS,
    Malformed,
    PayloadLimits,
    Unsendable,
    axes,
    place,
    read_place,
    tagged,
)

# Plain arrays of NumPy's; a subclass may show what it does not hold.
PLAIN = (np.ndarray, TypedNdArray)
DTYPES = frozenset(
    "bool int4 uint4 int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64 "
    "complex128 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn int2 uint2".split()
)
# By name, and by the short name in the dtype of a key array.
KEY_IMPLS = {name: name for name in ("threefry2x32", "rbg", "unsafe_rbg")}
KEY_IMPLS |= {"fry": "threefry2x32", "urbg": "unsafe_rbg"}
Classes = Mapping[str, type]
COPIES_DIFFER = 0.01  # by more than this share of an array's largest value: devices may round a sum differently


@dataclass(frozen=True)
class Slot:
    """The place of the array number `index` in the tree of a program's results."""

    index: int


def encode(value: Any, classes: Classes | None = None, limits: PayloadLimits = LIMITS) -> bytes:
    """Returns a payload that contains `value`.

    Args:
        value: data of the kinds that the module's docstring lists.
        classes: named tuple classes that may cross, by name.
        limits: upper bounds; sizes in bytes.

    Raises:
        Unsendable: a part of `value` is of another kind, or beyond `limits`.
    """
    encoder = _Encoder(classes or {}, limits)
    content = encoder.tag(value, 0)
    head = json.dumps({"value": content, "sizes": [len(b) for b in encoder.buffers]}, separators=(",", ":")).encode()
    if len(head) > limits.head:
        raise Unsendable(f"value too large to send ({len(head):,} bytes before its arrays)")
    return b"".join([struct.pack("<I", len(head)), head, *encoder.buffers])


def decode(payload: bytes | memoryview, classes: Classes | None = None, limits: PayloadLimits = LIMITS) -> Any:
    """Returns the value that `encode` was given; never runs or imports anything that the payload names.

    Arrays keep shape, dtype, weak type and sharding; 64-bit dtypes stay 64-bit where JAX has them off.

    Raises:
        Malformed: the bytes are not a payload, or are beyond `limits`.
        Fault: reading them takes longer than `limits.seconds`; its kind is "timeout".
    """
    began = time.thread_time()
    view = memoryview(payload)
    if len(view) < 4:
        raise Malformed("shorter than its own header")
    (size,) = struct.unpack("<I", view[:4])
    if size > limits.head or size > len(view) - 4:
        raise Malformed("head longer than the payload or the limit")
    try:
        head = json.loads(bytes(view[4 : 4 + size]))
        sizes, content = head["sizes"], head["value"]
    except (ValueError, RecursionError, KeyError, TypeError) as problem:
        raise Malformed(f"head is not readable: {type(problem).__name__}") from None
    body = view[4 + size :]
    if not isinstance(sizes, list) or len(sizes) > limits.arrays or not all(type(n) is int and n >= 0 for n in sizes):
        raise Malformed("buffer sizes are not natural numbers, or too many")
    if sum(sizes) != len(body) or len(body) > limits.buffers:
        raise Malformed("buffers do not add up")
    ends = itertools.accumulate(sizes, initial=0)
    buffers = [body[start:end] for start, end in itertools.pairwise(ends)]
    decoder = _Decoder(classes or {}, limits, buffers, began)
    try:
        value = decoder.value(content, 0)
    except (Malformed, Fault):
        raise
    except Exception as problem:  # any surprise in hostile bytes is the same verdict
        raise Malformed(f"{type(problem).__name__} while reading") from None
    if decoder.unread:  # every buffer is used once: a payload that names one twice could grow without limit
        raise Malformed("a buffer of no array")
    return value


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf is a parameter of a program: NumPy and JAX array, key, NumPy scalar, ShapeDtypeStruct."""
    return isinstance(leaf, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct)


def abstract(leaf: Any) -> Any:
    """Returns an array's shape, dtype, weak type and NamedSharding as ShapeDtypeStruct; anything else unchanged."""
    if not is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    where, weak = sharding if isinstance(sharding, NamedSharding) else None, getattr(leaf, "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where, weak_type=weak)


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf is a typed PRNG key array, or the abstract shape of one."""
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_own_tuple(value: Any) -> bool:
    """Returns whether a value is a named tuple of a class that a notebook defines."""
    return isinstance(value, tuple) and hasattr(value, "_fields") and type(value).__module__ == "__main__"


DICTS = (dict, OrderedDict, defaultdict, Counter)  # all of which cross as a dict


class _Encoder:
    def __init__(self, classes: Classes, limits: PayloadLimits) -> None:
        self.names = {kind: name for name, kind in classes.items()}
        self.limits = limits
        self.buffers: list[bytes] = []
        self.count = self.bytes = 0

    def tag(self, value: Any, depth: int) -> Any:
        self.count += 1
        if depth > self.limits.depth:
            raise Unsendable("value nested too deeply to send")
        if self.count > self.limits.values:
            raise Unsendable(f"value of more than {self.limits.values:,} parts")
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            if value.bit_length() > self.limits.bits:
                raise Unsendable(f"int of more than {self.limits.bits} bits")
            return value
        if kind is float:
            return ["float", value.hex()]
        if kind is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if value is ...:
            return ["..."]
        if kind is Slot:
            return ["slot", value.index]
        if kind in (tuple, list):
            return [kind.__name__, [self.tag(item, depth + 1) for item in value]]
        if kind in DICTS:
            for key in value:
                if type(key) not in (str, int):
                    raise Unsendable(f"dict with a {type(key).__name__} key")
            return ["dict", [[key, self.tag(item, depth + 1)] for key, item in value.items()]]
        if isinstance(value, tuple) and kind in self.names:
            return ["named", self.names[kind], [self.tag(item, depth + 1) for item in value]]
        if is_own_tuple(value):
            return ["tuple", [self.tag(item, depth + 1) for item in value]]
        return self.jax_value(value)

    def jax_value(self, value: Any) -> Any:
        if isinstance(value, jax.core.Tracer):
            raise Unsendable("tracer")
        if isinstance(value, PartitionSpec | NamedSharding | SingleDeviceSharding | Mesh):
            return tagged(value)
        if isinstance(value, jax.ShapeDtypeStruct):
            sharding = tagged(value.sharding) if isinstance(value.sharding, NamedSharding) else None
            if is_key(value):
                impl = str(value.dtype).removeprefix("key<").removesuffix(">")
                return ["abstract key", list(value.shape), impl, sharding]
            return ["abstract", list(value.shape), _dtype_name(value.dtype), bool(value.weak_type), sharding]
        if isinstance(value, jax.Array):
            if value.is_deleted():
                raise Unsendable(DONATED)
            if is_key(value):
                return ["key", str(jax.random.key_impl(value)), self.array("jax", jax.random.key_data(value))]
            return self.array("jax", value)
        if isinstance(value, np.generic):
            return self.array("scalar", value)
        if type(value) in PLAIN:
            return self.array("numpy", value)
        # `jnp.float32`, `np.float32` and `np.dtype("float32")` are all the same datum.
        of_numpy = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
        if of_numpy or type(value).__name__ == "_ScalarMeta":
            return ["dtype", _dtype_name(value)]
        raise Unsendable(type(value).__name__)

    def array(self, kind: str, value: Any) -> Any:
        weak = bool(kind == "jax" and value.weak_type)
        sharding = place(value) if kind == "jax" else None
        if kind == "jax" and not _copies_agree(value):
            raise Unsendable(DIVERGED)
        plain = np.asarray(value)
        name = _dtype_name(plain.dtype)  # without the byte order, so that has to be this machine's
        plain = plain.astype(plain.dtype.newbyteorder("="), copy=False)
        self.bytes += plain.nbytes
        if self.bytes > self.limits.buffers:
            raise Unsendable(f"arrays of more than {self.limits.buffers:,} bytes")
        if len(self.buffers) == self.limits.arrays:
            raise Unsendable(f"value of more than {self.limits.arrays:,} arrays")
        self.buffers.append(np.ascontiguousarray(plain).tobytes())
        return ["array", kind, name, list(plain.shape), weak, sharding, len(self.buffers) - 1]


def _copies_agree(array: jax.Array) -> bool:
    """Whether devices that should store the same part of an array do so, up to rounding: NumPy reads one of them."""
    firsts: dict[str, np.ndarray] = {}
    for shard in array.addressable_shards if array.sharding.num_devices > 1 else ():
        part = np.asarray(shard.data)
        first = firsts.setdefault(str(shard.index), part)
        if first is part or np.array_equal(first, part):
            continue
        if not jnp.issubdtype(part.dtype, jnp.inexact):
            return False
        one, other = (each.astype(np.complex128) for each in (first, part))
        largest = np.max(np.abs(one), initial=0.0, where=np.isfinite(one))
        if not np.allclose(other, one, rtol=COPIES_DIFFER, atol=COPIES_DIFFER * largest, equal_nan=True):
            return False
    return True


def _dtype_name(dtype: Any) -> str:
    name = np.dtype(dtype).name
    if name not in DTYPES:
        raise Unsendable(f"array of dtype {name}")
    return name


class _Decoder:
    def __init__(self, classes: Classes, limits: PayloadLimits, buffers: list[memoryview], began: float) -> None:
        self.classes, self.limits, self.buffers = classes, limits, buffers
        self.ends = began + limits.seconds
        self.count = self.bytes = 0
        self.unread = set(range(len(buffers)))
        self.readers: dict[str, Callable[..., Any]] = {
            "float": float.fromhex,
            "complex": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
            "...": lambda: ...,
            "slot": lambda index: Slot(*axes([index])),
            "abstract": self.abstract,
            "abstract key": self.abstract_key,
            "array": self.array,
            "dtype": _read_dtype,
            **READERS,
        }

    def value(self, tagged: Any, depth: int) -> Any:
        self.count += 1
        if depth > self.limits.depth or self.count > self.limits.values:
            raise Malformed("nested too deeply or too many values")
        if self.count % 16 == 0 and time.thread_time() > self.ends:  # a key or a sharding takes a tenth of a ms
            raise Fault(
                "timeout", f"reading what it returned took more than {self.limits.seconds:g} s of processor time"
            )
        if type(tagged) is int and tagged.bit_length() > self.limits.bits:
            raise Malformed("int of too many bits")
        if tagged is None or type(tagged) in (bool, int, str):
            return tagged
        if not isinstance(tagged, list) or not tagged or type(tagged[0]) is not str:
            raise Malformed("untagged value")
        tag, *rest = tagged
        if tag in ("tuple", "list"):
            items = [self.value(item, depth + 1) for item in rest[0]]
            return tuple(items) if tag == "tuple" else items
        if tag == "dict":
            if any(type(key) not in (str, int) for key, _ in rest[0]):
                raise Malformed("dict key is neither str nor int")
            return {key: self.value(item, depth + 1) for key, item in rest[0]}
        if tag == "named":
            name, items = rest
            if name not in self.classes:
                raise Malformed("a named tuple of no class of the setup")
            return self.classes[name](*[self.value(item, depth + 1) for item in items])
        if tag == "key":
            impl, data = rest
            return jax.random.wrap_key_data(self.value(data, depth + 1), impl=_key_impl(impl))
        if tag not in self.readers:
            raise Malformed("unknown tag")
        return self.readers[tag](*rest)

    def abstract(self, shape: Any, dtype: str, weak: bool, sharding: Any) -> jax.ShapeDtypeStruct:
        where = read_place(sharding)
        return jax.ShapeDtypeStruct(axes(shape), _read_dtype(dtype), sharding=where, weak_type=bool(weak))

    def abstract_key(self, shape: Any, impl: str, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(axes(shape), _key_dtype(_key_impl(impl)), sharding=read_place(sharding))

    def array(self, kind: str, dtype: str, shape: Any, weak: bool, sharding: Any, index: int) -> Any:
        plain = self.buffer(index, _read_dtype(dtype), axes(shape))
        if kind == "scalar" and not plain.shape:
            return plain[()]
        if kind == "numpy":
            return plain.copy()
        if kind != "jax":
            raise Malformed("unknown kind of array")
        # 64 bits stay 64 bits where JAX has them off: a result of the wrong dtype must not look right.
        with jax.enable_x64(True) if plain.itemsize >= 8 else contextlib.nullcontext():
            where = read_place(sharding)
            # Neither of these compiles, as `jnp.asarray` does for each new shape: 10,000 shapes would take minutes.
            value: Any = jax.device_put(plain) if where is None else self.placed(plain, where)
            if not weak:
                return value
            aval: Any = value.aval.update(weak_type=True)
            return ArrayImpl(aval, value.sharding, value._arrays, committed=value.committed)

    def buffer(self, index: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        if type(index) is not int or index not in self.unread:
            raise Malformed("no such buffer, or one that another array has")
        self.unread.remove(index)
        if dtype.itemsize * math.prod(shape) != len(self.buffers[index]):
            raise Malformed("buffer length does not fit shape and dtype")
        plain = np.frombuffer(bytes(self.buffers[index]), dtype).reshape(shape)
        if dtype == np.bool_ and plain.view(np.uint8).max(initial=0) > 1:
            raise Malformed("a bool that is neither true nor false")
        return plain

    def placed(self, plain: np.ndarray, sharding: NamedSharding | SingleDeviceSharding) -> jax.Array:
        each = math.prod(sharding.shard_shape(plain.shape)) * plain.itemsize
        self.bytes += each * len(sharding.device_set)
        if self.bytes > self.limits.buffers:
            raise Malformed("more bytes on all devices together than the limit")
        return jax.device_put(plain, sharding)


def _key_impl(impl: Any) -> str:
    if impl not in KEY_IMPLS:
        raise Malformed("unknown key implementation")
    return KEY_IMPLS[impl]


@functools.cache
def _key_dtype(impl: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype


def _read_dtype(name: Any) -> np.dtype:
    if name not in DTYPES:
        raise Malformed("unknown dtype")
    return jnp.dtype(name)
