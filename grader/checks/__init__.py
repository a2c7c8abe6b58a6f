"""What check cells say, and what a learner's notebook imports."""

from grader.checks import devices, inputs
from grader.checks.compare import compare, require
from grader.checks.counting import counted
from grader.checks.devices import skip
from grader.checks.kernel import install
from grader.checks.outcomes import CheckFailed, NotAttempted, Skipped
from grader.checks.verbs import Program, ask, error, program

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
