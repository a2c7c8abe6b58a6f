"""The site of `make book`: lessons as they run, tasks without answers, and nothing from other hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from grader.course import Course

LESSON = "05_vmap"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.thorough


def make(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/book.py", "--lesson", "00_start_here", "--lesson", LESSON, "--out", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    done = make(folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr.replace("[IPKernelApp] WARNING", ""), done.stderr
    return folder


def test_lessons_have_their_outputs(book: Path) -> None:
    page = (book / "html/notebooks" / f"{LESSON}.html").read_text()
    assert page.count('class="cell_output') > 20
    assert page.count("<img alt=") + page.count("data:image/png") >= 2
    assert "grader.learning.predict(" not in page
    assert "What is behind each choice" in page
    assert len(page) < 1_000_000


def test_exercises_have_tasks_and_no_answers(book: Path) -> None:
    page = (book / "html/exercises" / LESSON / f"{LESSON}.html").read_text()
    text = re.sub(r"<[^>]+>", "", page)
    for exercise in Course(ROOT).lesson(LESSON).exercises:
        assert exercise.title.replace("`", "") in text
        stub = exercise.stub.splitlines()
        solved = [line.strip() for line in exercise.reference.splitlines() if line not in stub and len(line) > 40]
        assert solved
        assert not [line for line in solved if line in text]


def test_functions_link_to_their_documentation_and_their_lesson(book: Path) -> None:
    page = (book / "html/notebooks" / f"{LESSON}.html").read_text()
    vmap = "https://docs.jax.dev/en/latest/_autosummary/jax.vmap.html#jax.vmap"
    assert f'<a class="function" href="{vmap}">' in page  # in a code cell
    assert re.search(rf'<a class="function reference external" href="{vmap}"><code', page)  # in a sentence
    assert not re.search(r'<a class="function[^>]*><code[^>]*><span class="pre">in_axes', page)
    functions = (book / "html/functions.html").read_text()
    row = re.search(rf'<tr[^>]*><td><p><a[^>]*href="{vmap}".*?</tr>', functions, re.DOTALL)
    assert row
    assert f'href="notebooks/{LESSON}.html"' in row[0]
    assert "https://docs.jax.dev/en/latest/" in (book / "html/api.html").read_text()  # types of arguments


def test_a_second_build_runs_no_lesson(book: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in book.glob("executed/executed/*/base.ipynb"))
    assert len(before) == 2
    done = make(book)
    assert done.returncode == 0, done.stderr
    assert sorted(path.stat().st_mtime_ns for path in book.glob("executed/executed/*/base.ipynb")) == before


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_pages_load_nothing_from_other_hosts_and_fit_a_phone(book: Path) -> None:
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800}, offline=True)
            for path in sorted((book / "html").rglob("*.html")):
                page, requests = context.new_page(), []
                page.on("request", lambda request, seen=requests: seen.append(request.url))
                page.goto(path.as_uri())
                outside = [url for url in requests if not url.startswith(("file:", "data:"))]
                assert outside == [], path
                assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
                page.close()
        page = browser.new_page()
        page.goto((book / "html/search.html").as_uri() + "?q=in_axes")
        page.wait_for_selector("#search-results li a")
        assert page.locator("#search-results li a", has_text="vmap").count() > 0
        browser.close()
