"""Programs as compilers for eight H100s and eight TPU v5e cores write them (tests/hlo/make.py): what is read off them.

Nothing ran on either. Checks of lessons 16 to 21 read the same facts of the same programs.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest

from grader.program.codec import decode, encode
from grader.program.endpoints import AnswerEndpoint
from grader.program.hlo import Collective, Sizes, collectives, sizes

TEXTS = Path(__file__).parent / "hlo"
PLATFORMS = ("cuda", "tpu")
LESSON_19 = (Path(__file__).parents[1] / "notebooks" / "19_shard_map.py").read_text()
SQUARE, PIECE = 2048 * 2048, 2048 * 256
FSDP_GATHERED, GRADIENTS = 24 * 40 + 40 * 6, 24 * 40 + 40 + 40 * 6 + 6


def text(platform: str, name: str) -> str:
    return (TEXTS / platform / f"{name}.txt").read_text()


def total(found: tuple[Collective, ...], kind: str) -> int:
    return sum(one.elements for one in found if one.kind == kind)


def reduced(found: tuple[Collective, ...]) -> int:
    """As the checks of lesson 18 count: what is scattered was an eighth of what is reduced."""
    return total(found, "all-reduce") + 8 * total(found, "reduce-scatter")


def output_bytes(platform: str, name: str) -> int:
    held = sizes(text(platform, name))
    assert held
    return held.outputs


def test_every_text_is_read() -> None:
    """A text that a compiler writes otherwise tomorrow is another fixture: none is left out here."""
    names = [{path.stem for path in (TEXTS / platform).glob("*.txt")} for platform in PLATFORMS]
    assert names[0] == names[1]
    assert len(names[0]) >= 14
    for platform in PLATFORMS:
        for name in names[0]:
            held = sizes(text(platform, name))
            assert held, (platform, name)
            assert held.outputs > 0, (platform, name)


def test_a_step_with_fsdp_on_gpus_reduces_and_scatters() -> None:
    found = collectives(text("cuda", "dp-fsdp-program"), 8)
    assert [(one.kind, one.elements, one.group_size) for one in found] == [
        ("all-gather", 1240, 8), ("all-reduce", 7, 8), ("reduce-scatter", 155, 8),
    ]  # fmt: skip
    assert reduced(found) == GRADIENTS + 1  # and the loss


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", ["dp-step-program", "dp-fsdp-program", "dp-optimizer-step"])
def test_every_gradient_is_reduced(platform: str, name: str) -> None:
    found = collectives(text(platform, name), 8)
    assert GRADIENTS <= reduced(found) <= GRADIENTS + 8 + 40
    assert not any(one.in_loop for one in found)
    if name != "dp-step-program":
        assert total(found, "all-gather") >= FSDP_GATHERED


# Of numbers, as on CPUs: a TPU pads each array to tiles, and says 15,360 where 1,364 bytes are meant.
BYTES = {
    "dp-step-program": Sizes(5704, 4988, 0),
    "dp-fsdp-program": Sizes(1364, 648, 0),
    "dp-optimizer-step": Sizes(2656, 1940, 0),
    "dp-accumulate-program": Sizes(2608, 1848, 0),
    "sharding-pad-to-divide-program": Sizes(1690, 64, 0),
    "sharding-init-program": Sizes(8, 12100, 0),
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_those_of_the_numbers(platform: str, name: str) -> None:
    assert sizes(text(platform, name)) == BYTES[name]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_gradients_that_are_added_up_travel_once(platform: str) -> None:
    found = collectives(text(platform, "dp-accumulate-program"), 8)
    count = 12 * 24 + 24 + 24 * 6 + 6
    assert [one.kind for one in found] == ["all-reduce"]
    assert count <= found[0].elements <= count + 64
    assert not found[0].in_loop


# What the exercise on predicting collectives asks of five programs of lesson 16.
@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_a_layout_sends(platform: str) -> None:
    found = [collectives(text(platform, f"sharding-predict-collectives-program-{i}"), 8) for i in range(5)]
    sent = [(one[0].kind, 8 * one[0].elements if one[0].kind == "reduce-scatter" else one[0].elements) if one else ()
            for one in found]  # fmt: skip
    as_sums = [("all-reduce", n) if kind == "reduce-scatter" else (kind, n) for kind, n in filter(None, sent)]
    assert as_sums == [("all-to-all", 160), ("all-reduce", 192), ("all-gather", 1280), ("all-to-all", 1280)]
    assert found[1] == ()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("mode", ["auto", "explicit", "manual"])
def test_a_transformer_block_sends_the_same_in_each_mode(platform: str, mode: str) -> None:
    """As lesson 17 shows on CPUs: two sums over "model" in the forward pass, one in the backward pass, gradients."""
    found = collectives(text(platform, f"block-{mode}"), 8)
    assert [(one.kind, one.elements, one.group_size) for one in found] == [
        *[("all-reduce", 1024, 2)] * 3, ("all-reduce", 4096, 4),
    ]  # fmt: skip
    assert sizes(text(platform, f"block-{mode}")) == Sizes(20480, 16384, 0)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_explicit_programs_send_what_their_checks_allow(platform: str) -> None:
    """One all-reduce in an MLP, neighbours' rows on an island, and one reduction of unreduced gradients."""
    for i, group in enumerate((2, 4, 3)):
        name = f"explicit-mlp-program-{i}"
        [found] = collectives(text(platform, name), 8)
        assert (found.kind, found.bytes, found.group_size) == ("all-reduce", output_bytes(platform, name), group)
        island = collectives(text(platform, f"explicit-auto-island-program-{i}"), 8)
        assert {one.kind for one in island} == {"collective-permute"}
        name = f"explicit-resolve-ambiguity-program-{i}"
        gathered, added = collectives(text(platform, name), 8)
        assert (gathered.kind, added.kind, added.bytes) == ("all-gather", "all-reduce", output_bytes(platform, name))
    for i in range(2):  # partitioned parameters are gathered before the loop, and gradients reduced after it
        found = collectives(text(platform, f"explicit-accumulate-program-{i}"), 8)
        assert {one.kind for one in found} <= {"all-gather", "all-reduce", "reduce-scatter"}
        assert total(found, "all-gather") > 0
        assert not any(one.in_loop for one in found)
    [found] = collectives(text(platform, "explicit-pagerank-program"), 8)
    assert (found.kind, found.elements) in (("all-reduce", 80), ("reduce-scatter", 10))
    assert found.in_loop


@pytest.mark.parametrize("platform", PLATFORMS)
def test_checkpoints_and_bfloat16_need_less_memory(platform: str) -> None:
    """What lesson 15 measures on a CPU, for its network of 16 layers with more rows."""
    facts = json.loads((TEXTS / platform / "memory.json").read_text())
    temporary = {name: fact["temp_bytes"] for name, fact in facts.items()}
    whole, products, each = (
        temporary[name] / temporary["gradient"]
        for name in ("whole loss checkpointed", "products stored", "each layer checkpointed")
    )
    assert temporary["loss"] < temporary["gradient"] / 8
    assert 0.9 < whole < 1.1
    assert 0.4 < products < 0.8
    assert each < 0.3
    assert temporary["gradient in bfloat16"] < 0.7 * temporary["gradient"]
    assert {name: fact["products"] for name, fact in facts.items()} == {
        name: ["bf16" if name == "gradient in bfloat16" else "f32"] for name in facts
    }
    compiled = {name: fact["compiled_in_bfloat16"] for name, fact in facts.items()}
    assert compiled.pop("gradient in bfloat16") > max(compiled.values())


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_large_step_is_read_alike(platform: str) -> None:
    """Where a compiler overlaps: on a TPU one gather stands in four operations, and a reduce-scatter is an all-reduce
    that is cut."""
    found = collectives(text(platform, "large-fsdp"), 8)
    assert (total(found, "all-gather"), total(found, "reduce-scatter")) == (3 * SQUARE, 3 * PIECE)
    assert total(found, "all-reduce") == 0
    scanned = collectives(text(platform, "large-fsdp-scan"), 8)
    assert sorted((one.kind, one.elements) for one in scanned) == [
        ("all-gather", SQUARE), ("all-gather", SQUARE), ("reduce-scatter", PIECE),
    ]  # fmt: skip
    assert all(one.in_loop for one in scanned)
    assert total(collectives(text(platform, "large-dp"), 8), "all-reduce") == 3 * SQUARE


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_ring_is_one_permute_in_a_loop(platform: str) -> None:
    [found] = collectives(text(platform, "large-ring"), 8)
    assert (found.kind, found.elements, found.group_size, found.in_loop) == (
        "collective-permute",
        128 * 128,
        None,
        True,
    )


@pytest.mark.parametrize("platform", PLATFORMS)
def test_code_for_each_device_sends_what_it_states(platform: str) -> None:
    """As the checks of lesson 19 count. A TPU does not state how often a loop runs."""
    for i in range(3):
        [found] = collectives(text(platform, f"shardmap-psum-matmul-program-{i}"), 8)
        assert (found.kind, found.bytes) == ("all-reduce", output_bytes(platform, f"shardmap-psum-matmul-program-{i}"))
        ring = collectives(text(platform, f"shardmap-ring-all-reduce-program-{i}"), 8)
        halo = collectives(text(platform, f"shardmap-halo-exchange-program-{i}"), 8)
        assert {one.kind for one in (*ring, *halo)} == {"collective-permute"}
    for name in ("shardmap-gradient-inside-program", "shardmap-batch-norm-program", "shardmap-from-pmap-step-0"):
        found = collectives(text(platform, name), 8)
        assert {one.kind for one in found} == {"all-reduce"}, name
        assert not any(one.in_loop for one in found), name
    moves = collectives(text(platform, "large-multiply-while-moving"), 8)
    assert [(one.kind, one.elements) for one in moves] == [("collective-permute", 1024 * 8192)] * 7


def test_lesson_19_prints_what_was_compiled() -> None:
    """The table of its section on overlap: megabytes of scratch memory, and permutes with a product in between."""
    words = {4: "four of seven", 1: "one of seven"}
    for platform, device in (("tpu", "TPU v5e"), ("cuda", "H100")):
        first, second = json.loads((TEXTS / platform / "overlap.json").read_text()).values()
        row = [f"{one['temp_bytes'] / 1e6:.0f} MB" for one in (first, second)]
        row.append(words[sum(between > 0 for between in second["products_during_permutes"])])
        assert f"| eight {device} | {' | '.join(row)} |" in LESSON_19


@pytest.mark.parametrize("platform", PLATFORMS)
def test_tensor_parallel_layers_need_one_all_reduce(platform: str) -> None:
    """As the checks of lesson 20 count."""
    for i in range(2):
        [found] = collectives(text(platform, f"tp-layout-program-{i}"), 8)
        assert found.kind == "all-reduce"
    for i, group in enumerate((2, 4, 3)):
        [found] = collectives(text(platform, f"tp-gated-mlp-program-{i}"), 8)
        assert (found.kind, found.group_size) == ("all-reduce", group)
        assert found.bytes == output_bytes(platform, f"tp-gated-mlp-program-{i}")
        ring = collectives(text(platform, f"tp-ring-matmul-program-{i}"), 8)
        assert {one.kind for one in ring} == {"collective-permute"}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_heads_need_one_all_reduce(platform: str) -> None:
    """Of the shard of the result, as lesson 20 judges grouped-query attention."""
    for i, group in enumerate((2, 3, 4)):
        name = f"tp-sharded-heads-program-{i}"
        [found] = collectives(text(platform, name), 8)
        assert (found.kind, found.bytes, found.group_size) == ("all-reduce", output_bytes(platform, name), group)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_small_tokens_are_gathered_and_scattered(platform: str) -> None:
    """As lesson 20 counts for sequence parallelism. For TPUs, a small reduce-scatter is compiled to an all-reduce."""
    for i, group in enumerate((2, 4, 3)):
        name = f"tp-sequence-norm-program-{i}"
        gathered, added = collectives(text(platform, name), 8)
        assert (gathered.kind, gathered.bytes) == ("all-gather", group * output_bytes(platform, name))
        kind, size = (
            ("all-reduce", gathered.bytes) if platform == "tpu" else ("reduce-scatter", gathered.bytes // group)
        )
        assert (added.kind, added.bytes) == (kind, size)
        assert gathered.group_size == added.group_size == group


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_scores_are_gathered_over_the_vocabulary(platform: str) -> None:
    """Three numbers for each example and one for the loss. The gradients add shards of the table and of `h`."""
    examples, shards = (4, 3, 4), (50 + 20, 30 + 9, 60 + 24)
    for i, (rows, shard) in enumerate(zip(examples, shards, strict=True)):
        loss, gradients = (collectives(text(platform, f"tp-vocab-loss-program-{2 * i + j}"), 8) for j in (0, 1))
        assert {one.kind for one in (*loss, *gradients)} == {"all-reduce"}
        assert total(loss, "all-reduce") == 3 * rows + 1
        assert total(gradients, "all-reduce") == 2 * rows + shard
        assert output_bytes(platform, f"tp-vocab-loss-program-{2 * i + 1}") == 4 * shard
    assert total(collectives(text(platform, "tp-vocab-loss-program-6"), 8), "all-reduce") == 13


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("name", ["pipeline-interleaved-program", "pipeline-recurrent-program"])
def test_a_pipeline_is_one_permute_in_a_loop(platform: str, name: str) -> None:
    """As the checks of lesson 21 count. The all-reduce after the loop gives all devices the results of the last one."""
    for i in range(3):
        found = collectives(text(platform, f"{name}-{i}"), 8)
        [sent] = [one for one in found if one.in_loop]
        [added] = [one for one in found if not one.in_loop]
        assert (sent.kind, added.kind) == ("collective-permute", "all-reduce")
        assert 0 < sent.bytes < added.bytes <= output_bytes(platform, f"{name}-{i}")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_experts_exchange_tokens_twice(platform: str) -> None:
    """As the checks of lesson 21 count."""
    for i, (devices, experts, capacity) in enumerate(((4, 4, 2), (2, 6, 3), (3, 6, 20))):
        found = collectives(text(platform, f"moe-dispatch-program-{i}"), 8)
        assert [(one.kind, one.group_size) for one in found] == [("all-to-all", devices)] * 2
        there, back = (one.elements // (experts * capacity) for one in found)  # the width of a token
        assert 3 <= there == back <= 5
        assert all(one.elements % (experts * capacity) == 0 for one in found)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_accelerators_communicate_less_than_cpus_in_explicit_mode(platform: str) -> None:
    """What lesson 20 states: both contributions to a gradient are added first, and sums are reduce-scattered."""
    tokens, weights = 2 * 256 * 1024, 3 * 1024 * 2048
    found = collectives(text(platform, "large-gated-gradient"), 8)
    assert sorted((one.kind, one.elements, one.group_size) for one in found) == [
        ("all-reduce", tokens, 2), ("all-reduce", tokens, 2), ("all-reduce", weights, 4),
    ]  # fmt: skip
    for mode in ("explicit", "manual"):
        found = collectives(text(platform, f"large-sequence-{mode}"), 8)
        assert {(one.kind, one.elements) for one in found} == {("all-gather", tokens), ("reduce-scatter", tokens // 2)}


def test_a_product_keeps_all_bits_where_an_accelerator_would_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the setup says something else."""
    x = np.ones((2, 2), np.float32)

    def lowered() -> str:
        told = decode(AnswerEndpoint().export(lambda x: x @ x, encode({"args": (x,), "mesh": None})))
        return jax.export.deserialize(bytearray(told["value"]["blob"].tobytes())).mlir_module()

    assert "HIGHEST" not in lowered()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "HIGHEST" in lowered()
    with jax.default_matmul_precision("bfloat16"):
        assert "HIGHEST" not in lowered()


def test_lesson_21_tells_what_was_compiled() -> None:
    """The table of its section on compilers for accelerators. What is stored does not contain the iterations."""
    found = {
        (platform, name): [
            (one.kind, one.elements, one.times, one.group_size, one.in_loop)
            for one in collectives(text(platform, f"lesson-21-{name}"), 8)
            if one.kind != "collective-permute"
        ]
        for platform in PLATFORMS
        for name in ("loss", "gradient", "gradient-cast-inside", "experts")
    }
    assert found["tpu", "loss"] == [("all-reduce", 1, 1, 4, False), ("all-reduce", 1, 1, 2, False)]
    assert found["cuda", "loss"] == [("all-reduce", 1, 1, 8, False)]
    assert found["tpu", "gradient"] == found["cuda", "gradient"] == [("all-reduce", 2112, 1, 2, False)]
    assert found["tpu", "gradient-cast-inside"] == [("all-reduce", 1056, None, 2, True)]
    assert found["cuda", "gradient-cast-inside"] == [("all-reduce", 2112, None, 2, True)]
    for platform, dtype in (("tpu", "bf16"), ("cuda", "f32")):
        exchanged = [one for one in found[platform, "experts"] if one[0] == "all-to-all"]
        assert exchanged == [("all-to-all", 8192, 1, 8, False)] * 2
        lines = [line for line in text(platform, "lesson-21-experts").splitlines() if " all-to-all" in line]
        assert all(f"{dtype}[" in line.partition(" all-to-all")[0] for line in lines)
        loops = text(platform, "lesson-21-gradient")
        assert loops.count(" collective-permute-start(") == loops.count(" collective-permute-done(") == 2
