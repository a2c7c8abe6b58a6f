"""The same results in every form: read back by other readers, and harmless whatever a learner wrote."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ci_log import commands
from conftest import ROOT, Grader
from junitparser import JUnitXml

from grader.core import result as results_json
from grader.core.result import STATUSES, CheckResult, Result, grader_fault
from grader.reports import forms, html, terminal
from grader.reports.forms import FORMS

EVIL = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)> | `code` **bold** [link](javascript:alert(3)) "
    "::error::forged\n::set-output name=x::y\r\n\x1b[31m\u202e\x00 ]]> &amp; %0A \ud800 =HYPERLINK(1)"
)


def check(name: str, status: str = "passed", **more: Any) -> CheckResult:
    exercise = name.rpartition("-")[0]
    points = 2.0 if status == "passed" else 0.0
    return CheckResult(name, exercise, f"Title of {name}.", status, points, 2.0, **more)


def a_class() -> list[Result]:
    # Without "error": a result with a grader's fault has no score (GRADER_FAILED below).
    statuses = ["failed" if status == "error" else status for status in STATUSES]
    every = tuple(check(f"a-{i}", status, message=f"Because of {status}.") for i, status in enumerate(statuses))
    secret = check("b-values", "failed", message="The shape is wrong.", hidden=True, misconception="Sums the rows.")
    return [
        Result("one", "05_vmap", (*every, secret), 18.0, "full", 1.5, ("A note.",)),
        Result("two", "05_vmap", (check("a-0"), check("b-values", hidden=True)), 4.0, "full", 0.5),
        Result("two", "03_jit", (check("c-0"),), 2.0, "full", 0.25),
        Result("three", "05_vmap", max_score=18.0, problem="The file is empty.", fault="submission"),
    ]


def evil() -> Result:
    worst = check("a-0", "failed", message=EVIL)
    return Result(EVIL.replace("/", "_"), "05_vmap", (worst, check("a-1", "failed", message=EVIL)), 4.0, notes=(EVIL,))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ["class", "evil", "none"])
def test_every_form_can_be_written(form: str, what: str) -> None:
    results = {"class": a_class()[:1] if "Scope" in form else a_class(), "evil": [evil()], "none": []}[what]
    if form in ("gradescope", "github-classroom"):
        results = results[:1] or a_class()[:1]
    text = FORMS[form](results)
    text.encode()
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "\u202e" not in text


def test_junit_is_read_by_another_reader() -> None:
    document = JUnitXml.fromstring(forms.junit(a_class()).encode())
    suites = {suite.name: suite for suite in document}
    assert list(suites) == ["one/05_vmap", "two/05_vmap", "two/03_jit", "three/05_vmap"]
    one = suites["one/05_vmap"]
    assert (one.tests, one.failures, one.errors, one.skipped) == (9, 7, 0, 1)
    assert one.time == 1.5
    assert {p.name: p.value for p in one.properties()} == {"score": "2.0", "max_score": "18.0", "confinement": "full"}
    cases = list(one)
    assert [case.classname for case in cases] == ["a"] * 8 + ["b"]
    assert cases[0].is_passed
    assert cases[1].result[0].type == "failed"
    assert "Because of failed." in cases[1].result[0].message
    assert cases[-1].result[0].text == "The shape is wrong.\nPerhaps: Sums the rows."
    assert suites["three/05_vmap"].errors == 1


def test_junit_holds_any_text() -> None:
    [suite] = JUnitXml.fromstring(forms.junit([evil()]).encode())
    assert "<script>alert(1)</script>" in next(iter(suite)).result[0].text


def test_gradescope_hides_what_is_hidden_and_adds_up() -> None:
    document = json.loads(forms.gradescope(a_class()[0]))
    tests = document["tests"]
    assert sum(test["score"] for test in tests) == 2.0
    assert sum(test["max_score"] for test in tests) == 18.0
    assert [test["visibility"] for test in tests] == ["visible"] * 8 + ["after_published"]
    assert {test["status"] for test in tests} == {"passed", "failed"}
    assert document["stdout_visibility"] == "hidden"
    assert "score" not in document
    assert document["output"] == "A note."


def test_gradescope_gives_nothing_for_what_was_not_graded() -> None:
    document = json.loads(forms.gradescope(a_class()[3]))
    assert (document["score"], document["tests"], document["output"]) == (0.0, [], "The file is empty.")


def test_a_summary_of_evil_text_is_text() -> None:
    text = forms.github_summary([evil()])
    assert "<script" not in text
    assert "<img" not in text
    assert "[link]" not in text.replace("\\", "~")
    [table] = [line for line in text.splitlines() if line.startswith("| a |")]
    assert table == "| a | 0 / 4 | ❌ ❌ |"


LOG = "::error title=a::b\n  ::add-mask::1\nx ##[error]y ##vso[task.complete]z ##teamcity[x]\n--- x\n\u3000::debug::x"


@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"github-annotations"}))
def test_no_form_in_a_log_is_a_command(form: str) -> None:
    worst = check("a-0", "failed", message=LOG, misconception=LOG)
    text = FORMS[form]([Result(LOG, "05_vmap", (worst,), 2.0, notes=(LOG,))])
    assert commands(LOG)
    assert commands(text) == []
    assert "add-mask" in text or form in ("csv", "github-classroom")


@pytest.mark.parametrize("form", ["json", "gradescope"])
def test_json_in_a_log_reads_as_before(form: str) -> None:
    text = FORMS[form]([Result("one", "05_vmap", (check("a-0", "failed", message="##[x] ####"),), 2.0)])
    assert '"##[x] ####"' in json.dumps(json.loads(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("www.example.org", "www&#8203;.example.org"),
        ("see (WWW.example.org)", r"see \(WWW&#8203;.example.org\)"),
        ("https://example.org", r"https\:&#8203;//example.org"),
        ("me@example.org", r"me\@&#8203;example.org"),
        ("@octocat", r"\@&#8203;octocat"),
        ("#12 and GH-12", r"\#&#8203;12 and GH&#8203;-12"),
        ("a @ b, x[0] # 1, 2.5", r"a \@ b, x\[0\] \# 1, 2.5"),
    ],
)
def test_nothing_in_a_summary_becomes_a_link(text: str, shown: str) -> None:
    assert shown in forms.github_summary([Result("one", "05_vmap", notes=(text,))])


def test_annotations_are_one_line_each_and_forge_none() -> None:
    lines = forms.github_annotations([evil(), *a_class()]).splitlines()
    assert len(lines) == 2 + 8 + 1
    for line in lines:
        assert line.startswith(("::error title=", "::notice title="))
        assert line.count("::") >= 2
    assert [line for line in lines if line.startswith("::notice")] == [
        "::notice title=one/05_vmap a::Title of a-7.%0ABecause of skipped."
    ]


def test_classroom_reads_its_result() -> None:
    document = json.loads(base64.b64decode(forms.github_classroom(a_class()[0])))
    assert (document["version"], document["status"], document["max_score"]) == (1, "fail", 18.0)
    assert sum(test["score"] for test in document["tests"]) == 2.0
    assert json.loads(base64.b64decode(forms.github_classroom(a_class()[1])))["status"] == "pass"
    assert json.loads(base64.b64decode(forms.github_classroom(a_class()[3])))["status"] == "error"


def test_nbgraders_columns() -> None:
    from nbgrader.plugins.export import CsvExportPlugin

    rows = list(csv.DictReader(io.StringIO(forms.nbgrader(a_class()))))
    assert [(row["student_id"], row["assignment"], row["score"], row["max_score"]) for row in rows] == [
        ("one", "05_vmap", "2", "18"),
        ("two", "05_vmap", "4", "4"),
        ("two", "03_jit", "2", "2"),
        ("three", "05_vmap", "0", "18"),
    ]
    source = Path(__import__("inspect").getfile(CsvExportPlugin)).read_text()
    for column in forms.NBGRADER:
        assert f'"{column}"' in source, f"nbgrader's own export has no column {column}"


@pytest.mark.parametrize("learner", ["ada ", " ada", "ada\n", "\nada", "ada \n"])
@pytest.mark.parametrize("table", [forms.nbgrader, forms.canvas])
def test_white_space_does_not_make_a_name_that_of_another_learner(table: Any, learner: str) -> None:
    cells = {cell for row in csv.reader(io.StringIO(table([Result(learner, "05_vmap")]))) for cell in row}
    assert "ada" not in {cell.strip() for cell in cells}


def test_canvas_columns() -> None:
    rows = list(csv.reader(io.StringIO(forms.canvas(a_class()))))
    assert rows[0] == [*forms.CANVAS, "05_vmap", "03_jit"]
    assert rows[1][5:] == ["18", "2"]
    assert [(row[3], *row[5:]) for row in rows[2:]] == [("one", "2", ""), ("two", "4", "2"), ("three", "", "")]


GRADER_FAILED = {
    "the notebook": grader_fault("one", "05_vmap", "a process ended"),
    "a check": Result(
        "one", "05_vmap", (check("a-0"), check("a-1", "error", message="The check itself is at fault.")), 4.0
    ),
}


@pytest.mark.parametrize("result", GRADER_FAILED.values(), ids=GRADER_FAILED)
def test_where_the_grader_failed_no_form_has_a_score(result: Result) -> None:
    [row] = csv.DictReader(io.StringIO(forms.nbgrader([result])))
    assert (row["student_id"], row["raw_score"], row["score"]) == ("one", "", "")
    assert list(csv.reader(io.StringIO(forms.canvas([result]))))[2][5:] == [""]
    assert not {"score", "tests"} & set(json.loads(forms.gradescope(result)))
    assert json.loads(base64.b64decode(forms.github_classroom(result)))["status"] == "error"
    [suite] = JUnitXml.fromstring(forms.junit([result]).encode())
    assert (suite.errors, "score" in {p.name for p in suite.properties()}) == (1, False)
    page = html.dumps([result])
    assert "0 of 1 notebooks graded" in page
    assert ("no score" if result.problem is None else "not graded") in page
    assert "final score" in forms.github_summary([result]) or "Not graded." in forms.github_summary([result])


def test_a_learner_sees_no_points_where_a_check_is_at_fault() -> None:
    assert terminal.exercise(GRADER_FAILED["a check"].checks).plain == "! a  – of 4"


@pytest.mark.parametrize("sign", "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212")
@pytest.mark.parametrize(
    "before", ["", " ", "\t", "\n", "\r", "\xa0", "\u200b", "\ufeff", "\u202e", "\u2800", "\u3164", "'", '"']
)
def test_no_name_becomes_a_formula(before: str, sign: str) -> None:
    for table in (forms.nbgrader, forms.canvas):
        rows = csv.reader(io.StringIO(table([Result(f"{before}{sign}1", "05_vmap", max_score=1.0)])))
        shown = {cell for row in rows for cell in row if cell.endswith(f"{sign}1")}
        assert [one[0] for one in shown] in (["'"], ["\\"])


@pytest.mark.parametrize("separator", [";", ",", "|"])
def test_no_part_of_a_name_becomes_a_formula_where_cells_end_otherwise(separator: str) -> None:
    assert f"a{separator}' =1" in forms.canvas([Result(f"a{separator} =1", "05_vmap")])


class Page(HTMLParser):
    """The elements of a page, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_a_page_of_evil_text_has_no_element_of_its_making() -> None:
    plain, forged = Page(html.dumps([a_class()[1]])), Page(html.dumps([evil()]))
    assert set(forged.tags) - set(plain.tags) <= {"pre", "p"}
    assert not [name for name, _ in forged.attributes if name.startswith("on") or name in ("src", "href")]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in forged.attributes


def test_a_page_counts_points_and_misconceptions() -> None:
    one = html.LessonResults("05_vmap", [r for r in a_class() if r.lesson == "05_vmap"])
    assert [(bar.name, bar.got, bar.most) for bar in one.exercises] == [("a", 4.0, 18.0), ("b", 2.0, 4.0)]
    assert [(bar.name, bar.got, bar.most) for bar in one.misconceptions] == [("b: Sums the rows.", 1, 2)]
    text = html.dumps(a_class())
    for word in ("2 of 3 notebooks graded", "4 of 18", "Sums the rows.", "The file is empty.", "(hidden)"):
        assert word in text


def test_the_command_writes_any_form(grader: Grader, tmp_path: Path) -> None:
    source = tmp_path / "results.json"
    source.write_text(results_json.document(a_class()), encoding="utf-8")
    done = grader("report", source, "--as", "junit")
    assert done.returncode == 0, done.stderr
    assert done.stdout == forms.junit(a_class())
    done = grader(
        "report", source, "--as", "gradescope", "--learner", "two", "--lesson", "03_jit", "--out", tmp_path / "r"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r").read_text() == forms.gradescope(a_class()[2])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--as", "pdf"], "There is no report pdf. Reports: json, junit, html,"),
        (
            ["--as", "gradescope"],
            "This report is for one notebook, but there are 4. Choose one with --learner and --lesson.",
        ),
        (
            ["--as", "gradescope", "--learner", "nobody"],
            "contains no result of nobody. Learners: one, two, three. Lessons: ",
        ),
        (["--as", "csv", "--out", "/proc/x"], "/proc/x cannot be written: No such file or directory."),
    ],
)
def test_what_cannot_be_written_is_said_in_a_sentence(
    grader: Grader, tmp_path: Path, words: list[str], said: str
) -> None:
    source = tmp_path / "results.json"
    source.write_text(results_json.document(a_class()), encoding="utf-8")
    done = grader("report", source, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory."),
        ("", "contains no results. Pass the file that `grader grade DIR --json FILE` wrote."),
        ("[]", "contains no results."),
        ('{"version": 1,\n "results": [}', "line 2 is not JSON (Expecting value), so it contains no results."),
        ('{"version": 1}', "contains no results."),
        ('{"version": 1, "results": [{}]}', "contains no results."),
        ('{"version": 7, "results": []}', "has version 7, but this grader reads version 1."),
    ],
)
def test_what_holds_no_results_is_said_in_a_sentence(
    grader: Grader, tmp_path: Path, content: str | None, said: str
) -> None:
    source = tmp_path / "results.json"
    if content is not None:
        source.write_text(content)
    done = grader("report", source, "--as", "csv")
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    "change",
    [{"points": math.nan}, {"points": -1}, {"points": 1e9}, {"points": "1"}, {"points": True}, {"status": "gold"}],
    ids=str,
)
def test_points_that_no_check_gives_are_refused(grader: Grader, tmp_path: Path, change: dict[str, Any]) -> None:
    """A file that was edited, or that another program wrote, becomes no grade."""
    content = json.loads(results_json.document(a_class()))
    next(one for one in content["results"] if one["checks"])["checks"][0].update(change)
    (tmp_path / "results.json").write_text(json.dumps(content))
    done = grader("report", tmp_path / "results.json", "--as", "csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "contains no results." in done.stderr


def test_every_form_is_documented() -> None:
    text = (ROOT / "docs" / "reports.md").read_text()
    for form in FORMS:
        assert f"`{form}`" in text
