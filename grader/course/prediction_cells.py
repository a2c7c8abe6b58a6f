"""Predictions: a question in a lesson, asked before its cell runs, whose every choice says why it is tempting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from grader.course.percent import Cell
from grader.course.problems import Findings

CHOICE = re.compile(r"- \[( |x|X)\] +(.*)")
LETTERS = "ABCDEFGH"
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


@dataclass(frozen=True)
class AuthoredChoice:
    text: str
    reason: str
    right: bool
    line: int


@dataclass(frozen=True)
class Prediction:
    id: str
    question: str
    choices: tuple[AuthoredChoice, ...]


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
        choices.append(AuthoredChoice(text.strip(), reason.strip(), right, number))
    return Prediction(cell.id or "", "\n".join(question).strip(), tuple(choices))


def check(cell: Cell, findings: Findings) -> None:
    prediction = read(cell)
    if not ID.fullmatch(prediction.id):
        mend = "Use small letters, digits and hyphens, as in `topic-thing`"
        findings.add(cell.line, f"`{prediction.id}` is no legal id for a prediction", mend)
    if not prediction.question:
        findings.add(cell.line, "the prediction asks nothing", "Write the question above its choices")
    if not 2 <= len(prediction.choices) <= len(LETTERS):
        mend = f"Write two to {len(LETTERS)} lines `- [ ] choice | why it is tempting`"
        findings.add(cell.line, f"the prediction has {len(prediction.choices)} choices", mend)
    ticked = sum(choice.right for choice in prediction.choices)
    if ticked != 1:
        findings.add(cell.line, f"{ticked} choices are ticked", "Tick exactly one: `- [x] choice | why it is right`")
    for choice in prediction.choices:
        if not choice.text or not choice.reason:
            findings.add(choice.line, "the choice has no reason", "Write `- [ ] choice | why it is tempting`")


def markdown(prediction: Prediction) -> str:
    """The question, its choices by letter, and folded away what is behind each of them."""
    choices = [f"- **{letter}** {choice.text}" for letter, choice in lettered(prediction)]
    reasons = [
        f"- {'✓' if choice.right else '✗'} **{letter}** {choice.reason}" for letter, choice in lettered(prediction)
    ]
    # The blank lines make every renderer read what is folded as Markdown.
    fold = "\n".join(["<details><summary>What is behind each choice</summary>", "", *reasons, "", "</details>"])
    return "\n\n".join([f"**Predict first.** {prediction.question}", "\n".join(choices), fold])


def asking(prediction: Prediction) -> str:
    """The code of the cell below the question, which shows the buttons (`grader.learning`)."""
    # JupyterLab shows the first line of what it folds.
    return f'# Choose, then run the next cell.\nimport grader.learning\n\ngrader.learning.predict("{prediction.id}")'


def held(prediction: Prediction) -> dict[str, Any]:
    """What the question's cell holds in its metadata, for the buttons below it."""
    choices = [{"text": choice.text, "reason": choice.reason, "right": choice.right} for choice in prediction.choices]
    return {"id": prediction.id, "choices": choices}


def lettered(prediction: Prediction) -> list[tuple[str, AuthoredChoice]]:
    """Each choice with the letter that it goes by."""
    return list(zip(LETTERS, prediction.choices, strict=False))
