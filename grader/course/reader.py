"""Reads one authored file whole: a lesson's exercises, or the lesson's own text, with every rule applied."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from grader.core import symbols
from grader.course import exercises, overlay, percent, prediction_cells, rules_code, rules_leaks, rules_parts
from grader.course.exercises import Lesson, Parts
from grader.course.percent import Cell
from grader.course.problems import Files, Findings

ANSWER_LINE = re.compile(r'^# %% answer="([^"]*)"', re.MULTILINE)
UNWRITTEN = re.compile(r"FILL IN: ([^\n\"*]+)")  # what `grader new exercise` leaves for its author


def answer_ids(path: Path) -> tuple[str, ...]:
    """The exercise ids of a file, in order, without reading it closely: other lessons' skills name them."""
    return tuple(ANSWER_LINE.findall(path.read_text(encoding="utf-8")))


def lesson(
    paths: Mapping[str, Path],
    lesson_id: str,
    title: str,
    text_path: Path | None,
    taught: Callable[[str, Collection[str]], str | None],
    taken: Collection[str],
    without: Collection[str] = (),
) -> Lesson:
    """The exercises of one lesson; CourseError with all that is wrong in its text.

    `paths` are its file, and the overlay's where there is one, by the paths that problems name; `without` are exercises
    of the first that are left out. `taught(skill, ids before it)` says what is wrong with a skill; `taken` are the
    exercise ids of the other lessons.
    """
    texts = {shown: path.read_text(encoding="utf-8") for shown, path in paths.items()}
    files = Files.under(texts)
    findings = Findings(files)
    cells = _cells(texts.values(), files, without, findings)
    all_parts = exercises.parts(cells)
    _first_cell(cells, rf"# {lesson_id[:2]} · ", f"# {lesson_id[:2]} · Exercises: {title}", findings)
    setup_cells = [cell for cell in cells if cell.kind == "setup"]
    setup_names = rules_code.setup(setup_cells, findings)
    if all(of.by_hand for of in all_parts):
        findings.add(
            1, "the file has no exercise", 'Add a task, its answer and its checks: `# %% answer="topic-thing"`'
        )
    _each_exercise(all_parts, setup_names, taught, set(taken), findings)
    rules_leaks.check(cells, findings)
    findings.stop()
    return Lesson(
        id=lesson_id,
        title=title,
        path=next(iter(paths.values())),
        text_path=text_path,
        setup="\n\n".join(cell.source for cell in setup_cells),
        setup_names=setup_names,
        exercises=tuple(exercises.exercise(of) for of in all_parts if not of.by_hand),
        cells=tuple(cells),
        files=files,
        tasks=tuple(exercises.task(of) for of in all_parts if of.by_hand),
    )


def _cells(texts: Iterable[str], files: Files, without: Collection[str], findings: Findings) -> list[Cell]:
    """The cells of a lesson's texts, the second laid over the first."""
    cells: list[Cell] = []
    for i, (written, begins) in enumerate(zip(texts, files.begins, strict=True)):
        # Blank lines above it let every line of the second keep the number that `files` knows it by.
        placed = "\n" * begins + written
        read = percent.read(placed, overlay.KINDS if i else percent.EXERCISES, findings)
        _unwritten(placed, findings)
        _together(read, findings)
        rules_code.setup_first(read, findings)
        cells = overlay.merged(cells, read, findings) if i else [cell for cell in read if cell.id not in without]
    return cells


def _unwritten(written: str, findings: Findings) -> None:
    for number, line in enumerate(written.split("\n"), 1):
        for what in UNWRITTEN.findall(line):
            findings.add(number, f"still to write: {what.strip().rstrip('.')}", "Write it in place of `FILL IN: ...`")


def _each_exercise(
    all_parts: Collection[Parts],
    setup_names: frozenset[str],
    taught: Callable[[str, Collection[str]], str | None],
    taken: set[str],
    findings: Findings,
) -> None:
    answers: set[str] = set()
    before: list[str] = []
    for of in all_parts:
        if of.by_hand:
            rules_parts.by_hand(of, lambda skill: taught(skill, before), taken, findings)
            taken.add(of.id)
            continue
        rules_parts.check(of, lambda skill: taught(skill, before), taken, findings)
        rules_code.answer(of, setup_names, findings)
        asked_for = rules_code.answer_names(of)
        answers.update(asked_for or ())
        for cell in of.checks:
            rules_code.check(cell, answers if asked_for is not None else None, setup_names, findings)
        before.append(of.id)
        taken.add(of.id)
        taken.update(f"{of.id}-{cell.attributes.get('name')}" for cell in of.checks)


def _first_cell(cells: Collection[Cell], pattern: str, example: str, findings: Findings) -> None:
    first = next(iter(cells), None)
    if first is None or not first.prose or not re.match(pattern, first.source):
        line = first.line if first is not None else 1
        findings.add(line, "the first cell is not the title", f"Begin with a `# %% [markdown]` cell: `{example}`")


def _together(cells: Collection[Cell], findings: Findings) -> None:
    """The cells of an exercise stand together, so that its checks run right after its answer."""
    order: list[str] = []
    for cell in cells:
        if cell.id is None or (order and cell.id == order[-1]):
            continue
        if cell.id in order:
            message = f"a cell of `{cell.id}` stands among those of `{order[-1]}`"
            findings.add(cell.line, message, "Keep the cells of an exercise together")
        else:
            order.append(cell.id)


def lesson_text(path: Path, shown: str, lesson_id: str) -> tuple[Cell, ...]:
    """The cells of a lesson's own script; CourseError with all that is wrong in the file."""
    findings = Findings(shown)
    cells = percent.read(path.read_text(encoding="utf-8"), percent.LESSON, findings)
    _first_cell(cells, rf"# {lesson_id[:2]} · \S", f"# {lesson_id[:2]} · Title", findings)
    seen: set[str] = set()
    for cell in cells:
        if cell.kind == "code":
            wrong = symbols.syntax_error(cell.source)
            if wrong is not None:
                message = f"a Python syntax error: {wrong[1]}"
                mend = "Mend the code; write a magic as a comment, `# %timeit f(x)`"
                findings.add(cell.first + wrong[0] - 1, message, mend)
            tags = cell.attributes.get("tags", [])
            if not all(isinstance(tag, str) for tag in tags):
                findings.add(cell.line, "a tag is not text", 'Write `tags=["raises-exception"]`')
        elif cell.kind == "predict":
            prediction_cells.check(cell, findings)
            if cell.id in seen:
                findings.add(cell.line, f"`{cell.id}` is taken: a duplicate id", "Choose another id")
            seen.add(cell.id or "")
    findings.stop()
    return tuple(cells)
