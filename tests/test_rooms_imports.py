"""The rooms of the package: who may import whom, what a room and a module are called, and that each says its job."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "grader"

# Imports go up this table only. A learner's machine needs the first three rooms alone.
MAY_IMPORT = {
    "program": set(),
    "checks": {"program"},
    "lessons": {"checks"},
    "course": set(),
    "authoring": {"course"},
    "sandbox": {"program"},
    "machine": {"sandbox"},
    "exam": {"course", "sandbox", "checks", "program"},
    "prove": {"exam", "course"},
    "learner": {"course", "exam", "lessons", "reports"},
    "reports": {"exam"},
    "gradebook": {"course", "exam", "reports"},
    "exchange": {"course", "exam", "reports"},
    "cli": {
        "program",
        "checks",
        "course",
        "sandbox",
        "exam",
        "prove",
        "reports",
        "gradebook",
        "exchange",
        "authoring",
        "learner",
        "machine",
    },
    "__main__": {"cli"},
    "__init__": set(),
}
# `program` is what both confined processes load: nothing in it that a submission could make heavier or different.
LIBRARIES = {"program": {"jax", "jaxlib", "numpy", "ml_dtypes"}}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def room_of(path: Path, package: Path) -> str:
    return path.relative_to(package).with_suffix("").parts[0]


def imported(path: Path, package: Path) -> list[tuple[int, str]]:
    """Line and full dotted name of everything that a module imports, wherever in it, `if TYPE_CHECKING` too."""
    here = ("grader", *path.relative_to(package).parent.parts)
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            origin = ".".join((*base, *([node.module] if node.module else [])))
            found += [(node.lineno, f"{origin}.{alias.name}") for alias in node.names]
    return found


def trespasses(package: Path) -> list[str]:
    """One line for each import that the table does not allow."""
    wrong = []
    for path in modules(package):
        room = room_of(path, package)
        for line, name in imported(path, package):
            top, *rest = name.split(".")
            where = f"{path.relative_to(package.parent)}:{line}"
            if top != "grader":
                known = LIBRARIES.get(room)
                if known is not None and top not in known | sys.stdlib_module_names:
                    wrong.append(f"{where}: {room} may not import {top}")
            elif rest and rest[0] in MAY_IMPORT and rest[0] not in MAY_IMPORT.get(room, set()) | {room}:
                wrong.append(f"{where}: {room} may not import {rest[0]}")
            elif rest == ["*"]:
                wrong.append(f"{where}: says not which room")
    return wrong


def test_imports_go_up_the_table_only() -> None:
    assert trespasses(PACKAGE) == []


def test_the_table_has_no_circle() -> None:
    placed: set[str] = set()
    while ready := {room for room, allowed in MAY_IMPORT.items() if room not in placed and allowed <= placed}:
        placed |= ready
    assert placed == set(MAY_IMPORT)


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Not inside a function either: who reads one of a circle has to read them all."""
    names = {".".join(("grader", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in modules(PACKAGE)}
    left = {}
    for name, path in names.items():
        said = [text for _, text in imported(path, PACKAGE)]
        left[name] = {one for text in said for one in (text, text.rpartition(".")[0]) if one in names} - {name}
    while ready := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in ready}
    assert left == {}


def test_every_room_is_in_the_table() -> None:
    assert {room_of(path, PACKAGE) for path in modules(PACKAGE)} <= set(MAY_IMPORT)


def test_names_say_the_thing() -> None:
    tree = [path.relative_to(PACKAGE) for path in modules(PACKAGE)]
    assert [str(path) for path in tree if NAMES_THAT_SAY_NOTHING & set(path.with_suffix("").parts)] == []


@pytest.mark.parametrize("path", modules(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_a_module_opens_with_its_job_in_one_line(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "no docstring: say the module's one job"
    first, *rest = docstring.splitlines()
    assert first.rstrip().endswith((".", "?", ":")), "its first line is one whole sentence"
    assert not rest or not rest[0], "a blank line stands after the first"


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("checks/asking.py", "from grader.exam import records", "checks may not import exam"),
        ("checks/asking.py", "def f():\n    import grader.sandbox.wire", "checks may not import sandbox"),
        ("checks/asking.py", "from ..course import tree", "checks may not import course"),
        ("course/tree.py", "from grader import program", "course may not import program"),
        ("exam/grade.py", "from grader.prove.mutants import swapped", "exam may not import prove"),
        ("program/load.py", "import flax", "program may not import flax"),
        ("program/load.py", "from IPython.display import display", "program may not import IPython"),
        ("reports/table.py", "from grader import *", "says not which room"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, module: str, text: str, complaint: str) -> None:
    path = tmp_path / "grader" / module
    path.parent.mkdir(parents=True)
    path.write_text(text)
    line = text.count("\n") + 1
    assert trespasses(tmp_path / "grader") == [f"grader/{module}:{line}: {complaint}"]


def test_an_allowed_import_is_not(tmp_path: Path) -> None:
    path = tmp_path / "grader" / "exam" / "grade.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import os\nimport jax\nfrom grader.exam import plan\nfrom . import plan\nfrom ..course import tree\n"
    )
    assert trespasses(tmp_path / "grader") == []
