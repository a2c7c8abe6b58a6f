"""Lets `python -m grader` stand for the `grader` command."""

from grader.cli import main

if __name__ == "__main__":
    main()
