"""Consoles, sentences and refusals of the `grader` command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from typer import Exit

from grader.core import files
from grader.core.text import legible
from grader.lms.git import ignores

out = Console(highlight=False, markup=False, emoji=False)
err = Console(highlight=False, markup=False, emoji=False, stderr=True)


def echo(text: str | None, console: Console = out) -> None:
    """Prints text, if there is any, as it is: legible on any terminal, in lines of any length."""
    if text:
        console.print(legible(text), soft_wrap=True)


def warn(text: str | None) -> None:
    """Prints text on stderr, if there is any."""
    echo(text, err)


def fail(message: str, status: int = 2) -> Exit:
    """Reports what is wrong; returns what to raise, which ends the command with `status`."""
    warn(message)
    return Exit(status)


@contextlib.contextmanager
def refusing(*kinds: type[Exception], status: int = 2) -> Iterator[None]:
    """Ends the command with the message of an exception of these kinds."""
    try:
        yield
    except kinds as problem:
        raise fail(str(problem), status) from None


@contextlib.contextmanager
def refusing_files(path: Path, message: str = "{} cannot be written: {}.") -> Iterator[None]:
    """Ends the command with a message that gives the path and the reason when a file cannot be used."""
    try:
        yield
    except OSError as problem:
        raise fail(message.format(path, problem.strerror)) from None


def write(path: Path, text: str, message: str = "{} cannot be written: {}.") -> None:
    """Writes a file that others may read, or ends the command with a message."""
    with refusing_files(path, message):
        files.write(path, text, mode=0o644)


def refuse_unwritable(what: str, path: Path | None) -> None:
    """Refuses a path where no file can be written, before any work; makes the folders above it."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise fail(f"{what} cannot be written to {path}. Choose a file in a writable folder.")


def warn_unignored(path: Path | None) -> None:
    """Warns that git would commit learners' data: that a file, or a folder of such files, is not ignored in its
    repository. Outside of a repository, and without git, there is nothing to warn about."""
    if path is not None and not ignores(path.absolute()):
        text = f"git does not ignore {path.absolute()}, which contains learners' data."
        warn(f"{text} Add it to .gitignore, or choose another place.")
