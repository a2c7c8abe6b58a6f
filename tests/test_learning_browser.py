"""A first hour in a real JupyterLab: the start page, a lesson, a wrong answer, a hint, the right one, full points."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import desk
import pytest
from conftest import COURSES, ROOT, SCREENSHOTS, needs_browser

from grader.core.layout import GLOSSARY
from grader.course import Course, Exercise, build, workspace
from grader.course.exercises import GRADING

pytestmark = pytest.mark.thorough
LESSON = "05_vmap"
EXERCISES = f"{LESSON}/{LESSON}.ipynb"
PANELS = "jupyterapp.commands.listCommands().filter(name => name.startsWith('nbgrader:open'))"


@needs_browser
def test_first_hour(tmp_path: Path) -> None:
    course = desk.copy_course(tmp_path)
    first, *others = Course(course).lesson(LESSON).exercises
    points = f"{Course(course).lesson(LESSON).points:g}"
    with desk.lab(course) as address, desk.page(address) as page:
        try:
            assert page.evaluate(PANELS) == [], "an instructor's panels are not a learner's"
            opened = desk.lab_path(address)
            assert opened == workspace.first(Course(course))
            lesson = desk.Notebook.front(page, opened)
            assert not page.get_by_text("Validate", exact=True).count(), "it would pass what hidden checks do not"
            assert page.get_by_role("heading", level=1).first.inner_text().startswith(f"{Path(opened).stem[:2]} · ")
            _keep(lesson, "lesson")
            _one_prediction(lesson, course / "work" / opened)
            assert desk.Notebook.open(page, f"lessons/{LESSON}.ipynb").run_all()
            notebook = desk.Notebook.open(page, EXERCISES)
            assert notebook.run("setup") == ""
            _one_exercise(notebook, first)
            for exercise in others:
                notebook.type(exercise.id, exercise.reference)
            assert notebook.run_all()
            for exercise in others:
                for check in exercise.checks:
                    assert notebook.outputs(check.id)[:1] == ([] if check.hidden else [f"✓ {check.title}"])
            assert "run after unsaved changes" in notebook.run(GRADING), "it grades what was saved"
            notebook.save()
            said = notebook.run(GRADING)
            assert f"{points} of {points} points." in said
            assert f"Graded: work/{EXERCISES}, saved" in said
            assert "unsaved changes" not in said
            notebook.show(GRADING)
            _keep(notebook, "graded")
            lesson = desk.Notebook.open(page, opened)
            assert f"✓ {points} of {points} points" in lesson.run(_map(course / "work" / opened))
            _keep(lesson, "map")
        except BaseException:
            page.screenshot(path=_screenshot("where_it_failed"))
            raise
    graded = desk.grader(course, "check", f"work/{EXERCISES}")
    assert graded.returncode == 0, graded.stdout + graded.stderr
    assert f"{points} of {points} points" in graded.stdout


@needs_browser
def test_a_link_to_a_term_opens_the_glossary_at_that_term(tmp_path: Path) -> None:
    root = Path(shutil.copytree(COURSES / "course_tiny", tmp_path / "course", ignore=shutil.ignore_patterns("build")))
    (root / "docs").mkdir()
    shutil.copy(ROOT / GLOSSARY, root / GLOSSARY)
    script = root / "notebooks" / "01_first.py"
    script.write_text(script.read_text().replace("# Then the", "# A [tracer](../docs/glossary.md#tracer), the"))
    build.build(Course(root))
    with desk.lab(root) as address, desk.page(address) as page:
        desk.Notebook.front(page, "lessons/01_first.ipynb")
        page.get_by_role("link", name="tracer").click()
        row = page.locator('.jp-MarkdownViewer tr:has([data-jupyter-id="tracer"])')
        row.wait_for()
        page.wait_for_timeout(1000)  # the page scrolls there
        page.screenshot(path=_screenshot("glossary"))
        assert 0 < row.bounding_box()["y"] < page.viewport_size["height"]
        assert "stands for an array" in row.inner_text()
        row.get_by_role("link", name="02").wait_for()


def _map(path: Path) -> str:
    """The id of the cell that draws the map of the course."""
    cells = json.loads(path.read_text())["cells"]
    return str(next(one["id"] for one in cells if "course_map()" in "".join(one["source"])))


def _one_prediction(lesson: desk.Notebook, path: Path) -> None:
    """Choose by a button before a cell is run; find what was chosen beside the result, and kept on disk."""
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    place = next(i for i, cell in enumerate(code) if cell["id"].startswith("choose-"))
    for cell in code[: place + 1]:
        lesson.run(cell["id"])
    asking, result = code[place]["id"], code[place + 1]["id"]
    buttons = lesson.node(asking).query_selector_all("input[type=radio]")
    assert len(buttons) >= 2
    buttons[1].click()
    lesson.page.get_by_text("Saved. Now run the next cell.").wait_for()
    _keep(lesson, "prediction")
    lesson.run(result)
    lesson.page.wait_for_function("document.body.textContent.match(/You predicted B/g)?.length === 2")
    assert "You predicted B" in lesson.output(result)
    lesson.show(result)
    _keep(lesson, "predicted")
    [kept] = json.loads((path.parents[1] / ".jaxercise.json").read_text())["predictions"].values()
    assert kept["choice"] == "B"


def _one_exercise(notebook: desk.Notebook, exercise: Exercise) -> None:
    """As given out, then with a mistake that many make, then right."""
    check = next(check for check in exercise.checks if not check.hidden)
    notebook.run(exercise.id)
    untouched = notebook.run(check.id)
    assert untouched.startswith(f"○ {check.title}\n  Not attempted yet: ")
    _keep(notebook, "not_attempted")
    notebook.type(exercise.id, exercise.wrong[0].source)
    assert notebook.run(exercise.id) == ""
    notebook.run(check.id)
    failed, *beside, hint = notebook.outputs(check.id)
    assert failed.startswith(f"✗ {check.title}\n  ")
    assert "expected" in failed
    assert "is missing" in "".join(beside), "a shape, drawn"
    assert hint.startswith("Hint 1 · a question")
    fold = notebook.show(check.id).query_selector_all(".jp-OutputArea-output details")[-1]
    assert not fold.evaluate("one => one.open")
    fold.wait_for_selector("summary").click()
    assert fold.evaluate("one => one.open")
    _keep(notebook, "failed")
    for message in (untouched, failed):
        assert "Traceback" not in message
        assert len(message.splitlines()) <= 4
    notebook.type(exercise.id, exercise.reference)
    assert notebook.run(exercise.id) == ""
    notebook.run(check.id)
    tick, why = notebook.outputs(check.id)
    assert tick == f"✓ {check.title}"
    assert why.startswith("Why it works")
    _keep(notebook, "passed")


def _keep(notebook: desk.Notebook, name: str) -> None:
    notebook.page.screenshot(path=_screenshot(name))


def _screenshot(name: str) -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS / f"first_hour_{name}.png"
