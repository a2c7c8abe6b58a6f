"""The shared readers and arithmetic of `grader.core`: names in a cell, magics, points, notebook files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from grader.core.notebook import (
    Unreadable,
    checksum,
    is_check,
    is_public_check,
    parse,
    read_bytes,
    read_complete,
    read_submission,
)
from grader.core.points import is_full, number, phrase, total
from grader.core.symbols import cell_names, notebook_cell_names, plain_python


@pytest.mark.parametrize(
    ("source", "binds", "needs"),
    [
        ("x = y", {"x"}, {"y"}),
        ("import a.b as c\nfrom d import e", {"c", "e"}, set()),
        ("def f(a):\n    return a + b", {"f"}, {"b"}),
        ("def f():\n    global g\n    g = 1", {"f", "g"}, set()),
        ("class A:\n    def m(self):\n        global g\n        g = h", {"A", "g"}, {"h"}),
        ("for i in range(3):\n    pass", {"i"}, set()),
        ("[k for k in ks]", set(), {"ks"}),
        ("(n := len(xs))", {"n"}, {"xs"}),
        ("x += 1", {"x"}, set()),
    ],
)
def test_names_of_a_cell(source: str, binds: set[str], needs: set[str]) -> None:
    names = cell_names(source)
    assert (set(names.binds), set(names.needs)) == (binds, needs)


def test_a_function_that_writes_a_global_reaches_into_the_surrounding_namespace() -> None:
    """A probe may not do that: for the rules of checks such a name is free."""
    assert "g" in cell_names("def probe():\n    global g\n    g = 1").free
    assert "g" not in cell_names("g = 1").free


@pytest.mark.parametrize(
    ("source", "binds"),
    [
        ("%time x = f()", {"x"}),
        ("    %time x = f()\ny = 1", set()),  # not Python: the first line is indented
        ("%%time\nx = f()", {"x"}),
        ("%%capture out\nx = 1", {"out", "x"}),
        ("%%time\n%%capture --no-display out\nx = 1", {"out", "x"}),
        ("%%bash --out x\necho 1", {"x"}),
        ("%%timeit\nx = 1", set()),
        ("%%bash\necho x", set()),
        ("files = !ls\ny = 2", {"files", "y"}),
        ("%matplotlib inline\ny = 2", {"y"}),
        ("f?\ny = 2", {"y"}),
    ],
)
def test_a_kernel_and_a_worker_read_magics_alike(source: str, binds: set[str]) -> None:
    """`notebook_cell_names` is what a kernel and a worker ask; what it says is bound is so in `plain_python`."""
    assert set(notebook_cell_names(source).binds) == binds
    if binds:
        namespace = {"f": lambda: 1}
        exec(plain_python(source), namespace)
        assert binds <= namespace.keys()


@pytest.mark.parametrize("source", ["%foo\n" * 600, "-" * 100_000 + "1", "(" * 300, "\0", "\ud800"])
def test_what_no_reader_takes_binds_nothing_and_raises_nothing(source: str) -> None:
    assert notebook_cell_names(source).binds == frozenset()
    assert checksum({"metadata": {"nbgrader": {"grade": True, "points": 10**400}}, "source": source})
    assert is_public_check({"cell_type": "code", "source": source, "metadata": {"nbgrader": {"grade": True}}})


def test_points_are_rounded_in_one_place() -> None:
    assert total([0.1, 0.2, 0.3]) == 0.6
    assert sum([0.1, 0.2, 0.3]) > 0.6  # what the rounding is for
    assert is_full(0.6, sum([0.1, 0.2, 0.3]))
    assert not is_full(0.5, 0.6)
    assert (number(3.0), number(2.5), number(0.1 + 0.2)) == ("3", "2.5", "0.3")
    assert number(1234567.5) == "1234567.5"
    assert (phrase(1), phrase(2.5)) == ("1 point", "2.5 points")


def cell(source: str, **nbgrader: object) -> dict[str, object]:
    metadata = {"nbgrader": {"schema_version": 3, **nbgrader}} if nbgrader else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": []}


def test_a_check_is_told_from_an_answer_and_a_hidden_one_from_a_public_one() -> None:
    public = cell("assert True", grade=True, solution=False, grade_id="a-b-values", points=1)
    hidden = cell("# Hidden check", grade=True, solution=False, grade_id="a-b-program", points=2)
    answer = cell("x = 1", grade=False, solution=True, grade_id="a-b")
    assert [is_check(one) for one in (public, hidden, answer, cell("x"))] == [True, True, False, False]
    assert [is_public_check(one) for one in (public, hidden, answer)] == [True, False, False]


def test_a_cells_checksum_is_nbgraders(tmp_path: Path) -> None:
    from nbformat import from_dict
    from nbgrader.utils import compute_checksum

    one = cell("x = 1\n", grade=True, solution=False, locked=True, grade_id="a-b", points=2, task=False)
    assert checksum(one) == compute_checksum(from_dict(one))
    assert checksum(one, "x = 2\n") != checksum(one)


@pytest.mark.parametrize("content", [b"", b"  ", b"no", b"[]", b'{"cells": 1}', b"[" * 100_000, b'{"cells": {}}'])
def test_what_is_no_notebook_is_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable, match=r"\.$"):
        parse(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{\n "cells": [\r\n<<<<<<< HEAD\r\n1\n=======\n2\n>>>>>>> main\n]}', "a merge conflict on line 3."),
        ('{"cells": [{"source": "Größe"}]}'.encode("cp1252"), "The file is not UTF-8 text"),
        (b"\x89PNG\xff", "it is not JSON"),
        (b'{"cells": [', "it is not JSON"),
    ],
)
def test_the_reason_why_a_file_is_no_notebook_is_stated(content: bytes, said: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(said)):
        parse(content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_notebook_from_another_system_is_read(encoding: str) -> None:
    content = json.dumps({"cells": [cell("<<<<<<< HEAD\nGröße")]}, ensure_ascii=False).encode(encoding)
    assert read_submission(content, "you", "l").cells[0].source == "<<<<<<< HEAD\nGröße"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["notes.txt", ".01_a.ipynb"], ""),
        (["01_a (1).ipynb"], " It contains 01_a (1).ipynb. Submit the notebook as 01_a.ipynb in this folder."),
        (["01_A.ipynb.txt", "x.ipynb"], " It contains 01_A.ipynb.txt and x.ipynb. Submit"),
        (["01_a-Copy1.ipynb", "01_a.json", "b.ipynb"], " It contains 01_a-Copy1.ipynb and 2 others. Submit"),
        (
            ["01_a/01_a.ipynb", "01_b/notes.txt"],
            " It contains 01_a/01_a.ipynb. Submit the notebook as 01_a.ipynb in this",
        ),
    ],
)
def test_a_renamed_notebook_is_named_and_not_behind_a_link(tmp_path: Path, names: list[str], said: str) -> None:
    folder = tmp_path / "you" / "01_a"
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    missing = "There is no 01_a.ipynb in the submitted folder."
    with pytest.raises(Unreadable, match=re.escape(missing + said)):
        read_bytes(folder / "01_a.ipynb")
    linked = tmp_path / "link"
    linked.symlink_to(folder)
    with pytest.raises(
        Unreadable, match=r"^It is a link or not a regular file\."
    ):  # whether or not a file is behind it
        read_bytes(linked / "01_a.ipynb")


def test_odd_cells_are_no_cells_of_a_submission_and_are_named_where_all_have_to_be_whole(tmp_path: Path) -> None:
    cells = [cell("x = 1"), None, {"cell_type": "code"}, {"cell_type": "markdown", "source": 3}]
    content = json.dumps({"cells": cells, "nbformat": 4}).encode()
    assert [(one.source, one.number) for one in read_submission(content, "you", "l").cells] == [("x = 1", 1), ("", 2)]
    (tmp_path / "odd.ipynb").write_bytes(content)
    with pytest.raises(Unreadable, match="its cell 2 is malformed"):
        read_complete(tmp_path / "odd.ipynb")


def test_a_notebook_to_be_copied_is_a_regular_file_of_a_limited_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ipynb")
    with pytest.raises(Unreadable, match="not a regular file"):
        read_complete(tmp_path / "pipe.ipynb")
    with open(tmp_path / "holes.ipynb", "wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(Unreadable, match="more than 200 MB"):
        read_complete(tmp_path / "holes.ipynb")
