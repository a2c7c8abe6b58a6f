"""Runs git so that nothing of where it is called from, of hooks, or of other protocols takes part."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

QUIET = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
)


# How a person or a CI job tells git who it is and how it reaches a server.
KEPT = re.compile(
    r"GIT_SSH(_COMMAND|_VARIANT)?|GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL)"
)


class GitFailed(Exception):
    """git did not do what it was asked; the text is the last line that it said."""


def environment() -> dict[str, str]:
    """Ours without git's own variables: GIT_DIR, as in a hook, would have it act on another repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or KEPT.fullmatch(name)}
    return {**kept, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def run(folder: Path, *words: str, given: bytes = b"") -> bytes:
    """What `git WORDS` prints, run in `folder`. Raises GitFailed."""
    if shutil.which("git") is None:
        raise GitFailed("git is not installed")
    done = subprocess.run(
        ["git", *QUIET, *words], cwd=folder, env=environment(), input=given, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise GitFailed(reason(done.stderr) or f"git {words[0]} ended with {done.returncode}")
    return done.stdout


def reason(said: bytes) -> str:
    """The line that says what went wrong; what follows says what follows from it."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:", "ssh:"))]
    return (fatal or lines or [""])[0].removeprefix("fatal: ").removeprefix("error: ")[:300]
