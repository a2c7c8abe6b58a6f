"""Interactive figures: their data against what JAX, the compiled programs and formulas state, and their static form."""

from __future__ import annotations

import ast
import itertools
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT
from jax._src.source_info_util import user_frame
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grader.checks import devices
from grader.learning import figures
from grader.learning.figures import figure as figure_module
from grader.learning.figures.backward_memory import residual_counts
from grader.learning.figures.collective_steps import ring
from grader.learning.figures.figure import Figure
from grader.learning.figures.pipeline_timeline import SCHEDULES, timeline
from grader.learning.inspection import list_collectives

devices.start(8)
EIGHT = list(devices.mesh((8,), ("d",)).devices.flat)
AUTO = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=EIGHT)
LINE = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=EIGHT)
OPERATIONS = {
    "sum(0)": lambda x: x.sum(0),
    "x @ x": lambda x: x @ x,
    "roll": lambda x: jnp.roll(x, 1, axis=0),
    "transpose": jnp.transpose,
}
SHARDINGS = [NamedSharding(AUTO, P("a", "b")), NamedSharding(AUTO, P("a")), NamedSharding(LINE, P("d"))]


def wave(x, n=3):
    print("x is", x)
    if x.ndim == 2:
        x = x.sum(axis=0)
    for _ in range(n):
        x = jnp.sin(x)
    jax.debug.print("the sum is {}", x.sum())
    return jnp.where(x > 0, x, 0.0) * 2


def weigh(x, weights):
    return x * weights


def layer(params, x):
    hidden = jnp.tanh(x @ params["up"])
    return x + jnp.sin(hidden @ params["down"])


def loss(params, x, layer=layer):
    for one in params:
        x = layer(one, x)
    return jnp.mean(x**2)


PARAMS = [{"up": jnp.ones((8, 32)) / 9, "down": jnp.ones((32, 8)) / 30}] * 3
X = jnp.ones((16, 8))


def one_of_each() -> dict[str, Figure]:
    return {
        "trace_stepper": figures.trace_stepper(wave, jnp.ones((2, 3))),
        "axis_mover": figures.axis_mover(weigh, jnp.ones((3, 4)), jnp.ones(4), in_axes=(0, None)),
        "pipeline": figures.pipeline(4, 6),
        "collectives": figures.collectives(OPERATIONS, SHARDINGS),
        "backward_memory": figures.backward_memory(loss, PARAMS, X),
    }


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    return one_of_each()


# ---- what all figures share


def test_every_figure_has_a_page_a_picture_and_words(drawn: dict[str, Figure]) -> None:
    assert set(drawn) == set(figures.__all__)
    for name, one in drawn.items():
        bundle = one._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
        assert len(bundle["text/plain"].split()) >= 15, name
        assert json.loads(json.dumps(one.data)) == json.loads(json.dumps(one.data, allow_nan=False))
        picture = ElementTree.fromstring(bundle["image/svg+xml"])
        assert float(picture.get("width", 0)) > 200, name
        page = bundle["text/html"]
        assert len(page) < 100_000, name
        assert page.count("</script>") == 1
        assert {found for found in page.split('"') if found.startswith("http")} <= {"http://www.w3.org/2000/svg"}


def test_a_text_of_the_learner_cannot_end_the_script() -> None:
    one = Figure("trace_stepper.js", {"title": "</script><b>"}, "words", "<svg/>")
    assert one.html().count("</script>") == 1
    assert "\\u003c/script>" in one.html()


def test_scripts_are_short_and_name_no_other_host() -> None:
    for path in figure_module.HERE.glob("*.js"):
        text = path.read_text()
        assert len(text.splitlines()) <= 250, path
        assert "import " not in text, path
        assert "http" not in text, path


def test_a_widget_has_the_same_script_and_data(drawn: dict[str, Figure]) -> None:
    pytest.importorskip("anywidget")
    one = drawn["pipeline"]
    widget = one.widget()
    assert widget.data == one.data
    assert figure_module.script("pipeline_timeline.js") in widget._esm
    widget.close()


# ---- the trace stepper


def test_each_equation_belongs_to_the_line_that_jax_notes(drawn: dict[str, Figure]) -> None:
    data = drawn["trace_stepper"].data
    equations = jax.make_jaxpr(wave)(jnp.ones((2, 3))).eqns
    assert len(data["equations"]) == len(equations)
    line_of = {index: step["line"] for step in data["steps"] for index in step["new"]}
    first = wave.__code__.co_firstlineno
    frames = [user_frame(one.source_info.traceback) for one in equations]
    assert [line_of[i] for i in range(len(equations))] == [frame.start_line - first for frame in frames]
    for text, equation in zip(data["equations"], equations, strict=True):
        assert str(equation.primitive) in text


def test_iterations_of_a_loop_add_one_equation_each(drawn: dict[str, Figure]) -> None:
    steps = drawn["trace_stepper"].data["steps"]
    source = drawn["trace_stepper"].data["source"]
    sines = [step for step in steps if step["line"] is not None and "jnp.sin" in source[step["line"]]]
    assert [len(step["new"]) for step in sines] == [1, 1, 1]


def test_prints_and_types_are_those_of_the_step(drawn: dict[str, Figure]) -> None:
    steps = drawn["trace_stepper"].data["steps"]
    assert steps[0]["printed"] == ""
    assert [step["printed"] for step in steps[1:]] == ["x is JitTracer(float32[2,3])\n"] * (len(steps) - 1)
    assert steps[0]["variables"] == [["x", "float32[2,3]", "traced"], ["n", "3", "Python value"]]
    assert ["x", "float32[3]", "traced"] in steps[-1]["variables"]


def test_a_jitted_function_is_traced_again_and_keywords_are_static() -> None:
    plain, jitted = (
        figures.trace_stepper(f, jnp.ones(3), n=1).data for f in (wave, jax.jit(wave, static_argnames="n"))
    )
    assert plain == jitted
    assert len(plain["equations"]) < len(figures.trace_stepper(wave, jnp.ones(3)).data["equations"])


def test_a_program_on_one_line_and_one_without_equations() -> None:
    def ones():
        return jnp.ones(3)

    def same(x):
        return x

    assert figures.trace_stepper(ones).data["equations"] == ["a:f32[3] = broadcast_in_dim 1.0:f32[]"]
    assert figures.trace_stepper(same, X).data["equations"] == []


def test_errors_of_the_trace_stepper() -> None:
    with pytest.raises(TypeError, match="the function itself"):
        figures.trace_stepper(wave(X), X)
    with pytest.raises(ValueError, match="source"):
        figures.trace_stepper(eval("lambda x: x"), X)
    with pytest.raises(ValueError, match="more than 200 lines"):
        figures.trace_stepper(wave, X, n=300)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        figures.trace_stepper(lambda x: x if x > 0 else -x, 1.0)


# ---- the axis mover


@pytest.mark.parametrize(("shape", "other"), [((3, 4), (4,)), ((3, 4), (3, 4)), ((4, 4), (4,)), ((3,), (3, 2))])
def test_elements_go_where_vmap_takes_them(shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    function = weigh if shape[-1] == other[-1] else lambda x, w: (x * w.sum()).sum()
    args = np.arange(math.prod(shape)).reshape(shape), 100 + np.arange(math.prod(other)).reshape(other)
    data = figures.axis_mover(function, *args, in_axes=0 if shape[0] == other[0] else (0, None)).data
    drawn = 0
    for axes in itertools.product(*([*range(array.ndim), None] for array in args)):
        case = data["cases"][",".join(map(str, axes))]
        try:
            wanted = jax.eval_shape(jax.vmap(function, in_axes=axes), *args).shape
        except Exception as problem:
            refused = type(problem).__name__
        else:
            refused = ""
        if refused:
            assert refused in case["note"]
            continue
        if len(wanted) > 2:
            assert str(wanted) in case["note"]
            continue
        drawn += 1
        assert case["count"] == wanted[0]
        for array, axis, owners in zip(args, axes, case["owners"], strict=True):
            for example in range(case["count"]):
                received = array if axis is None else np.take(array, example, axis)
                mine = [value for value, owner in zip(array.ravel(), owners, strict=True) if owner in (None, example)]
                assert mine == received.ravel().tolist()
        for out, one in enumerate(case["outs"]):
            result = np.asarray(jax.vmap(function, in_axes=axes, out_axes=out)(*args))
            assert tuple(one["shape"]) == result.shape
            alone = [
                np.asarray(function(*(a if x is None else np.take(a, i, x) for a, x in zip(args, axes, strict=True))))
                for i in range(case["count"])
            ]
            for example, value in enumerate(alone):
                assert result.ravel()[np.array(one["owners"]) == example].tolist() == value.ravel().tolist()
    assert drawn >= 2


def test_errors_of_the_axis_mover() -> None:
    with pytest.raises(TypeError, match="the function itself"):
        figures.axis_mover(3, X)
    with pytest.raises(ValueError, match=r"shape \(2, 2, 2\)"):
        figures.axis_mover(jnp.sum, jnp.ones((2, 2, 2)))
    with pytest.raises(ValueError, match="a dict"):
        figures.axis_mover(weigh, {"w": X}, X)
    with pytest.raises(ValueError, match="in_axes has 3 entries for 2"):
        figures.axis_mover(weigh, jnp.ones(3), jnp.ones(3), in_axes=(0, 0, 0))
    with pytest.raises(ValueError, match=r"in_axes\[0\] is 1. It can be a number from -1 to 0 or None"):
        figures.axis_mover(weigh, jnp.ones(3), jnp.ones(3), in_axes=(1, 0))
    with pytest.raises(ValueError, match="out_axes is 2"):
        figures.axis_mover(weigh, jnp.ones((3, 2)), jnp.ones(2), in_axes=(0, None), out_axes=2)


# ---- the pipeline


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 3, 4, 16])
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_the_bubble_is_that_of_the_formula(name: str, stages: int, count: int) -> None:
    table = timeline(name, SCHEDULES[name], stages, count)
    assert table["fraction"] == pytest.approx((stages - 1) / (count + stages - 1))
    assert table["end"] == 3 * (count + stages - 1)
    wanted = {"GPipe": [count] * stages, "1F1B": [min(stages - stage, count) for stage in range(stages)]}
    assert table["stored"] == wanted[name]
    for stage, passes in enumerate(table["passes"]):
        busy = sorted((start, start + (1 if kind == "F" else 2)) for kind, _, start in passes)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(busy)), f"stage {stage} does two at once"
        assert sum(end - start for start, end in busy) == table["end"] - table["idle"][stage]


def test_schedules_are_those_of_lesson_21() -> None:
    source = (ROOT / "notebooks" / "21_pipelines_and_experts.py").read_text()
    names = {"gpipe_order": "GPipe", "one_f_one_b_order": "1F1B", "end_times": ""}
    wanted = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name in names]
    lesson: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), "lesson", "exec"), lesson)
    for name, own in names.items():
        for stages, count in ((4, 8), (3, 2)) if own else ():
            orders = [lesson[name](stage, stages, count) for stage in range(stages)]
            assert orders == [SCHEDULES[own](stage, stages, count) for stage in range(stages)]
            starts = {
                (stage, kind, m): end - (1 if kind == "F" else 2)
                for (stage, kind, m), end in lesson["end_times"](orders).items()
            }
            passes = timeline(own, SCHEDULES[own], stages, count)["passes"]
            assert starts == {(stage, kind, m): start for stage, row in enumerate(passes) for kind, m, start in row}


def test_errors_of_the_pipeline() -> None:
    with pytest.raises(ValueError, match="stages is 0"):
        figures.pipeline(0)
    with pytest.raises(ValueError, match=r"micro_batches is 2\.5"):
        figures.pipeline(2, 2.5)
    with pytest.raises(ValueError, match="Choose from GPipe, 1F1B"):
        figures.pipeline(schedule="gpipe")
    with pytest.raises(ValueError, match="each pass once"):
        figures.pipeline(2, 2, "mine", {"mine": lambda stage, stages, count: [("F", 0)]})
    backward_first = lambda stage, stages, count: [(kind, m) for kind in "BF" for m in range(count)]
    with pytest.raises(ValueError, match="never finishes"):
        figures.pipeline(2, 2, "mine", {"mine": backward_first})


# ---- collectives


def test_collectives_are_those_of_the_compiled_program(drawn: dict[str, Figure]) -> None:
    data = drawn["collectives"].data
    kinds = set()
    for name, operation in OPERATIONS.items():
        for i, sharding in enumerate(SHARDINGS):
            found = list_collectives(operation, jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding))
            seen = data["programs"][f"{name}|{i}"]["collectives"]
            assert [(one["kind"], one["bytes"]) for one in seen] == [(one.kind, one.bytes) for one in found]
            for one, truth in zip(seen, found, strict=True):
                n = truth.group_size
                per_byte = {"all-reduce": lambda n: 2 * (n - 1) / n, "all-gather": lambda n: (n - 1) / n}
                assert one["sent"] == pytest.approx(per_byte.get(one["kind"], lambda n: 1)(n) * truth.bytes)
                assert sorted(itertools.chain(*one["groups"])) == sorted(list(range(8)) * (1 if n else 2))
                kinds.add(one["kind"])
    assert kinds >= {"all-reduce", "all-gather", "collective-permute"}


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_ring_ends_with_the_result_of_the_collective(n: int) -> None:
    everyone = "+".join(map(str, range(n)))
    last = {kind: ring(kind, n)[-1] for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")}
    assert last["all-gather"] == last["all-to-all"] == [[str(b) for b in range(n)]] * n
    assert last["reduce-scatter"] == [[everyone if b == d else "" for b in range(n)] for d in range(n)]
    assert last["all-reduce"] == [[everyone] * n] * n
    for kind, factor in {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "all-to-all": 1}.items():
        states = ring(kind, n)
        assert len(states) == factor * (n - 1) + 1
        for before, after in itertools.pairwise(states):
            for one, other in zip(before, after, strict=True):
                arrived = [b for b in range(n) if other[b] not in ("", one[b])]
                assert len(arrived) == 1, f"{kind}: a device receives one block in each step"


def test_shards_are_those_of_the_array(drawn: dict[str, Figure]) -> None:
    first, second, line = drawn["collectives"].data["inputs"]
    assert first["blocks"] == [[i] for i in range(8)]
    assert (first["columns"], tuple(first["shard"])) == (2, (2, 4))
    assert second["blocks"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (line["columns"], tuple(line["shard"])) == (1, (1, 8))


def test_collectives_of_shard_map() -> None:
    explicit = jax.make_mesh((8,), ("d",), devices=EIGHT)
    with jax.set_mesh(explicit):
        scatter = lambda v: jax.lax.psum_scatter(v, "d", tiled=True)
        mapped = jax.shard_map(scatter, in_specs=P("d"), out_specs=P("d"))
        data = figures.collectives(mapped, NamedSharding(explicit, P("d")), (512,)).data
    [[one]] = [program["collectives"] for program in data["programs"].values()]
    assert (one["kind"], one["elements"], one["sent"]) == ("reduce-scatter", 8, 7 * 32)
    assert len(one["states"]) == 8


def test_errors_of_collectives() -> None:
    with pytest.raises(TypeError, match="NamedSharding"):
        figures.collectives(jnp.sum, [P("d")])
    with pytest.raises(TypeError, match="Pass a function"):
        figures.collectives({"x": 3}, SHARDINGS)
    with pytest.raises(ValueError, match="at most two axes"):
        figures.collectives(jnp.sum, SHARDINGS, (8, 8, 8))
    with pytest.raises(ValueError, match="axis 0 is partitioned 8 times"):
        figures.collectives(jnp.sum, NamedSharding(LINE, P("d")), (6, 8))
    broken = figures.collectives({"bad": lambda x: x @ x[:3]}, NamedSharding(LINE, P("d"))).data
    assert "cannot be compiled" in broken["programs"]["bad|0"]["note"]


# ---- the memory of a backward pass


def stored_bytes(function: Any) -> int:
    """The residuals of `jax.vjp` with respect to the first argument, without the arguments themselves."""
    _, backward = jax.vjp(lambda params: function(params, X), PARAMS)
    return sum(
        leaf.nbytes
        for leaf in jax.tree.leaves(backward)
        if not any(leaf is one for one in jax.tree.leaves([PARAMS, X]))
    )


def test_residuals_are_those_of_vjp() -> None:
    by_layer = lambda params, x: loss(params, x, jax.checkpoint(layer))
    dots = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)
    by_dots = lambda params, x: loss(params, x, dots)
    programs = figures.backward_memory({"all": loss, "dots": by_dots, "layer": by_layer}, PARAMS, X).data["programs"]
    hidden, narrow = 16 * 32 * 4, 16 * 8 * 4
    # each layer: tanh and its derivative, the cosine, and its input, of which the first is an argument; the mean: 2 x
    assert programs["all"]["stored"] == 3 * (2 * hidden + narrow) + 2 * narrow + narrow
    assert programs["dots"]["stored"] == 3 * (hidden + narrow) + 2 * narrow + narrow
    assert programs["layer"]["stored"] == 2 * narrow + narrow
    assert residual_counts(programs["all"])["tanh float32[16,32]"] == 3
    assert programs["layer"]["peak"] < programs["dots"]["peak"] < programs["all"]["peak"]
    assert stored_bytes(loss) == programs["all"]["stored"]
    assert stored_bytes(by_layer) == programs["layer"]["stored"]


def test_recomputed_equations_are_in_the_backward_pass() -> None:
    by_layer = lambda params, x: loss(params, x, jax.checkpoint(layer))
    programs = figures.backward_memory({"all": loss, "layer": by_layer}, PARAMS, X).data["programs"]
    tanh = {
        name: [at >= one["forward"] for at, equation in enumerate(one["equations"]) if equation == "tanh"]
        for name, one in programs.items()
    }
    assert tanh == {"all": [False] * 3, "layer": [False] * 3 + [True] * 3}


def test_live_bytes_of_a_small_gradient() -> None:
    one = figures.backward_memory(lambda x: jnp.sum(jnp.sin(x)), jnp.ones(4)).data["programs"]["<lambda>"]
    # the sum is not needed: cos is stored, the seed is broadcast, and their product is the gradient
    assert one["equations"] == ["cos", "broadcast_in_dim", "mul"]
    assert one["live"] == [16, 32, 48]
    assert one["stored"] == 16


def test_errors_of_the_memory_figure() -> None:
    with pytest.raises(TypeError, match="needs a scalar"):
        figures.backward_memory(jnp.sin, X)
    with pytest.raises(TypeError, match="Pass a function"):
        figures.backward_memory({"loss": 3}, X)
    with pytest.raises(ValueError, match="at most 600"):
        figures.backward_memory(lambda x: sum(jnp.sin(i * x) for i in range(200)), 1.0)


def test_the_files_are_in_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '"grader.learning.figures" = ["*.css", "*.js"]' in text
    assert {path.suffix for path in Path(figure_module.HERE).iterdir() if path.is_file()} == {".css", ".js", ".py"}
