"""What learners get: notebooks, pictures and the part of the package that runs checks; nothing that is hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from string import Template
from typing import Any

import grader
from grader.course import Course, build, notebook_builder
from grader.lms import checkout, leaks
from grader.lms.checkout import NoBundle

Files = dict[str, bytes]

# What only building and grading take.
GRADERS_OWN = frozenset(
    "alembic bleach jinja2 jsonschema jupytext nbgrader psutil pygments pyseccomp rich sqlalchemy traitlets typer"
    " watchfiles"
    .split()
)  # fmt: skip
NOTEBOOK_LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)+((?:notebooks|exercises)/[\w/]+\.ipynb)\)")
NAME = re.compile(r"[\w.-]+")
USES_TORCH = re.compile(rb"(import|from) (torch\b|grader\.(learning|lessons)\.loaders\b)")
IMAGE = re.compile(r"(?:\.\./)+images/([\w./-]+)")
PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "jaxercise"
description = "What the checks of these exercises are made of."
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = "{python}"
version = "{version}"
dependencies = [
{dependencies}]

[tool.setuptools.packages.find]
include = ["grader*"]

[tool.setuptools.package-data]
"*" = ["*"]
"""


def files(course: Course, lessons: Iterable[str] | None = None) -> Files:
    """The bundle of these lessons, or of all, by path. Built from the authored text, so never stale.

    Raises NoBundle for a picture that is missing, and where something hidden would go out with it.
    """
    ids = list(lessons or [i for i in course.ids if i in course.text_ids or i in course.lesson_ids])
    made = {
        **_notebooks(course, ids),
        **checkout.learner_package(),
        **{name: checkout.file(name) for name in ("LICENSE", checkout.LOCK)},
        "Makefile": (checkout.HERE / "for_learners" / "Makefile").read_bytes(),
        ".gitignore": (checkout.HERE / "for_learners" / "gitignore").read_bytes(),
        ".gitattributes": (checkout.HERE / "for_learners" / "gitattributes").read_bytes(),
        "pyproject.toml": _pyproject().encode(),
    }
    torch = any(USES_TORCH.search(content) for path, content in made.items() if _is_notebook(path))
    if torch:
        made[checkout.TORCH_LOCK] = checkout.file(checkout.TORCH_LOCK)
    made["README.md"] = _readme(course, ids, made, torch).encode()
    found = leaks.find(course, made)
    if found:
        raise NoBundle("The bundle would show what is hidden, so none is made. " + " ".join(found[:5]))
    return dict(sorted(made.items()))


def _notebooks(course: Course, ids: list[str]) -> Files:
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
    """A picture of the course's own, else of the course that it extends."""
    for folder in (one.root / "images" for one in (course, course.base) if one is not None):
        path = folder / name
        if path.is_file() and path.resolve().is_relative_to(folder):
            return path.read_bytes()
    raise NoBundle(f"A notebook shows images/{name}, and there is no such picture.")


def _pyproject() -> str:
    project = checkout.project()
    needed = [text for text in project["dependencies"] if NAME.match(text)[0] not in GRADERS_OWN]  # type: ignore[index]
    return PYPROJECT.format(
        python=project["requires-python"],
        version=grader.__version__,
        dependencies="".join(f"    {json.dumps(text)},\n" for text in needed),
    )


def _readme(course: Course, ids: list[str], made: Files, torch: bool) -> str:
    rows = []
    for lesson in ids:
        to_read, to_fill = f"notebooks/{lesson}.ipynb", f"exercises/{lesson}/{lesson}.ipynb"
        read = f"[read]({to_read})" if to_read in made else ""
        fill = f"[fill in]({to_fill})" if to_fill in made else ""
        rows.append(f"| {lesson[:2]} · {course.planned(lesson).title} | {read} | {fill} |")
    with_exercises = [lesson for lesson in ids if lesson in course.lesson_ids]
    example = (with_exercises or ids)[0]
    return Template((checkout.HERE / "for_learners" / "README.md").read_text(encoding="utf-8")).substitute(
        name=course.name,
        count="One lesson" if len(ids) == 1 else f"{len(ids)} lessons",
        python=checkout.project()["requires-python"].lstrip(">="),
        lesson=example,
        notebook=f"`exercises/{example}/{example}.ipynb`",
        lessons="\n".join(rows),
        torch=TORCH if torch else "",
    )


TORCH = f"""
Some cells here use PyTorch, which is left out as it is large:

    .venv/bin/python -m pip install -c {checkout.TORCH_LOCK} torch torchvision

For the build without CUDA, give pip the address that PyTorch's Start Locally page shows for Pip and CPU.
"""


def _is_notebook(path: str) -> bool:
    return path.endswith(".ipynb")
