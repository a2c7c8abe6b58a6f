"""Feedback pages: what a learner sees of each ending, and that no notebook makes a page do anything, in Chromium."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import desk
import payloads
import pytest
from conftest import needs_browser
from feedback_class import ANSWERS, HOSTILE, LESSON, SCRIPT, with_feedback
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from grader.lms import feedback_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def in_a_browser(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.thorough(needs_browser(test))


@pytest.fixture(scope="module")
def pages(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each learner."""
    course = with_feedback(built("by_hand"), tmp_path_factory.mktemp("pages") / "course")
    return {learner: course / "build" / "feedback" / learner / LESSON / f"{LESSON}.html" for learner in ANSWERS}


def words(page: Path) -> str:
    """What stands on the page, with single spaces."""
    body = re.sub(r'<span class="[a-z0-9]{1,2}">([^<]*)</span>', r"\1", page.read_text().partition("<body>")[2])
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


SAID = {
    "all_right": [
        "01_by_hand · What a person grades all_right 2 of 6 points 5 points, minus a late penalty of 3.",
        "Half 3 of 3 When is a half exact? 2 of 3",
        "✓ Halves two and four. 1 of 1 ✓ Halves any array. (hidden) 2 of 2",
        "Graded by a person: 2 of 3 points ✓ Names the exponent. 2 of 2 ✗ Shows a subnormal number. 0 of 1"
        " Comment Good: exact powers of two.",
    ],
    "untouched": [
        "0 of 6 points 3 of them are given by a person, and are still missing.",
        "○ Halves two and four. – not attempted 0 of 1 Not attempted yet: `half` is unchanged.",
        "○ Halves any array. (hidden) – not attempted 0 of 2 The same as above.",
    ],
    "misled": [
        "0.5 of 6 points",
        "✗ Halves two and four. – failed 0.5 of 1",
        "1 of 2 values differs. The one at [0] of the result is 0; expected 1.",
        "Points given by a person. ✗ Halves any array. (hidden) – failed 0 of 2",
        "Perhaps: Subtracts two.",
    ],
    "exits": ["✗ Halves two and four. – crashed 0 of 1 Your answer cell ended the whole process."],
    "loops": ["– timeout 0 of 1 Your answer cell did not end: stopped after 2 s of processor time."],
    "blocked": [
        "raised ZeroDivisionError on line 1.",
        "Your own cell here = 1 / 0 Your answer def half(x):",
        "↑ Halves two and four. – blocked 0 of 1 Your answer needs `here`, which your code cell",
    ],
    "too_long": [
        "This notebook could not be graded. The notebook has 2,011 cells, but at most 2,000 are read. 0 of 6 points",
        "Half 0 of 3 When is a half exact? 0 of 3",
    ],
    "twice": [
        "The answer of hand-half is in 2 cells. All were run, in order.",
        "✓ Halves two and four. 1 of 1",
    ],
    HOSTILE: [f"What a person grades {HOSTILE} 0 of 6 points", f"raised ValueError: {SCRIPT}"],
}


@pytest.mark.parametrize("learner", ANSWERS)
def test_what_a_learner_sees(pages: dict[str, Path], learner: str) -> None:
    seen = words(pages[learner])
    for said in SAID[learner]:
        assert said in seen
    assert "No response." not in seen


def test_nothing_hidden_is_in_a_page_and_nothing_lies_beside_it(pages: dict[str, Path]) -> None:
    for page in pages.values():
        for hidden in ("inputs.rng", "normal(size", "x / 2)", "Two points for the exponent", "Full marks"):
            assert hidden not in page.read_text()
        assert not list(page.parent.glob("mine*")), "a page of a learner's own is handed on to nobody"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=desk.CHROMIUM, args=[*desk.SWITCHES, *desk.OFFLINE])
        yield browser
        browser.close()


RAN = "[window.ran, document.title === 'ran'].some(Boolean)"


class Watched:
    """A page and what it did: files it asked for, dialogs, pages it opened."""

    def __init__(self, page: Page) -> None:
        self.page, self.did = page, list[str]()
        page.route(re.compile("^(?!file:.*[.]html$)(?!about:)(?!data:)"), lambda route: route.fulfill(status=404))
        page.on("request", lambda request: self.did.append(request.url))
        page.on("dialog", lambda dialog: (self.did.append(dialog.message), dialog.dismiss()))
        page.on("popup", lambda popup: self.did.append(f"popup {popup.url}"))

    def open(self, path: Path) -> list[str]:
        """What the page did, its own request left out; the page is settled."""
        self.did.clear()
        self.page.goto(path.as_uri(), wait_until="commit")
        try:
            self.page.wait_for_load_state("load")
            self.page.wait_for_timeout(50)
            ran = self.page.evaluate(RAN)
        except Exception as problem:  # it went elsewhere
            return [*self.did, type(problem).__name__]
        wrong = [url for url in self.did if url != path.as_uri() and not url.startswith("data:image/")]
        return [*wrong, *(["ran"] if ran else [])]


@pytest.fixture
def watched(chromium: Any) -> Iterator[Watched]:
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    yield Watched(page)
    page.close()


ALIVE = """() => {
    const wrong = [];
    const tags = 'script iframe object embed link base form input button svg math video audio dialog template';
    for (const tag of tags.split(' '))
        if (document.body.querySelector(tag)) wrong.push(tag);
    for (const one of document.body.querySelectorAll('*'))
        for (const {name, value} of one.attributes)
            if (name.startsWith('on') || name === 'style' || name === 'srcset'
                || (name === 'src' && !/^data:image[/](png|jpeg|gif|webp);base64,/.test(value))
                || (name === 'href' && !/^(#section-[0-9]+$|https?:[/][/]|mailto:)/.test(value)))
                wrong.push(`${one.tagName} ${name}=${value}`);
    for (const one of document.querySelectorAll('.written *, .code *'))
        if (one.id || one.className && !one.closest('pre.code') || getComputedStyle(one).position !== 'static')
            wrong.push(`${one.tagName} ${one.className} ${one.id}`);
    return wrong;
}"""
COVERED = """() => [...document.querySelectorAll('h1, h2, .total, .check > p')].filter(one => {
    one.scrollIntoView({block: 'center'});
    const {left, top, width, height} = one.getBoundingClientRect();
    return !one.contains(document.elementFromPoint(left + width / 2, top + height / 2))
        && !document.elementFromPoint(left + width / 2, top + height / 2)?.contains(one);
}).map(one => one.textContent)"""


@in_a_browser
@pytest.mark.parametrize("policy", [True, False], ids=["with its policy", "without"])
def test_a_hostile_notebooks_page_does_nothing(
    pages: dict[str, Path], watched: Watched, tmp_path: Path, policy: bool
) -> None:
    text = pages[HOSTILE].read_text()
    assert POLICY.search(text), "the policy is in the page"
    place = tmp_path / "page.html"
    place.write_text(text if policy else POLICY.sub("", text))
    assert watched.open(place) == []
    assert watched.page.evaluate(ALIVE) == []
    assert watched.page.evaluate(COVERED) == []
    assert watched.page.evaluate("document.querySelectorAll('.written img[src]').length") >= 2, "own pictures are shown"
    assert watched.page.evaluate("document.documentElement.scrollWidth") == 390


@in_a_browser
def test_each_text_alone_does_nothing(watched: Watched, tmp_path: Path) -> None:
    """Without a policy. What another text had disarmed by standing before it would not be seen above."""
    place = tmp_path / "page.html"
    place.write_text("<!doctype html><title>t</title><p>")
    watched.open(place)
    watched.did.clear()
    for name, text in payloads.EVERY.items():
        watched.page.set_content(f"<title>t</title><div class=written>{feedback_page.markdown(text)}</div>")
        assert watched.page.evaluate(ALIVE) == [], name
        assert watched.page.evaluate(RAN) is False, name
    assert [url for url in watched.did if not url.startswith("data:image/")] == []


@in_a_browser
def test_what_watches_sees_what_those_texts_do(watched: Watched, tmp_path: Path) -> None:
    """In a page that nbconvert makes of them; else the tests above would hold for any page."""
    from nbconvert.filters import markdown2html

    place = tmp_path / "page.html"
    for name in ("script", "image that is not there", "svg that is loaded", "style that loads", "picture from far"):
        place.write_text(f"<!doctype html><title>t</title><body>{markdown2html(payloads.OPENED[name])}")
        assert watched.open(place) != [], name
        assert POLICY.search(place.read_text()) is None
    watched.page.set_content(payloads.EVERY["classes and ids"] + payloads.EVERY["javascript link, as html"])
    assert len(watched.page.evaluate(ALIVE)) == 1


@in_a_browser
def test_pages_fit_a_phone_and_paper(pages: dict[str, Path], watched: Watched) -> None:
    for page in pages.values():
        watched.open(page)
        assert watched.page.evaluate("document.documentElement.scrollWidth") == 390
    wide = "[...document.querySelectorAll('pre.code')].filter(one => one.scrollWidth > one.clientWidth).length"
    watched.open(pages[HOSTILE])
    assert watched.page.evaluate(wide) > 0, "long lines of code scroll in their box"
    watched.page.emulate_media(media="print")
    assert watched.page.evaluate(wide) == 0, "and wrap on paper"


def test_a_cell_that_a_parser_gives_up_on_is_shown_as_it_is() -> None:
    deep = "> " * 9_000 + "text"
    assert feedback_page.markdown(deep).startswith(("<pre>", "<blockquote>"))
    assert len(feedback_page.markdown("x" * 10**6)) < 30_000
    assert "<script" not in feedback_page._code(f"'''{payloads.OPENED['script']}")


def test_a_cell_that_a_parser_is_slow_on_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """These took minutes each, and a notebook can have fifteen: the class would wait for its feedback."""
    began = time.thread_time()
    assert feedback_page._code(" \n" * 10_000) == " \n" * 10_000
    formats = "".join(f"<b a={i}>" for i in range(1_000)) + "<p>x" * 2_000
    assert feedback_page.markdown(formats).startswith("<pre>")
    assert feedback_page.markdown("<b>one <i>two <a>three</b>").startswith("<p><b>one")
    assert "<pre>1 &lt; 2</pre>" in feedback_page.listing("1 < 2" + " " * 30_000).replace(" " * 30_000, "")
    assert time.thread_time() - began < 10
    monkeypatch.setattr(feedback_page, "SLOW_S", -1.0)
    notebook = new_notebook(cells=[new_markdown_cell("**bold**"), new_code_cell("x = 1")])
    [*_, others], _ = feedback_page._sections(notebook, {})
    assert others.parts[0].html == "<pre>**bold**</pre>"
