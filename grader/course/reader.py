"""Read a lesson's exercises and its own script from their authored files, and apply every rule to them.

An overlay's text is laid over the lesson that it extends; docs/overlay.md lists where its cells go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.course import exercises, percent, rules, rules_code
from grader.course.exercises import Lesson
from grader.course.percent import Cell, Files, Findings

ANSWER_LINE = re.compile(r'^# %% answer="([^"]*)"', re.MULTILINE)
SkillRule = Callable[[str, Collection[str]], str | None]
CHOICE = re.compile(r"- \[( |x|X)\] +(.*)")
LETTERS = "ABCDEFGH"
UNWRITTEN = re.compile(r"FILL IN: ([^\n\"*]+)")  # what `grader new exercise` leaves for its author


def lesson(
    paths: Mapping[str, Path],
    lesson_id: str,
    title: str,
    skill_problem: SkillRule,
    taken: Collection[str],
    without: Collection[str] = (),
) -> Lesson:
    """Returns the exercises of one lesson. Raises CourseError with all that is wrong in its text.

    `paths` are its file, and the overlay's if there is one, by the paths that problems name. `skill_problem` returns
    what is wrong with a skill, given the exercises before it, or None. `taken` are the exercise ids of other lessons,
    `without` exercises of the first file that are left out.
    """
    texts = {shown: path.read_text(encoding="utf-8") for shown, path in paths.items()}
    files = Files.join(texts)
    findings = Findings(files)
    cells = _cells(texts.values(), files, without, findings)
    all_parts = exercises.parts(cells)
    check_title(cells, rf"# {lesson_id[:2]} · ", f"# {lesson_id[:2]} · Exercises: {title}", findings)
    setup_cells = [cell for cell in cells if cell.kind == "setup"]
    setup_names = rules_code.check_setup(setup_cells, findings)
    if all(of.by_hand for of in all_parts):
        fix = 'Add a task, its answer and its checks: `# %% answer="topic-thing"`'
        findings.add(1, "the file has no exercise", fix)
    ids, answers, before = set(taken), set[str](), list[str]()
    for of in all_parts:
        check = rules.check_task if of.by_hand else rules.check_exercise
        check(of, lambda skill: skill_problem(skill, before), ids, findings)
        ids.add(of.id)
        if not of.by_hand:
            names = rules_code.check_answer(of, setup_names, findings)
            answers.update(names or ())
            for cell in of.checks:
                rules_code.check_check(cell, answers if names is not None else None, setup_names, findings)
            before.append(of.id)
            ids.update(f"{of.id}-{cell.attributes.get('name')}" for cell in of.checks)
    rules.check_leaks(cells, findings)
    findings.stop()
    return Lesson(
        id=lesson_id,
        title=title,
        path=next(iter(paths.values())),
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
    for i, (text, begins) in enumerate(zip(texts, files.begins, strict=True)):
        # Blank lines above it let every line of the second keep the number that `files` has for it.
        placed = "\n" * begins + text
        read = percent.read(placed, percent.OVERLAY if i else percent.EXERCISES, findings)
        for number, line in enumerate(placed.split("\n"), 1):
            for what in UNWRITTEN.findall(line):
                message = f"still to write: {what.strip().rstrip('.')}"
                findings.add(number, message, "Write it in place of `FILL IN: ...`")
        _check_order(read, findings)
        cells = _lay_over(cells, read, findings) if i else [cell for cell in read if cell.id not in without]
    return cells


def _check_order(cells: Iterable[Cell], findings: Findings) -> None:
    """Setup comes first, and the cells of an exercise are together, so that its checks run right after its answer."""
    order: list[str] = []
    for cell in cells:
        if order and cell.kind == "setup":
            findings.add(cell.line, "a setup cell stands after an exercise", "Put it before the first task")
        if cell.id is None or (order and cell.id == order[-1]):
            continue
        if cell.id in order:
            message = f"a cell of `{cell.id}` stands among those of `{order[-1]}`"
            findings.add(cell.line, message, "Keep the cells of an exercise together")
        else:
            order.append(cell.id)


def _lay_over(below: Collection[Cell], own: Collection[Cell], findings: Findings) -> list[Cell]:
    """The cells of the course below, and the overlay's own where they belong."""
    known = {cell.id for cell in below if cell.id is not None}
    replacing = [cell for cell in own if cell.attributes.get("instead")]
    for cell in replacing:
        if cell.id not in known:
            message = f"`{cell.id}` is no exercise of the course below: there are no checks to leave out"
            findings.add(cell.line, message, "Leave `instead` out")
    replaced = {cell.id for cell in replacing}
    cells = [cell for cell in below if not (cell.kind == "hidden" and cell.id in replaced)]
    for exercise, segment in _segments(own).items():
        if exercise is None:
            at = next((i for i, cell in enumerate(cells) if cell.id is not None), len(cells))
        elif exercise in known:
            at = max(i for i, cell in enumerate(cells) if cell.id == exercise) + 1
        else:
            at = _place(cells, next(cell for cell in segment if cell.id is not None), findings)
        cells[at:at] = segment
    return cells


def _segments(own: Iterable[Cell]) -> dict[str | None, list[Cell]]:
    """The cells of each exercise with the prose before them; under None setup, and the prose before that."""
    found: dict[str | None, list[Cell]] = {}
    prose: list[Cell] = []
    last: str | None = None
    for cell in own:
        if cell.id is None and cell.kind != "setup":
            prose.append(cell)
            continue
        last = cell.id
        found.setdefault(last, []).extend([*prose, cell])
        prose = []
    found.setdefault(last, []).extend(prose)
    return found


def _place(cells: list[Cell], opening: Cell, findings: Findings) -> int:
    """Where an exercise of the overlay's own begins: at the end, or where its task states."""
    places = {key: opening.attributes[key] for key in ("before", "after") if key in opening.attributes}
    if len(places) > 1:
        findings.add(opening.line, "the task says both `before` and `after`", "Keep one")
    for key, exercise in places.items():
        at = [i for i, cell in enumerate(cells) if cell.id == exercise]
        if at:
            return at[0] if key == "before" else at[-1] + 1
        findings.add(opening.line, f"`{key}` names `{exercise}`, which is no exercise above", "Name one of this lesson")
    return len(cells)


@dataclass(frozen=True)
class AuthoredChoice:
    """One choice of a prediction; `reason` is why it is right, or tempting."""

    text: str
    reason: str
    right: bool
    line: int


@dataclass(frozen=True)
class Prediction:
    id: str
    question: str
    choices: tuple[AuthoredChoice, ...]

    @property
    def markdown(self) -> str:
        """The question, its choices by letter, and the reasons, folded away."""
        lettered = list(zip(LETTERS, self.choices, strict=False))
        choices = [f"- **{letter}** {choice.text}" for letter, choice in lettered]
        reasons = [f"- {'✓' if choice.right else '✗'} **{letter}** {choice.reason}" for letter, choice in lettered]
        # The blank lines make every renderer read what is folded as Markdown.
        fold = "\n".join(["<details><summary>What is behind each choice</summary>", "", *reasons, "", "</details>"])
        heading, question = "", self.question
        if question.startswith("#"):  # a heading needs a line of its own
            heading, _, question = question.partition("\n")
        parts = [heading, f"**Predict first.** {question.strip()}", "\n".join(choices), fold]
        return "\n\n".join(part for part in parts if part)

    @property
    def code(self) -> str:
        """The cell below the question, which shows the buttons (`grader.learning`)."""
        # JupyterLab shows the first line of what it folds.
        return f'# Choose, then run the next cell.\nimport grader.learning\n\ngrader.learning.predict("{self.id}")'

    @property
    def metadata(self) -> dict[str, Any]:
        """What the question's cell contains in its metadata, for the buttons below it."""
        choices = [{"text": choice.text, "reason": choice.reason, "right": choice.right} for choice in self.choices]
        return {"id": self.id, "choices": choices}


def prediction(cell: Cell) -> Prediction:
    """Returns the question and its choices; a choice may continue over lines that are indented."""
    question: list[str] = []
    items: list[tuple[bool, list[str], int]] = []
    for number, line in enumerate(cell.source.split("\n"), cell.first):
        match = CHOICE.match(line)
        if match:
            items.append((match[1] != " ", [match[2]], number))
        elif items and line.startswith("  "):
            items[-1][1].append(line.strip())
        elif line.strip() or not items:
            question.append(line)
    choices = []
    for right, lines, number in items:
        text, _, reason = " ".join(lines).partition(" | ")
        choices.append(AuthoredChoice(text.strip(), reason.strip(), right, number))
    return Prediction(cell.id or "", "\n".join(question).strip(), tuple(choices))


def script(path: Path, shown: str, lesson_id: str) -> tuple[Cell, ...]:
    """Returns the cells of the script in `path`, which problems call `shown`. Raises CourseError."""
    findings = Findings(shown)
    cells = percent.read(path.read_text(encoding="utf-8"), percent.LESSON, findings)
    check_title(cells, rf"# {lesson_id[:2]} · \S", f"# {lesson_id[:2]} · Title", findings)
    seen: set[str] = set()
    for cell in cells:
        if cell.kind == "code":
            findings.parses(cell.source, cell.first, "Fix the code; write a magic as a comment, `# %timeit f(x)`")
            if not all(isinstance(tag, str) for tag in cell.attributes.get("tags", [])):
                findings.add(cell.line, "a tag is not text", 'Write `tags=["raises-exception"]`')
        elif cell.kind == "predict":
            _check_prediction(cell, findings)
            if cell.id in seen:
                findings.add(cell.line, f"`{cell.id}` is taken: a duplicate id", "Choose another id")
            seen.add(cell.id or "")
    findings.stop()
    return tuple(cells)


def check_title(cells: list[Cell], pattern: str, example: str, findings: Findings) -> None:
    """Requires that the first cell is prose that begins as `pattern` does."""
    if not cells or not cells[0].prose or not re.match(pattern, cells[0].source):
        line = cells[0].line if cells else 1
        findings.add(line, "the first cell is not the title", f"Begin with a `# %% [markdown]` cell: `{example}`")


def _check_prediction(cell: Cell, findings: Findings) -> None:
    authored = prediction(cell)
    if not rules.ID.fullmatch(authored.id):
        fix = "Use small letters, digits and hyphens, as in `topic-thing`"
        findings.add(cell.line, f"`{authored.id}` is no legal id for a prediction", fix)
    if not authored.question:
        findings.add(cell.line, "the prediction asks nothing", "Write the question above its choices")
    if not 2 <= len(authored.choices) <= len(LETTERS):
        fix = f"Write two to {len(LETTERS)} lines `- [ ] choice | why it is tempting`"
        findings.add(cell.line, f"the prediction has {len(authored.choices)} choices", fix)
    ticked = sum(choice.right for choice in authored.choices)
    if ticked != 1:
        findings.add(cell.line, f"{ticked} choices are ticked", "Tick exactly one: `- [x] choice | why it is right`")
    for choice in authored.choices:
        if not choice.text or not choice.reason:
            findings.add(choice.line, "the choice has no reason", "Write `- [ ] choice | why it is tempting`")
