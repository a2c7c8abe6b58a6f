"""Layout of this package and of a course on disk: names that more than one package relies on."""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]  # grader/
SOURCE = PACKAGE.parent  # the folder to put on PYTHONPATH: a checkout, or site-packages
COURSE_FILE = "course.toml"
# From the first to the last; a package imports only from those before it (tests/test_packages.py).
PACKAGES = (
    *("core", "program", "checks", "course", "sandbox", "grading"),
    *("prove", "learning", "reports", "lms", "doctor", "cli"),
)
# Code that a verdict depends on: when it changes, cached results no longer hold.
VERDICT_PACKAGES = PACKAGES[:6]
# What a learner's machine needs; of `learning` only the modules that import nothing else of ours.
LEARNER_PACKAGES = ("core", "program", "checks", "learning")
LEARNER_ALIASES = ("__init__.py", "lessons.py")
# Entry points of the processes that the zygote forks: confined ones, and ours.
WORKER, EXECUTOR = "grader.sandbox.worker:serve", "grader.sandbox.worker:serve_programs"
EXAMINER, PROOF = "grader.grading.server:serve", "grader.prove.proof_server:serve"


def course_above(folder: Path) -> Path | None:
    """Returns the root of the course that `folder` lies in, or None."""
    return next((one for one in (folder, *folder.parents) if (one / COURSE_FILE).is_file()), None)


def session_notebook(namespace: dict[str, Any]) -> Path | None:
    """Returns the path of this kernel's notebook, where the front end states it.

    JupyterLab and Jupyter Notebook state it in the kernel's environment, VS Code in its namespace; nbclient, nbconvert
    and nbgrader do not.
    """
    name = namespace.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    return Path(name).absolute() if isinstance(name, str) and name.endswith(".ipynb") else None


@cache
def learner_files() -> tuple[Path, ...]:
    """Returns the files of this package that a learner's machine needs, relative to `PACKAGE`.

    Modules that import, directly or through one another, a package beyond `LEARNER_PACKAGES` are left out.
    """
    found = {Path(name) for name in LEARNER_ALIASES}
    for package in LEARNER_PACKAGES:
        found |= {path.relative_to(PACKAGE) for path in (PACKAGE / package).rglob("*") if path.is_file()}
    found = {path for path in found if "__pycache__" not in path.parts}
    needs = {path: _imports(PACKAGE / path) for path in found if path.suffix == ".py"}
    while True:
        names = {_dotted(path) for path in found}
        left_out = {path for path, modules in needs.items() if path in found and not modules <= names}
        if not left_out:
            return tuple(sorted(found))
        found -= left_out


def _dotted(path: Path) -> str:
    return ".".join(("grader", *path.with_suffix("").parts)).removesuffix(".__init__")


def _imports(path: Path) -> set[str]:
    """The modules of ours that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grader"):
            found |= {_module(node.module or "", alias.name) for alias in node.names}
    return {name for name in found if name.startswith("grader.")}


def _module(module: str, name: str) -> str:
    """The module that `from module import name` needs: `module.name` where that is one."""
    folder = SOURCE.joinpath(*module.split("."))
    inside = (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
    return f"{module}.{name}" if inside else module
