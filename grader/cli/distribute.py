"""Verbs about what goes out to learners and what comes back: bundles, Gradescope's zip, collected repositories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grader.cli.app import LessonOption, app, err, fail, open_course, out

if TYPE_CHECKING:
    from grader.lms.collect import CollectedRepository


@app.command()
def bundle(
    lessons: Annotated[list[str] | None, typer.Argument(metavar="[NN_topic]...", help="Only these lessons.")] = None,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="DIR|FILE.zip", help="Write it here: a zip if it is called so.")
    ] = None,
    git: Annotated[bool, typer.Option("--git", help="Commit the folder in a repository of its own.")] = False,
    gradescope: Annotated[
        str | None, typer.Option("--gradescope", metavar="NN_topic", help="Make this lesson's autograder zip instead.")
    ] = None,
    allow_unsandboxed: Annotated[
        bool, typer.Option("--allow-unsandboxed", help="With --gradescope: grade even where code can read the course.")
    ] = False,
) -> None:
    """Make what learners get: notebooks, pictures, the checks' vocabulary, and nothing hidden."""
    from grader.lms import bundle as bundles
    from grader.lms import gradescope as autograder
    from grader.lms import publish

    course = open_course(gradescope)
    if to is None:
        raise fail("Say where the bundle goes: --out DIR, or --out FILE.zip.")
    zipped = to.suffix == ".zip"
    if (gradescope and (lessons or git or not zipped)) or (git and zipped) or (allow_unsandboxed and not gradescope):
        raise fail("--gradescope takes one lesson and writes --out FILE.zip; --git writes --out DIR.")
    for lesson in lessons or ():
        if lesson not in {*course.lesson_ids, *course.text_ids}:
            raise fail(f"There is no lesson {lesson}. Lessons: {', '.join(course.ids)}.")
    try:
        if gradescope:
            publish.write_zip(autograder.files(course, gradescope, allow_unsandboxed), to)
            out.print(
                f"{to}: the autograder of {gradescope}. It holds hidden checks and answers: for Gradescope alone."
            )
            return
        files, commit = bundles.files(course, lessons), ""
        if zipped:
            publish.write_zip(files, to, f"{to.stem}/")
        elif git:
            commit = publish.commit(course, files, to)
        else:
            publish.write_folder(files, to)
    except publish.NoBundle as problem:
        raise fail(str(problem)) from None
    said = f" Committed as {commit[:10]}." if commit else " Nothing changed since the last commit." if git else ""
    out.print(f"{to}: {len(files)} files, nothing hidden.{said}", markup=False, soft_wrap=True)


@app.command()
def collect(
    repositories: Annotated[Path, typer.Argument(metavar="REPOS.csv", help="Lines of learner,url[,branch].")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Put the notebooks here.")] = Path("submitted"),
    lesson: LessonOption = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=32, help="Repositories at a time.")] = 4,
    seconds: Annotated[float, typer.Option(min=1, help="For one repository.")] = 120,
    megabytes: Annotated[int, typer.Option(min=1, help="Of one repository.")] = 200,
) -> None:
    """Collect learners' notebooks from their repositories, for `grader grade`. Ends with 1 when one could not be read.

    A repository is a URL (https, ssh, git) or a folder. What is unchanged since the last time is not fetched again.
    """
    from grader.grading.signals import Stopped, interruptible
    from grader.lms.collect import BadList, Collection, read_list
    from grader.lms.git import FetchLimits

    course = open_course(lesson)
    try:
        rows = read_list(repositories)
    except BadList as problem:
        raise fail(str(problem)) from None
    except OSError as problem:
        raise fail(f"{repositories} cannot be read: {problem.strerror}.") from None
    done: list[CollectedRepository] = []
    try:
        collection = Collection(to, [lesson] if lesson else course.lesson_ids, FetchLimits(seconds, megabytes << 20))
        with interruptible(), err.status(f"Collecting {len(rows)} repositories ...") as status:

            def tell(one: CollectedRepository) -> None:
                done.append(one)
                status.update(f"Collected {len(done)} of {len(rows)} repositories ...")

            results = collection.collect(rows, jobs, tell)
    except Stopped as stopped:
        raise fail(
            f"Stopped after {len(done)} of {len(rows)} repositories; the same command goes on.", stopped.status
        ) from None
    except OSError as problem:
        raise fail(f"{to} cannot be written: {problem.strerror}.") from None
    _show(results)
    failed = [one.learner for one in results if one.failed]
    if failed:
        raise fail(f"Not collected, or not all of it: {', '.join(failed)}. The reasons stand above.", 1)


def _show(results: list[CollectedRepository]) -> None:
    """A line for each learner."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from grader.core.text import legible

    table = Table("learner", "commit", "of (as its author says)", "notebooks", box=box.SIMPLE)
    for one in results:
        told = [f"{lesson} ({taken.state})" for lesson, taken in one.notebooks.items()]
        said = [", ".join(told) or ("" if one.failed else "none"), *one.refused, one.problem]
        text = "\n".join(legible(line, 300) for line in said if line)
        table.add_row(Text(one.learner), one.commit[:10], one.committed[:16].replace("T", " "), Text(text))
    out.print(table)
    new = [taken.state for one in results for taken in one.notebooks.values()]
    counts = ", ".join(f"{new.count(state)} {state}" for state in ("new", "changed", "unchanged"))
    out.print(f"{len(new)} notebooks of {len(results)} learners: {counts}.")
