"""Lesson 27: its exercises agree with PyTorch itself, and its notebook runs without PyTorch and Keras."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import nbformat
import numpy as np
import pytest
from conftest import ROOT

from grader.checks.execute import execute
from grader.course import Course

LESSON = "27_from_pytorch"
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, *where):
        if name.partition(".")[0] in ("torch", "torchvision", "keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """The names that the setup and the solutions of the exercises define."""
    lesson, defined = Course(ROOT).lesson(LESSON), {"__name__": "__main__"}
    precision = jax.config.values["jax_default_matmul_precision"]
    for source in (lesson.setup, *(exercise.reference for exercise in lesson.exercises)):
        exec(compile(source, LESSON, "exec", dont_inherit=True), defined)
    yield defined
    jax.config.update("jax_default_matmul_precision", precision)  # the setup of a lesson sets it


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="set up without torch")


def rng() -> np.random.Generator:
    return np.random.default_rng(27)


def test_weights_from_pytorch_give_its_logits(names: dict[str, Any], torch: Any) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(2, 3, (3, 2)), torch.nn.BatchNorm2d(3)
            self.linear = torch.nn.Linear(3 * 4 * 3, 5)

        def forward(self, x: Any) -> Any:
            return self.linear(torch.flatten(torch.relu(self.norm(self.conv(x))), 1))

    net, images = Net(), rng().normal(size=(4, 2, 6, 4)).astype(np.float32)
    net(torch.tensor(images))  # moves the running statistics
    wanted = net.eval()(torch.tensor(images)).detach().numpy()
    state = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    model = names["from_torch"](names["ConvNet"](6, 4, 2, 3, 5, rngs=names["nnx"].Rngs(0)), state)
    np.testing.assert_allclose(model(images.transpose(0, 2, 3, 1)), wanted, rtol=1e-4, atol=1e-5)


def test_weights_of_nnx_give_its_outputs_in_pytorch(names: dict[str, Any], torch: Any) -> None:
    nnx, draw = names["nnx"], rng()
    layers = {
        "embed": nnx.Embed(7, 6, rngs=nnx.Rngs(0)),
        "attention": nnx.MultiHeadAttention(2, 6, decode=False, rngs=nnx.Rngs(1)),
        "norm": nnx.LayerNorm(6, epsilon=1e-5, rngs=nnx.Rngs(2)),
        "head": nnx.Linear(6, 7, rngs=nnx.Rngs(3)),
    }
    for layer in layers.values():  # also biases that are not 0
        state = nnx.state(layer, nnx.Param)
        nnx.update(layer, names["jax"].tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(np.float32), state))
    tokens = np.array([[3, 1, 6, 0]])
    x = layers["embed"](tokens)
    wanted = layers["head"](layers["norm"](layers["attention"](x) + x))
    params = {name: nnx.to_pure_dict(nnx.state(layer, nnx.Param)) for name, layer in layers.items()}
    state = {name: torch.tensor(np.array(array)) for name, array in names["to_torch"](params).items()}
    theirs = torch.nn.ModuleDict(
        {
            "embed": torch.nn.Embedding(7, 6),
            "attention": torch.nn.MultiheadAttention(6, 2, batch_first=True),
            "norm": torch.nn.LayerNorm(6),
            "head": torch.nn.Linear(6, 7),
        }
    )
    theirs.load_state_dict(state)
    x = theirs["embed"](torch.tensor(tokens))
    mixed = theirs["attention"](x, x, x, need_weights=False)[0]
    got = theirs["head"](theirs["norm"](mixed + x)).detach().numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_the_in_place_update_is_that_of_pytorch(names: dict[str, Any], torch: Any) -> None:
    text = (ROOT / "solutions" / f"{LESSON}.py").read_text()
    [source] = re.findall(r"^# (def torch_update\(.*?)^# ```", text, re.MULTILINE | re.DOTALL)
    exec(re.sub(r"^# ", "", source, flags=re.MULTILINE), scope := {"torch": torch})
    scores, rows, bonus = rng().normal(size=(4, 3)) - 1, np.array([3, 0, 3, 1]), np.ones(3)
    data = [np.asarray(scores, np.float32), rows.astype(np.int32), bonus.astype(np.float32)]
    wanted = scope["torch_update"](torch.tensor(data[0]), torch.tensor(rows), torch.tensor(data[2]))
    for got, want in zip(names["update"](*map(names["jnp"].asarray, data)), wanted, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)


def test_the_loss_curve_is_that_of_pytorch(names: dict[str, Any], torch: Any) -> None:
    text = (ROOT / "solutions" / f"{LESSON}.py").read_text()
    [source] = re.findall(r"^# (model = nn\.Sequential.*?)^# ```", text, re.MULTILINE | re.DOTALL)
    draw, shapes = rng(), {"0.weight": (6, 4), "0.bias": (6,), "2.weight": (6,), "2.bias": (6,)}
    shapes |= {"3.weight": (3, 6), "3.bias": (3,)}
    state = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    xs, ys = draw.normal(size=(7, 5, 4)).astype(np.float32), draw.integers(3, size=(7, 5))
    options = {"lr": 0.05, "weight_decay": 0.2, "max_norm": 0.4, "step_size": 2}
    scope = {"torch": torch, "nn": torch.nn, "xs": torch.tensor(xs), "ys": torch.tensor(ys), "D": 4, "H": 6, "K": 3}
    scope |= options | {"state": {name: torch.tensor(array) for name, array in state.items()}}
    exec(re.sub(r"^# ", "", source, flags=re.MULTILINE), scope)
    losses, trained = names["train"](state, xs, ys.astype(np.int32), options)
    np.testing.assert_allclose(losses, [loss.item() for loss in scope["losses"]], rtol=1e-3)
    for name, tensor in scope["model"].state_dict().items():
        np.testing.assert_allclose(trained[name], tensor.numpy(), rtol=5e-3, atol=5e-3)


def test_the_table_is_that_of_linen(names: dict[str, Any]) -> None:
    linen, jnp = names["linen"], names["jnp"]

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any, train: bool) -> Any:
            for size in (7, 5):
                x = linen.BatchNorm(use_running_average=not train)(linen.Dense(size)(x))
                x = linen.Dropout(0.2, deterministic=not train)(linen.relu(x))
            return linen.Dense(2)(x)

    wide = {"width": 200, "force_terminal": False, "force_jupyter": False}
    made = Net().tabulate(
        names["jax"].random.key(0), jnp.ones((3, 4)), train=False, compute_flops=True, console_kwargs=wide
    )
    shown = [[cell.strip() for cell in line.split("│")[1:-1]] for line in made.splitlines() if line.startswith("│")]
    flops = {row[0]: int(row[4]) for row in shown if row[0]}
    rows = names["layer_table"]((4, 7, 5, 2), 3)
    assert [row[0] for row in rows] == list(flops)
    assert all(row[2] in (None, flops[row[0]]) for row in rows)
    assert f"{sum(row[3] for row in rows)} " in made
    assert f"Total Parameters: {sum(row[3] + row[4] for row in rows)} " in made


@pytest.mark.thorough
def test_it_runs_without_torch_and_keras_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXERCISE_DIGITS", "embedded")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    (tmp_path / "course.toml").touch()
    notebook = nbformat.read(ROOT / "notebooks" / f"{LESSON}.ipynb", as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(HIDDEN))
    execute(notebook, tmp_path, cell_s=240)
    said = "".join(
        out.text for cell in notebook.cells for out in cell.get("outputs", []) if out.get("name") == "stdout"
    )
    assert "PyTorch is not installed, so the cells that need it are skipped." in said
    assert "Keras is not installed, so the cells that need it are skipped." in said
    assert "round trip: True" in said
