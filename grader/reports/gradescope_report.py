"""A result as Gradescope's `results.json`, where hidden checks stay hidden until grades are published."""

from __future__ import annotations

import json
from typing import Any

from grader.core.result import CheckResult, Result
from grader.core.text import legible


def dumps(result: Result) -> str:
    """Returns the document of one submission; the platform adds up the scores of its tests."""
    document: dict[str, Any] = {
        "execution_time": round(result.duration_s, 3),
        **dict.fromkeys(("output_format", "test_output_format", "test_name_format"), "text"),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(number, check) for number, check in enumerate(result.checks, start=1)],
        "extra_data": {"lesson": result.lesson, "confinement": result.confinement},
    }
    if said := [legible(text) for text in (result.problem, *result.notes) if text]:
        document["output"] = "\n".join(said)
    if result.grader_failed:
        # Neither a score nor tests: the platform then reports that the autograder failed, and records no grade.
        del document["tests"]
    elif result.problem is not None or not result.checks:
        document["score"] = 0.0  # without tests there is nothing to add up
    return json.dumps(document, indent=2) + "\n"


def _test(number: int, check: CheckResult) -> dict[str, Any]:
    perhaps = f"Perhaps: {check.misconception}" if check.misconception else ""
    output = "\n".join(filter(None, (legible(check.message), perhaps)))
    return {
        "number": str(number),
        "name": f"{check.exercise}: {legible(check.title)}",
        "score": check.points,
        "max_score": check.max_points,
        "status": "passed" if check.status == "passed" else "failed",
        "output": output or f"{check.status.capitalize()}{'.' if check.status == 'passed' else ''}",
        "visibility": "after_published" if check.hidden else "visible",  # one hidden test hides the total too
        "extra_data": {"id": check.id, "status": check.status, "evidence": list(check.evidence)},
    }
