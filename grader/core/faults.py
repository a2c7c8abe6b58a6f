"""Faults as types: which side is at fault decides what may be stored, so no caller reads it from a message."""

from __future__ import annotations


class Fault(Exception):
    """A process of ours, or one that runs learners' code, did not answer as it should; `message` is a clause about it.

    `kind` is "crashed", "timeout", "flooded", "memory", "broken" (the executor of an answer's program ended) or
    "refused" (no process can be started on this machine).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class GraderFault(Exception):
    """The grader or the course is at fault: no verdict on a learner, so no points may be stored for one."""


class UnconfinedError(GraderFault):
    """Only resource limits would confine learners' code here, and the caller did not allow that; the text says so."""


class ZygoteEnded(BaseException):
    """The process that all others are forked from has ended: this one can judge nothing any more, and another will.
    It is no `Exception`, since nothing that turns faults into verdicts may catch it."""
