"""Bundles for learners: notebooks, pictures and the part of the package that runs checks; nothing that is hidden."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Any

from packaging.requirements import Requirement

import grader
from grader.core.layout import PACKAGE, SOURCE, learner_files
from grader.course import Course, build, notebook_builder
from grader.lms.publish import NoBundle, leaks

LOCK = "requirements.lock"
TORCH_LOCK = "requirements-torch.lock"
TEMPLATES = Path(__file__).parent / "for_learners"
# Dependencies of building and grading alone.
GRADERS_OWN = frozenset(
    "alembic bleach jinja2 jsonschema jupytext nbgrader packaging psutil pygments pyseccomp rich sqlalchemy traitlets "
    "typer watchfiles".split()
)
NOTEBOOK_LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:notebooks|exercises)/[\w/]+\.ipynb)\)")
USES_TORCH = re.compile(rb"(import|from) (torch\b|grader\.(learning|lessons)\.loaders\b)")
IMAGE = re.compile(r"(?:\.\./)+images/([\w./-]+)")


def files(course: Course, lessons: Iterable[str] | None = None) -> dict[str, bytes]:
    """Returns the bundle of these lessons, or of all, by path. Built from the authored text, so never stale.

    Raises:
        NoBundle: a picture is missing, or something hidden would go out.
    """
    ids = list(lessons or [i for i in course.ids if i in course.text_ids or i in course.lesson_ids])
    notebooks = _notebooks(course, ids)
    torch = any(USES_TORCH.search(content) for path, content in notebooks.items() if path.endswith(".ipynb"))
    project = tomllib.loads(checkout_file("pyproject.toml").decode())["project"]
    needed = [text for text in project["dependencies"] if Requirement(text).name not in GRADERS_OWN]
    made = {
        **notebooks,
        **{f"grader/{path.as_posix()}": (PACKAGE / path).read_bytes() for path in learner_files()},
        **{name: checkout_file(name) for name in ("LICENSE", LOCK, *([TORCH_LOCK] if torch else []))},
        "Makefile": (TEMPLATES / "Makefile").read_bytes(),
        ".gitignore": (TEMPLATES / "gitignore").read_bytes(),
        ".gitattributes": (TEMPLATES / "gitattributes").read_bytes(),
        "pyproject.toml": _fill(
            "pyproject.toml.template",
            python=project["requires-python"],
            version=grader.__version__,
            dependencies="".join(f"    {json.dumps(text)},\n" for text in needed),
        ),
        "README.md": _readme(course, ids, notebooks, torch, project["requires-python"].lstrip(">=")),
    }
    if found := leaks(course, made):
        raise NoBundle("The bundle would show what is hidden, so none is made. " + " ".join(found[:5]))
    return dict(sorted(made.items()))


def checkout_file(name: str) -> bytes:
    """Returns a file at the top of the checkout, which an installed package lacks. Raises NoBundle."""
    path = SOURCE / name
    try:
        return path.read_bytes()
    except OSError:
        text = f"There is no {path}. Bundles are made by a checkout of the grader, not by an installed package."
        raise NoBundle(text) from None


def _notebooks(course: Course, ids: list[str]) -> dict[str, bytes]:
    unlinked: dict[str, Any] = {}
    for lesson in ids:
        if lesson in course.text_ids:
            unlinked[f"notebooks/{lesson}.ipynb"] = notebook_builder.lesson_notebook(lesson, course.text(lesson))
        if lesson in course.lesson_ids:
            unlinked[f"exercises/{lesson}/{lesson}.ipynb"] = build.source(course, lesson, alone=True)
    made, pictures = {}, set()
    for path, notebook in unlinked.items():
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = NOTEBOOK_LINK.sub(lambda m: m[0] if m[2] in unlinked else m[1], cell["source"])
                pictures |= set(IMAGE.findall(cell["source"]))
        given = build.release(notebook) if path.startswith("exercises/") else notebook
        made[path] = build.text(given).encode()
    return made | {f"images/{name}": _picture(course, name) for name in pictures}


def _picture(course: Course, name: str) -> bytes:
    """A picture of the course, else of the course that it extends."""
    for folder in (one.root / "images" for one in (course, course.base) if one is not None):
        path = folder / name
        if path.is_file() and path.resolve().is_relative_to(folder):
            return path.read_bytes()
    raise NoBundle(f"A notebook shows images/{name}, and there is no such picture.")


def _fill(template: str, **values: str) -> bytes:
    return Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values).encode()


def _readme(course: Course, ids: list[str], made: dict[str, bytes], torch: bool, python: str) -> bytes:
    rows = []
    for lesson in ids:
        to_read, to_fill = f"notebooks/{lesson}.ipynb", f"exercises/{lesson}/{lesson}.ipynb"
        read = f"[read]({to_read})" if to_read in made else ""
        fill = f"[fill in]({to_fill})" if to_fill in made else ""
        rows.append(f"| {lesson[:2]} · {course.planned(lesson).title} | {read} | {fill} |")
    example = next((lesson for lesson in ids if lesson in course.lesson_ids), ids[0])
    return _fill(
        "README.md",
        name=course.name,
        count="One lesson" if len(ids) == 1 else f"{len(ids)} lessons",
        python=python,
        lesson=example,
        notebook=f"`exercises/{example}/{example}.ipynb`",
        lessons="\n".join(rows),
        torch=TORCH if torch else "",
    )


TORCH = f"""
Some cells here use PyTorch, which is left out as it is large:

    .venv/bin/python -m pip install -c {TORCH_LOCK} torch torchvision

For the build without CUDA, give pip the address that PyTorch's Start Locally page shows for Pip and CPU.
"""
