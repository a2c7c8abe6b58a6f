"""What is read off compiled programs on eight devices, and off lines of HLO as other backends print them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grader.checks import devices, program
from grader.program.hlo import Collective, collectives, collectives_and_groups, largest, loops, operations

devices.start(8)
ROW = devices.mesh((8,), ("d",))
GRID = devices.mesh((4, 2), ("a", "b"))
RING = [(i, (i + 1) % 8) for i in range(8)]


def shape(sizes: tuple[int, ...], mesh: Mesh, spec: P, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))


def compiled(function: Callable[..., Any], *args: Any) -> tuple[Collective, ...]:
    text = jax.jit(function).lower(*args).compile().as_text()
    assert text
    return collectives(text, 8)


def on_each(function: Callable[..., Any], spec: P, out: P, mesh: Mesh = ROW) -> Callable[..., Any]:
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)


def test_a_data_parallel_gradient_reduces_every_parameter_once() -> None:
    """However XLA merges them, the elements are those of all gradients together."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        return ((x @ w["kernel"] + w["bias"]) ** 2).mean()

    w = {"kernel": shape((4, 3), ROW, P()), "bias": shape((3,), ROW, P())}
    found = compiled(jax.grad(loss), w, shape((16, 4), ROW, P("d")))
    assert {item.kind for item in found} == {"all-reduce"}
    assert sum(item.elements for item in found) == 4 * 3 + 3
    assert sum(item.bytes for item in found) == 4 * 15
    assert {(item.group_size, item.in_loop) for item in found} == {(8, False)}


# Each device holds 2 x 8 of the 16 x 8 elements.
ONE: dict[str, tuple[Callable[[jax.Array], jax.Array], P, P, Collective]] = {
    "psum": (lambda x: lax.psum(x, "d"), P("d"), P(), Collective("all-reduce", 16, 64, 8, False)),
    "pmax": (lambda x: lax.pmax(x, "d"), P("d"), P(), Collective("all-reduce", 16, 64, 8, False)),
    "all_gather": (
        lambda x: lax.all_gather(x, "d", tiled=True), P("d"), P(), Collective("all-gather", 128, 512, 8, False),
    ),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, "d", tiled=True), P(), P("d"), Collective("reduce-scatter", 16, 64, 8, False),
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "d", 1, 0, tiled=True), P("d"), P("d"), Collective("all-to-all", 16, 64, 8, False),
    ),
    "ppermute": (
        lambda x: lax.ppermute(x, "d", RING), P("d"), P("d"), Collective("collective-permute", 16, 64, None, False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_each_collective_is_found_once_with_its_size(name: str) -> None:
    function, spec, out, want = ONE[name]
    assert compiled(on_each(function, spec, out), shape((16, 8), ROW, spec)) == (want,)


@pytest.mark.parametrize(("axes", "size"), [("a", 4), ("b", 2), (("a", "b"), 8)])
def test_groups_on_a_grid(axes: Any, size: int) -> None:
    function = on_each(lambda x: lax.psum(x, axes), P("a", "b"), P(), GRID)
    [found] = compiled(function, shape((16, 8), GRID, P("a", "b")))
    assert (found.group_size, found.elements) == (size, 16)


@pytest.mark.parametrize(("axis", "size"), [("a", 4), ("b", 2), (("a", "b"), 8)])
def test_groups_that_the_compiler_chose(axis: Any, size: int) -> None:
    """Without shard_map it names axes of a mesh of its own: `mesh['axis_0'=1,'axis_1'=4,'axis_2'=2] {'axis_1'}`."""
    cut = shape((16, 16), GRID, P(None, axis)), shape((16, 16), GRID, P(axis, None))
    [found] = compiled(jnp.matmul, *cut)
    assert (found.kind, found.group_size, found.elements) == ("all-reduce", size, 256)


def test_bytes_follow_the_dtype() -> None:
    function = on_each(lambda x: lax.all_gather(x, "d", tiled=True), P("d"), P())
    for dtype, width in (("int8", 1), ("int32", 4), ("complex64", 8), ("bool", 1)):
        [found] = compiled(function, shape((16,), ROW, P("d"), dtype))
        assert (found.elements, found.bytes) == (16, 16 * width), dtype


def scanned(x: jax.Array) -> jax.Array:
    total = lax.psum(x, "d")
    return lax.scan(lambda c, _: (c + lax.psum(x * c, "d"), None), total, None, length=5)[0]


def in_a_branch(x: jax.Array) -> jax.Array:
    choose = x.sum() > 0
    return lax.fori_loop(0, 3, lambda i, c: lax.cond(choose, lambda c: lax.psum(c * x, "d"), lambda c: c * 2, c), x)


def in_the_condition(x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda c: lax.psum(c.sum(), "d") < 100, lambda c: c * 2 + 1, x)


@pytest.mark.parametrize(
    ("function", "want"),
    [(scanned, [False, True]), (in_a_branch, [True]), (in_the_condition, [True])],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_collective_inside_a_loop_is_told_from_one_outside(function: Any, want: list[bool]) -> None:
    found = compiled(on_each(function, P("d"), P("d")), shape((16, 8), ROW, P("d")))
    assert sorted(item.in_loop for item in found) == want


def nested(x: jax.Array) -> jax.Array:
    inner = lambda c: lax.fori_loop(0, 4, lambda i, c: lax.ppermute(c, "d", RING) + x, c)
    return lax.scan(lambda c, _: (inner(c), lax.psum(c.sum(), "d")), x, None, length=3)[0]


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (scanned, [("all-reduce", 1), ("all-reduce", 5)]),
        (nested, [("collective-permute", 12)]),
        (in_a_branch, [("all-reduce", 3)]),
        (in_the_condition, [("all-reduce", None)]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_how_often_a_loop_runs_a_collective(function: Any, want: list[tuple[str, int | None]]) -> None:
    found = compiled(on_each(function, P("d"), P("d")), shape((16, 8), ROW, P("d")))
    assert sorted((item.kind, item.times) for item in found) == want


@pytest.mark.parametrize(("function", "want"), [(scanned, 2 + 2 * 5), (nested, 12 * 2), (in_the_condition, math.inf)])
def test_the_elements_of_a_loop_are_counted_in_each_iteration(function: Any, want: float) -> None:
    made = program(on_each(function, P("d"), P("d")), shape((16,), ROW, P("d")))
    assert made.elements() == want


def test_one_device_has_no_collectives() -> None:
    assert compiled(lambda x: (x @ x.T).sum(), jax.ShapeDtypeStruct((4, 4), "float32")) == ()


def hlo(*lines: str) -> str:
    return "HloModule m\n\nENTRY %main (p: f32[4]) -> f32[4] {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


LINES: dict[str, tuple[str, Collective]] = {
    "groups as lists": (
        "%r = f32[4,2]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add",
        Collective("all-reduce", 8, 32, 2, False),
    ),
    "groups as a grid": (
        "%r = f32[4]{0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add",
        Collective("all-reduce", 4, 16, 4, False),
    ),
    "groups as a transposed grid": (
        "%r = f32[4]{0} all-reduce(%p), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add",
        Collective("all-reduce", 4, 16, 4, False),
    ),
    "groups as axes of a mesh": (
        "%r = f32[4]{0} all-reduce(%p), replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}, to_apply=%add",
        Collective("all-reduce", 4, 16, 8, False),
    ),
    "groups as an axis of a transposed mesh": (
        "%r = f32[4]{0} all-gather(%p), "
        "replica_groups=mesh['axis_0'=1,'axis_1'=2,'axis_2'=4], device_ids=([4,2]T(1,0)) {'axis_1'}, dimensions={0}",
        Collective("all-gather", 4, 16, 2, False),
    ),
    "one group of all": (
        "%r = f32[4]{0} all-reduce(%p), replica_groups={}, to_apply=%add",
        Collective("all-reduce", 4, 16, 8, False),
    ),
    "merged": (
        "ROOT %r = (f32[4]{0}, bf16[2,3]{1,0}, /*index=2*/f32[]) all-reduce(%p, %q, %s), replica_groups={}",
        Collective("all-reduce", 11, 32, 8, False),
    ),
    "layouts of an accelerator": (
        "%r = f32[8,128]{1,0:T(8,128)S(1)} all-gather(f32[1,128]{1,0} %p), replica_groups=[1,8]<=[8], dimensions={0}",
        Collective("all-gather", 1024, 4096, 8, False),
    ),
    "all-reduce start": (
        "%r = f32[4]{0} all-reduce-start(%p), replica_groups={}, to_apply=%add",
        Collective("all-reduce", 4, 16, 8, False),
    ),
    "all-reduce start of two": (
        "%r = (f32[4]{0}, f32[2]{0}) all-reduce-start(%p, %q), replica_groups={}, to_apply=%add",
        Collective("all-reduce", 6, 24, 8, False),
    ),
    "all-gather start": (
        "%r = (f32[4]{0}, f32[32]{0}) all-gather-start(%p), replica_groups={}, dimensions={0}",
        Collective("all-gather", 32, 128, 8, False),
    ),
    "all-gather start of two": (
        "%r = ((f32[4]{0}, f32[1]{0}), (f32[32]{0}, f32[8]{0})) all-gather-start(%p, %q), replica_groups={}",
        Collective("all-gather", 40, 160, 8, False),
    ),
    "permute start": (
        "%r = (f32[4]{0}, f32[4]{0}) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}",
        Collective("collective-permute", 4, 16, None, False),
    ),
    "permute start with its context": (
        "%r = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}",
        Collective("collective-permute", 4, 16, None, False),
    ),
    "permute start of a count": (
        "%r = (u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}",
        Collective("collective-permute", 1, 4, None, False),
    ),
    "small floats": (
        "%r = f8e4m3fn[16]{0} all-to-all(%p), replica_groups={}", Collective("all-to-all", 16, 16, 8, False),
    ),
    "half a byte": ("%r = s4[16]{0} all-gather(%p), replica_groups={}", Collective("all-gather", 16, 8, 8, False)),
    "with a token": (
        "%r = (f32[4]{0}, token[]) all-reduce(%p, %t), replica_groups={}", Collective("all-reduce", 4, 16, 8, False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_hlo(name: str) -> None:
    line, want = LINES[name]
    assert collectives(hlo(line), 8) == (want,)


NO_COLLECTIVE = [
    "%all-reduce.1 = f32[4]{0} add(%p, %p)",
    "%r = f32[4]{0} all-reduce-done(%all-reduce-start)",
    '%r = f32[4]{0} add(%p, %all-gather), metadata={op_name="jit(f)/all-gather(x)"}',
    "%r = f32[4]{0} get-tuple-element(%all-to-all.3), index=0",
]


@pytest.mark.parametrize("line", NO_COLLECTIVE)
def test_what_only_speaks_of_a_collective_is_none(line: str) -> None:
    assert collectives(hlo(line), 8) == ()


def test_an_asynchronous_computation_in_a_loop_counts_once_and_as_looped() -> None:
    text = """\
%wrapped (p: f32[16]) -> f32[2] {
  ROOT %rs = f32[2]{0} reduce-scatter(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}, to_apply=%add
}

%body (c: f32[16]) -> f32[16] {
  %start = ((f32[16]{0}), f32[2]{0}, u32[]) async-start(%c), calls=%wrapped
  %done = f32[2]{0} async-done(%start)
}

%yes (c: f32[4]) -> f32[4] {
  %g = f32[4]{0} all-gather(%c), replica_groups={}, dimensions={0}
}

%no (c: f32[4]) -> f32[4] {
  %g = f32[8]{0} all-gather(%c), replica_groups={}, dimensions={0}
}

%other (c: f32[4]) -> f32[4] {
  %k = f32[4]{0} conditional(%p, %c, %c), true_computation=%yes, false_computation=%no
}

ENTRY %main (p: f32[16]) -> f32[16] {
  %w = f32[16]{0} while(%p), condition=%until, body=%body
  ROOT %v = f32[4]{0} while(%q), condition=%until, body=%other, backend_config={"known_trip_count":{"n":"3"}}
}
"""
    assert collectives(text, 8) == (
        Collective("reduce-scatter", 2, 8, 2, True, None),
        Collective("all-gather", 4, 16, 8, True, 3),
        Collective("all-gather", 8, 32, 8, True, 3),
    )


def stablehlo(function: Callable[..., Any], *shapes: Any) -> str:
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(s, "float32") for s in shapes)).as_text()


def test_loops_are_those_written() -> None:
    def two(x: jax.Array) -> jax.Array:
        x = lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0]
        return lax.while_loop(lambda c: c.sum() < 9, lambda c: lax.fori_loop(0, 2, lambda i, c: c + i, c), x)

    assert loops(stablehlo(two, (4,))) == 3
    assert loops(stablehlo(lambda while_loop: while_loop * 2, (4,))) == 0


def test_operations_are_counted_one_by_one() -> None:
    # sine, dot_general, broadcast_in_dim, add; a constant is none
    assert operations(stablehlo(lambda x, y: jnp.sin(x) @ y + 1, (3, 3), (3, 3))) == 4
    # reduce (whose "applies add" is no operation of its own)
    assert operations(stablehlo(lambda x: x.sum(), (3,))) == 1
    # while; a slice, a reshape and a compare in its condition; an add in its body
    assert operations(stablehlo(lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: c + c, x), (3,))) == 5


def test_what_is_called_n_times_counts_n_times() -> None:
    """Else an inner `jit` would hide a loop that is repeated, or operations that are written out."""

    def search(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: c.sum() < 9, lambda c: c + c, x)

    inner = jax.jit(search)
    nested = jax.jit(lambda x: inner(inner(x)))
    for function, times in ((search, 1), (inner, 1), (lambda x: inner(x) + inner(x), 2), (nested, 2)):
        assert loops(stablehlo(function, (4,))) == times
    assert loops(stablehlo(lambda x: nested(nested(x)), (4,))) == 4
    sine = jax.jit(jnp.sin)
    assert operations(stablehlo(lambda x: sine(sine(x)), (3,))) == 2

    def deeper(x: jax.Array, depth: int) -> jax.Array:
        for _ in range(depth):
            inside = sine if depth == 1 else jax.jit(lambda x: deeper(x, depth - 1))
            x = inside(inside(x))
        return x

    assert operations(stablehlo(lambda x: deeper(x, 3), (3,))) == 2**3 * 3 * 2


def test_names_of_functions_hide_no_call() -> None:
    text = stablehlo(lambda x: jax.jit(lambda y: lax.fori_loop(0, 3, lambda i, y: y * i, y))(x) * 2, (4,))
    (name,) = set(re.findall(r"call @(\w+)", text))
    for other in ('"a b"', '"a\\22(b"', '"call @main("', "a.b$c-d"):
        assert loops(text.replace(f"@{name}(", f"@{other}(")) == 1


def test_numbers_that_happen_to_be_equal_change_no_count() -> None:
    """An exported program has equal constants once: for 5 numbers, their number is also the factor."""
    mean = jax.jit(lambda x: x.sum() / x.shape[0] * 5.0)
    exported = [jax.export.export(mean)(jax.ShapeDtypeStruct((n,), "float32")).mlir_module() for n in (4, 5)]
    assert exported[0].count("stablehlo.constant") == 1 + exported[1].count("stablehlo.constant")
    assert operations(exported[0]) == operations(exported[1])


def test_attributes_are_no_operations() -> None:
    """Shardings and dimension numbers are named like operations, and would make a sharded program look larger."""
    place = NamedSharding(ROW, P("d"))
    plain = jax.jit(lambda x: x * x).lower(jax.ShapeDtypeStruct((16, 4), "float32")).as_text()
    sharded = jax.jit(lambda x: x * x).lower(shape((16, 4), ROW, P("d"))).as_text()
    pinned = jax.jit(lambda x: lax.with_sharding_constraint(x * x, place)).lower(shape((16, 4), ROW, P("d"))).as_text()
    assert (operations(plain), operations(sharded), operations(pinned)) == (1, 1, 2)
    scatter = stablehlo(lambda x: x.at[1].set(0.0), (3, 3))
    assert "#stablehlo.scatter" in scatter
    assert operations(scatter) == operations(scatter.replace("#stablehlo.scatter", "#other"))


def test_an_unrolled_loop_grows_and_a_scan_does_not() -> None:
    def unrolled(x: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for row in x:
            total = jnp.sin(total + row.sum())
        return total

    def rolled(x: jax.Array) -> jax.Array:
        return lax.scan(lambda total, row: (jnp.sin(total + row.sum()), None), 0.0, x)[0]

    sizes = [operations(stablehlo(unrolled, (n, 3))) for n in (2, 4, 8)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert len({operations(stablehlo(rolled, (n, 3))) for n in (2, 4, 8)}) == 1


def test_the_largest_value_is_that_of_an_intermediate() -> None:
    assert largest(stablehlo(lambda x, y: jnp.abs(x[:, None] - y[None]).sum(-1), (5, 7), (6, 7))) == 5 * 6 * 7
    assert largest(stablehlo(lambda x: x @ x, (5, 5))) == 25
    assert largest(stablehlo(lambda x: x * 2, ())) == 1
    assert largest("nothing") == 0


def test_no_name_passes_for_an_instruction() -> None:
    """A learner names scopes and functions as they like."""

    def named(x: Any) -> Any:
        with jax.named_scope('q all-reduce(f32[9]{0} %x), replica_groups={} "\n  %y = f32[99]{0} all-gather(%z)\n'):
            return jnp.sin(x) @ x

    named.__name__ = "stablehlo.while"
    lowered = jax.jit(lambda x: jax.jit(named)(x)).lower(shape((4, 4), ROW, P()))
    assert "@stablehlo.while" in lowered.as_text()
    assert loops(lowered.as_text()) == 0
    text = lowered.compile().as_text()
    assert text
    assert "all-reduce" in text
    assert collectives(text, 8) == ()


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("all-reduce(%x), replica_groups={{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("all-reduce(%x), replica_groups={}", ((0, 1, 2, 3),)),
        ("all-reduce(%x), replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("all-reduce(%x), replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("all-reduce(%x), replica_groups=mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("all-reduce(%x), replica_groups=mesh['a'=2,'b'=3], device_ids=([3,2]T(1,0)) {'b'}", ((0, 2, 4), (1, 3, 5))),
        ("collective-permute(%x), source_target_pairs={{0,1},{1,0}}", ((0, 1), (1, 0))),
    ],
)
def test_groups_are_read_in_each_form(written: str, groups: tuple[tuple[int, ...], ...]) -> None:
    text = f"HloModule m\n\nENTRY %main () -> f32[2] {{\n  ROOT %c = f32[2]{{0}} {written}, channel_id=1\n}}\n"
    [(_, found)] = collectives_and_groups(text, 4)
    assert found == groups
