"""Commands about results: grade a class, store its grades in the gradebook, convert results to other formats."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from typer import Argument, Option

from grader.cli.app import JobsOption, LessonOption, PlatformOption, app, course_folder, open_course
from grader.cli.console import echo, err, fail, out, refuse_unwritable, refusing, warn, warn_unignored, write
from grader.cli.follow import Follower, publish
from grader.core.faults import UnconfinedError
from grader.core.layout import course_above
from grader.core.points import number, phrase
from grader.core.result import NoResults, Result, document, read_dated
from grader.course import Course
from grader.course.deadlines import BadTable, Deadlines, iso, submission_time
from grader.doctor.diagnosis import confinement_warning
from grader.grading import batch
from grader.grading.batch import Engine, Entry
from grader.grading.cache import Parts, environment_fingerprint
from grader.grading.cluster import ClusterError, check_address, connect, grade_on
from grader.grading.pool import Stopped, interruptible
from grader.grading.regrade import PreviousGrades
from grader.lms import object_store
from grader.lms.object_store import StoreError, SubmissionStore, is_url
from grader.reports import final_grades, terminal
from grader.reports.final_grades import statement
from grader.reports.roster import read_roster
from grader.sandbox import accelerators
from grader.sandbox.accelerators import Hardware

if TYPE_CHECKING:
    from grader.lms.gradebook import CourseGradebook
    from grader.lms.nbgrader_grades import StoredGrades


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
        results = Path(json) / "results" if follow and json else Path(json) if json else None
        refuse_unwritable("The results", results)
        warn_unignored(results)
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
            dated = [replace(one, submitted=submission_time(entry.path)) for entry, one in done.items()]
            text = document(dated, by_notebook, iso(datetime.now(UTC).replace(microsecond=0)))
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

    with refusing(NoGradebook, BadTable):
        _ = course.deadlines  # stored with the grades
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
    form: Annotated[str, Option("--as", metavar="FORMAT", help="Format of the report.")],
    results: Annotated[
        list[Path] | None,
        Argument(metavar="RESULTS.json", help="Files that `grader grade DIR --json` wrote."),
    ] = None,
    learner: Annotated[str | None, Option("--learner", metavar="NAME", help="Only this learner.")] = None,
    lesson: LessonOption = None,
    to: Annotated[Path | None, Option("--out", metavar="FILE", help="Write to FILE instead of the terminal.")] = None,
    gradebook: Annotated[
        bool | None,
        Option(
            "--gradebook/--automatic-only",
            help="Take the points from the course's gradebook, or leave it out. [default: the gradebook, if the course "
            "has one]",
            show_default=False,
        ),
    ] = None,
    roster: Annotated[
        Path | None, Option("--roster", metavar="FILE.csv", help="The learners of the class. [default: the course's]")
    ] = None,
) -> None:
    """Convert results to other formats.

    Formats are json, junit, html, csv, canvas, gradescope, github-summary, github-annotations and github-classroom
    (docs/reports.md). With a gradebook, the points include those of a person, and no RESULTS.json is needed.
    """
    from grader.reports.forms import FORMS, STATES_ITS_POINTS, NotOne
    from grader.reports.html import MOST_ON_ONE_PAGE, dump_pages, dumps

    if form not in FORMS:
        raise fail(f"There is no report {form}. Reports: {', '.join(FORMS)}.")
    with refusing(NoResults, NotOne, BadTable):
        report = ClassReport(results or [], gradebook, roster)
        found, people = report.results, report.people
        chosen = [r for r in found if learner in (None, r.learner) and lesson in (None, r.lesson)]
        if not chosen and (learner or lesson):
            raise fail(_no_result(", ".join(map(str, results or [])) or "The gradebook", found, learner, lesson))
        folder, large = to, form == "html" and len(chosen) > MOST_ON_ONE_PAGE
        if large and folder is None:
            raise fail(f"{phrase(len(chosen), 'notebook')} do not fit on one page. Pass --out FILE.html.")
        told = people if learner is None and lesson is None else []
        if large and folder is not None:
            pages = dump_pages(chosen, folder.name, told)
        else:
            pages = {"": dumps(chosen, told) if form == "html" else FORMS[form](chosen)}
    if form not in STATES_ITS_POINTS:
        warn(statement(chosen, terminal.AUTOMATIC_ONLY))
    for line in (*report.notes, *told):
        warn(line)
    if folder is None:
        print(pages[""], end="", file=sys.__stdout__)  # as it is: a form may consist of commands to a CI service
        return
    warn_unignored(folder)
    for name, text in pages.items():
        write(folder.with_name(name) if name else folder, text)
    if large:
        warn(f"{folder} lists {phrase(len(chosen), 'notebook')}. {phrase(len(pages) - 1, 'page')} beside it show them.")


class ClassReport:
    """The results of a class with final grades: merged, from the gradebook or the late policy, missing ones added.

    `notes` are sentences about how they were determined, `people` about missing and late learners. Raises NoResults
    and BadTable.
    """

    def __init__(self, paths: list[Path], gradebook: bool | None, roster: Path | None) -> None:
        course = self._course(gradebook)
        deadlines = course.deadlines if course is not None else Deadlines()
        stored = self._stored(course, gradebook)
        if not paths and stored is None:
            raise fail("Pass the file that `grader grade DIR --json FILE` wrote, or --gradebook.")
        merged, note = final_grades.merge([read_dated(path) for path in paths], deadlines)
        self.notes = [note] if note else []
        source = roster or deadlines.roster
        people = read_roster(source) if source is not None else {}
        lessons: dict[str, float] = {}
        for result in merged:
            lessons[result.lesson] = max(result.max_score, lessons.get(result.lesson, 0.0))
        if stored is not None and (not paths or any(lesson in stored.max_score for lesson in lessons)):
            if not paths:
                lessons = dict.fromkeys(sorted({lesson for _, lesson in stored.grades}), 0.0)
            lessons |= {lesson: stored.max_score[lesson] for lesson in lessons if lesson in stored.max_score}
            # nbgrader adds a student for each folder that it grades, also a misnamed one, so a file comes first.
            grades = {key: replace(g, person=people.get(key[0]) or g.person) for key, g in stored.grades.items()}
            people = people or stored.students
            merged = final_grades.apply_gradebook(merged, grades, lessons, deadlines.policy)
            due = {lesson: date for lesson, date in stored.due.items() if lesson in lessons}
        else:
            if stored is not None and gradebook:
                raise fail(f"The gradebook does not contain {', '.join(lessons)}. Omit --gradebook.")
            due = {}
        if people or deadlines.due:
            merged = final_grades.apply_late_policy(merged, deadlines, people)
        self.results = final_grades.add_missing(merged, people, lessons, deadlines, due)
        self.people = final_grades.about_people(self.results, people)

    def _course(self, gradebook: bool | None) -> Course | None:
        """The course to act on; results can be converted outside of any course."""
        return open_course() if gradebook or course_above(course_folder()) is not None else None

    def _stored(self, course: Course | None, gradebook: bool | None) -> StoredGrades | None:
        """The grades of the course's gradebook, where it has one and it is not left out."""
        if course is None or gradebook is False or (gradebook is None and not _may_have_gradebook(course)):
            return None
        from grader.lms.gradebook import CourseGradebook
        from grader.lms.nbgrader_database import NoGradebook
        from grader.lms.nbgrader_grades import read_grades

        with refusing(NoGradebook):
            database = CourseGradebook(course).database
            if gradebook is None and not database.there():
                return None
            return read_grades(database)


def _may_have_gradebook(course: Course) -> bool:
    """Whether nbgrader's configuration is worth reading: its default database is there, or it sets another one."""
    config = course.root / "nbgrader_config.py"
    if not config.is_file():
        return False
    lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
    named = any("db_url" in line for line in lines if not line.lstrip().startswith("#"))
    return named or (course.root / "gradebook.db").is_file()


def _no_result(path: str, found: list[Result], learner: str | None, lesson: str | None) -> str:
    """Returns that a file has no result of a learner in a lesson, and which it has."""
    whose = " in ".join(filter(None, [learner, lesson]))
    learners, lessons = dict.fromkeys(one.learner for one in found), dict.fromkeys(one.lesson for one in found)
    names = ", ".join([terminal.name(one) for one in learners][:10])
    more = f" and {len(learners) - 10} more" if len(learners) > 10 else ""
    return f"{path} contains no result of {whose}. Learners: {names}{more}. Lessons: {', '.join(lessons)}."
