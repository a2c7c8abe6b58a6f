"""Verbs of instructors: open JupyterLab on the course, bundle what learners get, collect what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich import box
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from grader.cli.app import LessonOption, LessonsArgument, app, open_course, refuse_unknown
from grader.cli.console import echo, err, fail, out, refusing, refusing_files
from grader.cli.learner import JupyterLabOptions, become_jupyterlab
from grader.core.text import legible
from grader.grading.pool import Stopped, interruptible
from grader.lms.collect import BadList, CollectedRepository, Collection, read_list
from grader.lms.git import FetchLimits


@app.command()
def instructor(options: JupyterLabOptions = None) -> None:
    """Open JupyterLab on the whole course, with nbgrader's Formgrader and Assignment List (menu Nbgrader).

    What stands after `--` goes to JupyterLab, as in `grader instructor -- --no-browser`.
    """
    course = open_course()
    if not (course.root / "nbgrader_config.py").is_file():
        raise fail(f"There is no nbgrader_config.py in {course.root}. Copy the one of this project there.")
    (course.root / "work").mkdir(exist_ok=True)  # the Assignment List fetches to it, and needs it to be there
    become_jupyterlab(course, "instructor", options or [])


@app.command()
def bundle(
    lessons: LessonsArgument = None,
    to: Annotated[
        Path | None, Option("--out", metavar="DIR|FILE.zip", help="Write it here: a zip if it is called so.")
    ] = None,
    git: Annotated[bool, Option("--git", help="Commit the folder in a repository of its own.")] = False,
    gradescope: Annotated[
        str | None, Option("--gradescope", metavar="NN_topic", help="Make this lesson's autograder zip instead.")
    ] = None,
    allow_unsandboxed: Annotated[
        bool, Option("--allow-unsandboxed", help="With --gradescope: grade even where code can read the course.")
    ] = False,
) -> None:
    """Make what learners get: notebooks, pictures, the checks' vocabulary, and nothing hidden."""
    from grader.lms import bundle as bundles
    from grader.lms import gradescope as autograder

    course = open_course(gradescope)
    if to is None:
        raise fail("Say where the bundle goes: --out DIR, or --out FILE.zip.")
    zipped = to.suffix == ".zip"
    if (gradescope and (lessons or git or not zipped)) or (git and zipped) or (allow_unsandboxed and not gradescope):
        raise fail("--gradescope takes one lesson and writes --out FILE.zip; --git writes --out DIR.")
    refuse_unknown(lessons or (), course, {*course.lesson_ids, *course.text_ids})
    commit = ""
    with refusing(bundles.NoBundle):
        if gradescope:
            bundles.write_zip(autograder.files(course, gradescope, allow_unsandboxed), to)
            echo(f"{to}: the autograder of {gradescope}. It holds hidden checks and answers: for Gradescope alone.")
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
    repositories: Annotated[Path, Argument(metavar="REPOS.csv", help="Lines of learner,url[,branch].")],
    to: Annotated[Path, Option("--to", metavar="DIR", help="Put the notebooks here.")] = Path("submitted"),
    lesson: LessonOption = None,
    jobs: Annotated[int, Option("--jobs", min=1, max=32, help="Repositories at a time.")] = 4,
    seconds: Annotated[float, Option(min=1, help="For one repository.")] = 120,
    megabytes: Annotated[int, Option(min=1, help="Of one repository.")] = 200,
) -> None:
    """Collect learners' notebooks from their repositories, for `grader grade`. Ends with 1 when one could not be read.

    A repository is a URL (https, ssh, git) or a folder. What is unchanged since the last time is not fetched again.
    """
    course = open_course(lesson)
    with refusing(BadList), refusing_files(repositories, "{} cannot be read: {}."):
        rows = read_list(repositories)
    done: list[CollectedRepository] = []
    try:
        with refusing_files(to):
            limits = FetchLimits(seconds, megabytes << 20)
            collection = Collection(to, [lesson] if lesson else course.lesson_ids, limits)
            with interruptible(), err.status(f"Collecting {len(rows)} repositories ...") as status:

                def show(one: CollectedRepository) -> None:
                    done.append(one)
                    status.update(f"Collected {len(done)} of {len(rows)} repositories ...")

                results = collection.collect(rows, jobs, show)
    except Stopped as stopped:
        text = f"Stopped after {len(done)} of {len(rows)} repositories; the same command goes on."
        raise fail(text, stopped.status) from None
    _show(results)
    failed = [one.learner for one in results if one.failed]
    if failed:
        raise fail(f"Not collected, or not all of it: {', '.join(failed)}. The reasons stand above.", 1)


def _show(results: list[CollectedRepository]) -> None:
    """Prints a table with a row for each learner, and a count of the notebooks."""
    table = Table("learner", "commit", "of (as its author says)", "notebooks", box=box.SIMPLE)
    for one in results:
        states = ", ".join(f"{lesson} ({notebook.state})" for lesson, notebook in one.notebooks.items())
        lines = [states or ("" if one.failed else "none"), *one.refused, one.problem]
        text = "\n".join(legible(line, 300) for line in lines if line)
        table.add_row(Text(one.learner), one.commit[:10], one.committed[:16].replace("T", " "), Text(text))
    out.print(table)
    new = [notebook.state for one in results for notebook in one.notebooks.values()]
    counts = ", ".join(f"{new.count(state)} {state}" for state in ("new", "changed", "unchanged"))
    echo(f"{len(new)} notebooks of {len(results)} learners: {counts}.")
