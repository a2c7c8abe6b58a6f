"""Notebooks on Colab and Kaggle: the first cell, what `install` changes, the files that `start` adds, and `grade`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import COURSES, PYTHONPATH, ROOT
from packaging.requirements import Requirement

import grader
from grader.core.notebook import Submission, SubmittedCell, grade_id, text
from grader.course import Course, build, notebook_builder
from grader.course.percent import CourseError
from grader.grading.plan import RunCell, plan
from grader.learning import cloud, predictions
from grader.learning.course_map import course_map

LESSON = "05_vmap"
ADDRESS = "https://github.com/someone/course"
KERNEL = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE", "JPY_SESSION_NAME", "NBGRADER_EXECUTION")


@pytest.fixture(autouse=True)
def _no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KERNEL:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cloud, "_lesson", None)


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A small course, with the settings that have its notebooks open on services."""
    root = tmp_path / "course"
    shutil.copytree(COURSES / "course_tiny", root)
    content = (root / "course.toml").read_text()
    (root / "course.toml").write_text(f'package = "jaxercise"\nrepository = "{ADDRESS}"\n{content}')
    return root


def cells(notebook: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["id"]: cell for cell in notebook["cells"]}


# The cell


@pytest.mark.parametrize("lesson", Course(ROOT).ids)
def test_the_first_code_cell_of_each_notebook_installs_the_package(lesson: str) -> None:
    for path in (f"notebooks/{lesson}.ipynb", f"exercises/{lesson}/{lesson}.ipynb"):
        if not (ROOT / path).is_file():
            continue
        first = next(c for c in json.loads((ROOT / path).read_text())["cells"] if c["cell_type"] == "code")
        kind = path.partition("/")[0]
        expected = notebook_builder.INSTALLATION.format(package="jaxercise", notebook=f"{kind}/{lesson}")
        assert text(first) == expected
        assert len(expected.splitlines()) <= 10
        assert first["id"] == "install"


def test_links_open_the_notebook_where_it_is(course: Path) -> None:
    build.build(Course(course))
    notebook = json.loads((course / "exercises/02_second/02_second.ipynb").read_text())
    assert [cell["id"] for cell in notebook["cells"]][1:3] == ["open", "install"]
    links = text(notebook["cells"][1])
    assert (
        "(https://colab.research.google.com/github/someone/course/blob/main/exercises/02_second/02_second.ipynb)"
        in links
    )
    assert f"(https://kaggle.com/kernels/welcome?src={ADDRESS}/blob/main/exercises/02_second/02_second.ipynb)" in links
    assert "(https://mybinder.org/v2/gh/someone/course/main?labpath=exercises%2F02_second%2F02_second.ipynb)" in links
    assert "notebooks/01_first.ipynb)" in text(
        cells(json.loads((course / "notebooks/01_first.ipynb").read_text()))["open"]
    )


def test_a_branch_can_be_named(course: Path) -> None:
    path = course / "course.toml"
    path.write_text(path.read_text().replace(ADDRESS, f"{ADDRESS}/tree/spring/a"))
    [links] = notebook_builder._links(Course(course), "notebooks/x.ipynb")
    assert "someone/course/blob/spring/a/notebooks/x.ipynb" in links
    assert "/v2/gh/someone/course/spring%2Fa?" in links


def test_a_course_without_these_settings_has_neither_cell() -> None:
    notebook = build.source(Course(COURSES / "course_tiny"), "02_second")
    assert not {"open", "install"} & set(cells(notebook))


@pytest.mark.parametrize(
    "line", ['package = "--index-url=x"', 'package = "a b"', 'repository = "http://x.org/a/b"', "package = 1"]
)
def test_a_setting_that_pip_or_a_link_would_misread_is_refused(course: Path, line: str) -> None:
    key = line.split()[0]
    path = course / "course.toml"
    path.write_text(
        "\n".join([line, *(one for one in path.read_text().splitlines() if not one.startswith(f"{key} ="))])
    )
    with pytest.raises(CourseError, match=f"`{key}` cannot be used"):
        Course(course)


def test_the_cell_does_not_run_when_the_notebook_is_graded() -> None:
    lesson = Course(COURSES / "course_tiny").lesson("02_second")
    source = notebook_builder.INSTALLATION.format(package="jaxercise", notebook="exercises/02_second")
    for written, runs in ((source, 0), ("secret = 1", 1)):
        found = Submission("a", lesson.id, (SubmittedCell("install", written, 1),), "0")
        steps, _ = plan(found, lesson, lambda _: ())
        assert sum(isinstance(step, RunCell) for step in steps) == runs


def test_the_cell_prints_nothing_where_the_package_and_the_notebook_are(tmp_path: Path) -> None:
    source = notebook_builder.INSTALLATION.format(package="none-such", notebook=f"exercises/{LESSON}")
    around = {name: value for name, value in os.environ.items() if name not in KERNEL} | {"PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "IPython", "-c", source]
    done = subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, text=True, check=True)
    assert not done.stdout.strip()
    assert not [*tmp_path.iterdir()]


# install


def test_the_table_of_releases_begins_with_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [jax] = [one for one in map(Requirement, project["dependencies"]) if one.name == "jax"]
    assert cloud.RELEASES[0] == (grader.__version__, str(jax.specifier).removeprefix(">="))


def test_excluded_dependencies_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {cloud._plain(Requirement(one).name) for one in project["dependencies"]}
    assert names >= cloud.NOT_IN_CLOUD | set(cloud.TAUGHT)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for pip and for the packages of a platform."""
    state = SimpleNamespace(here={}, calls=[], pins=[], answer=lambda words: "")

    def run(*words: str) -> str:
        state.calls.append(words)
        if words[0] == "--constraint":
            state.pins.append(Path(words[1]).read_text().splitlines())
        problem = state.answer(words)
        if not problem:
            state.here |= {cloud._plain(Requirement(one).name): "99" for one in words[2:]}
        return str(problem)

    required = "jax>=0.10.2 numpy>=2.0 flax>=0.12.8 executing>=2.2 traitlets>=5.14 jupyterlab>=4.6.2".split()
    monkeypatch.setattr(cloud, "_versions", lambda: dict(state.here))
    monkeypatch.setattr(metadata, "requires", lambda name: required)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: state.direct))
    monkeypatch.setattr(cloud, "_pip", run)
    state.direct = None
    state.here = {"jax": "0.11.0", "numpy": "2.0.2", "flax": "0.12.9", "traitlets": "5.7.1", "jaxercise": "0.1.0"}
    return state


def test_only_missing_packages_are_installed(pip: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.install()
    [call], [pins] = pip.calls, pip.pins
    assert call[2:] == ("executing>=2.2",)
    assert pins == ["flax==0.12.9", "jax==0.11.0", "numpy==2.0.2", "traitlets==5.7.1"]
    said = "Installed jaxercise 0.1.0 and 1 packages that it requires: executing 99. JAX stays 0.11.0.\n"
    assert capsys.readouterr().out == said.replace("1 packages that it requires", "1 package that it requires")


def test_an_older_flax_is_updated_and_the_rest_may_follow(
    pip: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    pip.here |= {"flax": "0.10.0", "msgpack": "1.0", "tornado": "6.5.1"}
    pip.answer = lambda words: "conflict" if len(pip.calls) == 1 else ""
    cloud.install()
    assert "msgpack==1.0" in pip.pins[0]
    assert pip.pins[1] == ["jax==0.11.0", "numpy==2.0.2", "tornado==6.5.1", "traitlets==5.7.1"]
    assert "Updated flax from 0.10.0 to 99." in capsys.readouterr().out


def test_a_platform_with_an_older_jax_is_told_what_to_do(pip: SimpleNamespace) -> None:
    pip.here["jax"] = "0.7.2"
    with pytest.raises(cloud.NotInstallable, match=r"requires jax>=0.10.2, but this platform has JAX 0.7.2"):
        cloud.install()
    assert not pip.calls


def test_an_older_release_is_chosen_for_an_older_jax(pip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    pip.here["jax"] = "0.9.1"
    monkeypatch.setattr(cloud, "RELEASES", (("0.3", "0.10.2"), ("0.2", "0.9.0"), ("0.1", "0.8.0")))
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    done = []
    monkeypatch.setattr(cloud.importlib, "import_module", importer(lambda: done.append(True)))
    cloud.install()
    assert pip.calls == [("--no-deps", "jaxercise==0.2")]
    assert done
    pip.direct = "{}"  # from a repository: there is no other release
    with pytest.raises(cloud.NotInstallable):
        cloud.install()


def importer(install: Any) -> Any:
    """importlib.import_module, but for the module of the older release."""
    import importlib

    real = importlib.import_module
    return lambda name: SimpleNamespace(install=install) if name == "grader.learning.cloud" else real(name)


def test_an_old_numpy_is_not_replaced(pip: SimpleNamespace) -> None:
    pip.here["numpy"] = "1.26.4"
    with pytest.raises(cloud.NotInstallable, match=r"requires numpy>=2.0, but this platform has 1.26.4"):
        cloud.install()
    assert not pip.calls


def test_pips_reason_is_shown(pip: SimpleNamespace) -> None:
    pip.answer = lambda words: "ERROR: no network"
    with pytest.raises(cloud.NotInstallable, match=r"executing>=2.2\): ERROR: no network"):
        cloud.install()


# start


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A kernel on Colab, with this checkout as the installed course."""
    shell = SimpleNamespace(user_ns={}, history_manager=SimpleNamespace(input_hist_raw=[""]))
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=sys.modules.get("IPython.display"))
    )
    monkeypatch.setattr(cloud, "_show_pictures", lambda notebook, course: None)
    (tmp_path / "content").mkdir()
    monkeypatch.chdir(tmp_path / "content")
    return shell


def test_start_adds_the_lessons_files(colab: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.start("exercises/26_capstone")
    assert Path("paradise_lost.txt").stat().st_size == 456_741
    assert tomllib.loads(Path("course.toml").read_text()) == {"installed": True}
    assert "Colab: your folder of the course is" in capsys.readouterr().out
    Path("paradise_lost.txt").write_text("mine")
    cloud.start("exercises/26_capstone")
    assert Path("paradise_lost.txt").read_text() == "mine"


def test_a_read_only_folder_is_left(colab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    cloud.start("notebooks/05_vmap")
    assert Path.cwd() == tmp_path / "jaxercise"
    assert not [*(tmp_path / "content").iterdir()]


def test_a_lesson_of_another_course_is_named(colab: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.start("exercises/99_own")
    assert "does not contain exercises/99_own, so only public checks can run here" in capsys.readouterr().out
    assert not [*Path.cwd().iterdir()]


def test_predictions_and_the_map_need_no_notebook_beside_them(
    colab: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "INSTALLED_COURSE", ROOT)
    notebook = json.loads((ROOT / "notebooks" / f"{LESSON}.ipynb").read_text())
    asked = [c["metadata"]["jaxercise"]["prediction"]["id"] for c in notebook["cells"] if "jaxercise" in c["metadata"]]
    assert predictions._choices(asked[0])
    cloud.start(f"notebooks/{LESSON}")
    tiles = course_map().tiles
    assert len(tiles) == len(Course(ROOT).ids)
    assert not any(tile.link or tile.status == "coming" for tile in tiles)


def test_pictures_are_shown_with_their_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    cloud._show_pictures(ROOT / "notebooks" / f"{LESSON}.ipynb", ROOT)
    [page] = shown
    assert page.data.count("data:image/") == page.data.count("<img ") >= 1
    assert 'alt=""' not in page.data


# grade


def notebook_with(*ids: str) -> dict[str, Any]:
    def cell(name: str, source: str, solution: bool) -> dict[str, Any]:
        marks = {"grade_id": name, "solution": solution, "locked": not solution}
        return {"cell_type": "code", "id": name, "metadata": {"nbgrader": marks}, "source": source, "outputs": []}

    made = [cell("setup", "import jax", False)]
    for name in ids:
        made += [cell(name, f"def {name}(x):\n    pass", True), cell(f"{name}-check", f"assert {name}(1)", False)]
    return {"cells": made}


def test_the_last_run_of_an_answer_counts() -> None:
    notebook = notebook_with("f", "g")
    asked = {"f": frozenset({"f"}), "g": frozenset({"g"})}
    ran = [
        "import jax",
        "def f(x):\n    return 1",
        "assert f(1)",
        "half = 2",
        "def f(x):\n    return half",
        "f(3)",
        "%ls",
    ]
    assert cloud.merge_runs(notebook, asked, ran) == 1
    assert [(grade_id(c), text(c)) for c in notebook["cells"]][:4] == [
        ("setup", "import jax"),
        (None, "half = 2"),
        ("f", "def f(x):\n    return half"),
        ("f-check", "assert f(1)"),
    ]
    # A new kernel runs the helper in another form, and another answer. The first answer stays.
    assert cloud.merge_runs(notebook, asked, ["half = 3", "def g(x):\n    return half"]) == 1
    named = {grade_id(c) or "own": text(c) for c in notebook["cells"]}
    assert (named["f"], named["own"]) == ("def f(x):\n    return half", "half = 3")
    assert [grade_id(c) for c in notebook["cells"]].index(None) == 3


def test_nothing_is_stored_before_start() -> None:
    assert cloud.save_answers(SimpleNamespace()) is None
