"""Verbs of check cells, and what a learner's notebook imports from here."""

import sys

from grader.checks import devices, inputs, native
from grader.checks.compare import case, compare, require
from grader.checks.devices import skip
from grader.checks.outcomes import CheckFailed, NotAttempted, Skipped
from grader.checks.verbs import Program, ask, counted, error, program

if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
    from grader.checks.kernel import install

    install()

__all__ = [
    "CheckFailed",
    "NotAttempted",
    "Program",
    "Skipped",
    "ask",
    "case",
    "compare",
    "counted",
    "devices",
    "error",
    "inputs",
    "native",
    "program",
    "require",
    "skip",
]
