"""Commands for instructors: open JupyterLab on the course, bundle what learners get, collect what they wrote."""

from __future__ import annotations

import glob
import json
import os
import signal
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich import box
from rich.table import Table
from rich.text import Text
from typer import Abort, Argument, Option, confirm

from grader.cli.app import LessonOption, LessonsArgument, app, open_course, refuse_unknown
from grader.cli.console import (
    echo,
    err,
    fail,
    out,
    refuse_unwritable,
    refusing,
    refusing_files,
    warn,
    warn_unignored,
)
from grader.cli.learner import JupyterLabOptions, become_jupyterlab, find_exercise
from grader.core import files
from grader.core.faults import Fault, UnconfinedError
from grader.core.notebook import Submission, Unreadable, read_bytes, read_complete, read_submission
from grader.core.points import phrase
from grader.core.text import legible
from grader.course.build import exercises_path
from grader.course.deadlines import BadTable
from grader.grading import batch
from grader.grading.pool import Stopped, interruptible
from grader.lms.collect import BadList, CollectedRepository, Collection, read_list
from grader.lms.git import FetchLimits

if TYPE_CHECKING:
    from grader.lms.personal_data import PersonalData, Place


@app.command()
def instructor(options: JupyterLabOptions = None) -> None:
    """Open JupyterLab on the course with nbgrader's extensions.

    Formgrader and the Assignment List are in the menu Nbgrader. Options after `--` are passed to JupyterLab, as in
    `grader instructor -- --no-browser`.
    """
    import_module("nbgrader")  # JupyterLab would open without its extensions
    course = open_course()
    if not (course.root / "nbgrader_config.py").is_file():
        raise fail(f"There is no nbgrader_config.py in {course.root}. Copy the one of this project there.")
    (course.root / "work").mkdir(exist_ok=True)  # the Assignment List fetches to it, and needs it to be there
    become_jupyterlab(course, "instructor", options or [])


@app.command()
def bundle(
    lessons: LessonsArgument = None,
    to: Annotated[Path | None, Option("--out", metavar="DIR|FILE.zip", help="The folder or zip file to write.")] = None,
    git: Annotated[bool, Option("--git", help="Commit the folder to its own repository.")] = False,
    gradescope: Annotated[
        str | None, Option("--gradescope", metavar="NN_topic", help="Write the autograder zip of this lesson instead.")
    ] = None,
    allow_unsandboxed: Annotated[
        bool, Option("--allow-unsandboxed", help="With --gradescope: grade even if submissions can read the course.")
    ] = False,
) -> None:
    """Write the files for learners, without anything hidden.

    The files are the notebooks, the pictures and the code that public checks need.
    """
    from grader.lms import bundle as bundles
    from grader.lms import gradescope as autograder

    course = open_course(gradescope)
    if to is None:
        raise fail("The bundle needs a destination. Pass --out DIR or --out FILE.zip.")
    zipped = to.suffix == ".zip"
    if gradescope and (lessons or git or not zipped):
        raise fail("--gradescope takes one lesson and requires --out FILE.zip. It cannot be combined with --git.")
    if git and zipped:
        raise fail("--git requires a folder. Pass --out DIR.")
    if allow_unsandboxed and not gradescope:
        raise fail("--allow-unsandboxed requires --gradescope.")
    refuse_unknown(lessons or (), course)
    commit = ""
    with refusing(bundles.NoBundle):
        if gradescope:
            bundles.write_zip(autograder.files(course, gradescope, allow_unsandboxed), to)
            echo(f"{to}: the autograder of {gradescope}. It contains hidden checks and answers: for Gradescope only.")
            return
        files = bundles.files(course, lessons)
        if zipped:
            bundles.write_zip(files, to, f"{to.stem}/")
        elif git:
            commit = bundles.commit(course, files, to)
        else:
            bundles.write_folder(files, to)
    committed = f" Committed as {commit[:10]}." if commit else " Nothing changed since the last commit." if git else ""
    echo(f"{to}: {len(files)} files, nothing hidden.{committed}")


@app.command()
def collect(
    repositories: Annotated[Path, Argument(metavar="REPOS.csv", help="Lines of the form learner,url[,branch].")],
    to: Annotated[Path, Option("--to", metavar="DIR", help="The folder to write the notebooks to.")] = Path(
        "submitted"
    ),
    lesson: LessonOption = None,
    jobs: Annotated[int, Option("--jobs", metavar="N", min=1, max=32, help="Number of parallel downloads.")] = 4,
    seconds: Annotated[float, Option(metavar="N", min=1, help="Time limit for one repository, in seconds.")] = 120,
    megabytes: Annotated[int, Option(metavar="N", min=1, help="Size limit for one repository, in MB.")] = 200,
) -> None:
    """Collect notebooks from learners' repositories.

    A repository is a URL (https, ssh, git) or a folder. Unchanged repositories are not fetched again. Grade the
    collected notebooks with `grader grade`. Exits with 1 if a repository could not be read.
    """
    course = open_course(lesson)
    with refusing(BadList), refusing_files(repositories, "{} cannot be read: {}."):
        rows = read_list(repositories)
    done: list[CollectedRepository] = []
    try:
        warn_unignored(to / "submission")
        with refusing_files(to):
            limits = FetchLimits(seconds, megabytes << 20)
            lessons = [lesson] if lesson else course.lesson_ids
            own_files = {one: course.own_files_bytes(one) for one in lessons}
            collection = Collection(to, lessons, limits, own_files)
            with interruptible(), err.status(f"Collecting {len(rows)} repositories ...") as status:

                def show(one: CollectedRepository) -> None:
                    done.append(one)
                    status.update(f"Collected {len(done)} of {len(rows)} repositories ...")

                results = collection.collect(rows, jobs, show)
    except Stopped as stopped:
        text = f"Stopped after {len(done)} of {len(rows)} repositories. The same command continues from there."
        raise fail(text, stopped.status) from None
    _show(results)
    failed = [one.learner for one in results if one.failed]
    if failed:
        raise fail(f"Not collected, or only in part: {', '.join(failed)}. The reasons are above.", 1)


@app.command()
def feedback(
    lesson: Annotated[str | None, Argument(metavar="NN_topic", help="Only this lesson. [default: all]")] = None,
    zipped: Annotated[Path | None, Option("--zip", metavar="FILE.zip", help="Write a zip for a mail merge.")] = None,
    roster: Annotated[
        Path | None,
        Option(
            "--roster", metavar="FILE.csv", help="With --zip: the learners and their addresses. [default: the course's]"
        ),
    ] = None,
    repositories: Annotated[
        Path | None, Option("--git", metavar="REPOS.csv", help="Push the pages to a branch of learners' repositories.")
    ] = None,
    issue: Annotated[bool, Option("--issue", help="With --git: announce new pages in an issue, with gh.")] = False,
) -> None:
    """Deliver feedback pages to learners.

    `nbgrader generate_feedback` creates the pages. The zip contains a folder for each learner, and feedback.csv with
    learner, email, lesson and file. With --git, the pages are committed to the branch `feedback`. Exits with 1 if a
    repository could not be written to.
    """
    from grader.lms import feedback_delivery as delivery
    from grader.lms.nbgrader_database import NoGradebook

    course = open_course(lesson)
    if (zipped is None) == (repositories is None):
        raise fail("Choose a way of delivery. Pass either --zip FILE.zip or --git REPOS.csv.")
    if (roster and not zipped) or (issue and not repositories):
        raise fail("--roster requires --zip, and --issue requires --git.")
    with refusing(delivery.NoFeedback, NoGradebook, BadTable):
        pages = delivery.find_pages(course, lesson)
        if zipped:
            emails = delivery.emails(course, roster)
            warn_unignored(zipped)
            with refusing_files(zipped):
                missing = delivery.write_zip(pages, emails, zipped)
            echo(f"{zipped}: {phrase(len(pages), 'page')} and {delivery.INDEX}.")
            warn(f"Without an e-mail address: {', '.join(missing)}." if missing else None)
            return
    assert repositories is not None
    with refusing(BadList), refusing_files(repositories, "{} cannot be read: {}."):
        rows = read_list(repositories)
    done = []
    for row in rows:
        done.append(one := delivery.deliver(row, pages, issue))
        warn(f"{one.learner}: {one.problem}." if one.problem else None)
    counts = ", ".join(f"{[one.state for one in done].count(state)} {state}" for state in ("new", "unchanged"))
    echo(f"Feedback for {phrase(len(done), 'learner')}: {counts}.")
    unlisted = sorted({page.learner for page in pages} - {row.learner for row in rows})
    warn(f"Not in {repositories}, so not delivered: {', '.join(unlisted)}." if unlisted else None)
    if failed := [one.learner for one in done if one.problem]:
        raise fail(f"Not delivered, or only in part: {', '.join(failed)}. The reasons are above.", 1)


def _show(results: list[CollectedRepository]) -> None:
    """Prints a table with a row for each learner, and a count of the notebooks."""
    table = Table("learner", "commit", "date (set by its author)", "notebooks", box=box.SIMPLE)
    for one in results:
        states = ", ".join(f"{lesson} ({notebook.state})" for lesson, notebook in one.notebooks.items())
        lines = [states or ("" if one.failed else "none"), *one.refused, one.problem]
        text = "\n".join(legible(line, 300) for line in lines if line)
        table.add_row(Text(one.learner), one.commit[:10], one.committed[:16].replace("T", " "), Text(text))
    out.print(table)
    new = [notebook.state for one in results for notebook in one.notebooks.values()]
    counts = ", ".join(f"{new.count(state)} {state}" for state in ("new", "changed", "unchanged"))
    echo(f"{phrase(len(new), 'notebook')} of {phrase(len(results), 'learner')}: {counts}.")


@app.command()
def similar(
    submitted: Annotated[Path, Argument(metavar="SUBMITTED", help="The folder with submissions, as for grader grade.")],
    lesson: LessonOption = None,
    html: Annotated[
        Path | None,
        Option("--html", metavar="FILE", help="The page to write. Default: build/similar.html in the course."),
    ] = None,
    json: Annotated[Path | None, Option("--json", metavar="FILE", help="Also write the pairs to FILE.")] = None,
    exercise: Annotated[
        str | None,
        Option("--exercise", metavar="NAME", help="With --lesson: compare only the answers to this exercise."),
    ] = None,
    min_share: Annotated[
        int,
        Option(
            "--min-share",
            metavar="PERCENT",
            min=1,
            max=100,
            help="List a pair if this part of what one of them wrote in a cell is in the other's submission too.",
        ),
    ] = 60,
) -> None:
    """List pairs of submissions that share code.

    Only code counts that the released notebooks, the course's answers and most of the class do not explain. A page
    shows both texts side by side. A pair is a reason to look, and no proof of anything.
    """
    from grader.reports import html as pages
    from grader.reports import similar as comparison

    course = open_course(lesson)
    to = html or course.home / "build" / "similar.html"
    if exercise is not None and lesson is None:
        raise fail("--exercise requires --lesson NN_topic.")
    only = None if exercise is None or lesson is None else find_exercise(course.lesson(lesson), exercise)
    for what, path in (("The page", to), ("The list", json)):
        refuse_unwritable(what, path)
        warn_unignored(path)
    with refusing(batch.NothingToGrade):
        entries = batch.find(submitted, course, lesson)
    lessons: list[tuple[str, int, list[comparison.Pair]]] = []
    unread: list[dict[str, str]] = []
    with err.status("Comparing submissions ..."):
        for name in dict.fromkeys(entry.lesson for entry in entries):
            found: list[Submission] = []
            for entry in entries:
                if entry.lesson == name:
                    try:
                        found.append(read_submission(read_bytes(entry.path), entry.learner, name))
                    except Unreadable as problem:
                        about = {"learner": entry.learner, "lesson": name, "path": str(entry.path)}
                        unread.append({**about, "reason": str(problem)})
            released = read_complete(exercises_path(course, name))
            lessons.append((name, *comparison.submitted(course.lesson(name), released, found, only, min_share / 100)))
    table = Table("lesson", "learners", "cells", "shared tokens", box=box.SIMPLE)
    for name, _, pairs in lessons:
        for pair in pairs[: pages.MOST_PAIRS]:
            names = f"{legible(pair.first.learner.name)} and {legible(pair.second.learner.name)}"
            table.add_row(name, Text(names), Text(legible(", ".join(pair.cells))), str(pair.tokens))
    count = sum(len(pairs) for _, _, pairs in lessons)
    if count:
        out.print(table)
    to.parent.mkdir(parents=True, exist_ok=True)
    files.write(to, pages.similar(lessons).encode(), mode=0o600)
    echo(f"{phrase(count, 'pair')} among {phrase(sum(n for _, n, _ in lessons), 'submission')}. Side by side: {to}")
    if json is not None:
        files.write(json, comparison.document(lessons, unread), mode=0o600)
    if unread:
        lines = [f"  {legible(one['path'])}: {one['reason']}" for one in unread]
        raise fail("\n".join(["Not compared:", *lines]), 1)


@app.command()
def board(
    lessons: Annotated[list[str] | None, Argument(metavar="NN_topic", help="The lessons of the workshop.")] = None,
    port: Annotated[
        int | None, Option("--port", metavar="N", min=1, max=65535, help="The port to listen on. [default: 8300]")
    ] = None,
    lan: Annotated[bool | None, Option("--lan/--no-lan", help="Accept connections from other machines.")] = None,
    judge: Annotated[
        bool, Option("--judge", help="Grade learners' saved notebooks on this machine, hidden checks included.")
    ] = False,
    watch: Annotated[
        list[str] | None,
        Option("--watch", metavar="PATTERN", help="Grade the notebooks in these folders, as in '/home/*/course'."),
    ] = None,
    export: Annotated[
        Path | None,
        Option("--export", metavar="FILE", help="When the board stops, write a report (.html) or a table (.csv)."),
    ] = None,
    close: Annotated[
        bool, Option("--close", help="Close a workshop whose board has stopped: delete its data.")
    ] = False,
) -> None:
    """Show a live workshop in the browser.

    Prints the address of the board, and the command with which learners join. Press Ctrl-C to stop. The next
    `grader board` resumes the workshop at the same address, until it is closed.
    """
    import asyncio

    from grader.board import board_server
    from grader.board.event_log import DATABASE, EventLog, WorkshopInUse
    from grader.board.judge_queue import READY, FolderWatcher, JudgeQueue
    from grader.board.workshop import Workshop

    course = open_course(*(lessons or ()))
    if export is not None and export.suffix not in (".html", ".csv"):
        raise fail("The name of an export ends with .html or .csv.")
    refuse_unwritable("The export", export)
    warn_unignored(export)
    path = course.home / "build" / "board" / DATABASE
    if close and not path.is_file():
        raise fail("There is no workshop to close.")
    resumes = path.is_file()
    if not resumes and not lessons:
        raise fail("Name the lessons of the workshop: grader board 05_vmap.")
    try:
        with refusing_files(path, "{} cannot be opened: {}."):
            log = EventLog(path)
    except WorkshopInUse:
        raise fail("The board of this workshop is running. Stop it with Ctrl-C first.") from None
    before = json.loads(log.setting("listen", json.dumps([False, 8300])))
    lan = before[0] if lan is None else lan
    port = port or before[1]
    names = log.setting("lessons", " ".join(lessons or ())).split()
    patterns = json.loads(log.setting("watch", json.dumps([str(Path(one).absolute()) for one in watch or ()])))
    judges = log.setting("judge", "yes" if judge or watch else "") == "yes"
    queue = JudgeQueue(course, names, log) if judges and not close else None
    opened = board_server.Board(Workshop.of(course, names, judges), log, queue, watches=bool(patterns))

    async def serve() -> None:
        try:
            server = board_server.listen(opened, "0.0.0.0" if lan else "127.0.0.1", port)
        except OSError as problem:
            reason = f"Port {port} cannot be used: {problem.strerror}"
            raise fail(f"{reason}. Pass another one: grader board --port {port + 1}") from None
        log.replace_setting("listen", json.dumps([lan, port]))
        opened.address = address = f"http://{board_server.lan_address() if lan else '127.0.0.1'}:{port}/"
        echo(f"The workshop {'resumes' if resumes else 'begins'}: {', '.join(names)}.")
        if resumes and lessons and names != lessons:
            warn(f"This workshop is for {' '.join(names)}. To start another one, close it first: grader board --close")
        if resumes and (judge or watch) and not judges:
            option = "--judge" if judge else "--watch"
            warn(f"{option} is ignored, because the workshop began without it. To use it, start a new workshop.")
        echo(f"Your board, which only you should open: {address}#{opened.instructor}")
        echo(f"For the projector, without names: {address}#{opened.projector}")
        echo(f"Learners join with: grader join {address} {opened.code}")
        for pattern in patterns:
            if not glob.glob(pattern):
                warn(f"No folder matches {pattern} yet.")
        tasks = []
        if queue is not None:
            tasks.append(queue.run(lambda: echo(READY)))
        if patterns:
            tasks.append(FolderWatcher(patterns, names, opened.saved_in_folder).run())
        try:
            await asyncio.gather(asyncio.Event().wait(), *tasks)
        finally:
            server.stop()

    if not close:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))  # stops in the same way
        try:
            with refusing(OSError, UnconfinedError, Fault):
                asyncio.run(serve())
        except KeyboardInterrupt:
            echo("Stopped. To resume: grader board. To delete the data of the workshop: grader board --close")
    if export is not None:
        files.write(export, opened.report("html" if export.suffix == ".html" else "csv"))
        echo(f"Written: {export}")
    log.close(delete=close)
    if close:
        echo("The workshop is closed, and its data is deleted.")


@app.command("personal-data")
def personal_data(
    learner: Annotated[str | None, Option("--learner", metavar="NAME", help="Only this learner.")] = None,
    remove: Annotated[bool, Option("--remove", help="Remove the listed data, after a question.")] = False,
    everyone: Annotated[bool, Option("--all", help="With --remove: remove the data of all learners.")] = False,
    yes: Annotated[bool, Option("--yes", help="With --remove: do not ask.")] = False,
) -> None:
    """List or remove learners' data in the course folder.

    Submissions, results, feedback, caches, nbgrader's gradebook and exchange are included. Exits with 1 if something
    could not be removed.
    """
    from grader.lms.nbgrader_database import NoGradebook
    from grader.lms.personal_data import ELSEWHERE, PersonalData

    if remove and (learner is None) != everyone:
        raise fail("Pass --learner NAME to remove the data of one learner, or --all to remove that of all learners.")
    if not remove and (everyone or yes):
        raise fail("--all and --yes require --remove.")
    course = open_course()
    with refusing(NoGradebook, BadTable), err.status("Searching the course folder ..."):
        data = PersonalData(course)
        found = data.learners
    if learner is not None and learner not in found:
        names = ", ".join(legible(one) for one in found[:10]) + (", ..." if len(found) > 10 else "")
        raise fail(f"There is no data of {legible(learner)} in {course.home}. Learners: {names or 'none'}.")
    chosen = found if learner is None else [learner]
    _show_data(data, chosen, in_full=learner is not None)
    echo(ELSEWHERE.format(course.home))
    if not remove or not found:
        return
    try:
        if not yes and not confirm(f"Remove this data of {phrase(len(chosen), 'learner')}?"):
            raise Abort
    except Abort:
        raise fail("Nothing was removed. To remove the data in a script, add --yes.", 1) from None
    with refusing(NoGradebook, status=1), err.status("Removing ..."):
        problems = data.remove(chosen)
    if problems:
        raise fail("\n".join(["Removed, except for:", *problems]), 1)
    echo(f"Removed the data of {phrase(len(chosen), 'learner')}.")


def _show_data(data: PersonalData, learners: list[str], in_full: bool) -> None:
    """Prints a row for each place with data of these learners; in short, one for each kind and folder."""
    groups: dict[tuple[str, Path], list[Place]] = {}
    for place in data.of(learners):
        groups.setdefault((place.kind, place.path if in_full or place.shared else place.path.parent), []).append(place)
    where = lambda place: Text(legible(str(place).removeprefix(f"{data.home}/")))
    table = Table("data", "where", "learners", "files", "kB", "oldest", "newest", box=box.SIMPLE)
    for (kind, path), places in groups.items():
        files_in_it = [one for place in places for one in place.files]
        ages = [f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" for at in sorted(one.st_mtime for one in files_in_it)]
        of = {name for place in places for name in place.learners if name in learners}
        size = sum(one.st_size for one in files_in_it)
        cells = [str(len(files_in_it)), f"{size / 1000:.0f}", *((ages[0], ages[-1]) if ages else ("", ""))]
        table.add_row(kind, where(path), _few(of), *cells)
    if data.database is not None and (rows := data.students.keys() & set(learners)):
        table.add_row("gradebook", where(data.database.file or data.database.engine.url), _few(rows))
    out.print(table if table.row_count else "There is no data of learners here.")


def _few(names: set[str]) -> Text:
    """Returns up to two names, and the number of others."""
    first = ", ".join(legible(name, 40) for name in sorted(names)[:2])
    return Text(first + (f" and {len(names) - 2} more" if len(names) > 2 else ""))
