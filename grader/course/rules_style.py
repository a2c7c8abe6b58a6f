"""Rules of style for edited lessons: short cells, a core that takes 35 minutes, sections that can be skipped, words.

They apply to the lessons that course.toml marks with `edited = true`, and only when notebooks are built: no course is
kept from grading by its style.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from grader.core import symbols
from grader.course import reader, vocabulary
from grader.course.notebook_builder import MAGIC
from grader.course.percent import Cell, Findings, Problem
from grader.course.tree import Course

MAX_LINES = 20  # of a code cell, blank ones included
MAX_MINUTES = 35  # of the core
# In five minutes a learner reads 200 words and runs and understands 4 code cells.
WORDS_PER_MINUTE, CELLS_PER_MINUTE = 200 / 5, 4 / 5
TOLERANCE = 4  # minutes between the stated and the estimated time
DEEPER = "Deeper:"
HEADING = re.compile(r"^##? +(.*)", re.MULTILINE)
STATED = re.compile(r"\b([\w-]+) minutes\b")
NUMERALS = {str(number): number for number in range(1, 100)}
NUMERALS |= {"ten": 10, "fifteen": 15, "twenty": 20, "twenty-five": 25, "thirty": 30, "thirty-five": 35}


@dataclass
class LessonSection:
    """A part of a lesson from one heading of the first or second level to the next."""

    heading: str
    texts: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)

    @property
    def deeper(self) -> bool:
        """Whether readers may skip it."""
        return self.heading.startswith(DEEPER)


def problems(course: Course, lesson_id: str) -> list[Problem]:
    """Returns the problems of style in a lesson's own script and in its exercises. Raises CourseError."""
    found = list[Problem]()
    if lesson_id in course.text_ids:
        findings = Findings(course.shown(course.script(lesson_id)))
        check_lesson(course.text(lesson_id), findings)
        found += findings.problems
    if lesson_id in course.lesson_ids and course.adopted(lesson_id) is None:
        lesson = course.lesson(lesson_id)
        findings = Findings(lesson.files)
        _check_words(lesson.cells, findings)
        found += findings.problems
    return found


def check_lesson(cells: Collection[Cell], findings: Findings) -> None:
    """Adds the problems of a lesson's own script, whose first cell is its title."""
    parts = sections(cells)
    for cell in cells:
        lines = cell.source.count("\n") + 1
        if cell.kind == "code" and lines > MAX_LINES:
            fix = "Split it, or import a helper from `grader.learning`"
            findings.add(cell.line, f"the cell has {lines} lines, more than {MAX_LINES}", fix)
    _check_minutes(next(iter(cells)), parts, findings)
    _check_names(parts, findings)
    _check_words(cells, findings)


def sections(cells: Iterable[Cell]) -> list[LessonSection]:
    """Returns the sections of a lesson in order. A heading may be anywhere in a Markdown cell."""
    found = [LessonSection("")]
    for cell in cells:
        if cell.kind == "code":
            found[-1].cells.append(cell)
        elif cell.kind == "predict":
            found[-1].texts.append(_read_of_prediction(cell))
        else:
            source, start = vocabulary.blank_fences(cell.source), 0
            for match in HEADING.finditer(source):
                found[-1].texts.append(source[start : match.start()])
                found.append(LessonSection(match[1].strip()))
                start = match.start()
            found[-1].texts.append(source[start:])
    return found


def _read_of_prediction(cell: Cell) -> str:
    """What a learner reads of a prediction: the question, its choices, and the reason that one choice leads to."""
    authored = reader.prediction(cell)
    reason = next((choice.reason for choice in authored.choices if choice.right), "")
    return "\n\n".join([authored.question, *(choice.text for choice in authored.choices), reason])


def pace(parts: Iterable[LessonSection]) -> tuple[float, int, int]:
    """Returns the estimated minutes of some sections, their words of text and their code cells."""
    parts = list(parts)
    words = sum(_count_words(text) for part in parts for text in part.texts)
    cells = sum(len(part.cells) for part in parts)
    return max(words / WORDS_PER_MINUTE, cells / CELLS_PER_MINUTE), words, cells


def _count_words(markdown: str) -> int:
    text = re.sub(r"!\[(?:[^][]|\[[^][]*\])*\]\([^)]*\)|<[a-zA-Z/!][^>]*>|(?<=\])\([^)]*\)", " ", markdown)
    return len(re.findall(r"\S*\w\S*", text))


def _check_minutes(title: Cell, parts: Iterable[LessonSection], findings: Findings) -> None:
    estimate, words, count = pace(part for part in parts if not part.deeper)
    measured = f"{math.ceil(estimate)} minutes ({words} words, {count} code cells)"
    stated = [NUMERALS[word] for word in STATED.findall(title.source.lower()) if word in NUMERALS]
    if estimate > MAX_MINUTES:
        fix = f"Shorten it to {MAX_MINUTES}, or move sections under headings `## {DEEPER} ...`"
        findings.add(title.line, f"the core takes {measured}", fix)
    elif not any(abs(number - estimate) <= TOLERANCE for number in stated):
        message = f"the first cell does not state how long the core takes, which is {measured}"
        findings.add(title.line, message, f"Write: the core takes {5 * round(estimate / 5)} minutes")


def _check_names(parts: Iterable[LessonSection], findings: Findings) -> None:
    """A name that a section to skip binds may be used in that section alone."""
    parts = list(parts)
    bound: dict[str, LessonSection] = {}  # by name: where it was bound last
    first: dict[str, LessonSection] = {}
    functions: dict[str, frozenset[str]] = {}  # by name: what a function reads when it is called
    for part in parts:
        for cell in part.cells:
            for name in symbols.notebook_cell_names(MAGIC.sub(r"\1\2", cell.source)).binds:
                first.setdefault(name, part)
    for part in parts:
        for cell in part.cells:
            tree = _parsed(cell)
            used = _uses(tree.body, set())
            for name in sorted(used):
                for read in _reached(name, functions):
                    owner = bound.get(read) or first.get(read)
                    if owner is not None and owner.deeper and owner is not part:
                        line = cell.first + symbols.line_of(tree, name) - 1
                        how = f"`{name}`, which reads `{read}`," if read != name else f"`{name}`"
                        message = f'the cell uses {how} of the section "{owner.heading}", which readers may skip'
                        findings.add(line, message, "Bind it in the core, or use another name")
                        break
            for name in symbols.notebook_cell_names(MAGIC.sub(r"\1\2", cell.source)).binds:
                bound[name] = part
                functions.pop(name, None)
            functions |= _functions(tree)


def _parsed(cell: Cell) -> ast.Module:
    try:
        return ast.parse(symbols.plain_python(MAGIC.sub(r"\1\2", cell.source)))
    except SyntaxError:  # another rule reports it
        return ast.Module([], [])


def _uses(statements: Iterable[ast.stmt], bound: set[str]) -> set[str]:
    """The names that statements read before they bind them; `bound` gets what they bind."""
    used = set[str]()
    for one in statements:
        match one:
            case ast.For(target=target, iter=source, body=body, orelse=other):
                used |= _names(source) - bound
                bound |= {node.id for node in ast.walk(target) if _is_bound(node)}
                used |= _uses([*body, *other], bound)
            case ast.If(test=test, body=body, orelse=other) | ast.While(test=test, body=body, orelse=other):
                used |= _names(test) - bound
                used |= _uses([*body, *other], bound)
            case ast.With(items=items, body=body):
                for item in items:
                    used |= _names(item.context_expr) - bound
                    bound |= {node.id for node in ast.walk(item) if _is_bound(node)}
                used |= _uses(body, bound)
            case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=final):
                bound |= {handler.name for handler in handlers if handler.name}
                inside = (statement for handler in handlers for statement in handler.body)
                used |= _uses([*body, *inside, *other, *final], bound)
            case _:
                names = symbols.cell_names(ast.unparse(one))
                definition = isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                used |= (names.needs if definition else names.reads) - bound - symbols.BUILTINS
                if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
                    used |= {one.target.id} - bound
                bound |= names.binds
    return used


def _is_bound(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _names(expression: ast.expr) -> set[str]:
    return set(symbols.cell_names(ast.unparse(expression)).reads - symbols.BUILTINS)


def _functions(tree: ast.Module) -> dict[str, frozenset[str]]:
    """What each function that a cell defines reads of the names around it."""
    found = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = symbols.cell_names(ast.unparse(node)).needs
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                found[name] = symbols.cell_names(ast.unparse(node)).needs
    return found


def _reached(name: str, functions: dict[str, frozenset[str]]) -> Iterator[str]:
    """The name itself, and what is read when it is called as a function."""
    seen, todo = set[str](), [name]
    while todo:
        if (one := todo.pop()) not in seen:
            seen.add(one)
            yield one
            todo += sorted(functions.get(one, ()))


def _check_words(cells: Iterable[Cell], findings: Findings) -> None:
    for cell in cells:
        check = vocabulary.check_markdown if cell.prose else vocabulary.check_code
        check(cell.source, cell.first, findings)
        vocabulary.check_markdown(cell.attributes.get("because", ""), cell.line, findings)
