"""What JAX exports is let through, and what somebody else made of it is not: nothing forged reaches the compiler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax._src.export import _export
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from grader.checks import devices
from grader.program import validate
from grader.program.codec import decode, encode
from grader.program.endpoints import ProgramEndpoint
from grader.program.export import Exported, export
from grader.program.validate import ProgramRefused

devices.start(8)
MESH = devices.mesh((4, 2), ("a", "b"))


def shape(*sizes: int, dtype: Any = "float32", spec: P | None = None) -> jax.ShapeDtypeStruct:
    sharding = None if spec is None else NamedSharding(MESH, spec)
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)


def sharded(body: Callable[..., Any]) -> Callable[..., Any]:
    return jax.shard_map(body, mesh=MESH, in_specs=P("a", "b"), out_specs=P("a", "b"), check_vma=False)


def double(source: Any, target: Any) -> None:
    target[...] = source[...] * 2


PALLAS = pl.pallas_call(
    double,
    grid=(2,),
    in_specs=[pl.BlockSpec((2, 4), lambda i: (i, 0))],
    out_specs=pl.BlockSpec((2, 4), lambda i: (i, 0)),
    out_shape=shape(4, 4),
    interpret=True,
)


def blockwise(source: Any, target: Any, total: Any) -> None:
    """An edge, scratch memory that persists from step to step, conditions, and a loop over slices."""

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    inside = pl.program_id(0) * 3 + lax.broadcasted_iota(jnp.int32, (3, 4), 0) < 4
    total[...] += jnp.where(inside, source[...], 0).sum(axis=0)
    target[...] = lax.fori_loop(0, 3, lambda i, rows: rows + source[pl.ds(i, 1)], source[...]) + total[...]


ACCUMULATED = pl.pallas_call(
    blockwise,
    grid=pl.cdiv(4, 3),
    in_specs=[pl.BlockSpec((3, 4), lambda i: (i, 0))],
    out_specs=pl.BlockSpec((3, 4), lambda i: (i, 0)),
    out_shape=shape(4, 4),
    scratch_shapes=[pltpu.VMEM((4,), jnp.float32)],
    input_output_aliases={0: 0},
    interpret=True,
)


@jax.custom_jvp
def square(x: Any) -> Any:
    return x * x


square.defjvp(lambda primals, tangents: (square(*primals), 2 * primals[0] * tangents[0]))


def step(weights: Any) -> Any:
    optimizer = optax.adam(1e-2)
    updates, _ = optimizer.update(jax.grad(lambda w: (w**2).sum())(weights), optimizer.init(weights))
    return optax.apply_updates(weights, updates)


A, BATCH, WIDE, COMPLEX = shape(4, 4), shape(2, 5, 3), shape(3, 5), shape(2, 4, 4, dtype="complex64")
SHARDED = shape(8, 8, spec=P("a", "b"))
HONEST: dict[str, tuple[Callable[..., Any], Any]] = {
    "lu": (lambda x: tuple(lax.linalg.lu(x)), BATCH),
    "qr": (lambda x: tuple(jnp.linalg.qr(x)), BATCH),
    "whole qr": (lambda x: tuple(jnp.linalg.qr(x, mode="complete")), BATCH),
    "wide qr": (lambda x: tuple(jnp.linalg.qr(x)), WIDE),
    "cholesky": (jnp.linalg.cholesky, COMPLEX),
    "eigh": (lambda x: tuple(jnp.linalg.eigh(x)), COMPLEX),
    "eig": (lambda x: tuple(jnp.linalg.eig(x)), A),
    "complex eig": (lambda x: tuple(jnp.linalg.eig(x)), COMPLEX),
    "svd": (lambda x: tuple(jnp.linalg.svd(x)), WIDE),
    "thin svd": (lambda x: tuple(jnp.linalg.svd(x, full_matrices=False)), BATCH),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), BATCH),
    "schur": (jax.scipy.linalg.schur, A),
    "square root": (jax.scipy.linalg.sqrtm, A),
    "tridiagonal": (lambda x: tuple(lax.linalg.tridiagonal(x)), COMPLEX),
    "hessenberg": (lambda x: tuple(lax.linalg.hessenberg(x)), A),
    "tridiagonal solve": (lambda x: lax.linalg.tridiagonal_solve(x[:, 0], x[:, 1], x[:, 2], x), A),
    "solve": (lambda x: jnp.linalg.solve(x, x), A),
    "triangular": (lambda x: lax.linalg.triangular_solve(x[..., :3, :3], x), BATCH),
    "other side": (lambda x: lax.linalg.triangular_solve(x, x[..., :2], left_side=True), A),
    "fft": (jnp.fft.fft2, A),
    "top k": (lambda x: (lax.top_k(x, 2), lax.approx_max_k(x, 2)), A),
    "sort and special": (lambda x: jnp.sort(jax.scipy.special.erf(x)) + lax.lgamma(x), A),
    "loops": (lambda x: lax.fori_loop(0, 3, lambda i, c: lax.cond(c[0, 0] > i, jnp.sin, jnp.cos, c), x), A),
    "random": (lambda x: x + jax.random.gamma(jax.random.key(0), 2.0, (4, 4)), A),
    "other generator": (lambda x: x + jax.random.normal(jax.random.key(0, impl="rbg"), (4, 4)), A),
    "key": (lambda key: (key, jax.random.split(key)), jax.eval_shape(lambda: jax.random.key(0))),
    "small types": (lambda x: (x.astype("float8_e4m3fn"), x.astype("int4"), x.astype(bool)), A),
    "64 bits": (lambda x: (x * 2, jnp.linalg.inv(x)), shape(4, 4, dtype="float64")),
    "custom derivative": (jax.grad(lambda x: square(x).sum()), A),
    "remat": (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())), A),
    "composite": (lax.composite(lambda x: jnp.sin(x), "my.sine"), A),
    "attention": (lambda x: jax.nn.dot_product_attention(x, x, x), shape(1, 8, 2, 4)),
    "convolution": (lambda x: nnx.Conv(3, 2, (3, 3), rngs=nnx.Rngs(0))(x), shape(1, 8, 8, 3)),
    "training step": (step, A),
    "pallas": (PALLAS, A),
    "pallas with an accumulator": (ACCUMULATED, A),
    "pallas under vmap": (jax.vmap(ACCUMULATED), shape(2, 4, 4)),
    "psum": (sharded(lambda x: lax.psum(x, "a")), SHARDED),
    "ring": (sharded(lambda x: lax.ppermute(x, "a", [(i, (i + 1) % 4) for i in range(4)])), SHARDED),
    "gather and scatter": (sharded(lambda x: lax.psum_scatter(lax.all_gather(x, "a"), "a")), SHARDED),
    "all to all": (sharded(lambda x: lax.all_to_all(x, "b", 0, 1, tiled=True)), SHARDED),
    "constraint": (lambda x: lax.with_sharding_constraint(x @ x, NamedSharding(MESH, P("b"))), SHARDED),
    "another export": (lambda x: jax.export.export(jax.jit(lambda x: x.sum(0)))(SHARDED).call(x), SHARDED),
    "qr of shards": (lambda x: jnp.linalg.qr(x)[0], SHARDED),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_jax_exports_is_let_through(name: str) -> None:
    function, argument = HONEST[name]
    with jax.enable_x64(name == "64 bits"):
        made = export(function, (argument,))
        assert validate.read(made.blob, made.parameters).nr_devices in (1, 8)


# A module instead of the exported one, and fields beside it.


def forged(made: Exported, module: str | None = None, **fields: Any) -> bytes:
    """The bytes of `made` with another code and other fields: what code that attacks can write as well."""
    exported = jax.export.deserialize(bytearray(made.blob))
    if module is not None:
        with validate._context():
            fields["mlir_module_serialized"] = _export._module_to_bytecode(ir.Module.parse(module))
    return bytes(dataclasses.replace(exported, **fields).serialize())


def main(body: str, result: str = "%r : tensor<4x4xf32>", more: str = "") -> str:
    return f"""module {{
      func.func public @main(%x: tensor<4x4xf32>) -> {result.partition(":")[2]} {{ {body}
        return {result} }}
      {more} }}"""


def refusal(blob: bytes, made: Exported) -> str:
    with pytest.raises(ProgramRefused) as found:
        validate.read(blob, made.parameters)
    return str(found.value)


SAME = export(lambda x: x * 2, (A,))
AVAL = jax.export.deserialize(bytearray(SAME.blob)).in_avals[0]


def test_a_forgery_that_changes_nothing_passes() -> None:
    """Else the tests below would show nothing."""
    validate.read(forged(SAME, main("%r = stablehlo.add %x, %x : tensor<4x4xf32>")), SAME.parameters)


@pytest.mark.parametrize("word", ["private", "nested", "all-reduce(f32[8])"])
def test_the_visibility_of_a_mesh_holds_no_other_text(word: str) -> None:
    """XLA may copy what an attribute holds into the text in which checks look for collectives."""
    mesh = f'"sdy.mesh"() {{sym_name = "m", mesh = #sdy.mesh<["a"=1]>, sym_visibility = "{word}"}} : () -> ()'
    text = main("%r = stablehlo.add %x, %x : tensor<4x4xf32>", more=mesh)
    if word in ("private", "nested"):
        validate.read(forged(SAME, text), SAME.parameters)
    else:
        with pytest.raises(Exception, match="visibility"):
            forged(SAME, text)


ASKED, DECLARED = "differ from those that were requested", "differ from those that its bytes declare"
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "other argument": ({"in_avals": (AVAL.update(shape=(5, 4)),)}, ASKED),
    "other type of argument": ({"in_avals": (AVAL.update(dtype=np.dtype("int32")),)}, ASKED),
    "more arguments": (
        {"in_avals": (AVAL, AVAL), "_in_named_shardings": (None, None), "in_tree": jax.tree.structure(((0, 0), {}))},
        ASKED,
    ),
    "other result": ({"out_avals": (AVAL.update(shape=(4, 400)),)}, DECLARED),
    "other type of result": ({"out_avals": (AVAL.update(dtype=np.dtype("int32")),)}, DECLARED),
    "argument left out": ({"module_kept_var_idx": ()}, DECLARED),
    "argument that is not there": ({"module_kept_var_idx": (7,)}, DECLARED),
    "other platform": ({"platforms": ("cuda",)}, ASKED),
    "two platforms": ({"platforms": ("cpu", "cuda")}, ASKED),
    "no device": ({"nr_devices": 0}, ASKED),
    "too many devices": ({"nr_devices": 4096}, "it needs 4096 devices; there are 8"),
    "no checks": ({"disabled_safety_checks": (jax.export.DisabledSafetyCheck.platform(),)}, ASKED),
    "shapes to be refined": ({"uses_global_constants": True}, ASKED),
    "tree of arguments": ({"in_tree": jax.tree.structure((({"a": 0},), {}))}, ASKED),
    "tree of results": ({"out_tree": jax.tree.structure({"a": 0})}, ASKED),
    "no code": ({"mlir_module_serialized": b"ML\xefR" + bytes(40)}, "no valid StableHLO"),
    "text": ({"mlir_module_serialized": b"module {}"}, DECLARED),
}


@pytest.mark.parametrize("name", FIELDS)
def test_what_stands_beside_the_code_must_fit(name: str) -> None:
    fields, said = FIELDS[name]
    assert said in refusal(forged(SAME, **fields), SAME)


def test_bytes_that_are_no_program_are_refused_in_words() -> None:
    for blob in (b"", b"\0" * 64, SAME.blob[: len(SAME.blob) // 2], b"\xff" * 100):
        assert refusal(blob, SAME) == "its bytes are not an exported program"
    asked = {"blob": np.frombuffer(b"nothing", np.uint8), "parameters": SAME.parameters, "donated": (), "mesh": None}
    reply = decode(ProgramEndpoint().load(encode(asked)))
    assert reply == {"status": "refused", "text": "its bytes are not an exported program"}


def calls(target: str, operands: list[str], results: list[str], options: str = "", more: str = "") -> str:
    """A module that calls `target`; each result is taken up, else it would be left out."""
    ins = ", ".join(f"tensor<{one}>" for one in operands)
    outs = ", ".join(f"tensor<{one}>" for one in results)
    given = "\n".join(f"%a{i} = stablehlo.iota dim = 0 : tensor<{one}>" for i, one in enumerate(operands))
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    call = f"%c:{len(results)} = stablehlo.custom_call @{target}({names}) {{has_side_effect = true, "
    call += f"mhlo.backend_config = {{{options}}}{more}}} : ({ins}) -> ({outs})"
    return main(f"{given} {call}\n %r = stablehlo.add %x, %x : tensor<4x4xf32>")


F, PIVOTS = "4x4xf32", "4xi32"
LU = ([F], [F, PIVOTS, "i32"])
SVD, SIDE = ([F], [F, "4xf32", F, F, "i32"]), "diag = 78 : ui8, trans_x = 78 : ui8, uplo = 85 : ui8"
SPLIT = ', mhlo.frontend_attributes = {num_batch_dims = "%s"}'
LYING: dict[str, tuple[Any, ...]] = {
    "small result": ("lapack_sgetrf_ffi", [F], ["1x1xf32", PIVOTS, "i32"]),
    "few pivots": ("lapack_sgetrf_ffi", [F], [F, "1xi32", "i32"]),
    "pivots of another type": ("lapack_sgetrf_ffi", [F], [F, "4xi8", "i32"]),
    "no result for its state": ("lapack_sgetrf_ffi", [F], [F, PIVOTS]),
    "another batch": ("lapack_sgetrf_ffi", ["9x4x4xf32"], ["9x4x4xf32", "9x4xi32", "i32"]),
    "another letter": ("lapack_dgetrf_ffi", *LU),
    "no matrix": ("lapack_sgetrf_ffi", ["4xf32"], ["4xf32", PIVOTS, "i32"]),
    "nothing": ("lapack_sgetrf_ffi", [], [F, PIVOTS, "i32"]),
    "split in the middle": ("lapack_sgetrf_ffi", *LU, "", SPLIT % 1),
    "split oddly": ("lapack_sgetrf_ffi", *LU, "", SPLIT % "x"),
    "thin where whole is asked": ("lapack_sgesdd_ffi", ["4x2xf32"], ["4x2xf32", "2xf32", "4x2xf32", "2x2xf32", "i32"],
                                  "mode = 65 : ui8"),
    "mode that is none": ("lapack_sgesdd_ffi", *SVD, "mode = 7 : ui8"),
    "mode that is a text": ("lapack_sgesdd_ffi", *SVD, 'mode = "S"'),
    "no mode": ("lapack_sgesdd_ffi", *SVD),
    "sorted": ("lapack_sgees_ffi", [F], [F, F, "4xf32", "4xf32", "i32", "i32"], "mode = 86 : ui8, sort = 83 : ui8"),
    "wrong side": ("lapack_strsm_ffi", ["2x2xf32", "4x2xf32"], ["4x2xf32"], f"{SIDE}, side = 76 : ui8"),
    "sharding": ("Sharding", [F], ["1x1xf32"]),
    "fewer random bits": ("cu_threefry2x32_ffi", ["4xui32"] * 4, ["4xui32", "2xui32"]),
    "random bits of a float": ("cu_threefry2x32_ffi", ["4xf32"] * 4, ["4xf32"] * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", LYING)
def test_a_native_routine_is_told_no_lies(name: str) -> None:
    said = refusal(forged(SAME, calls(*LYING[name])), SAME)
    assert said == f"it calls `{LYING[name][0]}` with inconsistent shapes or options"


def test_the_same_calls_without_the_lie_pass() -> None:
    for call in (
        ("lapack_sgetrf_ffi", *LU, "", SPLIT % 0),
        ("lapack_sgesdd_ffi", *SVD, "mode = 65 : ui8"),
        ("lapack_strsm_ffi", ["2x2xf32", "4x2xf32"], ["4x2xf32"], f"{SIDE}, side = 82 : ui8"),
        ("Sharding", [F], [F]),
        ("cu_threefry2x32_ffi", ["4xui32"] * 4, ["4xui32"] * 2),
        ("cusolver_getrf_ffi", *LU, "", SPLIT % 0),
    ):
        validate.read(forged(SAME, calls(*call)), SAME.parameters)


@pytest.mark.parametrize(
    "target",
    [
        "system",
        "xla_ffi_python_cpu_callback",
        "lapack_sgetrf",
        "tpu_custom_call",
        "mosaic_gpu_v2",
        "__gpu$xla.gpu.triton",
        "x" * 999,
    ],
)
def test_an_unknown_routine_is_not_called(target: str) -> None:
    said = refusal(forged(SAME, calls(f'"{target}"', *LU)), SAME)
    assert said == f"it calls `{target[:80]}`, which is not among the operations that a checked program may use"


def chain(length: int, last: str) -> str:
    """Functions that each call the next one twice; the last one calls `last`, or nothing."""
    kind = "(%a: tensor<4x4xf32>) -> tensor<4x4xf32>"
    call = "func.call @f{} ({}) : (tensor<4x4xf32>) -> tensor<4x4xf32>"
    pairs = [(i, f"%b = {call.format(i + 1, '%a')}\n %c = {call.format(i + 1, '%b')}") for i in range(length)]
    pairs.append((length, last))
    return "".join(f"func.func private @f{i}{kind} {{ {body}\n return %c : tensor<4x4xf32> }}\n" for i, body in pairs)


START = "%r = func.call @f0(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>"
ADD = "%c = stablehlo.add %a, %a : tensor<4x4xf32>"
TOKEN = "%t = stablehlo.create_token : !stablehlo.token\n"


def nested(depth: int) -> str:
    inner = "stablehlo.return %x : tensor<4x4xf32>"
    for i in range(depth):
        other = "}, { stablehlo.return %x : tensor<4x4xf32> }) : (tensor<i1>) -> tensor<4x4xf32>"
        inner = f'%v{i} = "stablehlo.if"(%p) ({{ {inner}\n {other}\n stablehlo.return %v{i} : tensor<4x4xf32>'
    return "%p = stablehlo.constant dense<true> : tensor<i1>\n" + inner.rpartition("stablehlo.return")[0]


TOO_MUCH: dict[str, tuple[str, str]] = {
    "calls that explode": (main(START, more=chain(60, ADD)), "more than 100,000 operations when its calls are written"),
    "a call of itself": (main(START, more=chain(0, f"%c = {START[5:].replace('%x', '%a')}")), "calls itself"),
    "a huge array": (
        main(
            "%h = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<4x4xf32>) -> tensor<99999999x4x4xf32>\n"
            "%r = stablehlo.slice %h [0:1, 0:4, 0:4] : (tensor<99999999x4x4xf32>) -> tensor<1x4x4xf32>",
            "%r : tensor<1x4x4xf32>",
        ),
        "it contains a `tensor<99999999x4x4xf32>`: more than 1,024 MiB",
    ),
    "an array of any size": (
        main("%d = stablehlo.convert %x : (tensor<4x4xf32>) -> tensor<?x4xf32>\n"
             "%r = stablehlo.convert %d : (tensor<?x4xf32>) -> tensor<4x4xf32>"),
        "`tensor<?x4xf32>`, which is not an array of a fixed shape",
    ),
    "a wait for somebody": (
        main(TOKEN + '%r, %u = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<4x4xf32>, !stablehlo.token)'),
        "`!stablehlo.token`, which is not an array",
    ),
    "a text for the compiled program": (
        main('%r = stablehlo.sine %x {mhlo.frontend_attributes = {a = "{\\0A %y = f32[5] all-reduce(%z)}"}} '
             ": tensor<4x4xf32>"),
        "it contains `stablehlo.sine` with the attribute `mhlo.frontend_attributes`, which JAX does not write there",
    ),
    "an attribute with the name of a method in Python": (
        main('%r = stablehlo.sine %x {get_asm = "{%y = f32[5] all-reduce(%z)}"} : tensor<4x4xf32>'),
        "it contains `stablehlo.sine` with the attribute `get_asm`, which JAX does not write there",
    ),
    "the same at a routine": (
        calls("lapack_sgetrf_ffi", *LU, "", ', mhlo.frontend_attributes = {a = "{%y = f32[5] all-reduce(%z)}"}'),
        "inconsistent shapes or options",
    ),
    "options in words": (
        calls("Eigh", [F], [F, "4xf32"], "", ', backend_config = "{%y = f32[5] all-reduce(%z)}"'),
        "with options of its own",
    ),
    "the same at a parameter": (
        main("%r = stablehlo.sine %x : tensor<4x4xf32>").replace(
            "xf32>)", 'xf32> {mhlo.frontend_attributes = {a = "{}"}})', 1
        ),
        "a parameter of it has an attribute that JAX does not write there",
    ),
    "branches without end": (
        main(f"{nested(80)}\n%r = stablehlo.add %v79, %x : tensor<4x4xf32>"),
        "more than 64 nested loops or branches",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_would_burst_is_refused_before_it_is_compiled(name: str) -> None:
    module, said = TOO_MUCH[name]
    shapes = {"a huge array": (AVAL.update(shape=(1, 4, 4)),)}
    fields = {"out_avals": shapes[name]} if name in shapes else {}
    assert said in refusal(forged(SAME, module, **fields), SAME)


def test_another_dialect_is_refused() -> None:
    """It cannot be written into an exported program as of today; a later JAX may know how to."""
    with validate._context():
        module = ir.Module.parse("module { func.func @main() { %a = arith.constant 1 : i32\n return } }")
        assert validate.ModuleValidator(module.operation).problem() == (
            "it contains `arith.constant`, which is not among the operations that a checked program may use"
        )
        module = ir.Module.parse("module { module @inner { func.func @main() { return } } }")
        assert validate.ModuleValidator(module.operation).problem() == "its functions and modules are nested"
