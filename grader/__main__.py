"""Entry point of the `grader` command, which is also `python -m grader`."""

from __future__ import annotations

import contextlib
import sys

from grader.sandbox.process import Zygote

GRADES = ("check", "watch", "grade")
ELSEWHERE = ("--platform", "--on", "--help")  # graded on other devices or machines, or not at all


def main() -> None:
    """Run the command. One that will grade begins to import JAX, in another process, before it does anything else."""
    command, *options = sys.argv[1:] or [""]
    if command in GRADES and not any(one.startswith(ELSEWHERE) for one in options):
        with contextlib.suppress(OSError):  # the command itself will start it then, and report the problem
            Zygote.early = Zygote.launch()
    try:
        from grader import cli

        cli.main()
    finally:
        if Zygote.early is not None:
            Zygote.early.stop(0)


if __name__ == "__main__":
    main()
