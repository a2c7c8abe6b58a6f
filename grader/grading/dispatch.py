"""Assignment of batches of notebooks to workers of a cluster: each batch ends once, whatever happens to a worker."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from grader.core.notebook import MAX_BYTES
from grader.grading.batch import Entry

MOST = (
    8  # notebooks of a batch: what a lost worker costs is a few seconds, and what a batch costs is a few milliseconds
)
MOST_BYTES = 8 << 20  # so that batches in progress take little memory of the scheduler
SPLIT_AFTER, GIVE_UP_AFTER = 2, 5  # lost workers: then a batch is split, and then a single notebook is given up
SLOW_S, SLOW_FACTOR = 30.0, 4.0  # a batch that takes longer than this, and than so many medians, is repeated


@dataclass(eq=False)
class Batch:
    """Notebooks of one lesson. `running` are the workers that have it, and since when; `losses` counts those of them
    that were lost while they graded it."""

    entries: tuple[Entry, ...]
    running: dict[str, float] = field(default_factory=dict)
    losses: int = 0
    done: bool = False


def batches(entries: Iterable[Entry], most: int = MOST, size: Callable[[Entry], int] | None = None) -> list[Batch]:
    """Returns batches in the order of `entries`; `size` is the bytes of a notebook, by default those of its file."""
    found: list[list[Entry]] = []
    bytes_ = 0
    for entry in entries:
        own = (size or notebook_size)(entry)
        if not found or found[-1][0].lesson != entry.lesson or len(found[-1]) == most or bytes_ + own > MOST_BYTES:
            found.append([])
            bytes_ = 0
        found[-1].append(entry)
        bytes_ += own
    return [Batch(tuple(one)) for one in found]


def notebook_size(entry: Entry) -> int:
    """Returns the bytes of a notebook's file that are read at most."""
    try:
        return min(os.lstat(entry.path).st_size, MAX_BYTES)
    except OSError:
        return 0


class Dispatcher:
    """Batches that wait, and those that workers have. Workers are known by their address."""

    def __init__(self, todo: Iterable[Batch], clock: Callable[[], float] = time.monotonic) -> None:
        self.waiting, self.running, self._clock = deque(todo), list[Batch](), clock
        self._seconds: deque[float] = deque(maxlen=100)  # that the last batches took

    @property
    def finished(self) -> bool:
        return not self.waiting and not self.running

    def held(self, worker: str) -> list[Batch]:
        """Returns the batches that a worker has, the oldest first."""
        return sorted((one for one in self.running if worker in one.running), key=lambda one: one.running[worker])

    def take(self, worker: str) -> Batch | None:
        """Returns the next batch for a worker. If none waits, an idle worker gets one that another is slow with."""
        if self.waiting:
            batch = self.waiting.popleft()
            self.running.append(batch)
        elif self.held(worker) or (slow := self._slow()) is None:
            return None
        else:
            batch = slow
        batch.running[worker] = self._clock()
        return batch

    def _slow(self) -> Batch | None:
        most = max(SLOW_S, SLOW_FACTOR * statistics.median(self._seconds or [0.0]))
        alone = [one for one in self.running if len(one.running) == 1]
        first = min(alone, key=lambda one: min(one.running.values()), default=None)
        return first if first is not None and self._clock() - min(first.running.values()) > most else None

    def finish(self, worker: str, batch: Batch) -> bool:
        """Notes that a worker has graded a batch; returns whether these are its first results, so that they count."""
        if worker in batch.running:
            self._seconds.append(self._clock() - batch.running.pop(worker))
        if batch.done:
            return False
        batch.done = True
        if batch in self.running:
            self.running.remove(batch)
        elif batch in self.waiting:
            self.waiting.remove(batch)  # its worker was thought to be lost
        return True

    def give_back(self, worker: str, batch: Batch) -> None:
        """Lets another worker grade a batch that this one did not start, or refused."""
        batch.running.pop(worker, None)
        if not batch.done and not batch.running and batch in self.running:
            self.running.remove(batch)
            self.waiting.appendleft(batch)

    def lose(self, worker: str) -> list[Batch]:
        """Notes that a worker was lost. The oldest of its batches may be why, so it is split after some losses.

        Returns the batches that are given up: of a single notebook, with which `GIVE_UP_AFTER` workers were lost.
        """
        given_up = []
        for place, batch in enumerate(self.held(worker)):
            batch.losses += place == 0
            self.give_back(worker, batch)
            if batch.running or batch.losses < SPLIT_AFTER:
                continue
            if len(batch.entries) > 1:
                self.waiting.remove(batch)
                batch.done = True
                self.waiting.extendleft(Batch((entry,), losses=1) for entry in reversed(batch.entries))
            elif batch.losses >= GIVE_UP_AFTER:
                self.waiting.remove(batch)
                batch.done = True
                given_up.append(batch)
        return given_up
