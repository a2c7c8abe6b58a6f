"""An instructor's hour in the JupyterLab of `grader instructor`: release, autograde, look, give feedback, by mouse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import desk
from conftest import ROOT, Grader
from feedback_class import HOSTILE, LESSON, hand_in
from test_lms_feedback_page import RAN, in_a_browser

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
    with page.expect_response(lambda answer: "/formgrader/api/grade/" in answer.url and answer.ok):
        page.locator("#hand-essay").fill("1")
        page.locator("#hand-essay").press("Tab")
    page.get_by_text("Student's answer").wait_for()
    assert page.evaluate(ACTING) == []
    assert page.evaluate(RAN) is False
    beside = page.request.get(f"{address}mine.html")
    assert beside.status == 404, "a page that was handed in is not opened with an instructor's rights"


def _click(page: Page | FrameLocator, row: Locator, what: str) -> str:
    """Click a button of the row; what Formgrader then says in a dialog, which is closed."""
    row.locator(f"td.{what} a").click()
    dialog = page.locator(".modal.in")
    dialog.get_by_text("Successfully").or_(dialog.get_by_text("There was an error")).first.wait_for()
    said = dialog.inner_text()
    dialog.get_by_role("button", name="OK").click()
    dialog.wait_for(state="detached")
    return said


def test_a_course_that_is_none_of_nbgraders_is_refused(built: Callable[[str], Path], grader: Grader) -> None:
    done = grader("--course", built("by_hand"), "instructor")
    assert done.returncode == 2
    assert done.stderr.startswith("There is no nbgrader_config.py in ")
