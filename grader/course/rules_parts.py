"""What every exercise must have: a task with its hints, checks with their points, wrong and right answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection

from grader.course import exercises
from grader.course.exercises import BEGIN_SCHEME, END_SCHEME, Parts
from grader.course.percent import Cell
from grader.course.problems import Findings

ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
CHECK_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
BY_HAND_LABELS = ("Goal", "Judged")
LABELS = ("Goal", "Signature", "Example", "Judged", "Not judged")
# Grade ids of built cells that no exercise and no check may take: `<exercise>-task`, `<exercise>-why`, `text-2` ...
RESERVED_CHECK_NAMES = frozenset({"task", "why"})
RESERVED_WORDS = frozenset({"setup", "text"})


def check(of: Parts, taught: Callable[[str], str | None], taken: Collection[str], findings: Findings) -> None:
    """All such problems of one exercise.

    `taught(skill)` says what is wrong with a skill, or None; `taken` are the ids of earlier exercises and checks.
    """
    first = of.cells[0]
    answer = of.one("answer")
    if answer is None:
        for cell in of.cells:
            findings.add(
                cell.line,
                f"a `{cell.kind}` cell without its answer: no answer cell names `{of.id}`",
                f'Add `# %% answer="{of.id}"`, or correct the id',
            )
        return
    _id(of, taken, findings)
    for kind in ("task", "answer", "why"):
        for twice in of.of(kind)[1:]:
            findings.add(twice.line, f"a second `{kind}` for `{of.id}`: a duplicate id", "Give it an id of its own")
    task = of.one("task")
    if task is None:
        findings.add(answer.line, f"`{of.id}` has no task", f'Add `# %% [markdown] task="{of.id}"` before the answer')
    else:
        _task(task, findings)
        _skills(task, taught, findings)
    _order(of, answer, findings)
    _checks(of, answer, taken, findings)
    _variants(of, answer, findings)
    if of.one("why") is None:
        mend = f'Add `# %% [markdown] why="{of.id}"`: one or two sentences, and a follow-up question'
        findings.add(first.line, f"`{of.id}` does not say why its answer works", mend)


def by_hand(of: Parts, taught: Callable[[str], str | None], taken: Collection[str], findings: Findings) -> None:
    """All such problems of a task that a person grades. The arguments are those of `check`."""
    task, *others = of.cells
    for cell in others:
        mend = "Take out `points` of the task, which make it one that a person grades, or correct the id"
        findings.add(cell.line, f"a `{cell.kind}` cell for `{of.id}`, which a person grades", mend)
    _id(of, taken, findings)
    _says(task, BY_HAND_LABELS, findings)
    _points(task, "task", findings)
    _skills(task, taught, findings)
    _scheme(task, findings)


def _scheme(task: Cell, findings: Findings) -> None:
    """A mark scheme stands between two markers, once: else nbgrader would show it, or not release the notebook."""
    markers = [line for line in task.source.split("\n") if line in (BEGIN_SCHEME, END_SCHEME)]
    if markers not in ([], [BEGIN_SCHEME, END_SCHEME]):
        mend = f"Write `{BEGIN_SCHEME}` before it and `{END_SCHEME}` after it"
        findings.add(task.line, "the mark scheme is not whole, or there are two", mend)


def _id(of: Parts, taken: Collection[str], findings: Findings) -> None:
    line = of.cells[0].line
    if not ID.fullmatch(of.id) or of.id.split("-")[0] in RESERVED_WORDS:
        mend = "Use small letters, digits and hyphens, as in `topic-thing`; it may not begin with `setup` or `text`"
        findings.add(line, f"`{of.id}` is no legal id for an exercise", mend)
    if of.id in taken:
        findings.add(line, f"`{of.id}` is taken: a duplicate id", "Choose an id that no other exercise or check has")


def _task(task: Cell, findings: Findings) -> None:
    _says(task, LABELS, findings)
    hints = task.source.count("<details")
    if hints != 3:
        mend = "Write exactly three `<details>`: a question, a nudge, and nearly there"
        findings.add(task.line, f"the task has {hints} hint{'s' if hints != 1 else ''}", mend)
    if task.source.count("</details>") != hints or task.source.count("<summary>") != hints:
        findings.add(task.line, "a hint is not whole", "Give each `<details>` a `<summary>` and a `</details>`")


def _says(task: Cell, labels: Collection[str], findings: Findings) -> None:
    """The heading, the labelled lines, and how hard and long it is."""
    if exercises.title_of_task(task.source) is None:
        findings.add(task.line, "the task has no heading", "Begin it with `## What it is about`")
    for label in labels:
        if not re.search(rf"\*\*{label}\b", task.source):
            findings.add(task.line, f"the task does not say **{label}.**", f"Add a line `**{label}.** ...`")
    for attribute, allowed, said in (("stars", range(1, 4), "1, 2 or 3"), ("minutes", range(1, 241), "1 to 240")):
        if task.attributes.get(attribute) not in allowed:
            findings.add(
                task.line, f"the task's `{attribute}` are missing or not {said}", f"Write `{attribute}=`{said}"
            )


def _skills(task: Cell, taught: Callable[[str], str | None], findings: Findings) -> None:
    if not exercises.skills(task):
        mend = 'Name lessons or exercises: `skills="01_arrays,vmap-pairwise"`'
        findings.add(task.line, "the task names no skill that it uses", mend)
    for skill in exercises.skills(task):
        wrong = taught(skill)
        if wrong is not None:
            findings.add(task.line, f"the skill `{skill}` {wrong}", "Name what is taught before this exercise")


def _order(of: Parts, answer: Cell, findings: Findings) -> None:
    task = of.one("task")
    if task is not None and task.line > answer.line:
        findings.add(task.line, f"the task of `{of.id}` stands after its answer", "Put the task first")
    for cell in of.cells:
        if cell.kind not in ("task", "answer") and cell.line < answer.line:
            findings.add(cell.line, f"a `{cell.kind}` cell stands before its answer", "Put it after the answer")


def _checks(of: Parts, answer: Cell, taken: Collection[str], findings: Findings) -> None:
    if not of.of("check"):
        mend = f'Add `# %% check="{of.id}" name="values" points=1`'
        findings.add(answer.line, f"`{of.id}` has no check that the learner can run", mend)
    if not of.of("hidden"):
        mend = f'Add `# %% hidden="{of.id}" name="program" points=2`'
        findings.add(answer.line, f"`{of.id}` has no hidden check", mend)
    seen: set[str] = set()
    for cell in of.checks:
        name = cell.attributes.get("name")
        if name is None or not CHECK_NAME.fullmatch(name) or name in RESERVED_CHECK_NAMES:
            mend = "Use small letters, digits and hyphens; `task` and `why` are taken"
            findings.add(cell.line, f"the check has {'no' if name is None else 'no legal'} name", mend)
        elif name in seen or f"{of.id}-{name}" in taken:
            findings.add(cell.line, f"`{of.id}-{name}` is taken: a duplicate id", "Give the check another name")
        seen.add(name or "")
        _points(cell, "check", findings)
    _observed(of, findings)


def _points(cell: Cell, what: str, findings: Findings) -> None:
    points = cell.attributes.get("points")
    if points is None or not (math.isfinite(points) and points > 0):
        said = "missing" if points is None else f"{points}, not positive"
        findings.add(cell.line, f"the {what}'s points are {said}", "Write `points=1` or more")


def _observed(of: Parts, findings: Findings) -> None:
    observed = [cell for cell in of.checks if cell.attributes.get("observed")]
    if not observed:
        return
    if len(observed) == len(of.checks):
        mend = "Add a check on values or on the program beside them"
        findings.add(observed[0].line, f"every check of `{of.id}` is observed", mend)
        return
    paid = [cell.attributes.get("points", 0) for cell in observed]
    total = sum(cell.attributes.get("points", 0) for cell in of.checks)
    if sum(paid) > total / 2:
        message = f"observed checks hold {sum(paid):g} of the {total:g} points of `{of.id}`, more than half"
        findings.add(observed[0].line, message, "Move points to checks on values or on the program")


def _variants(of: Parts, answer: Cell, findings: Findings) -> None:
    wrong, right = of.of("wrong"), of.of("right")
    if len(wrong) < 3:
        mend = f'Add `# %% wrong="{of.id}" because="..."` with answers that people really give'
        findings.add(answer.line, f"`{of.id}` has {len(wrong)} wrong answers of at least 3", mend)
    if not right:
        mend = f'Add `# %% right="{of.id}"` with the answer written another way'
        findings.add(answer.line, f"`{of.id}` has no right answer beside its reference", mend)
    for cell in wrong:
        if not cell.attributes.get("because", "").strip():
            mend = 'Write `because="..."`: the misconception behind it, in one sentence'
            findings.add(cell.line, "a wrong answer does not say `because`", mend)
