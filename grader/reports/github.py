"""Results where GitHub shows them: a step's summary, annotations in the log, and what Classroom's reporter reads."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from grader.core.result import CheckResult, Result
from grader.core.text import legible

MARKS = {"passed": "✅", "skipped": "➖", "not attempted": "⚪"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~@$:])")


def summary(results: Sequence[Result]) -> str:
    """Markdown: a table of exercises for each notebook, then what was missed and why. Text of learners' is text."""
    return "\n".join(line for result in results for line in _notebook(result))


def _notebook(result: Result) -> Iterator[str]:
    yield f"## {_text(result.learner)}: {_text(result.lesson)}"
    yield ""
    if result.problem is not None:
        yield f"Not graded. {_text(result.problem)}"
        yield ""
        return
    yield f"**{result.score:g} of {result.max_score:g} points**"
    yield ""
    yield "| exercise | points | |"
    yield "|---|---:|---|"
    missed = []
    for exercise, group in groupby(result.checks, key=lambda check: check.exercise):
        checks = list(group)
        got, most = sum(check.points for check in checks), sum(check.max_points for check in checks)
        marks = " ".join(MARKS.get(check.status, "❌") for check in checks)
        yield f"| {_text(exercise)} | {got:g} / {most:g} | {marks} |"
        missed += [check for check in checks if check.status != "passed"]
    yield ""
    for note in result.notes:
        yield f"- {_text(note)}"
    for check in missed:
        hidden = " (hidden)" if check.hidden else ""
        perhaps = f" Perhaps: {_text(check.misconception)}" if check.misconception else ""
        said = _text(check.message) or check.status
        yield f"- **{_text(check.exercise)}**, {_text(check.title)}{hidden}: {said}{perhaps}"
    yield ""


def _text(text: str) -> str:
    """Text that Markdown and HTML leave alone, on one line."""
    return _SPECIAL.sub(r"\\\1", html.escape(legible(text), quote=False)).replace("\n", "<br>")


def log_commands(results: Sequence[Result]) -> str:
    """Workflow commands: an error for each check that gave no points, a notice for each skipped one."""
    lines = []
    for result in results:
        where = f"{result.learner}/{result.lesson}"
        if result.problem is not None:
            lines.append(_command("error", where, result.problem))
        for check in result.checks:
            if check.status != "passed":
                kind = "notice" if check.status == "skipped" else "error"
                lines.append(
                    _command(kind, f"{where} {check.exercise}", f"{check.title}\n{check.message or check.status}")
                )
    return "".join(f"{line}\n" for line in lines)


def _command(kind: str, title: str, message: str) -> str:
    escaped = _escaped(legible(title)).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={escaped}::{_escaped(legible(message))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def classroom(result: Result) -> str:
    """What a grading step of GitHub Classroom's puts out as `result`: base64 of JSON, a test for each check."""
    status = "pass" if result.full else "fail"
    document = {
        "version": 1,
        "status": "error" if result.problem is not None or result.grader_failed else status,
        "max_score": result.max_score,
        "tests": [_classroom_test(check) for check in result.checks],
    }
    return base64.b64encode(json.dumps(document).encode()).decode() + "\n"


def _classroom_test(check: CheckResult) -> dict[str, object]:
    broken = check.status == "error"
    return {
        "name": f"{check.exercise}: {legible(check.title)}",
        "status": "pass" if check.status == "passed" else "error" if broken else "fail",
        "message": legible(check.message),
        "test_code": "",
        "score": check.points,
    }
