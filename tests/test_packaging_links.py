"""Links of the site: from functions to their documentation and to the lesson that teaches them, and between pages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import cross_references
import inventory
import nbformat
import pytest
from code_links import linked_block
from conftest import ROOT
from cross_references import CONVENTIONS, Lesson, function, functions_page, lesson_list, teaches
from links import broken
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx.util.inventory import InventoryFile

import book  # tools/book.py

JAX = "https://docs.jax.dev/en/latest/"
FLAX = "https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/"
OPTAX = "https://optax.readthedocs.io/en/latest/api/"
IMPORTED = CONVENTIONS | {"np": "numpy", "P": "jax.sharding.PartitionSpec"}


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("jax.vmap", f"{JAX}_autosummary/jax.vmap.html#jax.vmap"),
        ("jax.numpy.einsum", f"{JAX}_autosummary/jax.numpy.einsum.html#jax.numpy.einsum"),
        ("jax.numpy.linalg.norm", f"{JAX}_autosummary/jax.numpy.linalg.norm.html#jax.numpy.linalg.norm"),
        ("jax.sharding.Mesh", f"{JAX}jax.sharding.html#jax.sharding.Mesh"),
        ("jax.errors.KeyReuseError", f"{JAX}errors.html#jax.errors.KeyReuseError"),
        ("jax.lax", f"{JAX}jax.lax.html#module-jax.lax"),
        ("jax.P", f"{JAX}jax.sharding.html#jax.sharding.PartitionSpec"),
        ("jax.remat", f"{JAX}_autosummary/jax.checkpoint.html#jax.checkpoint"),
        ("flax.nnx.Linear", f"{FLAX}nn/linear.html#flax.nnx.Linear"),
        ("flax.nnx.Optimizer", f"{FLAX}training/optimizer.html#flax.nnx.optimizer.Optimizer"),
        ("optax.adam", f"{OPTAX}optimizers.html#optax.adam"),
        ("optax.l2_loss", f"{OPTAX}losses.html#optax.losses.l2_loss"),
        ("jax.typeof", ""),  # exists, and JAX's documentation has no page for it
        ("jax.tree_map", ""),  # removed from JAX
        ("jax.numpy.nothing", ""),
        ("numpy.where", ""),
    ],
)
def test_a_name_has_the_address_of_its_documentation(name: str, address: str) -> None:
    assert inventory.address(name) == address


def test_a_name_that_the_installed_version_lacks_is_reported() -> None:
    with pytest.raises(inventory.InventoryError, match=r"jax\.numpy\.nothing, which version .* does not have"):
        inventory.checked("jax.numpy.nothing")


def test_sphinx_reads_the_inventories(tmp_path: Path) -> None:
    mapping = inventory.write(tmp_path)
    assert set(mapping) == {"jax", "flax", "optax"}
    address, file = mapping["jax"]
    read = InventoryFile.loads(Path(file).read_bytes(), uri=address.rstrip("/"))
    assert read.data["py:function"]["jax.vmap"].uri == inventory.address("jax.vmap")
    assert read.data["py:class"]["jax.sharding.Mesh"].uri == inventory.address("jax.sharding.Mesh")


@pytest.mark.parametrize(
    ("written", "official"),
    [
        ("jnp.where", "jax.numpy.where"),
        ("lax.scan", "jax.lax.scan"),
        ("nnx.Linear", "flax.nnx.Linear"),
        ("P", "jax.sharding.PartitionSpec"),
        ("jax.custom_vjp.defvjp", "jax.custom_vjp.defvjp"),
        ("jax.jit.lower", "jax.jit"),
        ("jax.config.update", "jax.config"),
        ("jax.typeof", "jax.typeof"),
        ("jnp", ""),
        ("jax.lax", ""),
        ("jnp.nothing", ""),
        ("np.where", ""),
        ("x.at", ""),
    ],
)
def test_a_written_name_is_resolved_with_the_imports(written: str, official: str) -> None:
    assert function(written, IMPORTED)[0] == official


def linked(code: str) -> list[str]:
    page = linked_block(highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)), IMPORTED)
    return [part.split('"')[0] for part in page.split('<a class="function" href="')[1:]]


def test_code_links_the_documented_names() -> None:
    assert linked("y = jnp.where(x > 0, lax.exp(x), 0)") == [
        inventory.address("jax.numpy.where"),
        inventory.address("jax.lax.exp"),
    ]
    assert linked("@jax.jit\ndef f(x: jax.Array): return x.at[0].set(1)") == [
        inventory.address("jax.jit"),
        inventory.address("jax.Array"),
    ]
    assert linked('s = P("data", None)') == [inventory.address("jax.sharding.PartitionSpec")]
    assert linked("y = jnp.nothing(np.where(self.jax.vmap), jax.typeof(x))  # jax.vmap") == []


def test_a_link_covers_the_name_only() -> None:
    page = linked_block(highlight("jax.jit.lower(x)", PythonLexer(), HtmlFormatter(nowrap=True)), IMPORTED)
    inside = page.split(">", 1)[1].split("</a>")[0]
    assert "jit" in inside
    assert "lower" not in inside


def lesson(name: str, used: str = "", summary: str = "") -> Lesson:
    names = used.split()
    return Lesson(name, name, set(summary.split()), Counter(names), {one: Counter([one]) for one in names})


def test_the_lesson_that_teaches_a_function() -> None:
    course = [
        lesson("00_start", "jax.vmap jax.grad jax.hessian jax.numpy.where jax.devices", summary="jax.hessian"),
        lesson("04_grad", "jax.grad jax.vmap jax.hessian jax.numpy.where", summary="jax.vmap"),
        lesson("05_vmap", "jax.vmap jax.numpy.where", summary="jax.numpy.where"),
    ]
    taught = {
        name: getattr(teaches(f"jax.{name}", course), "name", None)
        for name in ("vmap", "hessian", "numpy.where", "devices")
    }
    assert taught == {"vmap": "05_vmap", "hessian": "04_grad", "numpy.where": "05_vmap", "devices": "00_start"}
    assert teaches("jax.nothing", course) is None
    page = functions_page(course)
    assert f"| [`jnp.where`]({inventory.address('jax.numpy.where')}) | [05_vmap](notebooks/05_vmap.ipynb) |" in page
    own = lesson_list(course[2], course)
    assert f"| this lesson | [`jnp.where`]({inventory.address('jax.numpy.where')}), [`jax.vmap`]" in own
    assert "hessian" not in own


def test_functions_are_found_in_code_and_in_sentences(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_markdown_cell("# 03 · A title\n\nCompare `jax.grad(f)(x)` with `jnp.nothing`."),
        nbformat.v4.new_code_cell(
            "import jax.numpy as jnp\nfrom jax.sharding import PartitionSpec as P\n%time jnp.sin(1)"
        ),
        nbformat.v4.new_code_cell("P('x'), jnp.linalg.norm(jnp.ones(3)).item()"),
        nbformat.v4.new_markdown_cell("## Summary\n\n| a | `jax.jit(jax.vmap(f))` |"),
    ]
    path = tmp_path / "03_jit.ipynb"
    nbformat.write(notebook, path)
    found = cross_references.read(path)
    assert found.title == "03 · A title"
    assert set(+found.used) == {"jax.sharding.PartitionSpec", "jax.numpy.linalg.norm", "jax.numpy.ones"}
    assert set(found.spelled) - set(+found.used) == {"jax.grad", "jax.jit", "jax.vmap"}
    assert found.summary == {"jax.jit", "jax.vmap"}


def test_each_transformation_is_taught_in_its_lesson() -> None:
    course = [cross_references.read(path) for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))]
    expected = {
        "jax.jit": "03",
        "jax.grad": "04",
        "jax.vmap": "05",
        "jax.lax.scan": "08",
        "optax.chain": "09",
        "jax.checkpoint": "15",
        "jax.shard_map": "19",
        "jax.experimental.pallas.pallas_call": "22",
    }
    assert {name: getattr(teaches(name, course), "number", None) for name in expected} == expected


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="part/a.html#known">1</a> <a href="https://example.com/x">2</a> <a href="#">3</a> <img src="data:,">'
    )
    (tmp_path / "part" / "a.html").write_text('<p id="known"><a href="../index.html">1</a></p>')
    assert broken(tmp_path) == []
    (tmp_path / "part" / "a.html").write_text(
        '<p id="other"><a href="../index.html#no">1</a><img src="b.png"><a href="%C3%A9.html">2</a></p>'
    )
    assert broken(tmp_path) == [
        ("index.html", "part/a.html#known"),
        ("part/a.html", "%C3%A9.html"),
        ("part/a.html", "../index.html#no"),
        ("part/a.html", "b.png"),
    ]


def test_a_build_with_a_broken_link_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "html").mkdir()
    (tmp_path / "html" / "index.html").write_text('<a href="missing.html">1</a>')
    monkeypatch.setattr(book, "stage", lambda *_: None)
    monkeypatch.setattr(book, "build_main", lambda _: 0)
    monkeypatch.setattr(book.os, "environ", {})
    assert book.build([], tmp_path, "") == 1
    assert "index.html: missing.html is no page or anchor of the site" in capsys.readouterr().err
    (tmp_path / "html" / "missing.html").write_text("")
    assert book.build([], tmp_path, "") == 0
    assert capsys.readouterr().err == ""


def test_what_a_page_loads_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="https://example.com/a">1</a><img src="data:,"><iframe src="http://127.0.0.1:6006/"></iframe>'
        '<script src="//example.com/b.js"></script>'
    )
    assert broken(tmp_path) == [("index.html", "//example.com/b.js"), ("index.html", "http://127.0.0.1:6006/")]
