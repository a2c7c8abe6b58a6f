"""Predictions: a question in a lesson, asked before its cell runs, whose every choice says why it is tempting."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from grader.course.problems import Findings
from grader.course.text import Cell

CHOICE = re.compile(r"- \[( |x|X)\] +(.*)")
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


@dataclass(frozen=True)
class Choice:
    text: str
    reason: str
    right: bool
    line: int


@dataclass(frozen=True)
class Prediction:
    id: str
    question: str
    choices: tuple[Choice, ...]


def read(cell: Cell) -> Prediction:
    """The question and its choices; a choice may go on over lines that are indented."""
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
        choices.append(Choice(text.strip(), reason.strip(), right, number))
    return Prediction(cell.id or "", "\n".join(question).strip(), tuple(choices))


def check(cell: Cell, findings: Findings) -> None:
    prediction = read(cell)
    if not ID.fullmatch(prediction.id):
        mend = "Use small letters, digits and hyphens, as in `topic-thing`"
        findings.add(cell.line, f"`{prediction.id}` is no legal id for a prediction", mend)
    if not prediction.question:
        findings.add(cell.line, "the prediction asks nothing", "Write the question above its choices")
    if len(prediction.choices) < 2:
        mend = "Write at least two lines `- [ ] choice | why it is tempting`"
        findings.add(cell.line, f"the prediction has {len(prediction.choices)} choices", mend)
    ticked = sum(choice.right for choice in prediction.choices)
    if ticked != 1:
        findings.add(cell.line, f"{ticked} choices are ticked", "Tick exactly one: `- [x] choice | why it is right`")
    for choice in prediction.choices:
        if not choice.text or not choice.reason:
            findings.add(choice.line, "the choice has no reason", "Write `- [ ] choice | why it is tempting`")


def markdown(prediction: Prediction) -> str:
    """The question with each choice as a fold that holds its reason."""
    folds = [_fold(choice) for choice in prediction.choices]
    return "\n\n".join([f"**Predict first.** {prediction.question}", *folds])


def _fold(choice: Choice) -> str:
    # The blank lines make every renderer read the reason as Markdown; the summary is HTML in all of them.
    verdict = "✓" if choice.right else "✗"
    return f"<details><summary>{_inline(choice.text)}</summary>\n\n{verdict} {choice.reason}\n\n</details>"


def _inline(text: str) -> str:
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"<code>{html.escape(piece[1:-1])}</code>" if piece.startswith("`") else html.escape(piece, quote=False)
        for piece in pieces
    )
