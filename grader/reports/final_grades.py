"""Final grades for reports: result files merged, the gradebook or the late policy applied, missing learners added.

`Result.grade` of each returned result contains the points that every form exports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from grader.core.final_grade import Grade, Person
from grader.core.points import phrase
from grader.core.result import Result
from grader.course.deadlines import Deadlines, LatePolicy, iso, seconds_late
from grader.reports.terminal import name

MISSING = "Not submitted."
MOST_NAMES = 10
Key = tuple[str, str]  # learner and lesson


def merge(documents: Sequence[tuple[str, Sequence[Result]]], deadlines: Deadlines) -> tuple[list[Result], str]:
    """Returns one result for each learner and lesson of several documents, and a sentence about those left out.

    Each document comes with its date. The last submission counts, by its time where all results of a learner in a
    lesson contain one, otherwise by the date of the document. With `resubmission = "best"`, the one with the most
    points after the late penalty counts.
    """
    found: dict[Key, list[tuple[str, Result]]] = {}
    for written, results in documents:
        for result in results:
            found.setdefault((result.learner, result.lesson), []).append((written, result))
    chosen = [_one(candidates, deadlines) for candidates in found.values()]
    several = sum(len(candidates) > 1 for candidates in found.values())
    which = "the best" if deadlines.resubmission == "best" else "the newest"
    text = f"{phrase(several, 'notebook')} in more than one result: {which} counts." if several else ""
    return chosen, text


def _one(candidates: list[tuple[str, Result]], deadlines: Deadlines) -> Result:
    dated = all(result.submitted for _, result in candidates)
    # Of two results of one submission, the newer verdict counts.
    ordered = sorted(candidates, key=lambda one: (one[1].submitted or "" if dated else "", one[0]))
    if deadlines.resubmission == "best":
        last = {result.submitted if dated else written: result for written, result in ordered}
        points = lambda result: -1.0 if (score := _graded(result, deadlines).score) is None else score
        return max(reversed(last.values()), key=points)
    return ordered[-1][1]


def apply_late_policy(results: Iterable[Result], deadlines: Deadlines, people: Mapping[str, Person]) -> list[Result]:
    """Returns the results with a grade each. Where none is from the gradebook, it consists of automatic points, from
    which course.toml's late policy takes its penalty."""
    found = []
    for result in results:
        grade = _graded(result, deadlines)
        found.append(replace(result, grade=replace(grade, person=people.get(result.learner) or grade.person)))
    return found


def _graded(result: Result, deadlines: Deadlines) -> Grade:
    if result.grade is not None and result.grade.source == "gradebook":
        return result.grade  # of a report as JSON: the policy is applied once
    grade = Grade(None if result.grader_failed else result.score, result.max_score, submitted=result.submitted or "")
    due = deadlines.due_for(result.learner, result.lesson)
    late_s = seconds_late(due, result.submitted)
    late = deadlines.policy.is_late(late_s)
    return replace(
        grade,
        penalty=deadlines.policy.penalty(grade.raw_score or 0.0, late_s),
        status="late" if late else "submitted",
        due=iso(due),
        lesson_due=iso(deadlines.due.get(result.lesson)),
        late_s=late_s if late else 0.0,
        extended=(result.learner, result.lesson) in deadlines.extensions,
    )


def apply_gradebook(
    results: Sequence[Result], grades: Mapping[Key, Grade], lessons: Iterable[str], policy: LatePolicy
) -> list[Result]:
    """Returns the results with the grades of a gradebook, and those that only the gradebook contains for `lessons`. A
    result that is not in the gradebook keeps its automatic points. A submission in the grace period is not late."""
    wanted = set(lessons)
    left = {}
    for key, grade in grades.items():
        late = policy.is_late(grade.late_s) or grade.penalty > 0
        left[key] = replace(grade, status="late" if late else "submitted")
    found = []
    for result in results:
        stored = left.pop((result.learner, result.lesson), None)
        found.append(replace(result, grade=stored) if stored is not None else result)
    found += [
        Result(learner, lesson, max_score=grade.max_score, grade=grade)
        for (learner, lesson), grade in sorted(left.items())
        if lesson in wanted
    ]
    return found


def add_missing(
    results: Sequence[Result],
    roster: Mapping[str, Person],
    lessons: Mapping[str, float],
    deadlines: Deadlines,
    stored_due: Mapping[str, str],
) -> list[Result]:
    """Returns the results and one for each learner of the roster without a submission. `lessons` are the maximum points
    by lesson, and `stored_due` the due dates of a gradebook."""
    have = {(result.learner, result.lesson) for result in results}
    absent = []
    for lesson, most in lessons.items():
        for learner, person in roster.items():
            if (learner, lesson) not in have:
                due = iso(deadlines.due_for(learner, lesson)) or stored_due.get(lesson, "")
                grade = Grade(
                    0.0, most, source="gradebook" if lesson in stored_due else "results", status="missing", due=due,
                    lesson_due=stored_due.get(lesson) or iso(deadlines.due.get(lesson)),
                    extended=(learner, lesson) in deadlines.extensions, person=person,
                )  # fmt: skip
                absent.append(Result(learner, lesson, max_score=most, problem=MISSING, fault="submission", grade=grade))
    return [*results, *absent]


def about_people(results: Sequence[Result], roster: Mapping[str, Person], now: datetime | None = None) -> list[str]:
    """Returns sentences on who is missing, late or extended, and whose folder is not in the roster."""
    lines = []
    today = iso(now or datetime.now(UTC))
    for lesson in dict.fromkeys(result.lesson for result in results):
        mine = [result.final for result in results if result.lesson == lesson]
        names = [result.learner for result in results if result.lesson == lesson]
        missing = [one for one, grade in zip(names, mine, strict=True) if grade.status == "missing"]
        early = [one for one, grade in zip(names, mine, strict=True) if grade.status == "missing" and grade.due > today]
        late = [one for one, grade in zip(names, mine, strict=True) if grade.status == "late"]
        undated = sum(bool(grade.due and not grade.submitted and grade.status != "missing") for grade in mine)
        if missing:
            still = f" ({len(early)} of them may still submit)" if early else ""
            lines.append(f"{lesson}: missing {len(missing)} of {len(roster)} learners{still}: {_names(missing)}.")
        if late:
            lost = sum(grade.penalty > 0 for grade in mine)
            lines.append(f"{lesson}: late {len(late)}, {lost} with a penalty: {_names(late)}.")
        if extended := [one for one, grade in zip(names, mine, strict=True) if grade.extended]:
            lines.append(f"{lesson}: extended {len(extended)}: {_names(extended)}.")
        if undated:
            lines.append(f"{lesson}: {phrase(undated, 'submission')} without a time, which cannot be late.")
    strangers = list(dict.fromkeys(result.learner for result in results if result.learner not in roster))
    if roster and strangers:
        lines.append(f"Not in the roster: {_names(strangers)}. Is a folder misnamed?")
    return lines


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(name, names[:MOST_NAMES])) + more


def statement(results: Sequence[Result], automatic_only: str) -> str:
    """Returns what the points of a report consist of, for its first line."""
    counts = Counter(result.final.source for result in results)
    charged = any(result.final.penalty for result in results if result.final.source == "results")
    if not counts["gradebook"]:
        return automatic_only if not charged else f"Late penalties of course.toml are applied. {automatic_only}"
    text = "Final points of the gradebook: automatic points, points and extra credit from a person, late penalties."
    if waiting := sum(bool(result.final.waiting) for result in results):
        text += f" A person still has to grade {phrase(waiting, 'notebook')}."
    if rest := [f"{result.learner}/{result.lesson}" for result in results if result.final.source == "results"]:
        text += f" {phrase(len(rest), 'notebook')} not in the gradebook, with automatic points only: {_names(rest)}."
    return text
