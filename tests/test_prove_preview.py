"""`grader preview`: what learners will read, beside the wrong answer that earns it, and what in it may be weak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import COURSES, Grader

from grader.core.faults import Fault
from grader.core.result import CheckResult
from grader.course import Course
from grader.prove import proof
from grader.prove.proof import AnswerReport, ExerciseReport
from grader.reports import html

LESSON = "01_small"
WRITABLE = "Choose a file in a writable folder."


def result(name: str, status: str = "passed", message: str = "", hidden: bool = False) -> CheckResult:
    points = 1.0 if status == "passed" else 0.0
    return CheckResult(f"a-b-{name}", "a-b", f"Title of {name}.", status, points, 1.0, message, hidden=hidden)


def answer(line: int, public: str, hidden: str, message: str = "Odd.") -> AnswerReport:
    """A wrong answer with the status of a public and of a hidden check."""
    checks = (result("example", public, "One."), result("values", hidden, message, hidden=True))
    return AnswerReport(f"Thought {line}.", f"line {line}", checks)


def seen(*wrong: AnswerReport) -> ExerciseReport:
    return ExerciseReport("a-b", answer(1, "not attempted", "not attempted", "Not attempted yet."), wrong)


SOUND = (answer(2, "failed", "failed", "Odd."), answer(3, "failed", "failed", "Even."))
FOURTH = "the wrong answer on line 4."


@pytest.mark.parametrize(
    ("wrong", "remarks"),
    [
        (SOUND, []),
        ((*SOUND, answer(4, "passed", "passed")), [f"No check fails {FOURTH}"]),
        ((*SOUND, answer(4, "passed", "failed")), [f"Only the hidden check values fails {FOURTH}"]),
        ((*SOUND, answer(4, "failed", "error")), [f"The hidden check values is itself at fault with {FOURTH}"]),
        (
            (*SOUND, answer(4, "failed", "failed", " ")),
            ["The hidden check values has no message except its title when it fails."],
        ),
        (
            (SOUND[0], replace(SOUND[0], where="line 3")),
            ["The hidden check values has one message for all 2 wrong answers that fail it."],
        ),
        (SOUND[:1], []),
        (
            (answer(2, "failed", "passed"), answer(3, "failed", "passed")),
            [
                "Only the public check example fails the wrong answer on line 2.",
                "Only the public check example fails the wrong answer on line 3.",
                "No wrong answer fails the hidden check values, so its message was never tested.",
            ],
        ),
    ],
    ids=["sound", "uncaught", "only one", "at fault", "silent", "always the same", "once is not always", "never seen"],
)
def test_a_weakness_is_named(wrong: tuple[AnswerReport, ...], remarks: list[str]) -> None:
    assert list(seen(*wrong).remarks) == remarks


class Page(HTMLParser):
    """The elements of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.said += data


def test_a_page_is_whole_and_escaped() -> None:
    evil = "<script>alert(1)</script>"
    wrong = AnswerReport(evil, evil, (result("example", "failed", evil), result("values", "failed", evil, hidden=True)))
    broken = ExerciseReport("c-d", seen().stub, problem=evil)
    text = html.preview(LESSON, [seen(wrong), broken])
    page = Page(text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.said.count(evil) == 5
    assert "default-src 'none'" in text
    assert "{%" not in text


@pytest.fixture(scope="module")
def small(built: Callable[[str], Path]) -> Path:
    return built("small")


def test_each_wrong_answer_stands_beside_what_its_learner_reads(grader: Grader, small: Path) -> None:
    done = grader("--course", small, "preview", LESSON)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    course = Course(small).lesson(LESSON)
    assert [line for line in lines if line.endswith("  3 points")] == [f"{e.id}  3 points" for e in course.exercises]
    at = lines.index("Squares: right for two alone.  line 40")
    assert lines[at : at + 6] == [
        "Squares: right for two alone.  line 40",
        "✗ Doubles one and two.  1 point",
        "1 of 2 values differs. The one at [0] of the result is 1; expected 2.",
        "✗ Doubles any array.  2 points, hidden",
        "Values of the result, float32[5], are not right.",
        'Perhaps: Squares: right for two alone. It would explain why "Doubles one and two" fails (see line 2 of the '
        "answer).",
    ]
    for exercise in course.exercises:
        for variant in exercise.wrong:
            assert f"{variant.because}  line {variant.line}" in lines
    assert lines.count("○ As released: Not attempted yet: `loss` still raises NotImplementedError.") == 2


def test_a_page_says_the_same(grader: Grader, small: Path, tmp_path: Path) -> None:
    page = tmp_path / "preview.html"
    done = grader("--course", small, "preview", LESSON, "--html", page, "--jobs", 1)
    told = f"{page}: the messages of 3 exercises. Do not share this page with learners.\n"
    assert (done.returncode, done.stdout) == (0, told), done.stderr
    said = " ".join(Page(page.read_text()).said.split())
    assert "Preview of 01_small" in said
    assert "✗ Doubles any array. 2 points, hidden Values of the result, float32[5], are not right. Perhaps: Sq" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["02_big"], "There is no lesson 02_big. Lessons with exercises: 01_small."),
        (
            [LESSON, "--html", "/tmp"],
            "The page cannot be written to /tmp. Choose a file in a writable folder.",
        ),
    ],
)
def test_what_cannot_be_is_said(grader: Grader, small: Path, words: list[str], said: str) -> None:
    done = grader("--course", small, "preview", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == said


class Backwards:
    """Stands for the pool: the last request is answered first, and the first one's process ends."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Backwards:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, requests: list[dict[str, str]], on_reply: Callable[[int, object], None]) -> None:
        for i in reversed(range(len(requests))):
            on_reply(i, [{"because": "", "where": "", "checks": []}] if i else Fault("crashed", "it is gone"))


def test_exercises_come_in_the_lessons_order_and_a_lost_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "Pool", Backwards)
    course, told = Course(COURSES / "small"), list[ExerciseReport]()
    assert proof.preview(course, LESSON, 2, told.append) == told
    assert [one.exercise for one in told] == [exercise.id for exercise in course.lesson(LESSON).exercises]
    assert [one.problem for one in told] == ["The process that ran its wrong answers failed: it is gone.", None, None]
