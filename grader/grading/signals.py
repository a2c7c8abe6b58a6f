"""Ctrl-C and its like: the first one stops grading in good order, and the order is not disturbed by a second."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A person, or the machine, asked the command to stop. No fault: nothing that deals with faults may take it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it SIGINT and SIGTERM raise `Stopped`, once; after that the command goes to its end undisturbed.

    One that is ignored, as a shell has it for what runs in its background, stays so. For the main thread of a command
    that ends when this is left by an exception.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    heard = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, stop) for one in heard}
    yield
    for one in heard:
        signal.signal(one, before[one])
