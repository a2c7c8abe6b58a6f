"""The packages of `grader`: what each may import, how modules and classes are named, and that each states its job."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from grader.core.layout import LEARNER_PACKAGES, PACKAGE, PACKAGES, learner_files

# Fewer packages than the order of PACKAGES would allow: what runs learners' code or a learner's machine stays small.
ONLY = {"core": set(), "program": {"core"}, "checks": {"core", "program"}, "course": {"core"}}
ONLY["sandbox"] = {"core", "program"}
# `core` and `program` are loaded by both confined processes: nothing that a submission could make heavier or different.
LIBRARIES = {"core": {"IPython"}, "program": {"jax", "jaxlib", "numpy", "ml_dtypes"}}
ALIASES = {"lessons", "gradebook"}  # old names that released notebooks and course folders import
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
PARTICIPLE = re.compile(r"(?:^|_)(?:\w+ed|given|kept|found|shown|ran|told|seen|taken|made|said|known|held)$")
NOT_PARTICIPLES = {"feed", "seed", "speed"}


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def package_of(path: Path, package: Path) -> str:
    return path.relative_to(package).with_suffix("").parts[0]


def dotted(path: Path, package: Path) -> str:
    return ".".join(("grader", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")


def imports(path: Path, package: Path) -> list[tuple[int, str, str]]:
    """Line, module and name ("" for `import module`) of every import in a module, wherever in it."""
    here = ("grader", *path.relative_to(package).parent.parts)
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            origin = ".".join((*base, *([node.module] if node.module else [])))
            found += [(node.lineno, origin, alias.name) for alias in node.names]
    return found


def origin(module: str, name: str, package: Path) -> tuple[str, bool]:
    """The module that defines what `from module import name` binds, and whether the import passes it on."""
    known = {dotted(path, package): path for path in modules(package)}
    if f"{module}.{name}" in known:
        return f"{module}.{name}", False
    passed_on = False
    while module in known:
        given = {(one or other.rpartition(".")[2]): other for _, other, one in imports(known[module], package)}
        if name not in given or not given[name].startswith("grader"):
            break
        module, passed_on = given[name], True
    return module, passed_on


def allowed(package: str) -> set[str]:
    if package in ONLY:
        return ONLY[package]
    return set(PACKAGES[: PACKAGES.index(package)]) if package in PACKAGES else {*PACKAGES, *ALIASES}


def violations(package: Path) -> list[str]:
    """One line for each import against the order of packages, also by way of a module that passes a name on."""
    wrong = []
    for path in modules(package):
        own = package_of(path, package)
        for line, module, name in imports(path, package):
            top, *rest = module.split(".")
            where = f"{path.relative_to(package.parent)}:{line}"
            if top != "grader":
                known = LIBRARIES.get(own)
                if known is not None and top not in known | sys.stdlib_module_names:
                    wrong.append(f"{where}: {own} may not import {top}")
                continue
            if name == "*":
                wrong.append(f"{where}: a star import does not name the package")
                continue
            source, passed_on = origin(module, name, package) if name else (module, False)
            for one in dict.fromkeys(part.split(".")[1] for part in (module, source) if part.count(".")):
                if one in PACKAGES and one != own and one not in allowed(own):
                    wrong.append(f"{where}: {own} may not import {one}")
            if passed_on and rest[1:]:  # the `__init__` of a package may pass its own names on, a module may not
                wrong.append(f"{where}: {name} is defined in {source}")
    return wrong


def test_imports_follow_the_order_of_packages() -> None:
    assert violations(PACKAGE) == []


def test_every_package_is_in_the_order() -> None:
    assert {package_of(path, PACKAGE) for path in modules(PACKAGE)} == {*PACKAGES, *ALIASES, "__init__", "__main__"}


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports inside functions count: whoever reads one module of a circle has to read all of them."""
    names = {".".join(("grader", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in modules(PACKAGE)}
    left = {}
    for name, path in names.items():
        found = [f"{module}.{one}" if one else module for _, module, one in imports(path, PACKAGE)]
        left[name] = {one for text in found for one in (text, text.rpartition(".")[0]) if one in names} - {name}
    while ready := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in ready}
    assert left == {}


def test_a_learners_machine_gets_modules_that_import_only_each_other() -> None:
    files = set(learner_files())
    assert {path.parts[0] for path in files if len(path.parts) > 1} == set(LEARNER_PACKAGES)
    assert {Path("learning/submit.py"), Path("checks/__main__.py")} <= files
    names = {dotted(PACKAGE / path, PACKAGE) for path in files if path.suffix == ".py"}
    for path in files:
        for _, module, name in imports(PACKAGE / path, PACKAGE) if path.suffix == ".py" else ():
            if module.startswith("grader."):
                assert module in names or f"{module}.{name}" in names, f"{path} imports {module}"


def test_no_module_name_and_no_class_name_occurs_twice() -> None:
    paths = [path for path in modules(PACKAGE) if not path.stem.startswith("__") and path.parent != PACKAGE]
    stems = Counter(path.stem for path in paths) + Counter(PACKAGES)
    assert [name for name, count in stems.items() if count > 1] == []
    classes = Counter(
        node.name
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_module_names_are_nouns_or_verbs_of_the_field() -> None:
    stems = {path.stem for path in modules(PACKAGE)}
    assert stems & VAGUE == set()
    assert [stem for stem in stems if PARTICIPLE.search(stem) and stem not in NOT_PARTICIPLES] == []


@pytest.mark.parametrize("stem", ["kept", "carried", "handed_in_found", "shown"])
def test_a_participle_is_recognised(stem: str) -> None:
    assert PARTICIPLE.search(stem)


@pytest.mark.parametrize("path", modules(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_a_module_opens_with_its_job_in_one_line(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring, "no docstring: state the module's one job"
    first, *rest = docstring.splitlines()
    assert first.rstrip().endswith((".", ":")), "its first line is one whole sentence"
    opening = first.split()[0]
    assert opening not in {"What", "Which", "Where", "How", "Whether", "Who", "When", "Says", "Tells", "Lets"}, (
        "a noun phrase"
    )
    assert not rest or not rest[0], "a blank line stands after the first"


def tree(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "grader"
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("checks/verbs.py", "from grader.grading import batch", "checks may not import grading"),
        ("checks/verbs.py", "def f():\n    import grader.sandbox.wire", "checks may not import sandbox"),
        ("checks/verbs.py", "from ..course import tree", "checks may not import course"),
        ("course/tree.py", "from grader.program import hlo", "course may not import program"),
        ("grading/runner.py", "from grader.prove.mutants import mutants", "grading may not import prove"),
        ("program/load.py", "import flax", "program may not import flax"),
        ("program/load.py", "from IPython.display import display", "program may not import IPython"),
        ("reports/tables.py", "from grader.core import *", "a star import does not name the package"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, module: str, text: str, complaint: str) -> None:
    package = tree(tmp_path, {module: text})
    assert violations(package) == [f"grader/{module}:{text.count(chr(10)) + 1}: {complaint}"]


def test_a_name_that_is_passed_on_counts_as_an_import_of_its_origin(tmp_path: Path) -> None:
    package = tree(
        tmp_path,
        {
            "lms/bundle.py": "class Files: ...",
            "checks/facts.py": "from grader.lms.bundle import Files",
            "grading/pool.py": "from grader.checks.facts import Files",
        },
    )
    assert violations(package) == [
        "grader/checks/facts.py:1: checks may not import lms",
        "grader/grading/pool.py:1: grading may not import lms",
        "grader/grading/pool.py:1: Files is defined in grader.lms.bundle",
    ]


def test_an_allowed_import_is_not_reported(tmp_path: Path) -> None:
    text = "import os\nimport jax\nfrom grader.grading import plan\nfrom . import plan\nfrom ..course import tree\n"
    assert violations(tree(tmp_path, {"grading/runner.py": text, "grading/plan.py": "", "course/tree.py": ""})) == []
