"""The view of a graded notebook below its last cell: a row for each exercise, what fails first, as HTML and text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from grader.core.notebook import NotebookCell, grade_id, nbgrader, text
from grader.core.points import number, total
from grader.core.result import CheckResult, Result, perhaps

MOST_LINES, MOST_WIDTH = 4, 400  # of a message, before its fold
MOST_TEXT = 2_000
INDENT = "    "
# The front ends' own colours, so that dark themes are legible; marks and words say the same without them.
GOOD = "var(--jp-success-color0, var(--vscode-testing-iconPassed, #1a7f37))"
WARN = "var(--jp-warn-color0, var(--vscode-editorWarning-foreground, #9a6700))"
LINE = "1px solid var(--jp-border-color2, var(--vscode-panel-border, #8886))"
CELL = f"text-align:left;vertical-align:top;padding:5px 10px 5px 0;border:none;border-bottom:{LINE};background:none"
MESSAGE = "margin-top:3px;white-space:pre-wrap;overflow-wrap:anywhere"
TABLE = "table-layout:auto;width:100%;max-width:60em;margin:0;border-collapse:collapse"
ORDER = {"○": 1, "✓": 2}  # of rows, by mark: what fails comes first
NOT_JUDGED = "a check or the grader is at fault, not your answer."


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
    """Rows, a sum, what to act on first, and remarks about a notebook."""

    rows: tuple[ExerciseRow, ...]
    total: str
    warning: str
    remarks: tuple[str, ...]

    def plain(self) -> str:
        """Returns the view as text, with at most a few lines of each message."""
        lines = []
        for row in self.rows:
            lines.append(f"{row.mark} {row.title}: {row.earned}{'' if row.mark == '✓' else f', {row.word}'}")
            shown, rest = _folded(row.message)
            lines += [INDENT + line for line in shown.splitlines()]
            lines += [f"{INDENT}... `grader check` prints the whole message."] if rest else []
            lines += [f"{INDENT}{row.perhaps}"] if row.perhaps else []
        return "\n".join([*lines, self.total, *([f"! {self.warning}"] if self.warning else []), *self.remarks])

    def html(self) -> str:
        """Returns the view as HTML that the sanitizers of JupyterLab and VS Code keep: no script, no class."""
        heads = "".join(f'<th scope="col" style="{CELL}">{head}</th>' for head in ("State", "Exercise", "Earned"))
        body = "".join(map(_row, self.rows))
        table = f'<table style="{TABLE}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
        mark = f"margin:8px 0;padding-left:8px;border-left:4px solid {WARN}"
        said = [f'<p style="margin:8px 0 6px"><b>{escape(self.total)}</b></p>']
        said += [f'<p style="{mark}"><b>! {escape(self.warning)}</b></p>'] if self.warning else []
        said += [f'<p style="margin:6px 0">{escape(one)}</p>' for one in self.remarks]
        return f'<div role="status">{table if self.rows else ""}{"".join(said)}</div>'


def view(
    result: Result, cells: Iterable[NotebookCell], unsaved: Sequence[str], remarks: Sequence[str], public_only: bool
) -> ResultView:
    """Returns the view of the result of a notebook with these cells. `unsaved` are names of cells that were run with a
    text that was not saved, `remarks` sentences to end with; with `public_only` hidden checks were left out."""
    titles, by_hand = {}, []
    for cell in cells:
        name, lines = grade_id(cell) or "", text(cell).splitlines()
        if name.endswith("-task") and lines and lines[0].startswith("#"):
            titles[name.removesuffix("-task")] = lines[0].lstrip("# ").replace("`", "")
        if nbgrader(cell).get("task"):
            by_hand.append(float(nbgrader(cell).get("points", 0)))
    groups = groupby(result.checks, key=lambda check: check.exercise)
    rows = [_exercise(titles.get(name, name), list(checks), public_only) for name, checks in groups]
    rows.sort(key=lambda row: ORDER.get(row.mark, 0))
    points = total(by_hand)
    person = [f"{number(points)} more point{' is' if points == 1 else 's are'} given by a person."] if points else []
    every = (*result.notes, *person, *remarks)
    warning = ""
    if unsaved:
        more = f" and {len(unsaved) - 3} more" if len(unsaved) > 3 else ""
        names = ", ".join(f"“{titles[name]}”" if name in titles else name for name in unsaved[:3])
        was = f"{more} {'was' if len(unsaved) == 1 else 'were'} run after unsaved changes"
        warning = f"{names[0].upper()}{names[1:]}{was}. Save (Ctrl+S) and run this cell again."
    return ResultView(tuple(rows), _total(result, public_only), warning, tuple(one[:MOST_TEXT] for one in every))


def _total(result: Result, public_only: bool) -> str:
    if result.problem is not None:
        return f"Not graded: {result.problem}"
    faulty = {check.exercise for check in result.checks if check.status == "error"}
    checks = [check for check in result.checks if check.exercise not in faulty]
    fault = f" Not graded: {len(faulty)} exercise{'' if len(faulty) == 1 else 's'}; {NOT_JUDGED}" if faulty else ""
    if not public_only:
        most = number(total(check.max_points for check in checks))
        return f"{number(total(check.points for check in checks))} of {most} points.{fault}"
    public = [check for check in checks if not check.hidden]
    passed = sum(check.status in ("passed", "skipped") for check in public)
    later = len(checks) - len(public)
    absent = "1 hidden check is" if later == 1 else f"{later} hidden checks are"
    more = f" {absent} not available here and did not run. Your instructor's grader runs them." if later else ""
    return f"{passed} of {len(public)} checks in this notebook pass.{more}{fault}"


def _exercise(title: str, checks: list[CheckResult], public_only: bool) -> ExerciseRow:
    here = [check for check in checks if not (public_only and check.hidden)]
    good = [check.status == "passed" or (public_only and check.status == "skipped") for check in here]
    faults = [check for check in here if check.status == "error"]
    missed = faults or [check for check, well in zip(here, good, strict=True) if not well]
    if public_only:
        got, most = str(sum(good)), f"{len(here)} check{'' if len(here) == 1 else 's'}"
    else:
        got, most = (number(total(getattr(check, what) for check in checks)) for what in ("points", "max_points"))
    earned = f"{'–' if faults else got} of {most}"
    if faults:
        mark, word = "!", "not graded"
    elif not missed:
        mark, word = "✓", "done"
    elif any(good):
        mark, word = "◐", "partly"
    else:
        mark, word = ("○", "not started") if missed[0].status == "not attempted" else ("✗", "not yet")
    message = missed[0].message if missed else ""
    if missed and missed[0].status != "not attempted":
        message = f"{missed[0].title}{' (hidden)' if missed[0].hidden else ''}\n{message}".strip()
    return ExerciseRow(mark, word, title, earned, message, perhaps(here))


def _folded(message: str) -> tuple[str, str]:
    """The first lines, and what does not fit into them."""
    message = message[:MOST_TEXT]
    shown = "\n".join(message.splitlines()[:MOST_LINES])[:MOST_WIDTH]
    return shown, message[len(shown) :].strip()


def _row(row: ExerciseRow) -> str:
    colour = f"color:{GOOD};" if row.mark == "✓" else ""
    shown, rest = _folded(row.message)
    message = f'<div style="{MESSAGE}">{escape(shown)}</div>' if shown else ""
    if rest:
        message += f'<details><summary>More</summary><div style="{MESSAGE}">{escape(rest)}</div></details>'
    if row.perhaps:
        message += f'<div style="{MESSAGE}">{escape(row.perhaps)}</div>'
    return (
        f'<tr style="background:none"><td style="{CELL};{colour}white-space:nowrap">{row.mark} {row.word}</td>'
        f'<td style="{CELL};width:100%"><b>{escape(row.title)}</b>{message}</td>'
        f'<td style="{CELL};white-space:nowrap">{escape(row.earned)}</td></tr>'
    )
