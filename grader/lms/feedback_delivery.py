"""Deliver feedback pages: a zip with a folder for each learner, or commits and issues in learners' repositories.

The pages are those that `nbgrader generate_feedback` wrote. They are delivered unchanged.
"""

from __future__ import annotations

import functools
import io
import json
import re
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.core import files
from grader.core.text import legible
from grader.course import Course
from grader.lms import git
from grader.lms.git import GitFailed, Repository
from grader.lms.gradebook import CourseGradebook
from grader.lms.nbgrader_grades import read_grades
from grader.reports import forms
from grader.reports.roster import read_roster

BRANCH = "feedback"
PROTOCOLS = "https:ssh:git:file"  # a url of https may stand for a folder, as a person's settings of git say
INDEX = "feedback.csv"
AUTHOR = ("user.name=Feedback", "user.email=feedback@localhost")
GITHUB = re.compile(r"(?:https://(?:[^/@]*@)?|ssh://git@|git@)github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?")
EARLIEST = (1980, 1, 1, 0, 0, 0)  # of a file in a zip, so that the same pages give the same bytes
SECONDS = 120  # for one command of git or gh


class NoFeedback(Exception):
    """Nothing can be delivered. The text is a sentence that contains what to do."""


@dataclass(frozen=True)
class FeedbackFile:
    """A feedback page: whose, of which lesson, and where it is."""

    learner: str
    lesson: str
    path: Path


@dataclass(frozen=True)
class Delivery:
    """The outcome for one learner. `state` is new, unchanged or none; `problem` is why the delivery failed."""

    learner: str
    state: str = ""
    problem: str = ""


def find_pages(course: Course, lesson: str | None) -> list[FeedbackFile]:
    """Returns the pages `<learner>/<lesson>/<lesson>.html` of nbgrader's feedback folder.

    Raises NoFeedback if there are none, and NoGradebook without nbgrader's configuration.
    """
    directory = CourseGradebook(course).directory
    folder = Path(directory.format_path(directory.feedback_directory, "", ""))
    found = [
        FeedbackFile(path.parts[-3], path.parts[-2], path)
        for path in sorted(folder.glob("*/*/*.html"))
        if path.stem == path.parts[-2] and lesson in (None, path.stem) and not path.is_symlink()
    ]
    if not found:
        command = f"nbgrader generate_feedback {lesson or 'NN_topic'}"
        raise NoFeedback(f"There are no feedback pages in {folder}. Create them first: {command}")
    return found


def emails(course: Course, roster: Path | None) -> dict[str, str]:
    """Returns the addresses by learner: of a roster if there is one, else of the gradebook.

    Raises BadTable and NoGradebook.
    """
    source = roster or course.deadlines.roster
    if source is not None:
        people = read_roster(source)
    else:
        database = CourseGradebook(course).database
        people = read_grades(database).students if database.there() else {}
    return {learner: person.email for learner, person in people.items()}


def write_zip(pages: Iterable[FeedbackFile], emails: Mapping[str, str], to: Path) -> list[str]:
    """Writes a zip with `<learner>/<lesson>.html`, and with `feedback.csv` that lists learner, email, lesson and file
    for a mail merge. Returns the learners without an e-mail address."""
    rows: list[list[object]] = [["learner", "email", "lesson", "file"]]
    content, missing = io.BytesIO(), []
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for page in pages:
            name = f"{page.learner}/{page.lesson}.html"
            email = emails.get(page.learner, "")
            missing += [] if email else [page.learner]
            rows.append([page.learner, email, page.lesson, name])
            archive.writestr(_entry(name), page.path.read_bytes())
        archive.writestr(_entry(INDEX), forms.csv_text(rows))
    files.write(to, content.getvalue(), mode=0o600)
    return list(dict.fromkeys(missing))


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EARLIEST)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
    return entry


def deliver(repository: Repository, pages: list[FeedbackFile], issue: bool) -> Delivery:
    """Commits the learner's pages to the branch `feedback` of their repository, and pushes this branch only.

    With `issue`, a changed page is also announced in an issue of the repository, by `gh`. A page that has not changed
    is neither committed nor announced again.
    """
    mine = [page for page in pages if page.learner == repository.learner]
    if not mine:
        return Delivery(repository.learner, "none")
    # git would run the hooks of its owner with our rights.
    if Path(repository.url).is_absolute() or repository.url.startswith("file:"):
        return Delivery(repository.learner, problem=f"{repository.url} is a folder, to which nothing is pushed")
    name = GITHUB.fullmatch(repository.url)
    if issue and name is None:
        return Delivery(
            repository.learner, problem=f"{repository.shown} is not a repository on GitHub, so has no issues"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="feedback-") as folder:
            changed = _push(Path(folder), repository, mine)
        if issue and name and changed:
            for lesson in changed:
                _announce(name[1], lesson)
    except (GitFailed, OSError, subprocess.TimeoutExpired) as problem:
        return Delivery(repository.learner, problem=legible(str(problem), 300))
    return Delivery(repository.learner, "new" if changed else "unchanged")


def _push(folder: Path, repository: Repository, pages: list[FeedbackFile]) -> list[str]:
    """Returns the lessons whose pages have changed. Nothing of the repository is checked out."""
    run, url = git.BoundedGit(folder, git.FetchLimits(), threading.Event()).git, repository.url
    connect = functools.partial(run, protocols=PROTOCOLS)
    tip = connect("ls-remote", "--quiet", "--", url, f"refs/heads/{BRANCH}").decode().split()
    parent: list[str] = []
    if tip:
        connect("fetch", "--quiet", "--depth=1", "--no-tags", "--", url, f"+refs/heads/{BRANCH}:refs/heads/{BRANCH}")
        run("read-tree", f"refs/heads/{BRANCH}")
        parent = ["-p", tip[0]]
    changed = []
    for page in pages:
        path = f"feedback/{page.lesson}.html"
        blob = run("hash-object", "-w", "--no-filters", "--", str(page.path.absolute())).decode().strip()
        before = run("ls-files", "--stage", "--", path).decode().split()
        if before[1:2] != [blob]:
            run("update-index", "--add", "--replace", "--cacheinfo", f"100644,{blob},{path}")
            changed.append(page.lesson)
    if changed:
        tree = run("write-tree").decode().strip()
        identity = [word for setting in AUTHOR for word in ("-c", setting)]
        message = f"Feedback on {', '.join(changed)}"
        commit = run(*identity, "commit-tree", tree, *parent, "-m", message).decode().strip()
        connect("push", "--quiet", "--", url, f"{commit}:refs/heads/{BRANCH}")
    return changed


def _announce(repository: str, lesson: str) -> None:
    """Comments on the issue `Feedback on LESSON`, or opens it. The text contains no points: others may read issues."""
    title = f"Feedback on {lesson}"
    page = f"https://github.com/{repository}/blob/{BRANCH}/feedback/{lesson}.html"
    where = f"New feedback on {lesson} is on the branch `{BRANCH}`: [{lesson}.html]({page})."
    body = f"{where} Download it and open it in a browser."
    search = ("--state", "all", "--limit", "100", "--search", f"{title} in:title", "--json", "number,title")
    try:
        listed = json.loads(_gh("issue", "list", "--repo", repository, *search))
        number = next((str(one["number"]) for one in listed if one["title"] == title), None)
    except (ValueError, TypeError, KeyError):
        raise GitFailed("gh did not list the issues as JSON. Update gh") from None
    if number is None:
        _gh("issue", "create", "--repo", repository, "--title", title, "--body", body)
    else:
        _gh("issue", "comment", number, "--repo", repository, "--body", body)


def _gh(*words: str) -> str:
    try:
        done = subprocess.run(
            ["gh", *words], env=git.environment() | {"GH_PROMPT_DISABLED": "1"}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise GitFailed("gh is not installed. It is at https://cli.github.com") from None
    if done.returncode != 0:
        raise GitFailed(f"The page was pushed, but gh failed: {legible(done.stderr.strip(), 200)}")
    return done.stdout
