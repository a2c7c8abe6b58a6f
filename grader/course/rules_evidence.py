"""Checks whose verdict is the word of the answer's own process have to say so: code that attacks could forge it.

Two kinds are seen in the text: what counts calls or shows a jaxpr, and a probe that returns a verdict instead of data.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from grader.core.vocabulary import SELF_REPORTING
from grader.course.percent import Cell
from grader.course.probes import probes
from grader.course.problems import Findings

# These return a truth, not data that a check could compare.
VERDICTS = frozenset(
    "all allclose any array_equal bool callable hasattr isclose isinstance is_deleted issubclass".split()
)
MEND = "Write `observed=true` in its cell line, or judge a value or the program"


def check(cell: Cell, answers: Collection[str], findings: Findings) -> None:
    """Whether a check that parses is marked where it has to be."""
    if cell.attributes.get("observed"):
        return
    for node in ast.walk(ast.parse(cell.source)):
        name = getattr(node, "id", getattr(node, "attr", None))
        if isinstance(node, ast.Name | ast.Attribute) and name in SELF_REPORTING:
            message = f"the check uses `{name}`, which only the answer's own process can say, and is not marked so"
            findings.add(cell.first + node.lineno - 1, message, MEND)
    for probe in probes(cell.source, answers):
        for verdict in (part for value in _returned(probe.node) for part in _parts(value) if _judges(part)):
            message = f"a probe returns `{ast.unparse(verdict)}`, a verdict of the answer's own process"
            findings.add(
                cell.first + verdict.lineno - 1, message, f"Return what it is about, and judge that here. {MEND}"
            )


def _returned(probe: ast.FunctionDef | ast.Lambda) -> list[ast.expr]:
    if isinstance(probe, ast.Lambda):
        return [probe.body]
    inner = {id(node) for one in ast.walk(probe) if one is not probe and isinstance(one, ast.FunctionDef | ast.Lambda)
             for node in ast.walk(one)}  # fmt: skip
    returns = (node for node in ast.walk(probe) if isinstance(node, ast.Return) and id(node) not in inner)
    return [node.value for node in returns if node.value is not None]


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.Tuple | ast.List):
        for part in value.elts:
            yield from _parts(part)
    elif isinstance(value, ast.Dict):
        for part in value.values:
            yield from _parts(part)
    elif isinstance(value, ast.ListComp):
        yield from _parts(value.elt)
    else:
        yield value


def _judges(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return getattr(value.func, "id", getattr(value.func, "attr", None)) in VERDICTS
    return isinstance(value, ast.Compare | ast.BoolOp) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    )
