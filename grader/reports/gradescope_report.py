"""One result as Gradescope's `results.json`: hidden checks stay hidden until grades are published."""

from __future__ import annotations

import json
from typing import Any

from grader.core.result import CheckResult, Result
from grader.core.text import legible


def dumps(result: Result) -> str:
    """The document for one submission, which is what that platform runs a grader on.

    The scores of the tests make up the total; the platform shows no total as long as one test is hidden.
    """
    document: dict[str, Any] = {
        "execution_time": round(result.duration_s, 3),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(number, check) for number, check in enumerate(result.checks, start=1)],
        "extra_data": {"lesson": result.lesson, "confinement": result.confinement},
    }
    said = [legible(text) for text in (result.problem, *result.notes) if text]
    if said:
        document["output"] = "\n".join(said)
    if result.grader_failed:
        # Neither a score nor tests: the platform then reports that the autograder failed, and records no grade.
        del document["tests"]
    elif result.problem is not None or not result.checks:
        document["score"] = 0.0  # without tests there is nothing to add up
    return json.dumps(document, indent=2) + "\n"


def _test(number: int, check: CheckResult) -> dict[str, Any]:
    said = [legible(check.message)] if check.message else []
    if check.misconception:
        said.append(f"Perhaps: {check.misconception}")
    return {
        "number": str(number),
        "name": f"{check.exercise}: {legible(check.title)}",
        "score": check.points,
        "max_score": check.max_points,
        "status": "passed" if check.status == "passed" else "failed",
        "output": "\n".join(said) or ("Passed." if check.status == "passed" else check.status.capitalize()),
        "visibility": "after_published" if check.hidden else "visible",
        "extra_data": {"id": check.id, "status": check.status, "evidence": list(check.evidence)},
    }
