"""Due dates, extensions and the late policy of a course: `[deadlines]` and `[late]` of course.toml."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from grader.core.layout import COURSE_FILE
from grader.core.points import total
from grader.course.percent import Findings

DAY_S = 86_400.0
MAX_DATE = 100  # characters
MAX_LIST_BYTES = 4 << 20
NUMBERS = ("grace_minutes", "percent_per_day", "cut_off_days")
LATE_KEYS = (*NUMBERS, "resubmission", "extensions", "roster")
SUBMISSIONS = ("last", "best")
ZONE = re.compile(r"\s+([A-Za-z][\w+-]*(?:/[A-Za-z][\w+-]*){0,2})$", re.ASCII)


class BadTable(Exception):
    """A CSV file cannot be used; the text names the file, the lines and what is wrong in them."""


@dataclass(frozen=True)
class LatePolicy:
    """What a late submission costs. A submission within the grace period is not late. After it, each started day since
    the due date costs `percent_per_day` of the earned points, and after the cut-off no points are left."""

    grace_minutes: float = 0.0
    percent_per_day: float = 0.0
    cut_off_days: float | None = None

    def penalty(self, score: float, seconds_late: float) -> float:
        """Returns the points that a submission loses."""
        if not self.is_late(seconds_late):
            return 0.0
        if self.cut_off_days is not None and seconds_late > self.cut_off_days * DAY_S:
            return score
        return total([min(score, score * self.percent_per_day / 100 * math.ceil(seconds_late / DAY_S))])

    def is_late(self, seconds_late: float) -> bool:
        """Returns whether a submission is late, although the grace period is over."""
        return seconds_late > self.grace_minutes * 60


@dataclass(frozen=True)
class Deadlines:
    """Due dates by lesson, extensions by learner and lesson, and what being late costs. Times are in UTC."""

    due: dict[str, datetime] = field(default_factory=dict)
    extensions: dict[tuple[str, str], datetime] = field(default_factory=dict)
    policy: LatePolicy = field(default_factory=LatePolicy)
    resubmission: str = "last"
    roster: Path | None = None
    extension_list: Path | None = None

    def due_for(self, learner: str, lesson: str) -> datetime | None:
        """Returns when a lesson is due for a learner."""
        return self.extensions.get((learner, lesson), self.due.get(lesson))


def read(root: Path, content: dict[str, Any], lessons: Collection[str]) -> Deadlines:
    """Reads both tables of course.toml in `root`, and the extensions. Raises CourseError and BadTable."""
    tables = {name: content.get(name, {}) for name in ("deadlines", "late")}
    source = (root / COURSE_FILE).read_text(encoding="utf-8") if any(tables.values()) else ""
    findings = Findings(COURSE_FILE)
    line = lambda key: _line(source, key)
    for name, table in tables.items():
        if not isinstance(table, dict):
            findings.add(line(name), f"`{name}` is no table", f"Write `[{name}]` on its own line")
    findings.stop()
    dates, late = dict(tables["deadlines"]), tables["late"]
    zone = None
    if (name := dates.pop("timezone", None)) is not None:
        try:
            zone = ZoneInfo(name)
        except (TypeError, ValueError, OSError, KeyError):
            findings.add(line("timezone"), f"there is no time zone `{name}`", 'Write `timezone = "Europe/Berlin"`')
    due = {}
    for lesson, date in dates.items():
        if lesson not in lessons:
            findings.add(line(lesson), f"`deadlines` names `{lesson}`, which is no lesson here", "Correct the id")
        elif not isinstance(date, datetime):
            fix = f"Write `{lesson} = 2026-10-09T23:59:00+02:00`"
            findings.add(line(lesson), f"the due date of `{lesson}` is no date with a time", fix)
        elif date.tzinfo is None and zone is None:
            fix = 'Add an offset such as `+02:00`, or `timezone = "Europe/Berlin"` to `[deadlines]`'
            findings.add(line(lesson), f"the due date of `{lesson}` has no time zone", fix)
        else:
            due[lesson] = (date if date.tzinfo else date.replace(tzinfo=zone)).astimezone(UTC)
    for key, value in late.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        if key not in LATE_KEYS:
            findings.add(line(key), f"`late` has no `{key}`", f"It takes {', '.join(LATE_KEYS)}")
        elif key in NUMBERS and not number:
            findings.add(line(key), f"`{key}` is no number of at least 0", f"Write `{key} = 10`")
        elif key == "resubmission" and value not in SUBMISSIONS:
            findings.add(
                line(key), f"`resubmission` is not {' or '.join(SUBMISSIONS)}", 'Write `resubmission = "last"`'
            )
        elif key in ("extensions", "roster") and not (isinstance(value, str) and (root / value).is_file()):
            findings.add(line(key), f"there is no file `{value}`, which `{key}` names", "Write the path of a CSV file")
    findings.stop()
    policy = LatePolicy(**{key: late[key] for key in NUMBERS if key in late})
    roster, listed = (root / late[key] if key in late else None for key in ("roster", "extensions"))
    extensions = read_extensions(listed, lessons, zone) if listed else {}
    return Deadlines(due, extensions, policy, late.get("resubmission", "last"), roster, listed)


def _line(source: str, key: str) -> int:
    pattern = re.compile(rf"\s*\[?\[?[\"']?{re.escape(key)}\b")
    return next((number for number, text in enumerate(source.split("\n"), 1) if pattern.match(text)), 1)


def read_extensions(
    path: Path, lessons: Collection[str], zone: ZoneInfo | None = None
) -> dict[tuple[str, str], datetime]:
    """Reads a CSV of learner, lesson and due date. Raises BadTable."""
    found: dict[tuple[str, str], datetime] = {}
    problems = []
    for number, row in read_table(path, ("learner", "lesson", "due")):
        key, date = (row["learner"], row["lesson"]), row["due"]
        when = parse_time(date, zone)
        if row["lesson"] not in lessons:
            problems.append(f"line {number}: `{row['lesson'][:50]}` is no lesson")
        elif when is None:
            problems.append(f"line {number}: `{date[:50]}` is no date with a time zone, as in 2026-10-12T23:59+02:00")
        elif key in found:
            problems.append(f"line {number}: `{key[0][:50]}` already has an extension for {key[1]}")
        else:
            found[key] = when
    refuse(path, problems)
    return found


def read_table(path: Path, needed: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """Returns the rows of a CSV file by the names in its first line, in small letters, each with its line number."""
    try:
        if path.stat().st_size > MAX_LIST_BYTES:
            raise BadTable(f"{path} is larger than {MAX_LIST_BYTES >> 20} MB.")
        rows = read_rows(path)
    except OSError as problem:
        raise BadTable(f"{path} cannot be read: {problem.strerror}.") from None
    head = [cell.lower() for cell in rows[0][1]] if rows else []
    if missing := [name for name in needed if name not in head]:
        raise BadTable(f"{path} line 1: there is no column {', '.join(missing)}. The first line names the columns.")
    return [(number, dict(zip(head, [*row, *[""] * len(head)], strict=False))) for number, row in rows[1:]]


def read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Returns the rows of a CSV file that are not empty, with their line numbers. Raises BadTable and OSError."""
    content = path.read_bytes()
    rows: list[tuple[int, list[str]]] = []
    line = 1
    try:
        reader = csv.reader(content.decode("utf-8-sig").splitlines(), strict=True)
        for row in reader:
            if any(map(str.strip, row)):
                rows.append((line, [cell.strip() for cell in row]))
            line = reader.line_num + 1
    except UnicodeDecodeError as problem:
        line = content[: problem.start].count(b"\n") + 1
        raise BadTable(f"{path} is not a CSV file in UTF-8. Line {line} contains other bytes.") from None
    except csv.Error as problem:
        raise BadTable(f"{path} is not a CSV file. The row in line {line} is wrong: {problem}.") from None
    return rows


def refuse(path: Path, problems: list[str]) -> None:
    """Raises BadTable where there are problems; names the first five."""
    if problems:
        more = f" And {len(problems) - 5} more." if len(problems) > 5 else ""
        raise BadTable(f"{path} {'; '.join(problems[:5])}.{more}")


def parse_time(text: str, zone: tzinfo | None = None) -> datetime | None:
    """Returns a date in UTC. It is in ISO 8601 and may end with the name of a time zone, as `2026-10-09 21:59:00 UTC`
    of nbgrader. None for any other text, and for a date without a time zone where `zone` is None."""
    date, named = ZONE.sub("", text), ZONE.search(text)
    try:
        found = datetime.fromisoformat(date) if len(text) <= MAX_DATE else None
        own = ZoneInfo(named[1]) if named else zone
        if found is None or (found.tzinfo is None and own is None):
            return None
        return (found if found.tzinfo else found.replace(tzinfo=own)).astimezone(UTC)
    except (ValueError, OverflowError, OSError, KeyError):  # KeyError: there is no such time zone
        return None


def submission_time(notebook: Path) -> str | None:
    """Returns what `timestamp.txt` beside a notebook states, in ISO 8601 and UTC; None without a date. A date without a
    time zone is one in UTC, as in nbgrader. The folder is a learner's, so no link is followed."""
    try:
        opened = os.open(notebook.parent / "timestamp.txt", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(opened, "rb") as stream:
            content = stream.read(MAX_DATE + 1)
    except OSError:
        return None
    found = parse_time(content.decode("utf-8", "replace").strip(), UTC)
    return iso(found) if found is not None else None


def iso(when: datetime | None) -> str:
    """Formats a time in UTC; "" without one. A time without a time zone is one in UTC, as in nbgrader's database."""
    if when is None:
        return ""
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat()


def seconds_late(due: datetime | None, submitted: str | None) -> float:
    """Returns the seconds from the due date to a submission; 0 if it is in time, or if one of them is unknown."""
    if due is None or not submitted:
        return 0.0
    return max(0.0, (datetime.fromisoformat(submitted) - due) / timedelta(seconds=1))
