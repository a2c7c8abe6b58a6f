"""The verb of a learner at work: watch."""

from __future__ import annotations

import typer

from grader.cli.app import app, open_course, out


@app.command()
def watch() -> None:
    """Judge each of your notebooks when you save it, hidden checks included, until you press q.

    Shows the lesson's exercises, what fails and why, hints, and what comes next. Into a pipe it writes plain lines.
    """
    from grader.learning import watch_terminal

    raise typer.Exit(watch_terminal.run(open_course(), out))
