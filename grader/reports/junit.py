"""Results as JUnit XML for continuous integration: a suite for each notebook."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from grader.core.result import CheckResult, Result
from grader.core.text import legible

TAGS = {"passed": None, "error": "error", "skipped": "skipped"}  # every other status is a failure


def dumps(results: Sequence[Result]) -> str:
    """Returns the document of `results`, in which test cases are checks and their classes exercises."""
    root = ElementTree.Element("testsuites", name="grader")
    for result in results:
        suite = ElementTree.SubElement(root, "testsuite", name=legible(f"{result.learner}/{result.lesson}"))
        properties = ElementTree.SubElement(suite, "properties")
        score = {} if result.grader_failed else {"score": result.score}  # where the grader failed it is no verdict
        for name, value in {**score, "max_score": result.max_score, "confinement": result.confinement}.items():
            ElementTree.SubElement(properties, "property", name=name, value=str(value))
        cases = [_case(suite, check) for check in result.checks]
        if not cases:
            message = result.problem or "It holds no check."
            lost = CheckResult("", result.lesson, "the notebook", "error", 0.0, 0.0, message)
            cases = [_case(suite, lost, "not graded")]
        counts = {"failures": cases.count("failure"), "errors": cases.count("error"), "skipped": cases.count("skipped")}
        suite.attrib |= {"tests": str(len(cases)), "time": f"{result.duration_s:.3f}"}
        suite.attrib |= {name: str(count) for name, count in counts.items()}
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, check: CheckResult, reason: str = "") -> str | None:
    """Adds a test case; returns the tag that says how it ended, None where it passed."""
    names = {"classname": legible(check.exercise), "name": legible(check.title or check.id)}
    case = ElementTree.SubElement(suite, "testcase", names)
    tag = TAGS.get(check.status, "failure")
    if tag is not None:
        message = legible(check.message)
        ended = ElementTree.SubElement(case, tag, message=message.partition("\n")[0])
        if tag != "skipped":
            ended.set("type", reason or check.status)
            ended.text = "\n".join(filter(None, (message, check.misconception and f"Perhaps: {check.misconception}")))
    return tag
