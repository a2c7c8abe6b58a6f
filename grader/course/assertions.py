"""Read plain assertions about an answer as the grader's questions, so that an imported lesson can be graded.

`assert f(2) == 4` is judged as `assert ask(f, 2) == 4`. Where such a reading could judge otherwise than the cell does
in a notebook, the check is left to its author, with the line and the reason.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping

from grader.core import symbols
from grader.core.symbols import REACHING
from grader.course import probes

HIDDEN_MARKER = re.compile(r"^.*(?:BEGIN|END) HIDDEN TESTS.*$", re.MULTILINE)
NO_CREDIT = re.compile(r"print|display|assert\w*")  # calls on a line of their own that give no partial credit
FAILING = re.compile(r"raise AssertionError\b|assert (?:False|0)\b")
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


class UngradableError(Exception):
    """A check cannot be judged as it stands: the reason, and the line within its source."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


def read(source: str, answers: Mapping[str, str], setup: frozenset[str]) -> str:
    """Returns the check as the grader judges it: hidden and visible parts together, with `ask`. Raises UngradableError.

    `answers` states of each name that answers bind so far whether it is a "function", a "class" or a "value".
    """
    wrong = symbols.syntax_error(source)
    if wrong is not None:
        raise UngradableError(wrong[0], f"it is not Python ({wrong[1]})")
    whole = HIDDEN_MARKER.sub("", source)  # an empty line stands for each marker, so that lines keep their numbers
    tree = ast.parse(whole)
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    asks = any(isinstance(name, ast.Name) and name.id in REACHING for name in called)
    if not asks:
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Constant):
            function = last.value.func if isinstance(last.value, ast.Call) else None
            if not NO_CREDIT.fullmatch(getattr(function, "id", getattr(function, "attr", ""))):
                reason = "its last line may give partial credit, which the grader does not know"
                raise UngradableError(last.lineno, reason)
        whole = ast.unparse(ast.fix_missing_locations(_AskInserter(answers).visit(tree)))
    # A check may import again what setup imports, as every cell of a notebook may.
    misuses = probes.misuses(whole, frozenset(answers), (setup | {"ask"}) - symbols.cell_names(whole).binds)
    if misuses:
        raise UngradableError(misuses[0].line if asks else 1, misuses[0].message)
    return whole


class _AskInserter(ast.NodeTransformer):
    """Puts `ask` before every use of an answer; raises UngradableError where that would not mean the same."""

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
            raise UngradableError(node.lineno, f"it makes a `{name}`, and only data come back from an answer")
        if any(isinstance(value, ast.Starred) for value in node.args) or any(k.arg is None for k in node.keywords):
            raise UngradableError(node.lineno, f"it calls `{name}` with `*`")
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
            raise UngradableError(node.lineno, f"it binds or deletes `{node.id}`, an answer's name")
        if self._answers[node.id] != "value":
            raise UngradableError(node.lineno, f"it uses `{node.id}` other than by calling it")
        return ast.copy_location(_expression(f"ask(lambda: {node.id})"), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        name = self._mentioned(node.value.func) if isinstance(node.value, ast.Call) else None
        if name:
            raise UngradableError(node.lineno, f"it calls `{name}` for something other than its result")
        return self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> ast.AST | list[ast.stmt]:
        name = self._mentioned(node)
        if name is None:
            return node
        match node:
            case ast.Try(
                body=[ast.Expr(ast.Call(ast.Name(function), arguments, []))],
                handlers=[ast.ExceptHandler(ast.expr() as kinds, None, [ast.Pass()])],
                orelse=[otherwise],
                finalbody=[],
            ) if (
                self._answers.get(function) == "function"
                and not self._mentioned(*arguments, otherwise)
                and FAILING.match(ast.unparse(otherwise))
                and all(hasattr(builtins, one) for one in re.split(r"[(), ]+", ast.unparse(kinds)) if one)
            ):
                kind, probe = ast.unparse(kinds), f"raises_{node.lineno}"
                message = f"{function} did not raise {kind}"
                statements = ast.parse(RAISES.format(probe=probe, function=function, kind=kind, message=message)).body
                statements[1].test.left.args += arguments  # type: ignore[attr-defined]
                return statements
        raise UngradableError(node.lineno, f"it uses `{name}` inside `try`")

    def _refuse(self, node: ast.stmt | ast.Lambda) -> ast.AST:
        name = self._mentioned(node)
        if name is not None:
            where = "`with`" if isinstance(node, ast.With) else "a function or class of its own"
            raise UngradableError(node.lineno, f"it uses `{name}` inside {where}")
        return node

    visit_With = visit_AsyncWith = visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _refuse


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
