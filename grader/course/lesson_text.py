"""Read a lesson's own script: prose, code and predictions, the questions asked before a cell runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.course import percent
from grader.course.percent import Cell
from grader.course.problems import Findings
from grader.course.rules import ID

CHOICE = re.compile(r"- \[( |x|X)\] +(.*)")
LETTERS = "ABCDEFGH"


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
        return "\n\n".join([f"**Predict first.** {self.question}", "\n".join(choices), fold])

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


def read(path: Path, shown: str, lesson_id: str) -> tuple[Cell, ...]:
    """Returns the cells of the script in `path`, which problems call `shown`. Raises CourseError."""
    findings = Findings(shown)
    cells = percent.read(path.read_text(encoding="utf-8"), percent.LESSON, findings)
    check_title(cells, rf"# {lesson_id[:2]} · \S", f"# {lesson_id[:2]} · Title", findings)
    seen: set[str] = set()
    for cell in cells:
        if cell.kind == "code":
            findings.parses(cell.source, cell.first, "Mend the code; write a magic as a comment, `# %timeit f(x)`")
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
    if not ID.fullmatch(authored.id):
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
