"""Layout of this package and of a course on disk: names that more than one package relies on."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]  # grader/
SOURCE = PACKAGE.parent  # the folder to put on PYTHONPATH: a checkout, or site-packages
COURSE_FILE = "course.toml"
INSTALLED_COURSE = PACKAGE / "installed_course"  # in a wheel; a checkout is a course itself
# The content of course.toml in a learner's folder of the installed course
LEARNERS_COURSE = """\
# Your folder of the course that is installed with the package jaxercise. work/ contains your notebooks.
installed = true
"""
GLOSSARY = "docs/glossary.md"  # lessons and exercises link to it, so it goes where they go
# Files that a browser takes for a page and runs what is in them: nbgrader hands none of them on.
PAGES = ("*.htm", "*.html", "*.mht", "*.mhtml", "*.shtml", "*.svg", "*.xht", "*.xhtml", "*.xml", "*.xsl")
# From the first to the last; a package imports only from those before it (tests/test_packages.py).
PACKAGES = (
    *("core", "program", "checks", "course", "sandbox", "grading"),
    *("prove", "learning", "reports", "board", "lms", "doctor", "cli"),
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


def course_source(home: Path) -> Path:
    """Returns the folder with the text and the notebooks of the course whose learner's folder is `home`: `home` itself,
    or the course in this installation where its course.toml says `installed = true`. Raises OSError and ValueError."""
    if tomllib.loads((home / COURSE_FILE).read_text(encoding="utf-8")).get("installed") is not True:
        return home
    return INSTALLED_COURSE if INSTALLED_COURSE.is_dir() else SOURCE


def session_notebook(namespace: dict[str, Any]) -> Path | None:
    """Returns the path of this kernel's notebook, where the front end states it. JupyterLab and Jupyter Notebook do so
    in the kernel's environment, VS Code in its namespace; nbclient, nbconvert and nbgrader do not."""
    name = namespace.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    return Path(name).absolute() if isinstance(name, str) and name.endswith(".ipynb") else None


def learner_files() -> list[Path]:
    """Returns the files of this package that a learner's machine needs, relative to `PACKAGE`: the modules of
    `LEARNER_PACKAGES` but those that import another package of ours, which belong to the `grader` command."""
    others = "|".join(name for name in PACKAGES if name not in LEARNER_PACKAGES)
    imports_others = re.compile(rf"^\s*(?:from|import) grader\.(?:{others})\b", re.MULTILINE)
    found = [PACKAGE / name for name in LEARNER_ALIASES]
    for path in (path for package in LEARNER_PACKAGES for path in (PACKAGE / package).rglob("*.*")):
        if "__pycache__" not in path.parts and not imports_others.search(path.read_text(errors="replace")):
            found.append(path)
    return sorted(path.relative_to(PACKAGE) for path in found)
