"""Vocabulary of check cells: the names that `grader.checks` gives them, by what each does.

A new verb is a name here, a function in `grader/checks/verbs.py` (or `compare.py`), and an export in
`grader/checks/__init__.py`; rules for authors, kernels and the guard of hidden messages read these sets.
"""

from __future__ import annotations

# They reach an answer. Their first argument is an answer's name or a probe.
REACHING = frozenset({"ask", "error", "program"})
# They judge. Position and keyword of the words that a learner reads, which a hidden check guards.
JUDGING = {"require": (1, "message"), "compare": (4, "label")}
# They draw inputs, or end a check.
DRAWING = frozenset({"inputs", "skip"})
# These belong to the grader's side: beside the answer, in a probe, they would mean something else, or nothing.
NOT_IN_PROBES = REACHING | JUDGING.keys() | DRAWING
# Only the answer's own process can report what these show, so a check that uses one is marked as observed.
SELF_REPORTING = frozenset({"counted", "make_jaxpr", "print_saved_residuals", "saved_residuals", "_cache_size"})
