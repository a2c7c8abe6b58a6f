"""Read plain assertions about an answer as the grader's questions, so that an imported lesson can be graded.

`assert f(2) == 4` is judged as `assert ask(f, 2) == 4`. Where such a reading could judge otherwise than the cell does
in a notebook, the check is left to its author, with the line and the reason.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass

from grader.core import symbols
from grader.core.symbols import REACHING
from grader.course import probes

HIDDEN_MARKER = re.compile(r"^.*(?:BEGIN|END) HIDDEN TESTS.*$", re.MULTILINE)
NO_CREDIT = re.compile(r"print|display|assert\w*")  # calls on a line of their own that give no partial credit
# An answer's call that is expected to raise, in place of `try: ... except KIND: pass` with `else: raise ...`.
RAISES = """\
def {probe}(*data):
    try:
        {function}(*data)
    except {kind}:
        return 'raised'
    return 'returned'
assert ask({probe}) == 'raised', {message!r}
"""


@dataclass(frozen=True)
class Ungradable:
    """A reason why a check cannot be judged as it stands; `line` counts within its source."""

    line: int
    reason: str


def read(source: str, answers: Mapping[str, str], setup: frozenset[str]) -> str | Ungradable:
    """Returns the check as the grader judges it: hidden and visible parts together, with `ask`.

    Args:
        source: the check cell.
        answers: for each name that answers bind so far, whether it is a "function", a "class" or a "value".
        setup: the names of the setup.
    """
    wrong = symbols.syntax_error(source)
    if wrong is not None:
        return Ungradable(wrong[0], f"it is not Python ({wrong[1]})")
    whole = HIDDEN_MARKER.sub("", source)  # an empty line stands for each marker, so that lines keep their numbers
    tree = ast.parse(whole)
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    asks = any(isinstance(name, ast.Name) and name.id in REACHING for name in called)
    if not asks:
        try:
            _refuse_partial_credit(tree.body)
            whole = ast.unparse(ast.fix_missing_locations(_AskInserter(answers).visit(tree)))
        except _UnclearError as unclear:
            return unclear.reason
    # A check may import again what setup imports, as every cell of a notebook may.
    misuses = probes.misuses(whole, frozenset(answers), (setup | {"ask"}) - symbols.cell_names(whole).binds)
    return Ungradable(misuses[0].line if asks else 1, misuses[0].message) if misuses else whole


class _UnclearError(Exception):
    def __init__(self, node: ast.AST, reason: str) -> None:
        super().__init__(reason)
        self.reason = Ungradable(getattr(node, "lineno", 1), reason)


def _refuse_partial_credit(body: list[ast.stmt]) -> None:
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr) or isinstance(last.value, ast.Constant):
        return
    called = last.value.func if isinstance(last.value, ast.Call) else None
    if not NO_CREDIT.fullmatch(getattr(called, "id", getattr(called, "attr", ""))):
        raise _UnclearError(last, "its last line may give partial credit, which the grader does not know")


class _AskInserter(ast.NodeTransformer):
    """Puts `ask` before every use of an answer; raises `_UnclearError` where that would not mean the same."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers

    def _mentioned(self, *nodes: ast.AST) -> str | None:
        found = (part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name))
        return next((name for name in found if name in self._answers), None)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not isinstance(node.func, ast.Name) or node.func.id not in self._answers:
            return self.generic_visit(node)
        name = node.func.id
        if self._answers[name] == "class":
            raise _UnclearError(node, f"it makes a `{name}`, and only data come back from an answer")
        if any(isinstance(value, ast.Starred) for value in node.args) or any(k.arg is None for k in node.keywords):
            raise _UnclearError(node, f"it calls `{name}` with `*`")
        values = [self.visit(value) for value in [*node.args, *(keyword.value for keyword in node.keywords)]]
        asked: ast.expr = node.func
        if node.keywords:
            positional = [f"a{n}" for n in range(len(node.args))]
            keywords = {f"k{n}": keyword.arg for n, keyword in enumerate(node.keywords)}
            passed = [*positional, *(f"{keyword}={place}" for place, keyword in keywords.items())]
            asked = _expression(f"lambda {', '.join([*positional, *keywords])}: {name}({', '.join(passed)})")
        return ast.copy_location(ast.Call(ast.Name("ask", ast.Load()), [asked, *values], []), node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._answers:
            return node
        if not isinstance(node.ctx, ast.Load):
            raise _UnclearError(node, f"it binds or deletes `{node.id}`, an answer's name")
        if self._answers[node.id] != "value":
            raise _UnclearError(node, f"it uses `{node.id}` other than by calling it")
        return ast.copy_location(_expression(f"ask(lambda: {node.id})"), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        name = self._mentioned(node.value.func) if isinstance(node.value, ast.Call) else None
        if name:
            raise _UnclearError(node, f"it calls `{name}` for something other than its result")
        return self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> ast.AST | list[ast.stmt]:
        name = self._mentioned(node)
        if name is None:
            return node
        call = node.body[0].value if len(node.body) == 1 and isinstance(node.body[0], ast.Expr) else None
        kind = _expected_exception(node)
        if (
            not isinstance(call, ast.Call)
            or kind is None
            or self._mentioned(*call.args, *node.orelse) is not None
            or not isinstance(call.func, ast.Name)
            or self._answers.get(call.func.id) != "function"
            or call.keywords
        ):
            raise _UnclearError(node, f"it uses `{name}` inside `try`")
        function, probe = call.func.id, f"raises_{node.lineno}"
        text = RAISES.format(probe=probe, function=function, kind=kind, message=f"{function} did not raise {kind}")
        statements = ast.parse(text).body
        asked = statements[1].test.left  # type: ignore[attr-defined]
        asked.args += call.args
        return statements

    def _refuse(self, node: ast.AST) -> ast.AST:
        name = self._mentioned(node)
        if name is not None:
            where = "`with`" if isinstance(node, ast.With) else "a function or class of its own"
            raise _UnclearError(node, f"it uses `{name}` inside {where}")
        return node

    visit_With = visit_AsyncWith = visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _refuse


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _expected_exception(node: ast.Try) -> str | None:
    """What `try: ... except KIND: pass` with `else: raise ...` catches, if that is all and KIND is Python's own."""
    if len(node.handlers) != 1 or node.finalbody or len(node.orelse) != 1:
        return None
    [handler], [other] = node.handlers, node.orelse
    passes = len(handler.body) == 1 and isinstance(handler.body[0], ast.Pass) and handler.name is None
    raises = isinstance(other, ast.Raise) and "AssertionError" in ast.unparse(other)
    fails = isinstance(other, ast.Assert) and isinstance(other.test, ast.Constant) and not other.test.value
    if not passes or not (raises or fails) or handler.type is None:
        return None
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    known = all(isinstance(kind, ast.Name) and hasattr(builtins, kind.id) for kind in kinds)
    return ast.unparse(handler.type) if known else None
