"""How a graded notebook is shown below its last cell: a line for each exercise, as HTML and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from grader.learning.grading_process import ProcessResult
from grader.learning.saved_notebook import SavedNotebook, said, text

MOST_LINES, MOST_WIDTH = 4, 400  # of a message, before its fold
MOST_TEXT = 2_000
INDENT = "    "
# The front ends' own colours, so that dark themes are legible; marks and words say the same without them.
GOOD = "var(--jp-success-color0, var(--vscode-testing-iconPassed, #1a7f37))"
WARN = "var(--jp-warn-color0, var(--vscode-editorWarning-foreground, #9a6700))"
LINE = "1px solid var(--jp-border-color2, var(--vscode-panel-border, #8886))"
CELL = f"text-align:left;vertical-align:top;padding:5px 10px 5px 0;border:none;border-bottom:{LINE};background:none"
MESSAGE = "margin-top:3px;white-space:pre-wrap;overflow-wrap:anywhere"


@dataclass(frozen=True)
class ExerciseRow:
    """One exercise: its mark with a word, its title, what it earned, and what is missing first."""

    mark: str
    word: str
    title: str
    earned: str
    message: str
    perhaps: str


@dataclass(frozen=True)
class ResultView:
    """What is said of a notebook: rows, a sum, and remarks, the ones to act on first."""

    rows: tuple[ExerciseRow, ...]
    total: str
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]

    def bundle(self) -> dict[str, str]:
        """For a front end to choose from."""
        return {"text/html": self.html(), "text/plain": self.plain()}

    def plain(self) -> str:
        """As text, each message at most a few lines."""
        lines = []
        for row in self.rows:
            lines.append(f"{row.mark} {row.title}: {row.earned}{'' if row.mark == '✓' else f', {row.word}'}")
            shown, left = _folded(row.message)
            lines += [INDENT + line for line in shown.splitlines()]
            lines += [f"{INDENT}... and more: `grader check` says all of it."] if left else []
            lines += [f"{INDENT}Perhaps: {row.perhaps}"] if row.perhaps else []
        return "\n".join([*lines, self.total, *(f"! {warning}" for warning in self.warnings), *self.remarks])

    def html(self) -> str:
        """As HTML that JupyterLab's and VS Code's sanitizers leave whole: no script, no class."""
        body = "".join(_row(row) for row in self.rows)
        heads = "".join(f'<th scope="col" style="{CELL}">{head}</th>' for head in ("State", "Exercise", "Earned"))
        table = (
            '<table style="table-layout:auto;width:100%;max-width:60em;margin:0;border-collapse:collapse">'
            f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        )
        mark = f"margin:8px 0;padding-left:8px;border-left:4px solid {WARN}"
        warnings = [f'<p style="{mark}"><b>! {escape(one)}</b></p>' for one in self.warnings]
        remarks = [f'<p style="margin:6px 0">{escape(one)}</p>' for one in self.remarks]
        total = f'<p style="margin:8px 0 6px"><b>{escape(self.total)}</b></p>'
        return f'<div role="status">{table if self.rows else ""}{total}{"".join([*warnings, *remarks])}</div>'


def verdict(judged: ProcessResult, notebook: SavedNotebook, unsaved: Sequence[str], when: str) -> ResultView:
    """What to say of a result; `unsaved` names cells that were run with another text than was saved `when`."""
    checks = [check for check in judged.result.get("checks", []) if isinstance(check, dict)]
    titles = _titles(notebook)
    rows = [
        _exercise(titles.get(name, name), list(group), judged.public_only)
        for name, group in groupby(checks, key=lambda check: str(check.get("exercise", "")))
    ]
    problem = judged.result.get("problem")
    total = f"Not graded: {problem}" if problem else _total(checks, judged.public_only)
    again = " Another has been saved since: run this cell again." if notebook.again() else ""
    remarks = [*map(str, judged.result.get("notes", [])), *_by_hand(notebook)]
    if judged.because:
        remarks.append(f"Hidden checks were not run here: {judged.because}")
    remarks.append(f"Judged: {notebook.shown}, as saved {when}.{again}")
    warnings = _warnings([f"“{titles[name]}”" if name in titles else name for name in unsaved])
    return ResultView(tuple(rows), total, tuple(warnings), tuple(one[:MOST_TEXT] for one in remarks))


def _warnings(unsaved: Sequence[str]) -> list[str]:
    if not unsaved:
        return []
    more = f" and {len(unsaved) - 3} more" if len(unsaved) > 3 else ""
    which = ", ".join(unsaved[:3]) + more
    was = "was" if len(unsaved) == 1 else "were"
    says = f"{which} {was} run with another text than was saved: save (Ctrl+S) and run this cell again."
    return [says[0].upper() + says[1:]]


def _total(checks: Sequence[dict[str, Any]], public_only: bool) -> str:
    if not public_only:
        most = sum(check["max_points"] for check in checks)
        return f"{sum(check['points'] for check in checks):g} of {most:g} points."
    public = [check for check in checks if not check["hidden"]]
    passed = sum(check["status"] in ("passed", "skipped") for check in public)
    later = len(checks) - len(public)
    more = f" {later} more {'is' if later == 1 else 'are'} judged when you hand it in." if later else ""
    return f"{passed} of {len(public)} checks in this notebook pass.{more}"


def _exercise(title: str, checks: list[dict[str, Any]], public_only: bool) -> ExerciseRow:
    here = [check for check in checks if not (public_only and check["hidden"])]
    good = [check["status"] == "passed" or (public_only and check["status"] == "skipped") for check in here]
    first = next((check for check, well in zip(here, good, strict=True) if not well), None)
    if first is None:
        mark, word = "✓", "done"
    elif any(good):
        mark, word = "◐", "in part"
    else:
        mark, word = ("○", "not begun") if first["status"] == "not attempted" else ("✗", "not yet")
    if public_only:
        earned = f"{sum(good)} of {len(here)} check{'' if len(here) == 1 else 's'}"
    else:
        earned = f"{sum(c['points'] for c in checks):g} of {sum(c['max_points'] for c in checks):g}"
    misconceptions = (check["misconception"] for check in here if check.get("misconception"))
    return ExerciseRow(mark, word, title, earned, _says(first) if first else "", next(misconceptions, ""))


def _says(check: dict[str, Any]) -> str:
    """The check's title and what it found; for an answer that is still the stub, only that."""
    if check["status"] == "not attempted":
        return str(check["message"])
    return f"{check['title']}{' (hidden)' if check['hidden'] else ''}\n{check['message']}".strip()


def _folded(message: str) -> tuple[str, str]:
    """The first lines, and what does not fit into them."""
    message = message[:MOST_TEXT]
    lines = message.splitlines()
    shown = "\n".join(lines[:MOST_LINES])[:MOST_WIDTH]
    return shown, message[len(shown) :].strip()


def _row(row: ExerciseRow) -> str:
    colour = f"color:{GOOD};" if row.mark == "✓" else ""
    shown, left = _folded(row.message)
    message = f'<div style="{MESSAGE}">{escape(shown)}</div>' if shown else ""
    if left:
        message += f'<details><summary>More</summary><div style="{MESSAGE}">{escape(left)}</div></details>'
    if row.perhaps:
        message += f'<div style="{MESSAGE}"><i>Perhaps:</i> {escape(row.perhaps)}</div>'
    return (
        f'<tr style="background:none"><td style="{CELL};{colour}white-space:nowrap">{row.mark} {row.word}</td>'
        f'<td style="{CELL};width:100%"><b>{escape(row.title)}</b>{message}</td>'
        f'<td style="{CELL};white-space:nowrap">{escape(row.earned)}</td></tr>'
    )


def _titles(notebook: SavedNotebook) -> dict[str, str]:
    """By exercise, the heading of its task."""
    found = {}
    for cell in notebook.cells:
        name, lines = str(said(cell).get("grade_id", "")), text(cell).splitlines()
        if name.endswith("-task") and lines and lines[0].startswith("#"):
            found[name.removesuffix("-task")] = lines[0].lstrip("# ").replace("`", "")
    return found


def _by_hand(notebook: SavedNotebook) -> list[str]:
    """That a person gives points too, where one does."""
    points = sum(float(said(cell).get("points", 0)) for cell in notebook.cells if said(cell).get("task"))
    return [f"{points:g} more point{'' if points == 1 else 's'} are for a person to give."] if points else []
