"""What check cells say, and what a learner's notebook imports."""

from grader.checks import devices, inputs
from grader.checks.asking import Program, ask, error, program
from grader.checks.comparing import compare, require
from grader.checks.counting import counted
from grader.checks.devices import skip
from grader.checks.notebook import install
from grader.checks.outcomes import CheckFailed, NotAttempted, Skipped

install()

__all__ = [
    "CheckFailed",
    "NotAttempted",
    "Program",
    "Skipped",
    "ask",
    "compare",
    "counted",
    "devices",
    "error",
    "inputs",
    "program",
    "require",
    "skip",
]
