"""The attack corpus through the real command: each submission earns what it is worth, and nothing else changes.

How a case is written: tests/attacks/README.md.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import corpus
import pytest
from ci_log import commands
from corpus import CANARY, NEIGHBOURS, Corpus, Run
from machine import MARK, left_behind

pytestmark = pytest.mark.thorough
CASES = {path.stem: corpus.read(path) for path in sorted((Path(__file__).parent / "attacks").glob("*.py"))}
FAMILIES = "machinery equal read write wire program end bomb net kernel file name text config behave replay".split()
# What does not hold yet, and why. Each of these has to fail: who mends one takes it out of here.
KNOWN_HOLES: dict[str, str] = {}


@pytest.fixture(scope="module", params=corpus.ROUTES)
def route(request: pytest.FixtureRequest) -> str:
    """Which course grades, and who."""
    return request.param


@pytest.fixture(scope="module")
def attacked(built, route: str) -> Iterator[Corpus]:
    base = Path(tempfile.mkdtemp(prefix="attacked-", dir="/tmp"))
    one = Corpus(base, built("guarded"), list(CASES.values()), references=False)
    yield one
    one.close()
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def run(attacked: Corpus, route: str) -> Run:
    """All attacks and two neighbours, graded by one command."""
    done = attacked.grade(route=route)
    if not done.results and "--allow-unsandboxed" in done.output:
        pytest.skip("this machine confines by limits alone, and grading refuses that")
    return done


def expected(name: str) -> object:
    """The case's name, marked where it is known to fail."""
    hole = KNOWN_HOLES.get(name)
    return pytest.param(name, marks=pytest.mark.xfail(reason=hole, strict=True)) if hole else name


@pytest.mark.parametrize("name", [expected(name) for name in CASES])
def test_an_attack_earns_what_it_is_worth(run: Run, name: str) -> None:
    assert corpus.differences(CASES[name], run.results[name]) == []


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_keep_every_point(run: Run, name: str) -> None:
    assert run.results[name]["score"] == run.results[name]["max_score"] == 17


def test_nothing_that_lies_around_has_changed(run: Run, attacked: Corpus) -> None:
    assert run.changed == []
    assert list(attacked.places.scratch.iterdir()) == []
    assert left_behind() == []
    derived = [*attacked.root(corpus.COURSE).glob("build/**/*"), *attacked.root(corpus.OVERLAY).glob("build/**/*")]
    assert not [path for path in derived if path.is_file() and MARK.encode() in path.read_bytes()]


def test_no_process_is_left(run: Run) -> None:
    assert run.processes == []


def test_nobody_was_reached_over_a_socket(run: Run, attacked: Corpus) -> None:
    assert attacked.listeners.visited() == []


def test_nothing_secret_is_shown(run: Run) -> None:
    assert CANARY not in run.output + run.json
    # The inputs of a hidden check of guard-tally, which some answers try to tell without words.
    told = [text for one in run.results.values() for text in (*one["notes"], *(c["message"] for c in one["checks"]))]
    assert not [text for text in told if "3100" in text.replace(",", "").replace("_", "")]


def test_all_that_is_shown_is_plain_text(run: Run) -> None:
    strange = {character for character in run.output if not character.isprintable() and character != "\n"}
    assert strange == set()
    for result in run.results.values():
        texts = [*result["notes"], result["problem"] or "", *(check["message"] for check in result["checks"])]
        assert all(character.isprintable() or character == "\n" for text in texts for character in text)
        assert all(len(text) < 5_000 for text in texts)


def test_no_ci_service_takes_a_line_for_a_command(run: Run) -> None:
    assert "add-mask" in run.output
    assert commands(run.output) == []


def test_what_could_not_be_graded_is_named(run: Run) -> None:
    ungraded = [name for name, case in CASES.items() if case.said("problem") and name not in KNOWN_HOLES]
    assert run.status == 1
    assert all(f"{name}/{corpus.LESSON}" in run.output for name in ungraded)
    assert {name for name, result in run.results.items() if result["problem"]} == set(ungraded)


def test_a_forgery_gains_what_is_written_down(run: Run) -> None:
    """Only of what is observed, and at most half an exercise."""
    forgeries = {name: case.said("gains") for name, case in CASES.items() if case.said("gains")}
    assert forgeries
    for name, [gains] in forgeries.items():
        checks = run.results[name]["checks"]
        [check] = [check for check in checks if check["id"] == corpus.PREFIX + gains.partition(":")[0]]
        exercise = [other for other in checks if other["exercise"] == check["exercise"]]
        assert "observed" in check["evidence"]
        assert 2 * check["points"] <= sum(other["max_points"] for other in exercise)


class Tags(HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attributes)}


def harmless(form: str, text: str) -> bool:
    """Whether what learners wrote is nothing but text to whoever reads this form."""
    if form in ("html", "github-summary"):
        return not Tags(text).found & {"script", "img", "iframe", "a", "onerror", "onload", "href"}
    if form == "junit":
        return len(ElementTree.fromstring(text).findall("testsuite")) > len(CASES)
    if form == "github-annotations":
        return all(line.startswith(("::error title=", "::notice title=")) for line in text.splitlines())
    return all(
        not cell.startswith(("=", "+", "-", "@", "\t", "\uff1d")) for row in csv.reader(StringIO(text)) for cell in row
    )


@pytest.mark.parametrize("form", ["html", "junit", "github-summary", "github-annotations", "csv", "canvas"])
def test_every_form_of_a_report_is_plain_text(run: Run, attacked: Corpus, grader, form: str) -> None:
    done = grader("report", attacked.places.base / "results.json", "--as", form)
    assert done.returncode == 0, done.stderr
    assert "HYPERLINK" in done.stdout, "what may do harm is there"
    assert harmless(form, done.stdout)
    assert form == "github-annotations" or commands(done.stdout) == []
    assert CANARY not in done.stdout
    assert all(character.isprintable() or character == "\n" for character in done.stdout)


def test_grade_in_a_notebook_gives_the_same_verdicts(
    run: Run, attacked: Corpus, route: str, moments: random.Random
) -> None:
    before = attacked.places.guarded()
    names = sorted({"text_forms", "text_markup", *attacked.sample(moments)})
    results, pages, texts = attacked.grade_in_notebooks(names, route)
    changed = before.items() ^ attacked.places.guarded().items()
    own = str(attacked.root(route) / "work")  # the notebooks, and the progress that the command notes
    assert [path for path, _ in changed if not path.startswith(own)] == []
    assert left_behind() == []
    found = {name: corpus.differences(CASES[name], result) for name, result in results.items()}
    assert {name: wrong for name, wrong in found.items() if wrong and name not in KNOWN_HOLES} == {}
    assert CANARY not in "".join(pages + texts)
    assert "<script>" in "".join(texts), "what may do harm is there"
    for page in pages:
        assert not Tags(page).found & {"script", "img", "iframe", "onerror", "onload"}


def test_nbgrader_stores_the_same_points(run: Run, attacked: Corpus, route: str, moments: random.Random) -> None:
    names = attacked.sample(moments)
    stored = attacked.store(names, attacked.places.base / "nbgrader", route)
    assert stored == {name: run.results[name]["score"] for name in names}


def test_every_family_is_there() -> None:
    assert {name.partition("_")[0] for name in CASES} == set(FAMILIES)
    assert len(CASES) >= 60
    for path in (Path(__file__).parent / "attacks").rglob("*.py"):
        assert CANARY not in path.read_text(), f"{path.name} knows what it looks for"


def test_the_run_would_notice(run: Run, attacked: Corpus) -> None:
    """The canaries are where the attacks look for them, after this run too."""
    places = attacked.places
    roots = (places.course, places.overlay)
    secrets = [places.home / "notes.txt", *(root / name for root in roots for name in (".secret", "gradebook.db"))]
    neighbours = [places.submitted / name / corpus.LESSON / f"{corpus.LESSON}.ipynb" for name in NEIGHBOURS]
    for path in (*secrets, *neighbours):
        assert CANARY in path.read_text(), f"{path} holds nothing to find"
    assert json.loads(run.json)["version"] == 1
    assert set(KNOWN_HOLES) <= set(CASES)
