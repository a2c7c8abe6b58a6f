"""Rules for the code of an exercise: it parses, it binds the right names, and a check judges what cannot be forged.

A check whose verdict only the answer's own process can state must be marked `observed`, since code that attacks could
forge it. Two kinds are recognised: what counts calls or shows a jaxpr, and a probe that returns a verdict, not data.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from itertools import cycle

from grader.core import symbols
from grader.core.symbols import SELF_REPORTING
from grader.course import exercises, probes
from grader.course.exercises import BEGIN_SOLUTION, END_SOLUTION, Parts
from grader.course.percent import Cell, Findings

# These return a truth value, not data that a check could compare.
VERDICTS = {*"all allclose any array_equal bool callable hasattr isclose isinstance is_deleted issubclass".split()}
OBSERVED = "Write `observed=true` in its cell line, or judge a value or the program"


def check_setup(cells: Iterable[Cell], findings: Findings) -> frozenset[str]:
    """Returns the names that setup cells bind."""
    bound: set[str] = set()
    for cell in cells:
        if not findings.parses(cell.source, cell.first):
            continue
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                findings.add(cell.first + node.lineno - 1, "a star import hides which names it binds", "Name them")
        if "Probe" in symbols.cell_names(cell.source).binds:
            findings.add(cell.line, "setup binds `Probe`, a name that the grader keeps", "Choose another name")
        bound |= symbols.cell_names(cell.source).binds
    return frozenset(bound)


def check_answer(of: Parts, setup_names: Collection[str], findings: Findings) -> tuple[str, ...] | None:
    """Adds the problems of the answer cell, and of every wrong and right answer beside it.

    Returns the names that the answer's stub binds; None if there is no answer, or its stub does not parse.
    """
    cell = next(iter(of.of("answer")), None)
    if cell is None:
        return None
    stub = exercises.stub(cell.source)
    wanted = symbols.defined(stub) if symbols.syntax_error(stub) is None else None
    if _has_markers(cell, findings) and findings.parses(cell.source, cell.first):
        if findings.parses(stub, cell.first, what="without its solution, ") and not wanted:
            fix = "Leave a `def`, `class` or `name = None` outside the SOLUTION markers"
            findings.add(cell.line, "the stub binds no name that a check could ask for", fix)
        _check_binds(cell, setup_names, findings)
    for variant in of.of("wrong", "right"):
        if findings.parses(variant.source, variant.first):
            _check_binds(variant, setup_names, findings)
            for name in wanted or ():
                if name not in symbols.cell_names(variant.source).binds and name not in setup_names:
                    message = f"a {variant.kind} answer does not bind `{name}`"
                    findings.add(variant.line, message, f"Write the whole answer cell, with `{name}`")
    return wanted


def _check_binds(cell: Cell, setup_names: Collection[str], findings: Findings) -> None:
    for name in sorted(symbols.cell_names(cell.source).binds & {*setup_names, "Probe"}):
        line = cell.first + symbols.line_of(ast.parse(cell.source), name) - 1
        message = f"the answer binds `{name}`, which setup binds" if name != "Probe" else "the answer binds `Probe`"
        findings.add(line, message, "Choose another name, or leave it to setup")


def _has_markers(cell: Cell, findings: Findings) -> bool:
    """Whether the SOLUTION markers are there, paired, and written as nbgrader requires."""
    lines = enumerate(cell.source.split("\n"), cell.first)
    markers = [(at, line.strip()) for at, line in lines if "BEGIN SOLUTION" in line or "END SOLUTION" in line]
    for (at, marker), due in zip(markers, cycle((BEGIN_SOLUTION, END_SOLUTION)), strict=False):
        if marker not in (BEGIN_SOLUTION, END_SOLUTION):
            findings.add(at, "a SOLUTION marker shares its line", f"Write `{BEGIN_SOLUTION}` on a line of its own")
            return False
        if marker != due:
            begins = "begins inside another" if due == END_SOLUTION else "ends that did not begin"
            findings.add(at, f"a solution {begins}", f"Write `{due}` before it")
            return False
    if not markers:
        fix = f"Put the answer between `{BEGIN_SOLUTION}` and `{END_SOLUTION}`"
        findings.add(cell.line, "the answer has no SOLUTION markers", fix)
    elif len(markers) % 2:
        findings.add(markers[-1][0], "a solution does not end", f"Close it with `{END_SOLUTION}`")
    return bool(markers) and len(markers) % 2 == 0


def check_check(cell: Cell, answers: Collection[str] | None, setup_names: Collection[str], findings: Findings) -> None:
    """Adds the problems of one check cell. `answers`: names of this answer and of earlier ones, None if not known."""
    if not findings.parses(cell.source, cell.first) or answers is None:
        return
    if exercises.title_of_check(cell.source) is None:
        fix = 'Open it with """One sentence that the learner reads."""'
        findings.add(cell.line, "the check has no one-line docstring", fix)
    for misuse in probes.misuses(cell.source, answers, setup_names):
        findings.add(cell.first + misuse.line - 1, misuse.message, misuse.fix)
    check_evidence(cell, answers, findings)
    for node in ast.parse(cell.source).body[1:]:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call):
            message = f"`{ast.unparse(node)}` judges nothing"
            findings.add(cell.first + node.lineno - 1, message, 'Write `require(..., "what should hold")`')


def check_evidence(cell: Cell, answers: Collection[str], findings: Findings) -> None:
    """Requires that a check is marked `observed` if only the answer's own process can state its verdict."""
    if cell.attributes.get("observed"):
        return
    for node in ast.walk(ast.parse(cell.source)):
        name = _last_name(node)
        if isinstance(node, ast.Name | ast.Attribute) and name in SELF_REPORTING:
            message = f"the check uses `{name}`, which only the answer's own process can say, and is not marked so"
            findings.add(cell.first + node.lineno - 1, message, OBSERVED)
    for line, part in _unverified_outputs(cell.source):
        message = f"the check judges the shapes of `outputs[{part}]`, but never the values of this part of the result"
        findings.add(cell.first + line - 1, message, f"Compare `.run(...)[{part}]` too. {OBSERVED}")
    for probe in probes.probes(cell.source, answers):
        for verdict in (part for value in _results(probe) for part in _elements(value) if _is_verdict(part)):
            message = f"a probe returns `{ast.unparse(verdict)}`, a verdict of the answer's own process"
            fix = f"Return what it is about, and judge that here. {OBSERVED}"
            findings.add(cell.first + verdict.lineno - 1, message, fix)


def _unverified_outputs(source: str) -> Iterator[tuple[int, str]]:
    """Lines and keys of `outputs[key]` where no result of a run is read at this key, or compared as a whole.

    What is in this part is chosen beside the answer, by a probe that an answer can deceive: it may leave out a part of
    the program, or add what the program does not need.
    """
    nodes = list(ast.walk(ast.parse(source)))
    subscripts = [node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)]
    of_outputs = [node for node in subscripts if _last_name(node.value) == "outputs"]
    verified = {ast.unparse(node.slice) for node in subscripts if node not in of_outputs}
    for node in nodes:  # got, loss = made.run(...)
        if isinstance(node, ast.Assign) and _is_run(node.value) and isinstance(node.targets[0], ast.Tuple):
            verified |= {str(place) for place in range(len(node.targets[0].elts))}
    whole = any(
        isinstance(node, ast.Call) and _last_name(node.func) == "compare" and node.args and _is_run(node.args[0])
        for node in nodes
    )
    for node in of_outputs:
        if not whole and (part := ast.unparse(node.slice)) not in verified:
            yield node.lineno, part


def _is_run(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _last_name(value.func) == "run"


def _last_name(node: ast.AST) -> str | None:
    return getattr(node, "id", getattr(node, "attr", None))


def _results(probe: ast.AST) -> Iterator[ast.expr]:
    """What a probe returns; what functions inside it return is not."""
    if isinstance(probe, ast.Lambda):
        yield probe.body
        return
    for node in ast.iter_child_nodes(probe):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        elif not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield from _results(node)


def _elements(value: ast.expr) -> Iterator[ast.expr]:
    match value:
        case ast.Tuple(elts=inner) | ast.List(elts=inner) | ast.Dict(values=inner):
            for element in inner:
                yield from _elements(element)
        case ast.ListComp():
            yield from _elements(value.elt)
        case _:
            yield value


def _is_verdict(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return _last_name(value.func) in VERDICTS
    negated = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    return negated or isinstance(value, ast.Compare | ast.BoolOp)
