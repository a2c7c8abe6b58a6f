"""Results for GitHub: a step's summary, annotations in the log, and what Classroom's reporter reads."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Sequence

from grader.core.points import number
from grader.core.result import Result
from grader.core.text import legible
from grader.reports.terminal import by_exercise, points

MARKS = {"passed": "✅", "skipped": "➖", "not attempted": "⚪", "error": "⚠️"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~@$:])")
_ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})  # of workflow commands


def summary(results: Sequence[Result]) -> str:
    """Returns Markdown: a table of exercises for each notebook, then what was missed. Learners' text is escaped."""
    return "\n".join(map(_notebook, results))


def _notebook(result: Result) -> str:
    head = f"## {_text(result.learner)}: {_text(result.lesson)}\n\n"
    if result.problem is not None:
        return f"{head}Not graded. {_text(result.problem)}\n"
    fault = f". No final score, the grader is at fault: {_text(result.fault_text)}" if result.grader_failed else ""
    lines = [f"**{number(result.score)} of {number(result.max_score)} points**{fault}", ""]
    lines += ["| exercise | points | |", "|---|---:|---|"]
    for exercise, checks in by_exercise(result.checks):
        marks = " ".join(MARKS.get(check.status, "❌") for check in checks)
        lines.append(f"| {_text(exercise)} | {' / '.join(points(checks))} | {marks} |")
    lines += ["", *(f"- {_text(note)}" for note in result.notes)]
    for check in (check for check in result.checks if check.status != "passed"):
        hidden = " (hidden)" if check.hidden else ""
        perhaps = f" Perhaps: {_text(check.misconception)}" if check.misconception else ""
        message = _text(check.message) or check.status
        lines.append(f"- **{_text(check.exercise)}**, {_text(check.title)}{hidden}: {message}{perhaps}")
    return head + "\n".join([*lines, ""])


def _text(text: str) -> str:
    """Escapes text for Markdown and HTML, on one line."""
    return _SPECIAL.sub(r"\\\1", html.escape(legible(text), quote=False)).replace("\n", "<br>")


def log_commands(results: Sequence[Result]) -> str:
    """Returns workflow commands: an error for each check that gave no points, a notice for each skipped one."""
    lines = []
    for result in results:
        where = f"{result.learner}/{result.lesson}"
        if result.problem is not None:
            lines.append(_command("error", where, result.problem))
        for check in (check for check in result.checks if check.status != "passed"):
            kind, text = "notice" if check.status == "skipped" else "error", check.message or check.status
            lines.append(_command(kind, f"{where} {check.exercise}", f"{check.title}\n{text}"))
    return "".join(lines)


def _command(kind: str, title: str, message: str) -> str:
    escaped = legible(title).translate(_ESCAPES | {ord(":"): "%3A", ord(","): "%2C"})
    return f"::{kind} title={escaped}::{legible(message).translate(_ESCAPES)}\n"


def classroom(result: Result) -> str:
    """Returns the `result` of a grading step of GitHub Classroom: base64 of JSON, with a test for each check."""
    failed = result.problem is not None or result.grader_failed
    document = {
        "version": 1,
        "status": "error" if failed else "pass" if result.full else "fail",
        "max_score": result.max_score,
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
    return base64.b64encode(json.dumps(document).encode()).decode() + "\n"
