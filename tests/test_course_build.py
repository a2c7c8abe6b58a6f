"""Building: nbgrader's own release of our source, byte by byte, and nothing in a learner's file that is not theirs."""

import ast
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest
from conftest import PYTHONPATH

from grader.course import Course, CourseError, build

ROOT = Path(__file__).parent.parent
TINY = Path(__file__).parent / "courses" / "course_tiny"
SECOND = "exercises/02_second/02_second.ipynb"
# Bytes; a larger notebook is slow to open and to review. Sources, with all hidden checks, are opened by authors only.
LARGEST, LARGEST_SOURCE, LARGEST_DATA = 80_000, 110_000, 1_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("built") / "course"
    shutil.copytree(TINY, root)
    written = build.build(Course(root))
    return root, written


@pytest.fixture
def tiny(built, tmp_path):
    shutil.copytree(built[0], tmp_path / "course")
    return tmp_path / "course"


def cells(root, path=SECOND):
    return {cell["id"]: cell for cell in json.loads((root / path).read_text())["cells"]}


def source(cell):
    return "".join(cell["source"])


def test_a_build_writes_lessons_exercises_and_sources(built):
    root, written = built
    assert [path.relative_to(root).as_posix() for path in written] == [
        "build/source/01_first/01_first.ipynb",
        "build/source/02_second/02_second.ipynb",
        "exercises/01_first/01_first.ipynb",
        "exercises/02_second/02_second.ipynb",
        "notebooks/01_first.ipynb",
    ]


def test_a_rebuild_changes_no_byte(tiny):
    before = {path: path.read_bytes() for path in tiny.rglob("*.ipynb")}
    assert build.build(Course(tiny)) == []
    for path in before:
        path.unlink()
    assert sorted(build.build(Course(tiny))) == sorted(before)
    assert {path: path.read_bytes() for path in tiny.rglob("*.ipynb")} == before


def test_only_what_differs_is_written(tiny):
    path = tiny / "solutions/02_second.py"
    path.write_text(path.read_text().replace("Multiply.", "Times."))
    course = Course(tiny)
    assert build.stale(course) == [tiny / SECOND]
    assert build.build(course) == [tiny / "build/source/02_second/02_second.ipynb", tiny / SECOND]
    assert build.stale(course) == []


def test_a_notebook_that_somebody_edited_is_stale(tiny):
    (tiny / SECOND).write_text((tiny / SECOND).read_text().replace("Times", "times") + " ")
    (tiny / "notebooks/01_first.ipynb").unlink()
    assert build.stale(Course(tiny)) == [tiny / SECOND, tiny / "notebooks/01_first.ipynb"]


def test_build_is_not_looked_at_by_stale(tiny):
    shutil.rmtree(tiny / "build")
    assert build.stale(Course(tiny)) == []


def test_a_notebook_whose_text_is_gone_is_removed_and_other_hands_are_left_alone(tiny):
    (tiny / "notebooks/mine.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    (tiny / "solutions/02_second.py").unlink()
    course = Course(tiny)
    assert build.stale(course) == [tiny / SECOND]
    assert build.build(course) == [tiny / SECOND]
    assert not (tiny / "exercises/02_second").exists()
    assert (tiny / "notebooks/mine.ipynb").exists()


def test_some_lessons_alone_can_be_built(tiny):
    for path in tiny.rglob("*.ipynb"):
        path.unlink()
    written = build.build(Course(tiny), ["02_second"])
    assert [path.name for path in written] == ["02_second.ipynb"] * 2


def test_nothing_is_written_while_anything_is_wrong(tiny):
    first, second = tiny / "solutions/01_first.py", tiny / "solutions/02_second.py"
    first.write_text(first.read_text().replace("stars=1", "stars=7"))
    second.write_text(second.read_text().replace("Multiply.", "Times.").replace("points=2.5", "points=0"))
    before = (tiny / SECOND).read_bytes()
    with pytest.raises(CourseError) as caught:
        build.build(Course(tiny))
    assert [problem.path for problem in caught.value.problems] == ["solutions/01_first.py", "solutions/02_second.py"]
    assert (tiny / SECOND).read_bytes() == before


def test_the_release_is_what_nbgrader_makes_of_the_same_source(built, tmp_path):
    """Same bytes, no exception. nbgrader calls `alembic` by name, so the environment's programs must be on PATH."""
    root, lesson = built[0], "02_second"
    shutil.copytree(root / "build/source", tmp_path / "source")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", lesson, "--course-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    release = tmp_path / "release" / lesson / f"{lesson}.ipynb"
    assert release.read_bytes() == (root / "exercises" / lesson / f"{lesson}.ipynb").read_bytes()


def test_the_source_carries_nbgraders_checksums(built):
    from nbgrader.utils import compute_checksum

    notebook = nbformat.read(built[0] / "build/source/02_second/02_second.ipynb", 4)
    for cell in notebook.cells:
        assert cell.metadata.nbgrader.checksum == compute_checksum(cell)
    answer = next(cell for cell in notebook.cells if cell.id == "second-square")
    assert "### BEGIN SOLUTION" in answer.source
    hidden = next(cell for cell in notebook.cells if cell.id == "second-square-many")
    assert hidden.source.count("HIDDEN TESTS") == 2


def test_a_notebook_is_valid_and_free_of_outputs_and_versions(built):
    for path in built[0].rglob("*.ipynb"):
        notebook = nbformat.read(path, 4)
        nbformat.validate(notebook)
        assert path.read_bytes().endswith(b"}\n")
        assert set(notebook.metadata) == {"jaxercise", "kernelspec", "language_info"}
        assert notebook.metadata.language_info == {"name": "python"}
        assert notebook.metadata.kernelspec.name == "python3"
        for cell in notebook.cells:
            assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


def test_grade_ids_and_kinds_of_cells(built):
    found = cells(built[0])
    said = {
        name: "".join(key[0] for key in ("grade", "locked", "solution", "task") if cell["metadata"]["nbgrader"][key])
        for name, cell in found.items()
    }
    assert said == {
        "text": "l",
        "setup": "l",
        "text-2": "l",
        "setup-2": "l",
        "second-square-task": "l",
        "second-square": "s",
        "second-square-values": "gl",
        "second-square-many": "gl",
        "second-square-once": "gl",
        "second-square-why": "l",
        "closing": "l",
        "grade": "l",
    }
    assert all(cell["metadata"]["nbgrader"]["grade_id"] == name for name, cell in found.items())
    allowed = {"checksum", "cell_type", "grade", "grade_id", "locked", "points", "schema_version", "solution", "task"}
    assert all(set(cell["metadata"]["nbgrader"]) <= allowed for cell in found.values())
    points = {name: cell["metadata"]["nbgrader"].get("points") for name, cell in found.items()}
    assert {name: p for name, p in points.items() if p} == {
        "second-square-values": 1,
        "second-square-many": 2.5,
        "second-square-once": 1,
    }


def test_ids_do_not_change_with_the_text(tiny):
    """nbgrader refuses a changed set of ids once somebody has submitted, so mending a typo must change none."""
    path = tiny / "solutions/02_second.py"
    before = list(cells(tiny))
    path.write_text(path.read_text().replace("More prose", "Some more prose").replace("Multiply.", "Times."))
    build.build(Course(tiny))
    assert list(cells(tiny)) == before


def test_the_stub_is_the_released_answer_cell(built):
    exercise = Course(built[0]).lesson("02_second").exercise("second-square")
    assert source(cells(built[0])["second-square"]) == exercise.stub


def test_a_hidden_check_is_an_empty_cell_that_says_so(built):
    assert source(cells(built[0])["second-square-many"]) == (
        "# Hidden check, 2.5 points: Squares every number, drawn anew.\n"
        "# It runs when the notebook is graded: grader check 02_second"
    )


def test_what_the_prose_says(built):
    found = cells(built[0])
    assert source(found["text"]).startswith("# 02 · Exercises: Second\n\n*The exercises of lesson 02_second (I. Small)")
    assert source(found["second-square-task"]).startswith(
        "## The square\n\n★★☆ · about 10 minutes · 4.5 points · "
        "uses [01_first](../../notebooks/01_first.ipynb), 02_second, "
        "[Twice the number](../01_first/01_first.ipynb) (01)\n\n**Goal.** Square it, once.\n\n"
        "**Signature.**"
    )
    assert source(found["second-square-why"]) == (
        "<details><summary>After it passes: why it works</summary>\n\nA power says it. And a cube?\n\n</details>"
    )
    assert "grader check 02_second" in source(found["closing"])
    first = cells(built[0], "exercises/01_first/01_first.ipynb")["text"]
    assert "[01_first](../../notebooks/01_first.ipynb)" in source(first)
    assert source(first).endswith("\n\nBegin here.")


def test_a_lesson_has_its_predictions_folded_its_magics_and_its_tags(built):
    found = cells(built[0], "notebooks/01_first.ipynb")
    assert source(found["predict-first-sum"]) == (
        "**Predict first.** What does `sum([])` give?\n\n- **A** an error\n- **B** `0`\n\n"
        "<details><summary>What is behind each choice</summary>\n\n- ✗ **A** Tempting: `max([])` does raise.\n"
        "- ✓ **B** Right: the sum of nothing is 0 < 1, which is where adding begins.\n\n</details>"
    )
    assert found["predict-first-sum"]["metadata"]["jaxercise"]["prediction"]["choices"][1] == {
        "text": "`0`",
        "reason": "Right: the sum of nothing is 0 < 1, which is where adding begins.",
        "right": True,
    }
    buttons = found.pop("choose-first-sum")
    assert (
        source(buttons)
        == '# Choose, then run the next cell.\nimport grader.learning\n\ngrader.learning.predict("first-sum")'
    )
    assert buttons["metadata"] == {"jupyter": {"source_hidden": True}, "tags": ["raises-exception"]}
    found.pop("predict-first-sum")
    code = [source(cell) for cell in found.values() if cell["cell_type"] == "code"]
    assert code[0].startswith("import time\n\n%time sum(range(10))\ntotal")
    assert code[2].startswith("%%time\nsum")
    assert [cell["metadata"] for cell in found.values() if cell["metadata"]] == [{"tags": ["raises-exception"]}]
    twins = [name for name, cell in found.items() if source(cell) == "total"]
    assert twins[1] == f"{twins[0]}-2"


def secrets(lesson):
    """Every line of a solution, a hidden check or a wrong or right answer that the learner's own cells do not say."""
    shown = {lesson.setup, *(exercise.stub for exercise in lesson.exercises)}
    shown |= {check.source for exercise in lesson.exercises for check in exercise.checks if not check.hidden}
    lines = {line.strip() for text in shown for line in text.split("\n")}
    for exercise in lesson.exercises:
        texts = [exercise.reference, *(variant.source for variant in (*exercise.wrong, *exercise.right))]
        texts += [check.source.split("\n", 1)[1] for check in exercise.checks if check.hidden]
        yield from (because.because for because in exercise.wrong)
        yield from (s for text in texts for s in map(str.strip, text.split("\n")) if len(s) > 8 and s not in lines)


@cache
def made(root):
    """What a build of a course makes; of this one that takes three seconds."""
    return build.outputs(Course(root))


@pytest.mark.parametrize("root", [TINY, ROOT], ids=["tiny", "this course"])
def test_no_solution_hidden_check_or_wrong_answer_reaches_a_learner(root, tmp_path):
    course, outputs = Course(root), made(root)
    for lesson_id in course.lesson_ids:
        notebook = json.loads(outputs[build.exercises_path(course, lesson_id)])
        code = {
            line.strip()
            for cell in notebook["cells"]
            if cell["cell_type"] == "code"
            for line in source(cell).split("\n")
        }
        everything = "\n".join(source(cell) for cell in notebook["cells"])
        prose = "\n".join(source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        assert "HIDDEN TESTS" not in everything
        assert "SOLUTION" not in everything
        for secret in secrets(course.lesson(lesson_id)):
            assert secret not in code
            # A short call such as `update(state, sample)` may be how the task writes a signature.
            said = secret.removeprefix("return ")
            assert len(said) < 25 or said not in prose


def test_the_secret_lines_of_a_source_are_there_to_be_found(built):
    """The test above can fail: the source notebook holds what it looks for."""
    lesson = Course(built[0]).lesson("02_second")
    text = "\n".join(map(source, cells(built[0], "build/source/02_second/02_second.ipynb").values()))
    assert sum(secret in text for secret in secrets(lesson)) >= 5


def test_every_code_cell_that_is_released_parses(built):
    for cell in cells(built[0]).values():
        if cell["cell_type"] == "code":
            ast.parse(source(cell))


def test_this_courses_notebooks_are_up_to_date():
    assert [path.relative_to(ROOT).as_posix() for path in build.stale(Course(ROOT))] == [], "run `make build`"


def test_this_courses_notebooks_are_small():
    course = Course(ROOT)
    limits = [(path, text, LARGEST) for path, text in made(ROOT).items()]
    limits += [(path, text, LARGEST_SOURCE) for path, text in build.sources(course).items()]
    limits = [(path, text, most if path.suffix == ".ipynb" else LARGEST_DATA) for path, text, most in limits]
    assert {str(path): len(text) for path, text, most in limits if len(text) >= most} == {}
