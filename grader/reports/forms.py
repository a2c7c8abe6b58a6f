"""Forms of results for other programs by name: CSV, JUnit, Gradescope, GitHub; docs/reports.md shows each."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any
from xml.etree import ElementTree

from grader.core.final_grade import Person
from grader.core.points import number, total
from grader.core.result import CheckResult, Result, document, to_text
from grader.core.text import inert, inert_markup, legible
from grader.reports import html
from grader.reports.final_grades import statement
from grader.reports.terminal import AUTOMATIC_ONLY, by_exercise, grade_lines, graded, points

NBGRADER = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email",
    "raw_score", "late_submission_penalty", "score", "max_score",
)  # fmt: skip
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
JUNIT_TAGS = {"passed": None, "error": "error", "skipped": "skipped"}  # every other status is a failure
GITHUB_MARKS = {"passed": "✅", "skipped": "➖", "not attempted": "⚪", "error": "⚠️"}
# Signs as wide as Chinese letters, small ones and the minus sign count as the plain ones in some spreadsheets.
_FORMULA = re.compile(r"(^|[;,|\t])(?=[\s'\"]*[=+\-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b\u2212])")
_AROUND = re.compile(r"^ +| +$")
# What becomes a link without any markup, also where its signs are escaped: addresses, mentions, numbers of issues.
_AUTOLINK = re.compile(r"(?<=\bwww)(?=\.)|(?<=:)(?=//)|(?<=[@#])(?=\w)|(?<=\bgh)(?=-\d)", re.IGNORECASE)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~@$:])")
_ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})  # of GitHub's workflow commands


class NotOne(Exception):
    """A form for one notebook was requested for several, or for none."""


def nbgrader(results: Sequence[Result]) -> str:
    """Returns a row for each notebook, as `nbgrader export` writes it.

    A notebook at which the grader failed has no score, so that an import changes no grade.
    """
    rows = []
    for result in results:
        grade = result.final
        scores = ("", "", "") if grade.score is None else (grade.raw_score, grade.penalty, grade.score)
        dates = (_without_zone(grade.lesson_due), _without_zone(grade.submitted))
        about = (grade.person.last_name, grade.person.first_name, grade.person.email) if grade.person else ("", "", "")
        rows.append((result.lesson, *dates, _login(result.learner), *about, *scores, grade.max_score))
    return csv_text([NBGRADER, *rows])


def _without_zone(date: str) -> str:
    """Formats a time in UTC as nbgrader's database contains it."""
    return str(datetime.fromisoformat(date).replace(tzinfo=None)) if date else ""


def canvas(results: Sequence[Result]) -> str:
    """Returns what Canvas' gradebook imports: a row for each learner, a column for each lesson.

    Learners are matched by the numbers of the roster, or by login. A notebook without a verdict and a missing one leave
    their cell empty, which changes no grade.
    """
    lessons: dict[str, float] = {}
    scores: dict[str, dict[str, float]] = {}
    people: dict[str, Person | None] = {}
    for result in results:
        grade = result.final
        lessons[result.lesson] = max(grade.max_score, lessons.get(result.lesson, 0.0))
        people[result.learner] = grade.person or people.get(result.learner)
        mine = scores.setdefault(result.learner, {})
        unread = result.problem is not None and grade.source == "results"
        if grade.score is not None and grade.status != "missing" and not unread:
            mine[result.lesson] = grade.score
    possible = ("    Points Possible", "", "", "", "", *lessons.values())
    rows = []
    for learner, mine in scores.items():
        login, person = _login(learner), people[learner]
        about = (
            (person.name or " ".join(filter(None, (person.first_name, person.last_name))) or login,
             person.id, person.sis_id, login, person.section)
            if person else (login, "", "", login, "")
        )  # fmt: skip
        rows.append((*about, *(mine.get(lesson, "") for lesson in lessons)))
    return csv_text([(*CANVAS, *lessons), possible, *rows])


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Returns rows as CSV that is safe to open in a spreadsheet."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue()


def _cell(value: object) -> str:
    """Formats a number, or text so that no spreadsheet takes it, or what it has after a separator, for a formula."""
    if isinstance(value, int | float):
        return number(value)
    return inert(_FORMULA.sub(r"\1'", legible(str(value)).replace("\n", " ")))


def _login(learner: str) -> str:
    """Shows white space that an import leaves out: without it, a name would be another learner's."""
    return _AROUND.sub(lambda found: "\\x20" * len(found[0]), learner.replace("\n", "\\n"))


def junit(results: Sequence[Result]) -> str:
    """Returns JUnit XML: a suite for each notebook, whose test cases are checks and their classes exercises."""
    root = ElementTree.Element("testsuites", name="grader")
    for result in results:
        suite = ElementTree.SubElement(root, "testsuite", name=legible(f"{result.learner}/{result.lesson}"))
        properties = ElementTree.SubElement(suite, "properties")
        final = result.final
        score = {} if final.score is None else {"score": final.score}  # where the grader failed it is no verdict
        score |= {"max_score": final.max_score}
        for name, value in {**score, "confinement": result.confinement, **_grade_properties(result)}.items():
            ElementTree.SubElement(properties, "property", name=name, value=str(value))
        cases = [_junit_case(suite, check) for check in result.checks]
        if not cases and (result.problem is not None or result.grade is None):
            message = result.problem or "It contains no checks."
            lost = CheckResult("", result.lesson, "the notebook", "error", 0.0, 0.0, message)
            cases = [_junit_case(suite, lost, "not graded")]
        suite.attrib |= {"tests": str(len(cases)), "time": f"{result.duration_s:.3f}"}
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(cases.count(tag)))
    ElementTree.indent(root)
    text = inert_markup(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _grade_properties(result: Result) -> dict[str, object]:
    """What only a final grade contains; nothing where no report has determined one."""
    grade = result.grade
    if grade is None:
        return {}
    found = {
        "points_from": grade.source, "submission": grade.status, "due": grade.due, "submitted": grade.submitted,
        "late_penalty": grade.penalty, "manual_points": grade.manual, "extra_credit": grade.extra_credit,
        "extended": "yes" if grade.extended else "",
        **{f"comment.{cell}": legible(text) for cell, text in grade.comments},
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _junit_case(suite: ElementTree.Element, check: CheckResult, reason: str = "") -> str | None:
    """Adds a test case; returns the tag that says how it ended, None where it passed."""
    names = {"classname": legible(check.exercise), "name": legible(check.title or check.id)}
    case = ElementTree.SubElement(suite, "testcase", names)
    tag = JUNIT_TAGS.get(check.status, "failure")
    if tag is not None:
        ended = ElementTree.SubElement(case, tag, message=legible(check.message).partition("\n")[0])
        if tag != "skipped":
            ended.set("type", reason or check.status)
            ended.text = _explanation(check)
    return tag


def _explanation(check: CheckResult) -> str:
    """Returns the message of a check, and below it the possible misconception."""
    return "\n".join(filter(None, (legible(check.message), check.perhaps)))


def gradescope(result: Result) -> str:
    """Returns Gradescope's `results.json` of one submission; the platform adds up the scores of its tests.

    Hidden checks stay hidden until grades are published.
    """
    content: dict[str, Any] = {
        "execution_time": round(result.duration_s, 3),
        **dict.fromkeys(("output_format", "test_output_format", "test_name_format"), "text"),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [
            {
                "number": str(place),
                "name": f"{check.exercise}: {legible(check.title)}",
                "score": check.points,
                "max_score": check.max_points,
                "status": "passed" if check.status == "passed" else "failed",
                "output": _explanation(check) or ("Passed." if check.status == "passed" else check.status.capitalize()),
                "visibility": "after_published" if check.hidden else "visible",  # one hidden test hides the total too
                "extra_data": {"id": check.id, "status": check.status, "evidence": list(check.evidence)},
            }
            for place, check in enumerate(result.checks, start=1)
        ],
        "extra_data": {"lesson": result.lesson, "confinement": result.confinement},
    }
    if said := [legible(text) for text in (result.problem, *result.notes, *grade_lines(result)) if text]:
        content["output"] = "\n".join(said)
    final = result.final
    if final.source == "gradebook":
        content["score"] = final.score  # counts instead of the sum of the tests
    elif result.grader_failed:
        # Neither a score nor tests: the platform then reports that the autograder failed, and records no grade.
        del content["tests"]
    elif result.problem is not None or not result.checks:
        content["score"] = 0.0  # without tests there is nothing to add up
    return to_text(content)


def github_summary(results: Sequence[Result]) -> str:
    """Returns a step's summary in Markdown: for each notebook a table of exercises, then what was missed."""
    return "\n".join([f"*{_markdown(statement(results, AUTOMATIC_ONLY))}*\n", *map(_github_notebook, results)])


def _github_notebook(result: Result) -> str:
    head = f"## {_markdown(result.learner)}: {_markdown(result.lesson)}\n\n"
    if result.problem is not None:
        told = [f"- {_markdown(line)}\n" for line in grade_lines(result)]
        return "".join([f"{head}Not graded. {_markdown(result.problem)}\n", "\n" * bool(told), *told])
    fault = (
        f". No final score, because the grader is at fault: {_markdown(result.fault_text)}"
        if result.grader_failed
        else ""
    )
    final = result.final
    score = result.score if final.score is None else final.score
    lines = [f"**{number(score)} of {number(final.max_score)} points**{fault}", ""]
    lines += [f"- {_markdown(line)}" for line in grade_lines(result)] + [""] * bool(result.grade)
    lines += ["| exercise | points | |", "|---|---:|---|"]
    for exercise, checks in by_exercise(result.checks):
        marks = " ".join(GITHUB_MARKS.get(check.status, "❌") for check in checks)
        lines.append(f"| {_markdown(exercise)} | {' / '.join(points(checks))} | {marks} |")
    lines += ["", *(f"- {_markdown(note)}" for note in result.notes)]
    for check in (check for check in result.checks if check.status != "passed"):
        hidden = " (hidden)" if check.hidden else ""
        perhaps = f" {_markdown(check.perhaps)}" if check.perhaps else ""
        message = _markdown(check.message) or check.status
        lines.append(f"- **{_markdown(check.exercise)}**, {_markdown(check.title)}{hidden}: {message}{perhaps}")
    return head + "\n".join([*lines, ""])


def _markdown(text: str) -> str:
    """Escapes text for Markdown and HTML, on one line; what would become a link is cut by a space of no width."""
    cut = escape(_AUTOLINK.sub("\u200b", legible(text)), quote=False)
    return _MARKDOWN.sub(r"\\\1", cut).replace("\u200b", "&#8203;").replace("\n", "<br>")


def github_annotations(results: Sequence[Result]) -> str:
    """Returns workflow commands: an error for each check that gave no points, a notice for each skipped one."""
    lines = []
    for result in results:
        where = f"{result.learner}/{result.lesson}"
        if result.problem is not None:
            lines.append(_command("error", where, result.problem))
        if told := grade_lines(result):
            lines.append(_command("notice", where, "\n".join(told)))
        for check in (check for check in result.checks if check.status != "passed"):
            kind, text = "notice" if check.status == "skipped" else "error", check.message or check.status
            lines.append(_command(kind, f"{where} {check.exercise}", f"{check.title}\n{text}"))
    return "".join(lines)


def _command(kind: str, title: str, message: str) -> str:
    escaped = legible(title).translate(_ESCAPES | {ord(":"): "%3A", ord(","): "%2C"})
    return f"::{kind} title={escaped}::{legible(message).translate(_ESCAPES)}\n"


def github_classroom(result: Result) -> str:
    """Returns the `result` of a grading step of GitHub Classroom: base64 of JSON, with a test for each check."""
    final = result.final
    content: dict[str, Any] = {
        "version": 1,
        "status": "error" if not graded([result]) else "pass" if result.full else "fail",
        "max_score": final.max_score,
        "tests": [
            {
                "name": f"{check.exercise}: {legible(check.title)}",
                "status": {"passed": "pass", "error": "error"}.get(check.status, "fail"),
                "message": legible(check.message),
                "test_code": "",
                "score": check.points,
            }
            for check in result.checks
        ],
    }
    if final.score is not None and (rest := total([final.score, -result.score])):
        # The platform adds up the tests, so what a person gave and a late penalty are one of them.
        told = "\n".join(grade_lines(result))
        test = {"name": "Final grade", "status": "pass", "message": told, "test_code": "", "score": rest}
        content["tests"].append(test)
    return base64.b64encode(json.dumps(content).encode()).decode() + "\n"


def _only(results: Sequence[Result]) -> Result:
    if (n := len(results)) != 1:
        raise NotOne(f"This report is for one notebook, but there are {n}. Choose one with --learner and --lesson.")
    return results[0]


STATES_ITS_POINTS = ("html", "github-summary")  # in its first line; the others are for machines
FORMS: dict[str, Callable[[Sequence[Result]], str]] = {
    "json": document,
    "junit": junit,
    "html": html.dumps,
    "csv": nbgrader,
    "canvas": canvas,
    "github-summary": github_summary,
    "github-annotations": github_annotations,
    "github-classroom": lambda results: github_classroom(_only(results)),
    "gradescope": lambda results: gradescope(_only(results)),
}
