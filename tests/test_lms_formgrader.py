"""An instructor's hour in the JupyterLab of `grader instructor`: release, autograde, look, give feedback, by mouse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import desk
from conftest import ROOT, Grader
from feedback_class import HOSTILE, LESSON, hand_in
from nbformat import reads
from test_lms_feedback_page import RAN, in_a_browser, words

from grader.lms.formgrader import FormgraderPage

if TYPE_CHECKING:
    from playwright.sync_api import FrameLocator, Locator, Page

ACTING = """[...document.querySelectorAll('.rendered_html, .rendered_html *')].filter(one =>
    ['SCRIPT', 'IFRAME', 'OBJECT', 'EMBED', 'LINK', 'META', 'BASE', 'FORM', 'STYLE'].includes(one.tagName)
    || [...one.attributes].some(({name, value}) => name.startsWith('on') || name === 'style' || /script:/i.test(value))
).map(one => one.outerHTML)"""


@in_a_browser
def test_an_instructors_hour(built: Callable[[str], Path], tmp_path: Path) -> None:
    course = Path(shutil.copytree(built("by_hand"), tmp_path / "course"))
    shutil.copy(ROOT / "nbgrader_config.py", course)
    shutil.rmtree(course / "build")
    hand_in(course, HOSTILE, "misled")
    with desk.lab(course, verb="instructor") as address, desk.page(address) as page:
        try:
            _formgrader(page)
            _assignments(page)
            _submissions(page, address.split("/lab")[0])
        except BaseException:
            page.screenshot(path=desk.ROOT / "build" / "formgrader_where_it_failed.png")
            raise
    feedback = course / "build" / "feedback" / "misled" / LESSON / f"{LESSON}.html"
    assert "Perhaps: Subtracts two." in feedback.read_text()
    text = words(feedback)
    assert "✗ Names the exponent. 0 of 2 ✓ Shows a subnormal number. 1 of 1 Comment Look at 2⁻¹²⁶." in text
    assert "inputs.rng" not in text, "the code of a hidden check is on Formgrader's page alone"
    for path in course.rglob("*"):
        if path.is_file() and path.suffix in (".ipynb", ".html") and "source" not in path.parts:
            assert "inputs.rng" not in path.read_text(), path


def _formgrader(page: Page) -> None:
    """In JupyterLab's own panel: the lessons are there; one is generated and released."""
    page.evaluate("jupyterapp.commands.execute('nbgrader:open-formgrader').then(() => null)")
    panel = page.frame_locator("iframe")
    row = panel.locator("tbody tr").filter(has_text=LESSON)
    row.locator("td.status").wait_for()
    assert "Examine" not in panel.locator("body").inner_text(), "nobody's configuration is printed"
    assert f"Successfully created the student version of '{LESSON}':" in _click(panel, row, "assign")
    assert f"Successfully released '{LESSON}'." in _click(panel, row, "release")
    assert row.locator("td.status").inner_text() == "released"
    assert row.locator("td.num-submissions").inner_text() == "2"


def _assignments(page: Page) -> None:
    """What a learner on the same machine may fetch."""
    page.evaluate("jupyterapp.commands.execute('nbgrader:open-assignment-list').then(() => null)")
    page.locator("#released_assignments_list").get_by_text(LESSON).wait_for()


def _submissions(page: Page, server: str) -> None:
    """On Formgrader's other pages: both are graded, looked at, and get their feedback."""
    page.goto(f"{server}/formgrader/manage_submissions/{LESSON}")
    rows = page.locator("tbody tr")
    for learner in (HOSTILE, "misled"):
        row = rows.filter(has_text=learner)
        assert f"Successfully autograded '{LESSON}' for student '{learner}'." in _click(page, row, "autograde")
        assert row.locator("td.score").inner_text() == "0 / 6"
    page.goto(f"{server}/formgrader/gradebook/{LESSON}/{LESSON}")
    links = rows.get_by_role("link", name="Submission #")
    links.first.wait_for()
    for address in [f"{server}{link.get_attribute('href')}/" for link in links.all()]:
        _look_at(page, address)
    page.goto(f"{server}/formgrader/manage_students/{quote(HOSTILE)}/{LESSON}")
    page.locator("ol.breadcrumb").get_by_text(HOSTILE).wait_for()
    assert page.evaluate(RAN) is False
    page.goto(f"{server}/formgrader/manage_submissions/{LESSON}")
    row = rows.filter(has_text="misled")
    assert row.locator("td.score").inner_text() == "1 / 6", "the point that was given by hand"
    assert "Successfully generated feedback" in _click(page, row, "generate-feedback")


def _look_at(page: Page, address: str) -> None:
    """Grade a submission by hand. Its notebook may do nothing there: the page may do all that an instructor may."""
    page.goto(address)
    page.locator("#hand-half-values[placeholder]").wait_for()  # its points have come
    _grade_items(page)
    assert "inputs.rng().normal(size=5)" in page.locator(".nbgrader_cell:has(#hand-half-values)").inner_text()
    page.get_by_text("Student's answer").wait_for()
    assert page.evaluate(ACTING) == []
    assert page.evaluate(RAN) is False
    beside = page.request.get(f"{address}mine.html")
    assert beside.status == 404, "a page that was handed in is not opened with an instructor's rights"


def _grade_items(page: Page) -> None:
    """The items of the mark scheme, clicked and typed: points and comment are stored, and are there after a reload."""
    exponent, subnormal = "Points for: Names the exponent.", "Shows a `subnormal` number."
    for label in (exponent, f"Points for: {subnormal}"):
        assert page.get_by_label(label, exact=True).input_value() == ""
    with _saved(page, "comment"), _saved(page, "grade"):
        page.get_by_label(subnormal, exact=True).check()
    comment, score = page.locator("#hand-essay-comment"), page.locator("#hand-essay")
    lines = "- 0 of 2 points: Names the exponent.\n- 1 of 1 point: Shows a `subnormal` number."
    assert (comment.input_value(), score.input_value()) == (lines, "1")
    with _saved(page, "comment"), _saved(page, "grade"):
        page.get_by_label(exponent, exact=True).fill("1.5")
        page.get_by_label(exponent, exact=True).press("Tab")
    assert score.input_value() == "2.5"
    with _saved(page, "comment"), _saved(page, "grade"):
        comment.fill(f"{lines}\n\nLook at 2⁻¹²⁶.")
        comment.press("Tab")
    assert (page.get_by_label(exponent, exact=True).input_value(), score.input_value()) == ("0", "1")
    page.wait_for_load_state("networkidle")
    page.reload()
    page.locator("#hand-half-values[placeholder]").wait_for()
    page.wait_for_load_state("networkidle")
    assert page.get_by_label(subnormal, exact=True).is_checked()
    assert (comment.input_value(), score.input_value()) == (f"{lines}\n\nLook at 2⁻¹²⁶.", "1")


def _saved(page: Page, what: str) -> Any:
    """A context that ends when Formgrader has stored a comment or a grade."""
    return page.expect_response(lambda answer: f"/formgrader/api/{what}/" in answer.url and answer.ok)


def _click(page: Page | FrameLocator, row: Locator, what: str) -> str:
    """Click a button of the row; what Formgrader then says in a dialog, which is closed."""
    row.locator(f"td.{what} a").click()
    dialog = page.locator(".modal.in")
    dialog.get_by_text("Successfully").or_(dialog.get_by_text("There was an error")).first.wait_for()
    said = dialog.inner_text()
    dialog.get_by_role("button", name="OK").click()
    dialog.wait_for(state="detached")
    return said


def test_hidden_text_is_added_for_formgrader_alone(built: Callable[[str], Path]) -> None:
    """nbgrader's own feedback exporter reads the same configuration."""
    course = built("by_hand")
    notebook = reads((course / "exercises" / LESSON / f"{LESSON}.ipynb").read_text(), 4)
    step = FormgraderPage(root=str(course), enabled=True)
    told = {"assignment_id": LESSON, "student": "<b>"}
    for resources, shown in ((told | {"nbgrader": {}}, False), (told | {"submission_id": "1"}, True)):
        page, resources = step(notebook, resources)
        assert ("inputs.rng" in str(page)) is shown
        assert resources["student"] == "&lt;b&gt;"


def test_a_course_that_is_none_of_nbgraders_is_refused(built: Callable[[str], Path], grader: Grader) -> None:
    done = grader("--course", built("by_hand"), "instructor")
    assert done.returncode == 2
    assert done.stderr.startswith("There is no nbgrader_config.py in ")
