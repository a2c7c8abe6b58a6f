"""Rules for the parts of an exercise, and for what a learner sees of it.

A solution or a hidden check leaks when one of its telling lines appears word for word in what a learner sees. Lines
that any answer could have are no leak, and a visible check may open with the same two lines as a hidden one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from grader.core.points import number, total
from grader.course import exercises, rubric
from grader.course.exercises import Parts
from grader.course.percent import Cell, Findings
from grader.course.rubric import BEGIN_SCHEME, END_SCHEME

ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
CHECK_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
BY_HAND_LABELS = ("Goal", "Judged")
LABELS = ("Goal", "Signature", "Example", "Judged", "Not judged")
# Grade ids of built cells that no exercise and no check may take: `<exercise>-task`, `<exercise>-why`, `text-2` ...
RESERVED_CHECK_NAMES = frozenset({"task", "why"})
RESERVED_WORDS = frozenset({"setup", "text"})
SHORTEST = 20  # characters; `return x + y` is no secret
LONGEST_SHARED = 2  # lines in a row that a visible and a hidden check may share
# nbgrader cuts at these words wherever they are, and runs what follows AUTOTEST.
NBGRADER_WORDS = ("BEGIN HIDDEN TESTS", "END HIDDEN TESTS", "BEGIN MARK SCHEME", "END MARK SCHEME", "AUTOTEST")
# What an exercise needs: the kind of cell, how many at least, what is missing, and what to add.
NEEDED = (
    ("task", 1, "no task", '# %% [markdown] task="{id}"` before the answer'),
    ("check", 1, "no check that the learner can run", '# %% check="{id}" name="values" points=1`'),
    ("hidden", 1, "no hidden check", '# %% hidden="{id}" name="program" points=2`'),
    ("wrong", 3, "{count} wrong answers of at least 3", '# %% wrong="{id}" because="..."` as learners really answer'),
    ("right", 1, "no right answer beside its reference", '# %% right="{id}"` with the answer written another way'),
    ("why", 1, "no cell that explains why its answer works", '# %% [markdown] why="{id}"`: two sentences, a question'),
)
SkillRule = Callable[[str], str | None]


def check_exercise(of: Parts, skill_problem: SkillRule, taken: Collection[str], findings: Findings) -> None:
    """Adds the problems of one exercise's parts.

    `skill_problem` returns what is wrong with a skill, or None; `taken` are the ids of earlier exercises and checks.
    """
    answer = next(iter(of.of("answer")), None)
    if answer is None:
        for cell in of.cells:
            message = f"a `{cell.kind}` cell without its answer: no answer cell names `{of.id}`"
            findings.add(cell.line, message, f'Add `# %% answer="{of.id}"`, or correct the id')
        return
    _check_id(of, taken, findings)
    for kind in ("task", "answer", "why"):
        for cell in of.of(kind)[1:]:
            findings.add(cell.line, f"a second `{kind}` for `{of.id}`: a duplicate id", "Give it an id of its own")
    for kind, least, missing, line in NEEDED:
        count = len(of.of(kind))
        if count < least:
            message = f"`{of.id}` has {missing.format(count=count)}"
            findings.add(answer.line, message, f"Add `{line.format(id=of.id)}")
    for task in of.of("task")[:1]:
        _check_labels(task, LABELS, findings)
        _check_hints(task, findings)
        _check_skills(task, skill_problem, findings)
        if task.line > answer.line:
            findings.add(task.line, f"the task of `{of.id}` stands after its answer", "Put the task first")
    for cell in of.cells:
        if cell.kind not in ("task", "answer") and cell.line < answer.line:
            findings.add(cell.line, f"a `{cell.kind}` cell stands before its answer", "Put it after the answer")
    _check_checks(of, taken, findings)
    for cell in of.of("wrong"):
        if not cell.attributes.get("because", "").strip():
            fix = 'Write `because="..."`: the misconception behind it, in one sentence'
            findings.add(cell.line, "a wrong answer does not say `because`", fix)
    for cell in of.of("equivalent"):
        if not cell.attributes.get("because", "").strip():
            fix = 'Write `because="..."`: why these mutants are right answers'
            findings.add(cell.line, "an `equivalent` cell has no `because`", fix)
        lines = cell.source.split("\n")
        if not exercises.labels(cell.source) or not all(line.startswith("#") for line in filter(str.strip, lines)):
            fix = "Copy the label of each mutant from the output of `grader prove`, a comment each"
            findings.add(cell.line, "an `equivalent` cell does not list mutants", fix)


def check_task(of: Parts, skill_problem: SkillRule, taken: Collection[str], findings: Findings) -> None:
    """Adds the problems of a task that a person grades. The arguments are those of `check_exercise`."""
    task, *others = of.cells
    for cell in others:
        fix = "Take out `points` of the task, which make it one that a person grades, or correct the id"
        findings.add(cell.line, f"a `{cell.kind}` cell for `{of.id}`, which a person grades", fix)
    _check_id(of, taken, findings)
    _check_labels(task, BY_HAND_LABELS, findings)
    _check_points(task, "task", findings)
    _check_skills(task, skill_problem, findings)
    # nbgrader would show a mark scheme that is not whole, or not release the notebook.
    markers = [line for line in task.source.split("\n") if line in (BEGIN_SCHEME, END_SCHEME)]
    if markers not in ([], [BEGIN_SCHEME, END_SCHEME]):
        fix = f"Write `{BEGIN_SCHEME}` before it and `{END_SCHEME}` after it"
        findings.add(task.line, "the mark scheme is not whole, or there are two", fix)
    else:
        _check_rubric(task, findings)


def _check_rubric(task: Cell, findings: Findings) -> None:
    """The items of a mark scheme: all of one form, with different names, and together worth the task's points."""
    items = rubric.items(task.source)
    if not items:
        return
    first = task.first + task.source.split("\n").index(BEGIN_SCHEME) + 1
    names: set[str] = set()
    for at, line in enumerate(rubric.scheme(task.source), first):
        match = rubric.ITEM.fullmatch(line.rstrip())
        if line.startswith("- ") and match is None:
            findings.add(at, f"`{line}` is not an item with points", "Write `- 2 points: What they are for`")
        if match and float(match[1]) == 0:
            findings.add(at, f"the item `{match[2]}` has no points", "Write `- 1 point:` or more")
        if match and match[2] in names:
            findings.add(at, f"the item `{match[2]}` is in the mark scheme twice", "Give each item a name of its own")
        names.add(match[2] if match else "")
    points, sum_of_items = task.attributes.get("points"), total(item.points for item in items)
    if points and points != sum_of_items:
        message = f"the items of the mark scheme have {number(sum_of_items)} points, the task has {number(points)}"
        findings.add(first, message, "Change the points of the items or of the task, so that they are equal")


def _check_id(of: Parts, taken: Collection[str], findings: Findings) -> None:
    line = of.cells[0].line
    if not ID.fullmatch(of.id) or of.id.split("-")[0] in RESERVED_WORDS:
        fix = "Use small letters, digits and hyphens, as in `topic-thing`; it may not begin with `setup` or `text`"
        findings.add(line, f"`{of.id}` is no legal id for an exercise", fix)
    if of.id in taken:
        findings.add(line, f"`{of.id}` is taken: a duplicate id", "Choose an id that no other exercise or check has")


def _check_hints(task: Cell, findings: Findings) -> None:
    hints = task.source.count("<details")
    if hints != 3:
        fix = "Write exactly three `<details>`: a question, a nudge, and nearly there"
        findings.add(task.line, f"the task has {hints} hint{'s' if hints != 1 else ''}", fix)
    if task.source.count("</details>") != hints or task.source.count("<summary>") != hints:
        findings.add(task.line, "a hint is not whole", "Give each `<details>` a `<summary>` and a `</details>`")


def _check_labels(task: Cell, labels: Collection[str], findings: Findings) -> None:
    """The heading, the labelled lines, and how hard and long the task is."""
    if exercises.title_of_task(task.source) is None:
        findings.add(task.line, "the task has no heading", "Begin it with `## What it is about`")
    for label in labels:
        if not re.search(rf"\*\*{label}\b", task.source):
            findings.add(task.line, f"the task does not say **{label}.**", f"Add a line `**{label}.** ...`")
    for attribute, legal, range_text in (("stars", range(1, 4), "1, 2 or 3"), ("minutes", range(1, 241), "1 to 240")):
        if task.attributes.get(attribute) not in legal:
            message = f"the task's `{attribute}` are missing or not {range_text}"
            findings.add(task.line, message, f"Write `{attribute}=`{range_text}")


def _check_skills(task: Cell, skill_problem: SkillRule, findings: Findings) -> None:
    if not exercises.skills(task):
        fix = 'Name lessons or exercises: `skills="01_arrays,vmap-pairwise"`'
        findings.add(task.line, "the task names no skill that it uses", fix)
    for skill in exercises.skills(task):
        wrong = skill_problem(skill)
        if wrong is not None:
            findings.add(task.line, f"the skill `{skill}` {wrong}", "Name what is taught before this exercise")


def _check_checks(of: Parts, taken: Collection[str], findings: Findings) -> None:
    seen: set[str] = set()
    for cell in of.checks:
        name = cell.attributes.get("name")
        if name is None or not CHECK_NAME.fullmatch(name) or name in RESERVED_CHECK_NAMES:
            fix = "Use small letters, digits and hyphens; `task` and `why` are taken"
            findings.add(cell.line, f"the check has {'no' if name is None else 'no legal'} name", fix)
        elif name in seen or f"{of.id}-{name}" in taken:
            findings.add(cell.line, f"`{of.id}-{name}` is taken: a duplicate id", "Give the check another name")
        seen.add(name or "")
        _check_points(cell, "check", findings)
    observed = [cell for cell in of.checks if cell.attributes.get("observed")]
    paid, possible = (total(cell.attributes.get("points", 0) for cell in cells) for cells in (observed, of.checks))
    if observed and len(observed) == len(of.checks):
        fix = "Add a check on values or on the program beside them"
        findings.add(observed[0].line, f"every check of `{of.id}` is observed", fix)
    elif observed and paid > possible / 2:
        message = f"observed checks hold {number(paid)} of the {number(possible)} points of `{of.id}`, more than half"
        findings.add(observed[0].line, message, "Move points to checks on values or on the program")


def _check_points(cell: Cell, what: str, findings: Findings) -> None:
    points = cell.attributes.get("points")
    if points is None or not (math.isfinite(points) and points > 0):
        wrong = "missing" if points is None else f"{points}, not positive"
        findings.add(cell.line, f"the {what}'s points are {wrong}", "Write `points=1` or more")


def check_leaks(cells: Collection[Cell], findings: Findings) -> None:
    """Adds a problem for each line of a solution or a hidden check that a learner would see."""
    solutions: dict[str, str | None] = {}
    for cell in cells:
        _check_nbgrader_words(cell, findings)
        if cell.kind == "answer":
            public = set(telling(exercises.stub(cell.source).split("\n")))
            own = telling(exercises.solution(cell.source))
            solutions.update({line: cell.id for line in own if line not in public})
    hidden = [(cell.id, telling(cell.source.split("\n")[1:])) for cell in cells if cell.kind == "hidden"]
    secrets = [(line, f"the solution of `{owner}`") for line, owner in solutions.items()]
    secrets += [(line, f"a hidden check of `{owner}`") for owner, lines in hidden for line in lines]
    for cell in cells:
        if cell.prose:
            for at, line in enumerate(cell.source.split("\n"), cell.first):
                for secret, what in secrets:
                    if secret in line:
                        findings.add(at, f"the text shows {what}: `{secret}`", "Say it in other words")
        elif cell.kind in ("check", "setup", "answer"):
            _check_code(cell, solutions, hidden, findings)


def telling(lines: Iterable[str]) -> list[str]:
    """Returns the lines that tell something about an answer, stripped; comments and imports do not."""
    stripped = [line.strip().removeprefix("return ") for line in lines]
    return [line for line in stripped if len(line) >= SHORTEST and not line.startswith(("#", "import ", "from "))]


def _check_nbgrader_words(cell: Cell, findings: Findings) -> None:
    by_hand = cell.kind == "task" and "points" in cell.attributes
    for at, line in enumerate(cell.source.split("\n"), cell.first):
        for word in NBGRADER_WORDS:
            if word in line and not (line in (BEGIN_SCHEME, END_SCHEME) and by_hand):
                findings.add(at, f"`{word}` is written by hand", 'Put hidden text into a `# %% hidden="..."` cell')
        if cell.kind != "answer" and ("BEGIN SOLUTION" in line or "END SOLUTION" in line):
            findings.add(at, "a SOLUTION marker outside an answer cell", "Take the marker out")


def _check_code(
    cell: Cell, solutions: Mapping[str, str | None], hidden: Iterable[tuple[str | None, list[str]]], findings: Findings
) -> None:
    source = exercises.stub(cell.source) if cell.kind == "answer" else cell.source
    shown = {line.strip().removeprefix("return ") for line in source.split("\n")}

    first_line = lambda text: next(at for at, line in enumerate(cell.source.split("\n"), cell.first) if text in line)
    for secret, owner in solutions.items():
        if secret in shown:
            message = f"the cell shows the solution of `{owner}`: `{secret}`"
            findings.add(first_line(secret), message, "Write it another way")
    for owner, lines in hidden:
        runs = (lines[start : start + LONGEST_SHARED + 1] for start in range(len(lines) - LONGEST_SHARED))
        run = next((run for run in runs if shown.issuperset(run)), None)
        if run is not None:
            message = f"the cell shows {len(run)} lines of a hidden check of `{owner}`, from `{run[0]}` on"
            findings.add(first_line(run[0]), message, "Let the hidden check differ, or move what they share to setup")
