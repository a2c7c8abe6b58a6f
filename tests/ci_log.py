"""What CI services do with a log: the lines that they take for commands."""

from __future__ import annotations

import re

GITHUB = re.compile(r"::(\S+)( .*?)?::")
ANYWHERE = re.compile(r"##(\w+[\w.-]*)?\[")  # GitHub's older commands, Azure's and TeamCity's
BUILDKITE = re.compile(r"(---|\+\+\+|~~~|\^\^\^) ")


def commands(log: str) -> list[str]:
    """Returns the lines that a service would obey: GitHub trims a line first, and knows when commands are stopped."""
    found, token = [], None
    for line in re.split(r"\r\n|\r|\n", log):
        command = GITHUB.match(line.strip())
        if command and token is not None and command[1] == token:
            token = None
        elif command and token is None and command[1] == "stop-commands":
            token = line.strip().partition("::stop-commands::")[2]
        elif token is None and (command or ANYWHERE.search(line) or BUILDKITE.match(line)):
            found.append(line)
    return found
