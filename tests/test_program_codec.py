"""Data there and back: every kind of it, what is refused as not data, and bytes that lie."""

from __future__ import annotations

import json
import random
import struct
import time
import tracemalloc
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from grader.checks import devices
from grader.core.faults import Fault
from grader.program import codec
from grader.program.codec import Slot, decode, encode
from grader.program.endpoints import MAX_LINE, MAX_TEXT, read_reply
from grader.program.payload import Malformed, PayloadLimits, Unsendable

devices.start(8)


class Point(NamedTuple):
    x: Any
    y: Any


class Stranger(NamedTuple):
    x: Any


CLASSES = {"Point": Point}
AUTO = devices.mesh((4, 2), ("a", "b"))
EXPLICIT = devices.mesh((4, 2), ("a", "b"), explicit=True)


def back(value: Any) -> Any:
    return decode(encode(value, CLASSES), CLASSES)


def assert_same(got: Any, want: Any) -> None:
    """Type, value, dtype, weak type, sharding and commitment, all the way down."""
    assert type(got) is type(want)
    if isinstance(want, tuple | list) and not isinstance(want, P):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, float | complex):
        assert np.array_equal(got, want, equal_nan=True)
        assert np.signbit(np.real(got)) == np.signbit(np.real(want))
    elif codec.is_key(want) and isinstance(want, jax.Array):
        assert got.dtype == want.dtype
        assert got.sharding == want.sharding
        assert np.array_equal(jax.random.key_data(got), jax.random.key_data(want))
    elif isinstance(want, np.ndarray | np.generic | jax.Array):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
        if isinstance(want, jax.Array):
            assert (got.weak_type, got.sharding, got.committed) == (want.weak_type, want.sharding, want.committed)
    else:
        assert got == want


PLAIN: list[Any] = [
    None, True, False, 0, -7, 2**200, -(2**255), "", "text", "𝕁 – ünïcode \n\0", "\ud800",
    0.0, -0.0, 0.1, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 1 - 2j, complex("nan+infj"), ...,
    (), [], {}, (1,), [1, [2, (3, [4])]], {"a": 1, 2: ("b", {3: None})}, {-5: 0}, Slot(3),
    Point(1, 2.5), Point(Point(1, None), [Point("a", ())]),
    np.dtype("float32"), np.dtype(jnp.bfloat16), np.dtype(bool),
]  # fmt: skip
PLACES: list[Any] = [
    P(), P("a"), P(None, "b"), P(("a", "b"), None), P(P.UNCONSTRAINED, "a"), P("a", unreduced={"b"}),
    AUTO, EXPLICIT, devices.mesh((8,), ("rows",)), Mesh(np.array(jax.devices()[::-1][:2]), ("x",)),
    NamedSharding(AUTO, P("a", None)), NamedSharding(EXPLICIT, P(("a", "b"))), SingleDeviceSharding(jax.devices()[5]),
    jax.ShapeDtypeStruct((), "float32"), jax.ShapeDtypeStruct((3, 0, 2), "bfloat16"),
    jax.ShapeDtypeStruct((2,), "int32", weak_type=True),
    jax.ShapeDtypeStruct((8, 2), "float32", sharding=NamedSharding(EXPLICIT, P("a", "b"))),
    *(jax.eval_shape(jax.random.split, jax.random.key(0, impl=impl)) for impl in ("threefry2x32", "rbg", "unsafe_rbg")),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:40])
def test_plain_data_comes_back(value: Any) -> None:
    assert_same(back(value), value)


@pytest.mark.parametrize("value", PLACES, ids=lambda value: repr(value)[:60])
def test_specs_meshes_shardings_and_abstract_arrays_come_back(value: Any) -> None:
    got = back(value)
    assert_same(got, value)
    assert repr(got) == repr(value)  # axis types, device order, weak type and sharding show there


@pytest.mark.parametrize("dtype", sorted(codec.DTYPES))
def test_arrays_of_every_dtype_come_back(dtype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(jnp.dtype(dtype))
    for shaped in (array, array[0, 1], array[0, 1:2].reshape(()), array[:0], array.T, array[:, ::2]):
        assert_same(back(shaped), shaped)
    assert back(array).flags.writeable, "an answer may write into its NumPy argument"
    with jax.enable_x64(array.itemsize >= 8):
        on_device = jnp.asarray(array)
    assert on_device.dtype == array.dtype
    assert_same(back(on_device), on_device)


def test_64_bits_arrive_whole_where_they_are_off() -> None:
    """An answer that turns 64 bits on must not look as if it had kept to 32."""
    with jax.enable_x64(True):
        wide = [jnp.arange(3.0), jnp.asarray(1.0), jnp.arange(2), jnp.float64(3), jnp.asarray(1.0) * 2]
        placed = jax.device_put(jnp.arange(8.0), NamedSharding(AUTO, P("a")))
    assert not jax.config.jax_enable_x64
    for array in (*wide, placed):
        assert array.dtype in ("float64", "int64")
        assert_same(back(array), array)


def test_other_byte_orders_keep_their_values() -> None:
    """Files of the MNIST kind are big-endian; NumPy calls such a dtype by the same name."""
    array = np.arange(5, dtype=">f4") / 7
    got = back(array)
    assert np.array_equal(got, array)
    assert got.dtype == np.dtype("float32")


WEAK: dict[str, Callable[[], jax.Array]] = {
    "float": lambda: jnp.asarray(1.5),
    "int": lambda: jnp.asarray(3),
    "complex": lambda: jnp.asarray(1j),
    "array": lambda: jnp.full(3, 2.0),
    "sharded": lambda: jax.jit(lambda x: x + jnp.full(8, 1.0), out_shardings=NamedSharding(AUTO, P("a")))(2.0),
}


@pytest.mark.parametrize("name", WEAK)
def test_weak_types_come_back(name: str) -> None:
    value = WEAK[name]()
    assert value.weak_type
    assert_same(back(value), value)
    assert (back(value) + jnp.ones((), "bfloat16")).dtype == (value + jnp.ones((), "bfloat16")).dtype


def test_weak_types_keep_their_bits_where_64_are_on() -> None:
    value = jnp.asarray(1.5)
    with jax.enable_x64(True):
        assert_same(back(value), value)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_come_back(impl: str) -> None:
    key = jax.random.key(7, impl=impl)
    placed = jax.device_put(jax.random.split(key, 8), NamedSharding(AUTO, P("a")))
    for value in (key, jax.random.split(key, (2, 3)), placed):
        assert_same(back(value), value)


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("spec", [P(), P("a"), P(None, "b"), P(("a", "b"))], ids=str)
def test_sharded_arrays_come_back_where_they_lay(mesh: Mesh, spec: P) -> None:
    array = jax.device_put(np.arange(64, dtype="float32").reshape(8, 8), NamedSharding(mesh, spec))
    got = back(array)
    assert_same(got, array)
    assert jax.typeof(got) == jax.typeof(array)
    assert [s.data.shape for s in got.addressable_shards] == [s.data.shape for s in array.addressable_shards]


def test_an_array_stays_on_its_device_and_an_uncommitted_one_uncommitted() -> None:
    assert_same(back(jax.device_put(jnp.ones(3), jax.devices()[3])), jax.device_put(jnp.ones(3), jax.devices()[3]))
    assert not back(jnp.ones(3)).committed


def test_results_of_compiled_programs_over_devices_come_back() -> None:
    x = jax.device_put(np.arange(64, dtype="float32").reshape(8, 8), NamedSharding(AUTO, P("a", "b")))
    for function in (lambda x: x.sum(), lambda x: x.T.reshape(4, 16)[1:3], lambda x: x.reshape(-1), lambda x: x * 2):
        assert_same(back(jax.jit(function)(x)), jax.jit(function)(x))


def test_containers_of_a_notebook_cross_as_what_they_extend() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("import typing\nclass Root(typing.NamedTuple):\n    x: float\n    steps: int", names)
    value = [OrderedDict(a=1), Counter("aab"), defaultdict(list, {2: [0]}), names["Root"](0.5, 3)]
    sent = decode(encode(value))
    assert sent == [{"a": 1}, {"a": 2, "b": 1}, {2: [0]}, (0.5, 3)]
    assert [type(one) for one in sent] == [dict, dict, dict, tuple]


def test_dtype_classes_are_the_dtypes_that_they_stand_for() -> None:
    for name in ("float32", "bfloat16", "int8"):
        assert back(getattr(jnp, name)) == back(jnp.dtype(name)) == jnp.dtype(name)
    assert back(np.float32) == np.dtype("float32")


class Text(str):
    __slots__ = ()


def deleted() -> jax.Array:
    array = jnp.ones(3)
    array.delete()
    return array


def diverged() -> jax.Array:
    each = lambda x: jnp.where(jax.lax.axis_index("a") == 0, x.sum(), 7.0)
    return jax.shard_map(each, mesh=AUTO, in_specs=P("a"), out_specs=P(), check_vma=False)(jnp.ones(8))


def traced() -> list[Any]:
    kept: list[Any] = []
    jax.make_jaxpr(lambda x: kept.append(x) or x)(1.0)
    return kept


UNSENDABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "tracer": (traced, "tracer"),
    "function": (lambda: len, "builtin_function_or_method"),
    "lambda": (lambda: [lambda: 0], "function"),
    "compiled function": (lambda: jax.jit(jnp.sin), "PjitFunction"),
    "class": (lambda: int, "type"),
    "generator": (lambda: (i for i in ()), "generator"),
    "set": (lambda: {1}, "set"),
    "bytes": (lambda: b"raw", "bytes"),
    "str subclass": (lambda: Text("a"), "Text"),
    "NumPy str": (lambda: np.str_("a"), "array of dtype str32"),
    "dict with bool key": (lambda: {True: 0}, "dict with a bool key"),
    "dict with tuple key": (lambda: {(0,): 0}, "dict with a tuple key"),
    "named tuple of no class of the setup": (lambda: Stranger(1), "Stranger"),
    "object array": (lambda: np.array([None]), "array of dtype object"),
    "structured array": (lambda: np.zeros(1, [("a", "f4")]), "array of dtype void32"),
    "dates": (lambda: np.zeros(1, "M8[D]"), "array of dtype datetime64[D]"),
    "masked array": (lambda: np.ma.array([1.0]), "MaskedArray"),
    "deleted array": (deleted, "donated array"),
    "array that differs from device to device": (diverged, "replicated array with different copies"),
    "float0": (lambda: np.zeros(2, jax.dtypes.float0), "array of dtype void"),
    "module": (lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)), "Linear"),
    "variable": (lambda: nnx.Param(jnp.ones(2)), "Param"),
    "module's state": (lambda: nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0))), "State"),
    "optimizer": (lambda: optax.adam(1e-3), "GradientTransformationExtraArgs"),
    "optimizer's state": (lambda: optax.adam(1e-3).init(jnp.ones(2)), "ScaleByAdamState"),
    "mutable array": (lambda: jax.new_ref(jnp.ones(2)), "Ref"),
    "abstract mesh": (lambda: AUTO.abstract_mesh, "AbstractMesh"),
    "sharding on an abstract mesh": (
        lambda: NamedSharding(AUTO.abstract_mesh, P("a")),
        "sharding on an abstract mesh",
    ),
    "mesh with a nameless axis": (lambda: Mesh(np.array(jax.devices()), (0,)), "mesh with an axis name that is no str"),
    "empty mesh": (jax.sharding.get_mesh, "empty mesh"),
    "int of 300 bits": (lambda: 1 << 300, "int of more than 256 bits"),
    "too deep": (lambda: _nested(80), "value nested too deeply to send"),
    "endless": (lambda: _endless(), "value nested too deeply to send"),
    "too many": (lambda: [0] * 200_001, "value of more than 200,000 parts"),
    "too many arrays": (lambda: [np.zeros(())] * 10_001, "value of more than 10,000 arrays"),
}


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def _endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_is_not_data_is_refused_by_its_name(name: str) -> None:
    make, called = UNSENDABLE[name]
    with pytest.raises(Unsendable) as refused:
        encode({"result": make()}, CLASSES)
    assert str(refused.value) == called


def test_limits_hold_for_what_is_sent() -> None:
    with pytest.raises(Unsendable, match="arrays of more than 1,000 bytes"):
        encode(np.zeros(1_001, np.uint8), limits=PayloadLimits(buffers=1_000))
    with pytest.raises(Unsendable, match="too large to send"):
        encode("a" * 2_000, limits=PayloadLimits(head=1_000))


# From here on: bytes that nobody's encode wrote.


def payload(value: Any, *buffers: bytes, sizes: Any = None) -> bytes:
    head = json.dumps({"value": value, "sizes": [len(b) for b in buffers] if sizes is None else sizes}).encode()
    return struct.pack("<I", len(head)) + head + b"".join(buffers)


SAMPLE = {
    "plain": [None, True, 3, "s", 0.5, 1j, ..., (1, 2), {"k": 1, 2: "v"}, Point(1, Slot(0))],
    "arrays": (
        np.arange(6, dtype="float32").reshape(2, 3),
        np.float32(1),
        jnp.ones((2,), "bfloat16"),
        jax.random.key(0),
        jax.device_put(np.arange(8.0, dtype="float32"), NamedSharding(AUTO, P("a"))),
    ),
    "places": [AUTO, P(("a", "b"), None), np.dtype("int8"), jax.ShapeDtypeStruct((2,), "float32")],
    "sharding": NamedSharding(AUTO, P(None, P.UNCONSTRAINED)),
    "abstract key": jax.eval_shape(lambda: jax.random.key(0)),
}


def test_a_payload_cut_anywhere_is_malformed() -> None:
    whole = encode(SAMPLE, CLASSES)
    for length in range(len(whole)):
        with pytest.raises(Malformed):
            decode(whole[:length], CLASSES)
    with pytest.raises(Malformed):
        decode(whole + b"\0", CLASSES)


def test_a_payload_with_changed_bytes_is_malformed_or_other_data() -> None:
    """Never another exception, and never anything that is not data."""
    whole, dice = encode(SAMPLE, CLASSES), random.Random(20)
    malformed = 0
    for _ in range(2_500):
        changed = bytearray(whole)
        for _ in range(dice.choice((1, 1, 1, 2, 5))):
            changed[dice.randrange(len(changed))] = dice.choice((dice.randrange(256), *b'0129[]{}",-:'))
        try:
            encode(decode(bytes(changed), CLASSES), CLASSES)
        except Malformed:
            malformed += 1
    assert 1_000 < malformed < 2_500


F4 = np.float32(0).tobytes()
MESH = [["a"], [2], ["Auto"], ["cpu", [0, 1]]]
LIES: dict[str, bytes] = {
    "nothing": b"",
    "no head": struct.pack("<I", 10),
    "head of 4 GB": struct.pack("<I", 0xFFFFFFFF) + b"{}",
    "not JSON": struct.pack("<I", 3) + b"[[[",
    "not UTF-8": struct.pack("<I", 3) + b"\xff\xfe\xfd",
    "not a dict": struct.pack("<I", 2) + b"[]",
    "no sizes": struct.pack("<I", 11) + b'{"value":1}',
    "deep JSON": struct.pack("<I", 200_000) + b"[" * 200_000,
    "deep data": payload(json.loads("[" * 90 + "]" * 90)),
    "deep lists": payload(json.loads('["list",[' * 80 + "1" + "]]" * 80)),
    "deep keys": payload(json.loads('["key","fry",' * 300 + "1" + "]" * 300)),
    "sizes is a number": payload(1, sizes=3),
    "negative size": payload(1, b"12345678", sizes=[-8, 16]),
    "float size": payload(1, b"1234", sizes=[4.0]),
    "true as size": payload(1, b"1", sizes=[True]),
    "huge size": payload(1, sizes=[1 << 62]),
    "bytes left over": payload(1, b"1234", sizes=[]),
    "plain float": payload(0.5),
    "NaN in JSON": payload(float("nan")),
    "int of 1000 bits": payload(1 << 1000),
    "int of 5000 digits": struct.pack("<I", 5_025) + b'{"sizes":[],"value":' + b"1" * 5_004 + b"}",
    "empty list": payload([]),
    "number as tag": payload([1, 2]),
    "unknown tag": payload(["function", "os.system"]),
    "no items": payload(["list"]),
    "items are a number": payload(["list", 3]),
    "dict of triples": payload(["dict", [[1, 2, 3]]]),
    "dict with a list as key": payload(["dict", [[["list", []], 2]]]),
    "dict with a bool as key": payload(["dict", [[True, 2]]]),
    "unknown named tuple": payload(["named", "Stranger", [1]]),
    "named tuple by a list": payload(["named", [], [1]]),
    "named tuple of three": payload(["named", "Point", [1, 2, 3]]),
    "float of nothing": payload(["float", ""]),
    "float beyond": payload(["float", "0x1p99999"]),
    "negative slot": payload(["slot", -1]),
    "slot by name": payload(["slot", "a"]),
    "unknown dtype": payload(["dtype", "object"]),
    "dtype by a list": payload(["dtype", ["float32"]]),
    "object array": payload(["array", "numpy", "object", [1], False, None, 0], b"12345678"),
    "no such buffer": payload(["array", "numpy", "float32", [1], False, None, 1], F4),
    "true as buffer": payload(["list", [1, ["array", "numpy", "float32", [1], False, None, True]]], b"", F4),
    "too short": payload(["array", "numpy", "float32", [2], False, None, 0], F4),
    "too long": payload(["array", "numpy", "float32", [], False, None, 0], F4 * 2),
    "negative shape": payload(["array", "numpy", "float32", [-1, -1], False, None, 0], F4),
    "float in shape": payload(["array", "numpy", "float32", [1.0], False, None, 0], F4),
    "huge and empty": payload(["array", "numpy", "float32", [1 << 61, 0], False, None, 0], b""),
    "100 axes": payload(["array", "numpy", "float32", [1] * 100, False, None, 0], F4),
    "unknown kind of array": payload(["array", "torch", "float32", [1], False, None, 0], F4),
    "scalar of three": payload(["array", "scalar", "float32", [3], False, None, 0], F4 * 3),
    "bool of two": payload(["array", "numpy", "bool", [2], False, None, 0], b"\x02\x01"),
    "two arrays on one buffer": payload(["list", [["array", "numpy", "float32", [1], False, None, 0]] * 2], F4),
    "buffer of no array": payload(1, F4),
    "sharding does not divide": payload(
        ["array", "jax", "float32", [1], False, ["sharding", MESH, [["a"], [], []], None], 0], F4
    ),
    "sharding is a mesh": payload(["array", "jax", "float32", [1], False, ["mesh", *MESH], 0], F4),
    "unknown memory": payload(["sharding", MESH, [["a"], [], []], "disk"]),
    "unknown device": payload(["mesh", ["a"], [1], ["Auto"], ["cpu", [99]]]),
    "device 99": payload(["device", "cpu", [99]]),
    "two devices": payload(["device", "cpu", [0, 1]]),
    "device by name": payload(["device", "cpu", "0"]),
    "device elsewhere": payload(["device", "gpu", [0]]),
    "device of nothing": payload(["device", "abacus", [0]]),
    "one device twice": payload(["mesh", ["a"], [2], ["Auto"], ["cpu", [0, 0]]]),
    "mesh of nothing": payload(["mesh", [], [], [], ["cpu", []]]),
    "mesh of other size": payload(["mesh", ["a"], [3], ["Auto"], ["cpu", [0, 1]]]),
    "mesh of other rank": payload(["mesh", ["a", "b"], [2], ["Auto", "Auto"], ["cpu", [0, 1]]]),
    "unknown axis type": payload(["mesh", ["a"], [2], ["Magic"], ["cpu", [0, 1]]]),
    "spec of unknown axis": payload(["sharding", MESH, [["z"], [], []], None]),
    "number in spec": payload(["spec", [5], [], []]),
    "spec by a dict": payload(["spec", [{"a": 1}], [], []]),
    "key of no implementation": payload(["key", "mine", 0]),
    "key of too few words": payload(["key", "fry", ["array", "jax", "uint32", [1], False, None, 0]], F4),
    "key of floats": payload(["key", "fry", ["array", "jax", "float32", [2], False, None, 0]], F4 * 2),
    "abstract key of no implementation": payload(["abstract key", [], "mine", None]),
    "abstract of no dtype": payload(["abstract", [2], "float99", False, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_malformed(name: str) -> None:
    with pytest.raises(Malformed):
        decode(LIES[name], CLASSES)


def _array(shape: Any, index: int = 0) -> list[Any]:
    return ["array", "numpy", "uint8", shape, False, None, index]


EIGHT = [["a"], [8], ["Auto"], ["cpu", [*range(8)]]]
BOMBS: dict[str, Callable[[], bytes]] = {
    "many arrays on one buffer": lambda: payload(["list", [_array([1 << 20])] * 10_000], bytes(1 << 20)),
    "a shape of many axes": lambda: payload(_array([(1 << 62) - 1] * 100_000), b""),
    "an abstract shape of many axes": lambda: payload(["abstract", [(1 << 62) - 1] * 100_000, "uint8", False, None]),
    "a shape that is huge": lambda: payload(_array([1 << 40, 1 << 40]), b""),
    "many values": lambda: payload(["list", [1] * 300_000]),
    "many arrays": lambda: payload(["list", [_array([0], i) for i in range(20_000)]], *[b""] * 20_000),
    "many sizes": lambda: payload(1, sizes=[0] * 200_000),
    "one device again and again": lambda: payload(["mesh", ["a"], [99_999], ["Auto"], ["cpu", [0] * 99_999]]),
    "a mesh of many axes": lambda: payload(["mesh", ["a"] * 99_999, [1] * 99_999, ["Auto"] * 99_999, ["cpu", [0]]]),
    "a spec of many parts": lambda: payload(["sharding", MESH, [[None] * 100_000, [], []], None]),
    "a replica on each device": lambda: payload(
        ["array", "jax", "uint8", [80 << 20], False, ["sharding", EIGHT, [[], [], []], None], 0],
        bytes(80 << 20),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_payload_makes_no_large_work(name: str) -> None:
    bomb = BOMBS[name]()
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(Malformed):
            decode(bomb, CLASSES)
        used = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used < 5, "seconds"
    assert peak < 40 * len(bomb) + (1 << 20)


# Within every other limit, and slow to read: all of it is some ten to a hundred seconds of work.
SLOW: dict[str, Any] = {
    "abstract arrays on devices": ["abstract", [8], "float32", False, ["sharding", EIGHT, [["a"], [], []], None]],
    "meshes": ["mesh", *EIGHT],
    "abstract keys on devices": ["abstract key", [8], "fry", ["sharding", EIGHT, [["a"], [], []], None]],
    "floats": ["float", "0x1p-3"],
}


@pytest.mark.parametrize("name", SLOW)
def test_reading_ends_when_its_time_is_over(name: str) -> None:
    slow, seconds = payload(["list", [SLOW[name]] * 50_000]), 0.02
    with pytest.raises(Fault, match=r"^reading what it returned took more than 0.02 s of processor time$") as caught:
        decode(slow, limits=PayloadLimits(seconds=seconds))
    assert caught.value.kind == "timeout"


def test_an_abstract_key_is_read_as_fast_as_an_abstract_array() -> None:
    """Its dtype took a trace for each: 50,000 of them a minute."""

    def seconds(item: Any) -> float:
        began = time.thread_time()
        decode(payload(["list", [item] * 2_000]))
        return time.thread_time() - began

    seconds(["abstract key", [3], "fry", None])
    key, array = (
        min(seconds(item) for _ in range(5))
        for item in (["abstract key", [3], "fry", None], ["abstract", [3], "float32", False, None])
    )
    assert key < 10 * array  # it was 100 times


@pytest.mark.parametrize("field", ["kind", "text", "source"])
def test_a_reply_of_long_texts_is_malformed(field: str) -> None:
    reply = {"status": "raised", "kind": "ValueError", "text": "t" * MAX_TEXT, "source": "s" * MAX_LINE, "line": 1}
    assert read_reply(encode(reply)) == reply
    with pytest.raises(Malformed):
        read_reply(encode({**reply, field: reply[field] + "x" * MAX_LINE}))


def test_limits_hold_for_what_is_received() -> None:
    big = encode(np.zeros(1_001, np.uint8))
    with pytest.raises(Malformed):
        decode(big, limits=PayloadLimits(buffers=1_000))
    with pytest.raises(Malformed):
        decode(encode("a" * 2_000), limits=PayloadLimits(head=1_000))
    with pytest.raises(Malformed):
        decode(encode([[[1]]]), limits=PayloadLimits(depth=2))
    with pytest.raises(Malformed):
        decode(encode([1, 2, 3]), limits=PayloadLimits(values=3))
