"""Compiles the course's programs for accelerators that are not there, and judges answers by what was compiled.

    python tests/hlo/make.py tpu        # needs libtpu: pip install libtpu==0.0.52
    python tests/hlo/make.py cuda       # needs jax-cuda12-plugin and jax-cuda12-pjrt 0.10.2, no driver

The programs of `tp-sharded-heads` for H100s need XLA_FLAGS=--xla_gpu_enable_triton_gemm=false: without a GPU, the
compiler finds no tile sizes for one of their small products.

in an environment with the course's own versions of jax. Values come from simulated CPU devices, facts (collectives,
bytes, loops) from the program compiled for eight TPU v5e cores or eight H100s. It prints each answer with the checks
that it does not pass; `<` marks a right answer that fails and a wrong one that passes. What is about collectives in the
texts of the references, and of some larger programs, goes to tests/hlo/<platform>/, what lesson 15 is about, memory
and dtypes, to memory.json there, and the overlap that lesson 19 reports to overlap.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax._src import xla_bridge
from jax._src.export import _export
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grader.checks import inputs, verbs
from grader.checks.compare import stumbled
from grader.checks.outcomes import Ended
from grader.course import Course
from grader.program import endpoints, payload
from grader.program.environment import simulate
from grader.program.load import Loaded

PLATFORM = sys.argv[1]
ON_DEVICES = [
    "16_sharding",
    "17_explicit_sharding",
    "18_data_parallel",
    "19_shard_map",
    "20_tensor_parallel",
    "21_pipelines_and_experts",
]
LESSONS = sys.argv[2:] or ["12_state", *ON_DEVICES]
# What XLA asks of a GPU that it compiles for, as NVIDIA states it for the H100 SXM.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H100 80GB HBM3"
"""
KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


def devices() -> list[Any]:
    """Eight devices of the platform, of which nothing is there but their description."""
    if PLATFORM == "cuda":
        xla_bridge.discover_pjrt_plugins()
        told = {"topology": "1x8x1", "target_config": H100}
        return list(topologies.get_topology_desc("h100", "cuda", **told).devices)
    return sorted(topologies.get_topology_desc("v5e:2x4", "tpu").devices, key=lambda one: one.id)


simulate(8)
FAR, NEAR = devices(), jax.devices()
_read_devices, _platform = payload._read_devices, jax.export.default_export_platform
far = False


def read_devices(platform: Any, ids: Any) -> list[Any]:
    """A mesh of CPU devices in a question is one of the platform's while that is compiled for."""
    return [FAR[i] for i in ids] if far or platform != "cpu" else _read_devices(platform, ids)


@contextlib.contextmanager
def elsewhere() -> Any:
    """What is exported and loaded here is for the platform."""
    global far
    far, jax.devices = True, lambda *words: FAR
    try:
        yield
    finally:
        far, jax.devices = False, lambda *words: NEAR


payload._read_devices = read_devices
_export.default_export_platform = jax.export.default_export_platform = lambda: PLATFORM if far else _platform()


class Both(verbs.InProcessBackend):
    """A kernel's own way to ask, with facts of programs from the platform."""

    def __init__(self) -> None:
        super().__init__()
        self.twins: dict[bytes, bytes] = {}
        self.texts: list[str] = []

    def export(self, function: Any, payload: bytes) -> bytes:
        here = super().export(function, payload)
        with elsewhere():
            there = super().export(function, payload)
            twin = endpoints.decode(there, self.classes)
        mine = endpoints.decode(here, self.classes)
        if mine["status"] == twin["status"] == "ok":
            self.twins[mine["value"]["blob"].tobytes()] = twin["value"]["blob"].tobytes()
        return here

    def load(self, payload: bytes) -> bytes:
        reply = endpoints.decode(super().load(payload))
        twin = self.twins.get(endpoints.decode(payload)["blob"].tobytes())
        if reply["status"] == "ok" and twin is not None:
            with elsewhere():
                asked = endpoints.decode(payload)
                with jax.set_mesh(asked["mesh"]) if asked["mesh"] is not None else contextlib.nullcontext():
                    made = Loaded(twin, self.placed(asked["parameters"]), asked["donated"])
            reply["facts"] = dataclasses.asdict(made.facts)
            self.texts.append(made._compiled.as_text() or "")
        return endpoints.encode(reply)

    @staticmethod
    def placed(parameters: Any) -> Any:
        """On one device, say which: there is none to fall back to."""
        one = jax.sharding.SingleDeviceSharding(FAR[0])
        return tuple(p if any(q.sharding for q in parameters) else p.update(sharding=one) for p in parameters)


def judge(lesson: Any, surface: Both) -> None:
    """Put each answer through its checks; keep the texts of the references."""
    setup: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(lesson.setup, "<setup>", "exec", dont_inherit=True), setup)
    verbs.in_process.classes = endpoints.namedtuples(setup)
    for exercise in lesson.exercises:
        answers = [("reference", exercise.reference), *((f"right, {one.line}", one.source) for one in exercise.right)]
        wrong = [(f"wrong, {one.line}", one.source) for one in exercise.wrong]
        for label, source in answers + wrong:
            names, missed = dict(setup), []
            exec(compile(source, "<answer>", "exec", dont_inherit=True), names)
            for check in exercise.checks:
                inputs.begin(check.id)
                surface.texts.clear()
                try:
                    exec(compile(check.source, "<check>", "exec", dont_inherit=True), dict(names))
                except Exception as problem:
                    ended = problem if isinstance(problem, Ended) else stumbled(problem)
                    missed.append(f"{check.id}: {ended.message}")
                if label == "reference" and check.id.endswith(("-program", "-step")):
                    for i, text in enumerate(surface.texts):
                        keep(check.id if len(surface.texts) == 1 else f"{check.id}-{i}", text)
            right = not label.startswith("wrong")
            odd = "<" if bool(missed) == right else " "
            print(odd, exercise.id, label, *missed, sep="\n      " if odd == "<" else " ")
        exec(compile(exercise.reference, "<answer>", "exec", dont_inherit=True), setup)


def larger() -> None:
    """Programs of a size at which compilers for accelerators overlap and fuse what they send."""
    mesh, split = Mesh(np.array(FAR), ("d",)), P("d")
    cut = lambda *sizes, spec=split: jax.ShapeDtypeStruct(sizes, "float32", sharding=NamedSharding(mesh, spec))

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    def layers(weights: Any, x: Any) -> Any:
        return (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0] ** 2).mean()

    def step(loss: Any, spec: P) -> Any:
        again = lambda w, g: jax.lax.with_sharding_constraint(w - 0.1 * g, NamedSharding(mesh, spec))
        return lambda weights, x: jax.tree.map(again, weights, jax.grad(loss)(weights, x))

    def ring(x: Any, y: Any) -> Any:
        turn = [(i, (i + 1) % 8) for i in range(8)]
        add = lambda state, _: ((state[0] + x @ state[1], jax.lax.ppermute(state[1], "d", turn)), None)
        return jax.lax.scan(add, (jnp.zeros((x.shape[0], y.shape[1])), y), None, length=8)[0][0]

    square = cut(2048, 2048)
    whole = jax.shard_map(ring, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    for name, function, *arguments in (
        ("large-fsdp", step(loss, P("d")), [square] * 3, square),
        ("large-fsdp-scan", step(layers, P(None, "d")), cut(4, 2048, 2048, spec=P(None, "d")), square),
        ("large-dp", step(loss, P()), [cut(2048, 2048, spec=P())] * 3, square),
        ("large-ring", whole, cut(1024, 128), cut(1024, 128)),
    ):
        keep(name, jax.jit(function).trace(*arguments).lower(lowering_platforms=(PLATFORM,)).compile().as_text() or "")


def overlap() -> None:
    """Lesson 19: the scratch memory of its two products of gathered rows, and for each permute of the second the
    products between its start and its end, from the lesson's own cells."""
    text = (ROOT / "notebooks" / "19_shard_map.py").read_text()
    lesson: dict[str, Any] = {"jax": jax}
    for begin, end in (("def to_next", "COLLECTIVES ="), ("def gather_then_multiply", "left, right =")):
        exec(compile(text[text.index(begin) : text.index(end)], "<lesson>", "exec", dont_inherit=True), lesson)
    mesh, split = Mesh(np.array(FAR), ("d",)), P("d")
    square = jax.ShapeDtypeStruct((8192, 8192), "bfloat16", sharding=NamedSharding(mesh, split))
    facts: dict[str, Any] = {}
    for name in ("gather_then_multiply", "multiply_while_moving"):
        mapped = jax.jit(jax.shard_map(lesson[name], mesh=mesh, in_specs=split, out_specs=split))
        compiled = mapped.trace(square, square).lower(lowering_platforms=(PLATFORM,)).compile()
        entry = (compiled.as_text() or "").partition("ENTRY")[2]
        open_at: dict[str, int] = {}
        between, products = [], 0
        for line in entry.splitlines():
            products += bool(re.search(r"kind=kOutput|%gemm_fusion\S* = ", line))
            if start := re.search(r"%(\S+) = .* collective-permute-start\(", line):
                open_at[start[1]] = products
            if end := re.search(r" collective-permute-done\(%([\w.\-]+)", line):
                between.append(products - open_at[end[1]])
        facts[name] = {"temp_bytes": compiled.memory_analysis().temp_size_in_bytes, "products": products}
        facts[name] |= {"products_during_permutes": between} if between else {}
        keep(f"large-{name.replace('_', '-')}", compiled.as_text() or "")
    (Path(__file__).parent / PLATFORM / "overlap.json").write_text(json.dumps(facts, indent=1) + "\n")


def pipelines() -> None:
    """Lesson 21: its pipeline's loss, the gradient with and without the cast, and its layer of experts."""
    text = (ROOT / "notebooks" / "21_pipelines_and_experts.py").read_text()
    lesson: dict[str, Any] = {"functools": functools, "jax": jax, "jnp": jnp, "P": P, "EXPERTS": 8, "TOKENS": 512}
    for begin, end in (
        ("def block(x, p)", "# %% [markdown]\n# All devices run"),
        ("def pipeline(", "# %% [markdown]\n# The last stage"),
        ("def pipeline_loss(", "# %%\nteacher ="),
        ("def expert(p, x)", "def dense_reference"),
        ("def places(", "with jax.set_mesh(None):\n    choice ="),
        ("def dispatch_mask(", "with jax.set_mesh(None):\n    four"),
        ("def experts_layer(", "# %% [markdown]\n# With a capacity"),
    ):
        exec(compile(text[text.index(begin) : text.index(end)], "<lesson>", "exec", dont_inherit=True), lesson)
    grid, explicit = np.array(FAR), AxisType.Explicit
    cut = lambda mesh, spec, *sizes: jax.ShapeDtypeStruct(sizes, "float32", sharding=NamedSharding(mesh, spec))
    mesh = Mesh(grid.reshape(4, 2), ("stage", "data"), axis_types=(explicit,) * 2)
    blocks = {
        name: cut(mesh, P("stage"), 8, *sizes) for name, sizes in {"w1": (16, 32), "b1": (32,), "w2": (32, 16)}.items()
    }
    xs, split = cut(mesh, P(None, "data"), 12, 16, 16), P(None, "data")
    losses = {
        cast: jax.shard_map(
            functools.partial(lesson["pipeline_loss"], cast=cast), in_specs=(P("stage"), split, split), out_specs=P()
        )
        for cast in ((), ("data",))
    }
    row = Mesh(grid, ("expert",), axis_types=(explicit,))
    experts = {"w1": cut(row, P("expert"), 8, 16, 32), "w2": cut(row, P("expert"), 8, 32, 16)}
    layer = functools.partial(lesson["experts_layer"], capacity=64)
    specs = {"in_specs": (P("expert"), P(), P("expert")), "out_specs": (P("expert"), P())}
    for name, where, function, *arguments in (
        ("loss", mesh, losses["data",], blocks, xs, xs),
        ("gradient", mesh, jax.grad(losses["data",]), blocks, xs, xs),
        ("gradient-cast-inside", mesh, jax.grad(losses[()]), blocks, xs, xs),
        ("experts", row, jax.shard_map(layer, **specs), experts, cut(row, P(), 16, 8), cut(row, P("expert"), 512, 16)),
    ):
        with jax.set_mesh(where):
            compiled = jax.jit(function).trace(*arguments).lower(lowering_platforms=(PLATFORM,)).compile()
        keep(f"lesson-21-{name}", compiled.as_text() or "")


def blocks() -> None:
    """The gradient of lesson 17's transformer block in its three modes, from the lesson's own cells."""
    text = (ROOT / "notebooks" / "17_explicit_sharding.py").read_text()
    cells = text[text.index("BATCH, TIME") : text.index('# %% [markdown] predict="explicit-three-modes"')]
    grid, names = np.array(FAR).reshape(4, 2), ("data", "model")
    auto, explicit = (Mesh(grid, names, axis_types=(kind,) * 2) for kind in (AxisType.Auto, AxisType.Explicit))
    lesson = {"functools": functools, "jax": jax, "jnp": jnp, "math": math, "mesh": explicit, "np": np, "P": P}
    exec(compile(cells, "<lesson>", "exec", dont_inherit=True), lesson)
    for mode, mesh in (("auto", auto), ("explicit", explicit), ("manual", explicit)):
        cut = lambda array, spec, mesh=mesh: jax.ShapeDtypeStruct(
            array.shape, array.dtype, sharding=NamedSharding(mesh, spec)
        )
        params = {name: cut(array, lesson["specs"][name]) for name, array in lesson["params"].items()}
        average = lambda params, x, block=lesson[f"{mode}_block"]: jnp.mean(block(params, x) ** 2)
        with jax.set_mesh(mesh):
            traced = jax.jit(jax.grad(average)).trace(params, cut(lesson["tokens"], P("data")))
            keep(f"block-{mode}", traced.lower(lowering_platforms=(PLATFORM,)).compile().as_text() or "")


def tensor_parallel() -> None:
    """Lesson 20: the gradient of a gated MLP in Explicit mode, and an MLP with sequence parallelism in two modes."""
    mesh = Mesh(np.array(FAR).reshape(4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    cut = lambda spec, *sizes: jax.ShapeDtypeStruct(sizes, "bfloat16", sharding=NamedSharding(mesh, spec))
    columns, rows = cut(P(None, "model"), 1024, 4096), cut(P("model"), 4096, 1024)
    partitioned = cut(P("data", "model"), 8, 256, 1024)

    def gated(gate: Any, up: Any, down: Any, x: Any) -> Any:
        hidden = jax.nn.silu(x @ gate) * (x @ up)
        return jnp.sum(jnp.matmul(hidden, down, out_sharding=P("data", None, None)).astype("float32") ** 2)

    def explicit(w1: Any, w2: Any, x: Any) -> Any:
        hidden = jnp.tanh(jax.reshard(x, P("data", None, None)) @ w1)
        return jnp.matmul(hidden, w2, out_sharding=P("data", "model", None))

    def manual(w1: Any, w2: Any, x: Any) -> Any:
        sums = jnp.tanh(jax.lax.all_gather(x, "model", axis=1, tiled=True) @ w1) @ w2
        return jax.lax.psum_scatter(sums, "model", scatter_dimension=1, tiled=True)

    gradient = jax.grad(gated, argnums=(0, 1, 2, 3)), columns, columns, rows, cut(P("data"), 8, 256, 1024)
    on_shards = lambda *arrays: jax.shard_map(manual, out_specs=P("data", "model"))(*arrays)
    for name, (function, *arguments) in {
        "large-gated-gradient": gradient,
        "large-sequence-explicit": (explicit, columns, rows, partitioned),
        "large-sequence-manual": (on_shards, columns, rows, partitioned),
    }.items():
        with jax.set_mesh(mesh):
            traced = jax.jit(function).trace(*arguments)
            keep(name, traced.lower(lowering_platforms=(PLATFORM,)).compile().as_text() or "")


def memory() -> None:
    """Lesson 15: the temporary bytes of the gradient of its network on one device, and the types of its products.

    With so many rows that the residuals do not fit into the vector memory of a TPU, which is not counted.
    """
    text = (ROOT / "notebooks" / "15_memory_and_precision.py").read_text()
    cells = text[text.index("def layer(params") : text.index("# %%\nparams, x =")]
    lesson: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(compile(cells, "<lesson>", "exec", dont_inherit=True), lesson)
    loss, layer, policies = lesson["network_loss"], lesson["layer"], jax.checkpoint_policies
    remat = lambda **options: jax.grad(lambda params, x: loss(params, x, jax.checkpoint(layer, **options)))
    scaled = lambda params, x: loss(*jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x)))
    on_one = jax.sharding.SingleDeviceSharding(FAR[0])
    facts, result = {}, r"\[[\d,]*\]\S* (?:dot|convolution|custom-call)\("
    for name, function in {
        "loss": loss,
        "gradient": jax.grad(loss),
        "whole loss checkpointed": jax.grad(jax.checkpoint(loss)),
        "each layer checkpointed": remat(),
        "products stored": remat(policy=policies.dots_saveable),
        "gradient in bfloat16": jax.grad(scaled),
    }.items():
        with elsewhere():
            shapes = jax.eval_shape(lambda: lesson["new_params"](16)), jax.ShapeDtypeStruct((8192, 64), "float32")
            typed = jax.tree.map(lambda leaf: leaf.update(sharding=on_one), shapes)
            lowered = jax.jit(function).trace(*typed).lower(lowering_platforms=(PLATFORM,))
        products = re.findall(r"dot_general.*: \((tensor<[^>]*>), tensor<[^>]*>\)", lowered.as_text())
        compiled = lowered.compile()
        facts[name] = {
            "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
            "products": sorted({product.rpartition("x")[2].strip(">") for product in products}),
            "compiled_in_bfloat16": len(re.findall(rf"\bbf16{result}", compiled.as_text() or "")),
        }
    (Path(__file__).parent / PLATFORM / "memory.json").write_text(json.dumps(facts, indent=1) + "\n")


def keep(name: str, text: str) -> None:
    """What is about collectives: the head, and of the computations that hold or reach one the lines that do."""
    braces = "(?!)"
    for _ in range(4):  # as deep as they lie in one another
        braces = rf'\{{(?:[^{{}}"]|"(?:[^"\\]|\\.)*"|{braces})*\}}'
    text = re.sub(rf", (?:metadata|backend_config|frontend_attributes|sharding)={braces}", "", text)
    parts = [r"HloModule [\w.]+", r"input_output_alias=\{.*?\) \}", r"entry_computation_layout=\{.*?\}(?=, \w+=|$)"]
    head = [found[0] for part in parts if (found := re.search(part, text.partition("\n")[0]))]
    bodies = dict(re.findall(r"^((?:ENTRY )?%?[\w.\-]+)[^\n]*\{\n(.*?)^\}", text, re.M | re.S))
    plain = {name: name.removeprefix("ENTRY ").lstrip("%") for name in bodies}
    called = r"(?:calls|body|condition|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)"
    told = rf" (?:{KINDS})(?:-start|-done)?\(|dynamic-slice\(%all-reduce"
    kept: set[str] = set()

    def matters(line: str) -> bool:
        names = {one.strip(" %") for group in re.findall(called, line) for one in group.strip("{}").split(",")}
        return bool(re.search(told, line)) or bool(names & kept)

    while found := {plain[n] for n, body in bodies.items() if any(map(matters, body.splitlines()))} - kept:
        kept |= found
    lines = [", ".join(head)]
    for name_of, body in bodies.items():
        if plain[name_of] in kept:
            lines += ["", f"{name_of} () -> () {{", *filter(matters, body.splitlines()), "}"]
    folder = Path(__file__).parent / PLATFORM
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    verbs.in_process = verbs._backend = Both()
    larger()
    overlap()
    pipelines()
    blocks()
    tensor_parallel()
    memory()
    # Programs for TPUs do not state the iterations of a loop, and checks ask the backend whether to expect them.
    jax.default_backend = lambda: "gpu" if PLATFORM == "cuda" else PLATFORM
    for lesson in LESSONS:
        judge(Course(ROOT).lesson(lesson), verbs.in_process)
