"""What lessons print about programs: errors, times, primitives, collectives and bytes on a device."""

from __future__ import annotations

import gc
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grader.checks import devices
from grader.learning.inspection import (
    bytes_on_device,
    flops,
    list_collectives,
    primitives,
    print_collectives,
    print_error,
    print_log,
    print_residuals,
    show_trace,
    time_ms,
    trace_viewer_path,
    traceback_frames,
)

devices.start(8)
EIGHT = devices.mesh((8,), ("d",)).devices.flat
AUTO = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=list(EIGHT))


def failing(message: str) -> Any:
    def call() -> None:
        raise ValueError(message)

    return call


def test_an_error_is_one_paragraph_of_class_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(failing("one\n\n  two\tthree"))
    assert capsys.readouterr().out == "ValueError: one two three\n"


def test_colours_of_a_message_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(failing("\x1b[38;2;79;201;177mLinear\x1b[0m has no kernel"))
    assert capsys.readouterr().out == "ValueError: Linear has no kernel\n"


def test_a_long_error_is_shortened_at_a_word_and_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(failing("float32[3,4] " * 100), length=250)
    printed = capsys.readouterr().out
    assert printed.endswith("float32[3,4] ...\n")
    lines = printed.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 110
    assert 230 < len(" ".join(lines)) <= 250


def test_a_sharding_is_shortened_to_its_spec(capsys: pytest.CaptureFixture[str]) -> None:
    spec = P(("a", "b"), None)
    print_error(failing(f"got {NamedSharding(AUTO, spec)} and {NamedSharding(AUTO, P())} for it"))
    assert capsys.readouterr().out == f"ValueError: got {spec} and {P()} for it\n"


def test_a_sharding_of_a_type_is_shortened_too(capsys: pytest.CaptureFixture[str]) -> None:
    """That of an abstract mesh states no kind of memory."""
    sharding = NamedSharding(AUTO.abstract_mesh, P("a", None))
    print_error(failing(f"got {sharding} and {sharding}"))
    assert capsys.readouterr().out == f"ValueError: got {P('a', None)} and {P('a', None)}\n"


def test_jax_errors_about_shardings_state_the_spec(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(lambda: jax.device_put(jnp.zeros((6, 8)), NamedSharding(AUTO, P("a"))))
    printed = capsys.readouterr().out
    assert "P('a',)" in printed
    assert "mesh=" not in printed


def test_a_call_that_does_not_fail_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(lambda: 1)
    assert capsys.readouterr().out == "No error.\n"


def test_coroutines_that_an_error_leaves_do_not_warn(capsys: pytest.CaptureFixture[str]) -> None:
    """As asyncio leaves them, in a cycle, when one of several reads fails. Otherwise a later cell would warn."""

    async def read() -> None: ...

    def restore() -> None:
        left: list[object] = [read()]
        left.append(left)
        raise ValueError("no such checkpoint")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print_error(restore)
        gc.collect()
    assert caught == []
    assert "no such checkpoint" in capsys.readouterr().out


def test_a_time_is_a_median_without_the_first_call() -> None:
    calls = []

    def call() -> jax.Array:
        time.sleep(0.2 if len(calls) in (0, 2) else 0.01)  # the first call compiles, a later one is disturbed
        calls.append(1)
        return jnp.zeros(())

    assert 10 <= time_ms(call, repeats=5) < 100
    assert len(calls) == 6


def test_several_calls_are_measured_in_turn() -> None:
    order = []
    times = time_ms(lambda: order.append("a"), lambda: order.append("b"), repeats=3)
    assert order == ["a", "b"] * 4
    assert [type(one) for one in times] == [float, float]


def test_primitives_are_listed_in_order() -> None:
    assert primitives(lambda x, y: jnp.sin(x) * y, 1.0, 2.0) == ["sin", "mul"]
    assert primitives(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * x, x), 2.0) == ["scan"]


def test_flops_are_those_of_the_compiled_program() -> None:
    a, b = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16, 4), "float32")
    assert flops(jnp.matmul, a, b) == 2 * 8 * 16 * 4
    power = jax.jit(lambda x, n: x**n, static_argnums=1)
    assert flops(power, jnp.ones(10), 2) == 10
    assert flops(lambda x: x[::-1], jnp.ones(10)) == 0


def test_collectives_are_printed_with_size_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    def summed(x: jax.Array) -> jax.Array:
        total = jax.lax.psum(x, "a")
        return jax.lax.fori_loop(0, 3, lambda _, c: jax.lax.all_gather(c * x, "b").sum(axis=0), total)

    mapped = jax.shard_map(summed, mesh=AUTO, in_specs=P("a", "b"), out_specs=P("a", "b"), check_vma=False)
    print_collectives(jax.jit(mapped).lower(jax.ShapeDtypeStruct((8000, 16), "float32")).compile())
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == [
        "all-gather              32,000 elements  inside a loop",
        "all-reduce              16,000 elements",
    ]


def test_a_program_without_collectives_prints_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_collectives(jax.jit(jnp.sin).lower(1.0).compile())
    assert capsys.readouterr().out == "No collectives.\n"


def test_listed_collectives_have_groups_and_counts() -> None:
    def summed(x: jax.Array) -> jax.Array:
        step = lambda _, c: jax.lax.ppermute(c, "a", [(0, 1), (1, 0)]) + x
        return jax.lax.psum(jax.lax.fori_loop(0, 3, step, x), "b")

    mapped = jax.shard_map(summed, mesh=AUTO, in_specs=P("a", "b"), out_specs=P("a"))
    found = list_collectives(mapped, jax.ShapeDtypeStruct((8, 4), "float32"))
    told = {(one.kind, one.elements, one.group_size, one.times) for one in found}
    assert told == {("collective-permute", 4, None, 3), ("all-reduce", 4, 2, 1)}
    assert list_collectives(jnp.sin, 1.0) == ()


def test_residuals_have_no_paths(capsys: pytest.CaptureFixture[str]) -> None:
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sin(x @ w)

    print_residuals(layer, jnp.ones((3, 4)), jnp.ones((2, 3)))
    line = layer.__code__.co_firstlineno + 1
    *arguments, cosine = capsys.readouterr().out.splitlines()
    assert sorted(arguments) == ["f32[2,3] from the argument x", "f32[3,4] from the argument w"]
    assert cosine == f"f32[2,4] output of cos in test_residuals_have_no_paths.<locals>.layer, line {line}"


def test_bytes_are_those_of_one_device() -> None:
    part = jax.device_put(jnp.zeros((8, 6)), NamedSharding(AUTO, P("a", "b")))
    whole = jax.device_put(jnp.zeros(5, "int8"), NamedSharding(AUTO, P()))
    alone = jax.device_put(jnp.zeros(100), EIGHT[3])
    tree = {"part": part, "rest": [whole, alone, np.zeros(7), 3.0, None]}
    assert bytes_on_device(tree) == bytes_on_device(tree, EIGHT[0]) == 8 * 6 * 4 // 8 + 5
    assert bytes_on_device(tree, EIGHT[3]) == 24 + 5 + 400
    assert bytes_on_device(alone) == 400
    assert bytes_on_device([]) == 0


def test_bytes_of_keys_and_of_modules_count() -> None:
    assert bytes_on_device(jax.random.key(0)) == 8
    assert bytes_on_device(nnx.Linear(3, 4, rngs=nnx.Rngs(0))) == 4 * (3 * 4 + 4)


def test_the_frames_of_a_traceback_have_no_file_names() -> None:
    assert traceback_frames(failing("no")) == ["call: raise ValueError(message)"]
    assert traceback_frames(lambda: None) == []


def test_a_log_has_no_folders_and_no_identities(capsys: pytest.CaptureFixture[str]) -> None:
    def call() -> int:
        return int(jax.jit(lambda x: x + 1)(1))

    with jax.explain_cache_misses(True):
        assert (print_log(call), print_log(call)) == (2, 2)
    printed = capsys.readouterr().out
    assert "TRACING CACHE MISS at test_learning_inspection.py:" in printed
    assert "<lambda> id=... defined at test_learning_inspection.py:" in printed
    assert "but seen another function defined on the same line" in printed
    assert "/" not in printed


def test_a_cell_is_called_cell_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("jax._src.test")
    print_log(
        lambda: logger.warning("MISS at /tmp/ipykernel_12/34.py:3:4 (<module>)\nsee https://docs.jax.dev/en/a.html")
    )
    assert capsys.readouterr().out == "MISS at cell:3:4 (<module>)\nsee https://docs.jax.dev/en/a.html\n"


def test_a_log_is_silent_elsewhere_and_ends_with_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("jax")
    before = logger.handlers[:]
    with pytest.raises(ZeroDivisionError):
        print_log(lambda: 1 / 0)
    assert logger.handlers == before
    assert print_log(lambda: 3) == 3
    assert capsys.readouterr() == ("Nothing was logged.\n", "")


def test_the_viewer_is_asked_for_the_only_run_of_a_recording(tmp_path: Path) -> None:
    run = tmp_path / "first" / "plugins/profile/2026_01_31_12_30_59"
    run.mkdir(parents=True)
    (run / "a host.xplane.pb").touch()
    wanted = "?run=first%2F2026_01_31_12_30_59&tag=trace_viewer%40&host=a+host#profile"
    assert trace_viewer_path(tmp_path, "first") == wanted


def test_a_tensorboard_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printer = tmp_path / "python"
    printer.write_text("#!/bin/sh\necho No module named tensorboard >&2\nexit 1\n")
    printer.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(printer))
    with pytest.raises(RuntimeError, match="No module named tensorboard"):
        show_trace(tmp_path, "first")
