"""Results as JUnit XML, which every continuous integration service shows: a suite for each notebook."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from grader.core.result import CheckResult, Result
from grader.core.text import legible

TAGS = {"passed": None, "error": "error", "skipped": "skipped"}  # every other status is a failure


def dumps(results: Sequence[Result]) -> str:
    """The document for `results`: the test cases of a suite are checks, their classes exercises."""
    root = ElementTree.Element("testsuites", name="grader")
    for result in results:
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(f"{result.learner}/{result.lesson}"))
        cases = [_case(suite, check) for check in result.checks] or [_ungraded(suite, result)]
        properties = ElementTree.Element("properties")
        for name, value in (
            ("score", result.score),
            ("max_score", result.max_score),
            ("confinement", result.confinement),
        ):
            ElementTree.SubElement(properties, "property", name=name, value=str(value))
        suite.insert(0, properties)
        suite.attrib |= {"tests": str(len(cases)), "time": f"{result.duration_s:.3f}"}
        suite.attrib |= {
            name: str(cases.count(tag))
            for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
        }
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, check: CheckResult) -> str | None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=_clean(check.exercise), name=_clean(check.title or check.id)
    )
    tag = TAGS.get(check.status, "failure")
    if tag is not None:
        said = _clean(check.message)
        ended = ElementTree.SubElement(case, tag, message=said.partition("\n")[0])
        if tag != "skipped":
            ended.set("type", check.status)
            ended.text = "\n".join(filter(None, (said, check.misconception and f"Perhaps: {check.misconception}")))
    return tag


def _ungraded(suite: ElementTree.Element, result: Result) -> str:
    case = ElementTree.SubElement(suite, "testcase", classname=_clean(result.lesson), name="the notebook")
    said = _clean(result.problem or "It holds no check.")
    ElementTree.SubElement(case, "error", message=said, type="not graded").text = said
    return "error"


def _clean(text: str) -> str:
    """What XML can hold: no control characters, no halves of characters."""
    return legible(text)
