"""What lies around an answer: setup names, configuration and mesh are put back; which names a cell has; magics."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from grader.checks import devices
from grader.core.symbols import cell_names, plain_python
from grader.program.environment import CellEnvironment

devices.start(8)
EMPTY = jax.sharding.get_mesh()


@pytest.fixture
def place() -> Iterator[tuple[CellEnvironment, dict[str, Any]]]:
    """Surroundings after a setup that bound `SCALE` and `helper`, and the namespace."""
    before = dict(jax.config.values)
    namespace: dict[str, Any] = {"SCALE": 2.0, "helper": len, "unrelated": 1}
    surroundings = CellEnvironment(namespace)
    surroundings.after_setup(["SCALE", "helper", "never_bound"])
    yield surroundings, namespace
    jax.set_mesh(EMPTY)
    for key, value in before.items():
        if jax.config.values[key] != value:
            jax.config.update(key, value)


def x64(on: bool = True) -> None:
    jax.config.update("jax_enable_x64", on)


def test_setup_names_are_put_back_and_told(place: Any) -> None:
    surroundings, namespace = place
    namespace["SCALE"] = 3.0
    del namespace["helper"]
    namespace["unrelated"] = 2
    assert sorted(surroundings.before_checks(["double"])) == ["SCALE", "helper"]
    assert namespace == {"SCALE": 2.0, "helper": len, "unrelated": 2}
    assert surroundings.before_checks(["double"]) == []


def test_an_equal_object_is_still_another_one(place: Any) -> None:
    surroundings, namespace = place
    namespace["SCALE"] = float("2.0")
    assert surroundings.before_checks([]) == ["SCALE"]


def test_another_exercises_configuration_is_put_back_and_ones_own_is_kept(place: Any) -> None:
    surroundings, _ = place
    x64()
    surroundings.after_cell(["double", "other"])
    surroundings.before_checks(["double"])
    assert jax.config.jax_enable_x64, "its own cell turned it on: that may be its answer"
    surroundings.after_cell(["mean"])
    surroundings.before_checks(["mean"])
    assert not jax.config.jax_enable_x64
    surroundings.before_checks(["double"])
    assert jax.config.jax_enable_x64, "also when the first check is run again"


def test_two_answers_may_set_the_same(place: Any) -> None:
    surroundings, _ = place
    text = 'jax.config.update("jax_enable_x64", True)'
    for name in ("double", "mean"):
        x64()
        surroundings.after_cell([name], text)
    for name in ("double", "mean"):
        surroundings.before_checks([name])
        assert jax.config.jax_enable_x64
    surroundings.before_checks(["total"])
    assert not jax.config.jax_enable_x64


def test_the_last_cell_that_binds_a_name_speaks_for_it(place: Any) -> None:
    """Two exercises ask for a `loss`; only the first turns 64 bits on, and it binds a helper too."""
    surroundings, _ = place
    x64()
    surroundings.after_cell(["loss", "its_helper"])
    surroundings.before_checks(["loss"])
    assert jax.config.jax_enable_x64
    surroundings.after_cell(["loss"])
    surroundings.before_checks(["loss"])
    assert not jax.config.jax_enable_x64


def test_a_cell_of_the_learners_own_owns_nothing(place: Any) -> None:
    surroundings, _ = place
    x64()
    surroundings.after_cell([])
    surroundings.before_checks(["double"])
    assert not jax.config.jax_enable_x64


def test_a_cell_run_again_without_the_line_no_longer_owns_it(place: Any) -> None:
    surroundings, _ = place
    x64()
    surroundings.after_cell(["double"], "jax_enable_x64")
    surroundings.after_cell(["double"], "the line is gone")
    surroundings.before_checks(["double"])
    assert not jax.config.jax_enable_x64


def test_the_mesh_is_put_back_like_configuration(place: Any) -> None:
    surroundings, _ = place
    mesh = devices.mesh((8,), ("d",))
    jax.set_mesh(mesh)
    surroundings.after_cell(["double"], "jax.set_mesh(mesh)")
    surroundings.before_checks(["mean"])
    assert jax.sharding.get_mesh().empty
    surroundings.before_checks(["double"])
    assert jax.sharding.get_mesh() == mesh


def test_the_setups_own_configuration_is_where_it_goes_back_to(place: Any) -> None:
    surroundings, _ = place
    x64()
    surroundings.after_setup([])
    x64(False)
    surroundings.after_cell(["mean"])
    surroundings.before_checks(["double"])
    assert jax.config.jax_enable_x64


def test_what_cannot_be_changed_any_more_is_let_be(place: Any) -> None:
    surroundings, _ = place
    jax.devices()
    surroundings._state["jax_num_cpu_devices"] = 3
    surroundings.before_checks(["double"])
    assert jax.device_count() == 8


# Names.

BINDS = {
    "x = 1": "x",
    "x += 1": "x",
    "x, (y, *z) = 1, (2, 3)": "x y z",
    "x: int = 1": "x",
    "def f(a):\n    b = a": "f",
    "class C:\n    d = 1": "C",
    "import jax.numpy": "jax",
    "import jax.numpy as jnp": "jnp",
    "from jax import vmap, grad as g": "vmap g",
    "for i, j in []:\n    k = i": "i j k",
    "with open(name) as f:\n    pass": "f",
    "try:\n    pass\nexcept ValueError as e:\n    pass": "e",
    "if (n := 3) > 2:\n    m = 1": "n m",
    "y = [x for x in range(3)]": "y",
    "f = lambda x: x": "f",
    "def f():\n    global g\n    g = 1": "f g",
    "x[0] = 1\ny.z = 2": "",
    "print(x)": "",
    "": "",
}
NEEDS = {
    "x = y + 1": "y",
    "x += 1": "",
    "x[0] = y.z": "x y",
    "def f(a, b=c):\n    return a + b + d + len(e)": "c d e",
    "def f():\n    def g():\n        return a + b\n    a = 1\n    return g": "b",
    "def f(x):\n    return f(x - 1)": "",
    "y = [x * k for x in xs]": "k xs",
    "class C(Base):\n    a: Kind = value\n    def m(self):\n        return other": "Base Kind value other",
    "@decorate\ndef f(x: Array) -> Out:\n    return x": "decorate Array Out",
    "import jax\njax.jit(f)": "f",
    "f = lambda x, n=size: x * n + late\nlate = 1": "size",
    "print(len(abs), __name__)": "",
    "'x' 'y'": "",
}


@pytest.mark.parametrize("source", BINDS)
def test_names_that_a_cell_binds(source: str) -> None:
    assert cell_names(source).binds == frozenset(BINDS[source].split())


@pytest.mark.parametrize("source", NEEDS)
def test_names_that_a_cell_needs(source: str) -> None:
    assert cell_names(source).needs == frozenset(NEEDS[source].split())


def test_what_is_not_python_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        cell_names("def f(:\n")


# Magics.

UNCHANGED = [
    "",
    "x = 1",
    "x = a % b\ny = a %b\nz = 5 %3",
    "'%d items' % n",
    "f'{x!r} and {y:%Y}'",
    "x != y",
    "def f(x):\n    return x  # why?",
    "s = '''\n%time\n!ls\nwhat?\n'''",
    "print('what?')",
    "# %timeit f()\n# !ls",
    "x = {\n    'a': 1,\n}\n\n\n\n",
]


@pytest.mark.parametrize("source", UNCHANGED)
def test_plain_python_stays_as_it_is(source: str) -> None:
    assert plain_python(source).rstrip("\n") == source.rstrip("\n")


MAGICS: dict[str, tuple[str, dict[str, Any]]] = {
    "line": ("%matplotlib inline\nx = 1", {"x": 1}),
    "line that takes time": ("%timeit -n 3 f(x)\nx = 1", {"x": 1}),
    "timed statement": ("%time x = 1", {"x": 1}),
    "bare time": ("%time\nx = 1", {"x": 1}),
    "timed cell": ("%%time\nx = 1\ny = 2", {"x": 1, "y": 2}),
    "captured cell": ("%%capture out\nx = 1", {"out": None, "x": 1}),
    "captured cell without some": ("%%capture --no-stderr -c out\nx = 1", {"out": None, "x": 1}),
    "captured cell without a name": ("%%capture\nx = 1", {"x": 1}),
    "cells in one another": ("%%time\n%%capture out\nx = 1", {"out": None, "x": 1}),
    "profiled statement": ("%prun -q x = 1", {"x": 1}),
    "other language into a name": ("%%bash --out x --err y\nls\n", {"x": None, "y": None}),
    "cell that is only measured": ("%%timeit\nx = 1", {}),
    "other language": ("%%bash\nrm -rf *\n", {}),
    "unknown cell magic": ("%%wizard\nx = 1\n", {}),
    "shell": ("!rm -rf *\nx = 1", {"x": 1}),
    "shell into a name": ("x = !ls\ny = 1", {"x": None, "y": 1}),
    "magic into a name": ("x = %timeit -o f()\ny = 1", {"x": None, "y": 1}),
    "help": ("len?\n?len\nlen??\nx = 1", {"x": 1}),
    "inside a block": ("if True:\n    %time x = 1\n    !ls\n    y = 2", {"x": 1, "y": 2}),
    "after a definition": ("def f(x):\n    return 2 * x\n%timeit f(1)\nx = f(2)", {"x": 4}),
    "spelled out": ("get_ipython().run_line_magic('time', 'x')\nget_ipython().system('ls')\ny = 1", {"y": 1}),
}


@pytest.mark.parametrize("name", MAGICS)
def test_magics_are_left_out_and_their_names_are_bound(name: str) -> None:
    source, binds = MAGICS[name]
    namespace: dict[str, Any] = {}
    exec(plain_python(source), namespace)
    assert {key: value for key, value in namespace.items() if key not in ("__builtins__", "f")} == binds


@pytest.mark.parametrize("name", MAGICS)
def test_lines_keep_their_numbers(name: str) -> None:
    """A traceback in a cell with magics points at the line that the learner sees."""
    source = MAGICS[name][0]
    text = plain_python(f"{source}\nlast = 1")
    if name not in ("cell that is only measured", "unknown cell magic") and "language" not in name:
        assert ast.parse(text).body[-1].lineno == f"{source}\nlast = 1".count("\n") + 1


def test_a_long_blank_cell_takes_no_time() -> None:
    assert plain_python("\n" * 100_000 + "x = 1").endswith("x = 1")


def test_functions_that_are_defined_again_as_they_were_are_not_told() -> None:
    text = "import math\n" + "def area(r):\n    return math.pi * math.pow(r, 2) if r > 0 else [r for _ in range(3)]\n"
    setup: dict[str, object] = {"__name__": "__main__"}
    exec(text, setup)
    surroundings = CellEnvironment(setup)
    surroundings.after_setup(["area", "math"])
    exec("\n" + text.partition("\n")[2], setup)  # math is not imported beside it
    assert surroundings.before_checks(["other"]) == []
    exec(text.replace("* math", "+ math"), setup)
    assert surroundings.before_checks(["other"]) == ["area"]
