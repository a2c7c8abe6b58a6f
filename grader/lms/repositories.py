"""The list of learners' repositories: a CSV of learner, url or folder, and branch, every line of it checked."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.core.text import legible

LEARNER = re.compile(r"\w[\w.@-]{0,99}")
BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,199}")
_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*"
_USER = r"\w[\w.+:%~-]*@"
# What may be fetched from elsewhere. Not http: anybody on the way could change it.
REMOTE = re.compile(rf"(https|ssh|git)://({_USER})?{_HOST}(:\d+)?/[^\s-]\S*|({_USER[:-1]}@){_HOST}:[^\s-]\S*")
ALLOWED = "https://, ssh://, git://, user@host:path, or a folder on this machine"
MOST_BYTES = 4 << 20
COLUMNS = ("learner", "url", "branch")


class BadList(Exception):
    """The list cannot be used; the text names the lines and what is wrong in them."""


@dataclass(frozen=True)
class Repository:
    """One learner's repository. `url` is as git takes it; `branch` is empty for the one that the repository names."""

    learner: str
    url: str
    branch: str = ""

    @property
    def local(self) -> bool:
        return Path(self.url).is_absolute()

    @property
    def shown(self) -> str:
        """The url without a password."""
        return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", self.url)


def read(path: Path) -> list[Repository]:
    """The repositories of the list. Raises BadList, or OSError for a file that cannot be read."""
    if path.stat().st_size > MOST_BYTES:
        raise BadList(f"{path} is larger than {MOST_BYTES >> 20} MB: no list of repositories.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = [(number, row) for number, row in enumerate(csv.reader(text.splitlines(), strict=True), 1) if any(row)]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise BadList(f"{path} is no CSV file in UTF-8: {problem}.") from None
    found: list[Repository] = []
    problems = list(_problems(path, rows, found))
    if problems:
        more = f" And {len(problems) - 5} more." if len(problems) > 5 else ""
        raise BadList(legible(" ".join(problems[:5]) + more))
    if not found:
        raise BadList(f"{path} names no repository. Each line is learner,url,branch; the branch may be left out.")
    return found


def _problems(path: Path, rows: list[tuple[int, list[str]]], found: list[Repository]) -> Iterator[str]:
    """A sentence for each bad line; the good ones go to `found`."""
    columns = dict(zip(COLUMNS, range(3), strict=True))
    head = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    if {"learner", "url"} <= set(head):
        columns, rows = {name: head.index(name) for name in COLUMNS if name in head}, rows[1:]
    taken: dict[str, int] = {}
    for number, row in rows:
        cells = {name: row[place].strip() if place < len(row) else "" for name, place in columns.items()}
        made = Repository(cells["learner"], cells["url"], cells.get("branch", ""))
        problem = _problem(made) or _taken(made, taken)
        taken.setdefault(made.learner.casefold(), number)
        if problem:
            yield f"{path.name} line {number}: {problem}."
        elif REMOTE.fullmatch(made.url):
            found.append(made)
        else:
            found.append(Repository(made.learner, str((path.parent / made.url).resolve()), made.branch))


def _problem(made: Repository) -> str:
    if not LEARNER.fullmatch(made.learner) or ".." in made.learner:
        return f"`{made.learner[:50]}` cannot be a learner's folder; use letters, digits, and . _ - @ after the first"
    if not made.url or made.url.startswith("-") or not made.url.isprintable():
        return f"`{made.url[:80]}` is no address of a repository; it has to be {ALLOWED}"
    if not REMOTE.fullmatch(made.url) and ("://" in made.url or "::" in made.url or "@" in made.url.split("/")[0]):
        return f"`{made.url[:80]}` may not be fetched; it has to be {ALLOWED}"
    if made.branch and (
        not BRANCH.fullmatch(made.branch) or ".." in made.branch or made.branch.endswith((".lock", "/"))
    ):
        return f"`{made.branch[:50]}` is no name of a branch"
    return ""


def _taken(made: Repository, taken: dict[str, int]) -> str:
    """Two folders whose names differ in case alone are one on some machines."""
    line = taken.get(made.learner.casefold())
    return f"`{made.learner}` is there already, in line {line}" if line else ""
