"""Commands about results: grade a class, store its grades in the gradebook, convert results to other formats."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from typer import Argument, Option

from grader.cli.app import JobsOption, LessonOption, PlatformOption, app, open_course
from grader.cli.console import echo, err, fail, out, refuse_unwritable, refusing, warn, write
from grader.cli.follow import Follower, publish
from grader.core.faults import UnconfinedError
from grader.core.points import number, phrase
from grader.core.result import NoResults, Result, document, read_document
from grader.course import Course
from grader.doctor.diagnosis import confinement_warning
from grader.grading import batch
from grader.grading.batch import Engine, Entry
from grader.grading.cache import Parts, environment_fingerprint
from grader.grading.cluster import ClusterError, check_address, connect, grade_on
from grader.grading.pool import Stopped, interruptible
from grader.grading.regrade import PreviousGrades
from grader.lms import object_store
from grader.lms.object_store import StoreError, SubmissionStore, is_url
from grader.reports import terminal
from grader.sandbox import accelerators
from grader.sandbox.accelerators import Hardware

if TYPE_CHECKING:
    from grader.lms.gradebook import CourseGradebook


OnOption = Annotated[
    str | None,
    Option("--on", metavar="CLUSTER", help="Grade on a Dask cluster: tls://host:8786, or local:4 for 4 workers here."),
]


@app.command()
def grade(
    submitted: Annotated[
        str, Argument(metavar="DIR", help="Folder or URL that contains <learner>/<lesson>/<lesson>.ipynb.")
    ],
    lesson: LessonOption = None,
    json: Annotated[
        str | None, Option("--json", metavar="FILE", help="Also write the results to FILE or a URL.")
    ] = None,
    jobs: JobsOption = None,
    force: Annotated[bool, Option("--force", help="Ignore cached results and grade everything.")] = False,
    allow_unsandboxed: Annotated[
        bool, Option("--allow-unsandboxed", help="Grade even if submissions can read your files.")
    ] = False,
    gradebook: Annotated[
        bool, Option("--gradebook", help="Store the grades in nbgrader's database, as nbgrader autograde does.")
    ] = False,
    explain_changes: Annotated[
        bool, Option("--explain-changes", help="List checks whose points changed since the last grading, and why.")
    ] = False,
    platform: PlatformOption = "cpu",
    on: OnOption = None,
    follow: Annotated[
        bool, Option("--follow", help="Grade what arrives in DIR until Ctrl-C; FILE is a folder.")
    ] = False,
    metrics: Annotated[
        int | None, Option("--metrics", metavar="PORT", help="With --follow: Prometheus metrics on 127.0.0.1:PORT.")
    ] = None,
) -> None:
    """Grade a folder of submissions.

    Prints a table for each lesson, the failed checks of each learner, and a summary. A notebook that was graded before
    is graded again only if the notebook, the course or the grader has changed. Exits with 1 if a notebook could not be
    graded, or its grade could not be stored.
    """
    course = open_course(lesson)
    machine = machine_for(platform)
    if on is not None and not machine.platform.is_cpu:
        raise fail(f"--on grades on CPUs. Omit --platform {platform}, or grade on this machine alone.")
    with refusing(ClusterError):
        check_address(on)
    if metrics is not None and not follow:
        raise fail("--metrics requires --follow.")
    queue = open_submissions(submitted, course, gradebook)
    if json is not None and is_url(json):
        with refusing(StoreError):
            object_store.writable(json)
    else:
        refuse_unwritable("The results", Path(json) / "results" if follow and json else Path(json) if json else None)
    warn(batch.without_secret(course))
    ours = environment_fingerprint(machine.edition)
    if follow:
        if gradebook or explain_changes:
            raise fail("--follow stores no grades and explains no changes. Run grader grade without it for that.")
        follower = Follower(course, queue, lesson, json, ours, force)
        publish(follower.metrics, metrics)
        follow_queue(follower, lambda: grading_engine(course, on, jobs, machine, ours, allow_unsandboxed))
    with refusing(batch.NothingToGrade, StoreError):
        strays = list[Path]()
        if isinstance(queue, SubmissionStore):
            strays = [Path(name) for name in queue.fetch(lesson)]
        folder = queue.folder if isinstance(queue, SubmissionStore) else queue
        entries = batch.find(folder, course, lesson)
    warn(_about_strays(strays or batch.strays(folder, course)))
    book = _open_gradebook(course, folder, sorted({entry.lesson for entry in entries})) if gradebook else None
    began = time.monotonic()
    last = PreviousGrades(course, entries, ours) if explain_changes else None
    view = ClassView(course, entries, machine)
    before = {} if force else batch.graded_before(course, view.entries, ours)
    stopped = None
    try:
        with interruptible(), view.bar, grading_engine(course, on, jobs, machine, ours, allow_unsandboxed) as engine:
            engine(view.entries, view.add, before)
    except UnconfinedError as problem:
        raise fail(f"Nothing was graded. {problem} If you trust every notebook, add --allow-unsandboxed.") from None
    except ClusterError as problem:
        text = f"Graded: {len(view.done)} of {phrase(len(entries), 'notebook')}."
        raise fail(f"{problem} {text} The same command continues from there.", 1) from None
    except Stopped as signal:
        stopped = signal
    done = {entry: view.done[entry] for entry in entries if entry in view.done}
    changes, new = last.changes(done) if last is not None else ([], 0)
    try:
        if json is not None and not stopped:
            by_notebook = {(c.now.learner, c.now.lesson): c.to_json() for c in changes} if explain_changes else None
            again = "The results cannot be written to {}: {}. Run the same command again."
            text = document(list(done.values()), by_notebook)
            if is_url(json):
                with refusing(StoreError):
                    object_store.write(json, text)
            else:
                write(Path(json), text, again)
    finally:
        view.close()
        if explain_changes:
            terminal.regrade(changes, new, len(done), out)
    if stopped:
        text = f"Stopped after {len(done)} of {phrase(len(entries), 'notebook')}. The same command"
        text += f"{' without --force' if force else ''} continues from there."
        text += f" {json} was not written." if json is not None else ""
        raise fail(text + " Nothing was stored in the gradebook." * gradebook, stopped.status)
    unstored = [] if book is None else _store(book, done)
    same = sum(result is before.get(entry) for entry, result in done.items())
    which = "All" if same == len(done) else f"{same} of them"
    unchanged = f" {which} were graded before and have not changed. --force grades them again." if same else ""
    echo(f"{phrase(len(done), 'notebook')} in {time.monotonic() - began:.1f} s.{unchanged}")
    list_manual_tasks(course, {entry.lesson for entry in entries})
    broken = [entry for entry, result in done.items() if result.problem is not None or result.grader_failed]
    if broken:
        raise fail(f"Not graded, or only in part: {_names(broken)}. The reasons are above.", 1)
    if unstored:
        raise fail(
            f"Graded, but not stored in the gradebook: {_names(unstored)}. nbgrader autograde prints the reason.", 1
        )


def open_submissions(submitted: str, course: Course, gradebook: bool) -> Path | SubmissionStore:
    """Returns the folder or the object store to grade, or ends the command with a message."""
    if is_url(submitted):
        if gradebook:
            raise fail("--gradebook grades the folder that nbgrader uses. Copy the submissions there first.")
        return SubmissionStore(submitted, course)
    folder, expected = Path(submitted), "Pass the folder that contains <learner>/<lesson>/<lesson>.ipynb."
    if folder.is_file():
        raise fail(f"{folder} is a file. {expected} `grader check` grades a single notebook of your own.")
    if not folder.is_dir():
        raise fail(f"There is no folder {folder}. {expected}")
    return folder


def follow_queue(follower: Follower, open_engine: Callable[[], AbstractContextManager[Engine]]) -> NoReturn:
    """Grades what arrives until the command is stopped, which it reports."""
    try:
        with interruptible(), open_engine() as engine:
            follower.follow(engine)
    except UnconfinedError as problem:
        raise fail(f"Nothing was graded. {problem} If you trust every notebook, add --allow-unsandboxed.") from None
    except ClusterError as problem:
        raise fail(f"{problem} The same command continues from there.", 1) from None
    except Stopped as signal:
        graded = phrase(sum(follower.metrics.counts.values()), "notebook")
        raise fail(f"Stopped after {graded}. The same command continues from there.", signal.status) from None
    raise AssertionError


@contextlib.contextmanager
def grading_engine(
    course: Course, on: str | None, jobs: int | None, machine: Hardware, edition: Parts, allow_unsandboxed: bool
) -> Iterator[Engine]:
    """Yields what grades entries: the processes of this machine, or the workers of the cluster `on`."""
    about: dict[str, Any] = {"allow_unsandboxed": allow_unsandboxed, "edition": edition}
    about["on_confined"] = lambda confined: warn(confinement_warning(confined))
    if on is None:
        yield lambda entries, add, before: batch.grade(
            course, entries, jobs, add, machine=machine, before=before, **about
        )
        return
    refused = lambda worker, reason: warn(f"The worker {worker} gets no notebooks, because it {reason}.")
    with connect(on, course) as client:
        yield lambda entries, add, before: grade_on(
            client, course, entries, add, before=before, on_refused=refused, **about
        )


class ClassView:
    """Shows a class while it is graded: each lesson once it is done, and on stderr a bar, or a line in a pipe.
    `entries` are in the order of grading: lesson by lesson, those that need other devices last."""

    def __init__(self, course: Course, entries: list[Entry], machine: Hardware) -> None:
        self._left = Counter(entry.lesson for entry in entries)
        groups = batch.device_groups(course, machine, [lesson for lesson in course.lesson_ids if lesson in self._left])
        self._waiting = [lesson for group in groups for lesson in group.lessons]
        self._notes = {lesson: note for group in groups for lesson, note in group.notes.items()}
        self.entries = sorted(entries, key=lambda entry: self._waiting.index(entry.lesson))
        self.done: dict[Entry, Result] = {}
        self._seconds: dict[str, float] = {}  # by lesson, since the lesson before it was done
        self._began = time.monotonic()
        columns = "Grading {task.description}", BarColumn(), MofNCompleteColumn(), "notebooks", TimeElapsedColumn()
        silent = not err.is_interactive
        self.bar = Progress(*columns, console=err, transient=True, redirect_stdout=False, disable=silent)
        self._task = self.bar.add_task(self._waiting[0], total=len(entries))

    def _results(self, *lessons: str) -> list[Result]:
        return [self.done[entry] for entry in self.entries if entry in self.done and entry.lesson in lessons]

    def add(self, entry: Entry, result: Result) -> None:
        """Takes a result; shows each lesson that is done and has only such lessons before it."""
        self.done[entry] = result
        self._left[entry.lesson] -= 1
        while self._waiting and not self._left[self._waiting[0]]:
            self._show(self._waiting[0])
            del self._waiting[0]
        self.bar.update(self._task, advance=1, description=next(iter(self._waiting), entry.lesson))

    def _show(self, lesson: str) -> None:
        seconds = time.monotonic() - self._began
        self._seconds[lesson] = seconds - sum(self._seconds.values())
        if self.bar.disable:
            every = phrase(len(self.entries), "notebook")
            warn(f"{lesson} is graded. {len(self.done)} of {every} after {seconds:.0f} s.")
        self.bar.stop()
        note = self._notes.get(lesson)  # one of every learner's notes: shown once, before the table
        results = [replace(r, notes=tuple(text for text in r.notes if text != note)) for r in self._results(lesson)]
        with contextlib.suppress(SystemExit):  # of rich, once stdout is closed: grading continues
            echo(note)
            terminal.show(results, out)
        self.bar.start()

    def close(self) -> None:
        """Shows what is graded of lessons that are not done, or else the summary of all."""
        terminal.tables(self._results(*self._waiting), out)
        if not self._waiting:
            out.print(terminal.summary(list(self.done.values()), self._seconds))


def _names(entries: list[Entry]) -> str:
    return ", ".join(f"{terminal.name(entry.learner)}/{entry.lesson}" for entry in entries)


def _about_strays(found: list[Path]) -> str:
    """Names what would be missed silently, such as a folder whose name differs from a lesson's by a letter."""
    names = ", ".join(terminal.name(str(path)) for path in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return f"Ignored, because no lesson has this name: {names}{more}." if found else ""


def machine_for(platform: str) -> Hardware:
    """Returns the devices to grade on, and reports them where they are not CPUs."""
    if platform not in accelerators.NAMES:
        raise fail(f"There is no platform {platform}. Platforms: {', '.join(accelerators.NAMES)}.")
    with refusing(accelerators.Absent):
        found = accelerators.look(platform)
    if not found.platform.is_cpu:
        warn(f"Grading on {found}.")
    return found


def list_manual_tasks(course: Course, lessons: set[str]) -> None:
    """Lists the tasks of these lessons that a person grades, if there are any."""
    for lesson in sorted(lessons):
        for task in course.lesson(lesson).tasks:
            points = number(task.points)
            echo(f"{task.id} ({lesson}) is graded by a person. Its {points} points are not counted here.")


def _open_gradebook(course: Course, submitted: Path, lessons: list[str]) -> CourseGradebook:
    """Returns the gradebook, checked before anything is graded."""
    from grader.lms.gradebook import CourseGradebook
    from grader.lms.nbgrader_database import NoGradebook

    with refusing(NoGradebook):
        book = CourseGradebook(course)
        book.check(submitted, lessons)
        return book


def _store(book: CourseGradebook, results: dict[Entry, Result]) -> list[Entry]:
    """Stores the grades that the gradebook does not hold yet; returns the notebooks that it refused."""
    from grader.lms import gradebook
    from grader.lms.nbgrader_database import NoGradebook

    seen, most = gradebook.Progress(), phrase(len(results), "notebook")

    def show(progress: gradebook.Progress) -> None:
        nonlocal seen
        seen = progress
        done = len(progress.before) + len(progress.now) + len(progress.refused)
        status.update(f"Stored the grades of {done} of {most} ...")

    def wait() -> None:
        warn("Another grader is writing to this gradebook. Waiting until it has finished.")

    try:
        with refusing(NoGradebook, status=1), interruptible(), err.status("Storing grades ...") as status:
            seen = book.store(results, wait, show)
    except Stopped as stopped:
        text = f"the gradebook contains the grades of {len(seen.before) + len(seen.now)} of {most}"
        text = f"Stopped. Everything is graded, and {text}. The same command continues from there."
        raise fail(text, stopped.status) from None
    echo(f"Stored in the gradebook: {len(seen.now)}. Already there and unchanged: {len(seen.before)}.")
    return seen.refused


@app.command()
def report(
    results: Annotated[Path, Argument(metavar="RESULTS.json", help="The file that `grader grade DIR --json` wrote.")],
    form: Annotated[str, Option("--as", metavar="FORMAT", help="Format of the report.")],
    learner: Annotated[str | None, Option("--learner", metavar="NAME", help="Only this learner.")] = None,
    lesson: LessonOption = None,
    to: Annotated[Path | None, Option("--out", metavar="FILE", help="Write to FILE instead of the terminal.")] = None,
) -> None:
    """Convert results to other formats.

    Formats are json, junit, html, csv, canvas, gradescope, github-summary, github-annotations and github-classroom
    (docs/reports.md).
    """
    from grader.reports.forms import FORMS, STATES_ITS_POINTS, NotOne

    if form not in FORMS:
        raise fail(f"There is no report {form}. Reports: {', '.join(FORMS)}.")
    with refusing(NoResults, NotOne):
        found = read_document(results)
        chosen = [r for r in found if learner in (None, r.learner) and lesson in (None, r.lesson)]
        if not chosen and (learner or lesson):
            raise fail(_no_result(results, found, learner, lesson))
        text = FORMS[form](chosen)
    if form not in STATES_ITS_POINTS:
        warn(terminal.AUTOMATIC_ONLY)
    if to is None:
        print(text, end="", file=sys.__stdout__)  # as it is: a form may consist of commands to a CI service
    else:
        write(to, text)


def _no_result(path: Path, found: list[Result], learner: str | None, lesson: str | None) -> str:
    """Returns that a file has no result of a learner in a lesson, and which it has."""
    whose = " in ".join(filter(None, [learner, lesson]))
    learners, lessons = dict.fromkeys(one.learner for one in found), dict.fromkeys(one.lesson for one in found)
    names = ", ".join([terminal.name(one) for one in learners][:10])
    more = f" and {len(learners) - 10} more" if len(learners) > 10 else ""
    return f"{path} contains no result of {whose}. Learners: {names}{more}. Lessons: {', '.join(lessons)}."
