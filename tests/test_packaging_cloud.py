"""The course on Colab and Kaggle, as far as it can be tested without them.

A kernel has a platform's packages, no checkout, and a notebook without its file. The wheel is found as on an index.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import ROOT
from wheels import built_wheel, namespace_command, run_elsewhere

from grader.core.notebook import grade_id, is_answer, is_check
from grader.course import Course

COMMON = "jax==0.10.2 flax optax matplotlib tqdm scikit-learn".split()
# What google-colab 1.0 requires of its own server, which an installation must leave as it is.
COLAB = "ipython==7.34.0 ipykernel==6.17.1 ipywidgets==7.7.1 traitlets==5.7.1 tornado==6.5.1".split()
COLAB.append("numpy==2.0.2; python_version < '3.13'")  # it has no build for newer ones
MAX_INSTALL_S = 60
INDEX = "PIP_FIND_LINKS"
Run = Callable[..., Any]


def interpreters() -> list[str]:
    """The Pythons of this machine that are new enough, by version."""
    found = ["3.11"] if sys.version_info[:2] == (3, 11) else []
    for version in ("3.12", "3.13"):
        if python(version) is not None:
            found.append(version)
    return found


def python(version: str) -> str | None:
    names = [f"{Path(sys.base_prefix)}/bin/python{version}", f"python{version}"]
    names += map(str, sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")))
    for name in filter(shutil.which, names):
        if subprocess.run([name, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0:
            return name
    return None


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(built_wheel(tmp_path_factory.mktemp("index")).parent)


def environment(folder: Path, version: str, packages: list[str], user_site: bool) -> Path:
    """A platform's environment. With a user site, pip installs there what it cannot install in the environment."""
    options = ["--system-site-packages"] if user_site else []
    subprocess.run([str(python(version)), "-m", "venv", *options, str(folder)], check=True, timeout=300)
    command = [str(folder / "bin/python"), "-I", "-m", "pip", "install", "--quiet", *packages]
    subprocess.run(command, check=True, timeout=900)
    return folder / "bin" / "python"


@pytest.fixture(scope="module", params=interpreters())
def colab(request: pytest.FixtureRequest, index: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A kernel with the versions that Colab requires, and no write access outside its home folder."""
    folder, read_only = tmp_path_factory.mktemp("colab"), bool(namespace_command())
    kernel = environment(folder / "env", request.param, [*COMMON, *COLAB], user_site=read_only)
    (folder / "home").mkdir()
    return lambda notebook: run_elsewhere(
        notebook, kernel, folder / "home", read_only, COLAB_RELEASE_TAG="release", **{INDEX: index}
    )


@pytest.fixture(scope="module")
def kaggle(index: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A kernel with new packages, which belong to the user that the notebook runs as."""
    home = tmp_path_factory.mktemp("kaggle")
    kernel = environment(home / "env", interpreters()[0], [*COMMON, "ipykernel"], user_site=False)
    variables = {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", INDEX: index}
    return lambda notebook: run_elsewhere(notebook, kernel, home, bool(namespace_command()), **variables)


def said(cell: Any) -> str:
    return "".join(one.get("text", "") or one.get("data", {}).get("text/plain", "") for one in cell.outputs)


def errors(cells: list[Any]) -> list[str]:
    return [
        f"{cell.id}: {one.evalue}" for cell in cells for one in cell.get("outputs", ()) if one.output_type == "error"
    ]


def solved(lesson: str) -> Any:
    notebook = nbformat.read(ROOT / "exercises" / lesson / f"{lesson}.ipynb", 4)
    answers = {one.id: one.reference for one in Course(ROOT).lesson(lesson).exercises}
    for cell in notebook.cells:
        if is_answer(cell) and grade_id(cell) in answers:
            cell.source = answers[grade_id(cell)]
    return notebook


@pytest.mark.thorough
def test_a_solved_notebook_gets_all_points_on_colab(colab: Run) -> None:
    notebook, began = solved("05_vmap"), time.monotonic()
    colab(notebook)
    install = next(cell for cell in notebook.cells if cell.id == "install")
    assert "JAX stays 0.10.2." in said(install)
    assert "Updated" not in said(install)
    assert "ipython" not in said(install)
    assert errors(notebook.cells) == []
    assert sum(is_check(cell) for cell in notebook.cells) > 6
    grade = said(notebook.cells[-1])
    assert "21 of 21 points." in grade
    assert "Colab does not store this notebook where it can be read. The 6 answer cells that ran" in grade
    assert time.monotonic() - began < 5 * MAX_INSTALL_S


@pytest.mark.thorough
@pytest.mark.parametrize("lesson", [one for one in Course(ROOT).ids if one < "06"])
def test_lessons_run_on_colab(colab: Run, lesson: str) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / f"{lesson}.ipynb", 4)
    colab(notebook)
    allowed = [cell for cell in notebook.cells if "raises-exception" not in cell.metadata.get("tags", ())]
    assert errors(allowed) == []
    if lesson != "00_start_here":
        choose = next(cell for cell in notebook.cells if cell.id.startswith("choose-"))
        assert "Your prediction: not chosen" in str(choose.outputs)
    assert any("image/png" in one.get("data", {}) for cell in notebook.cells for one in cell.get("outputs", ()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("lesson", "files"), [("23_escape_hatches", ""), ("26_capstone", "Added README.md, paradise_lost.txt.")]
)
def test_a_lesson_with_a_compiler_or_data_on_kaggle(kaggle: Run, lesson: str, files: str) -> None:
    notebook = solved(lesson)
    kaggle(notebook)
    install = next(cell for cell in notebook.cells if cell.id == "install")
    assert files in said(install)
    assert errors(notebook.cells) == []
    points = Course(ROOT).lesson(lesson).points
    assert f"{points:g} of {points:g} points." in said(notebook.cells[-1])


@pytest.mark.thorough
def test_an_unsolved_notebook_is_graded_too(kaggle: Run) -> None:
    notebook = nbformat.read(ROOT / "exercises/01_arrays/01_arrays.ipynb", 4)
    kaggle(notebook)
    assert "0 of " in said(notebook.cells[-1])
