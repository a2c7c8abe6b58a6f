"""Entry point of `python -m grader`, which is the `grader` command."""

from grader.cli import main

if __name__ == "__main__":
    main()
