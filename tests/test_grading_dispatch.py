"""Which worker gets which batch: each notebook gets one result, whatever happens to the workers."""

from __future__ import annotations

import random
from pathlib import Path

from grader.grading.batch import Entry
from grader.grading.dispatch import GIVE_UP_AFTER, MOST_BYTES, SLOW_S, Dispatcher, batches


def entries(count: int, lesson: str = "01_small") -> list[Entry]:
    return [Entry(Path(f"{number}.ipynb"), f"learner-{number}", lesson) for number in range(count)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_is_of_one_lesson_and_of_limited_size() -> None:
    mixed = [*entries(5), *entries(3, "02_other")]
    assert [len(one.entries) for one in batches(mixed, 4)] == [4, 1, 3]
    large = batches(entries(3), 4, size=lambda entry: MOST_BYTES // 2 + 1)
    assert [len(one.entries) for one in large] == [1, 1, 1]
    assert [entry for one in batches(mixed, 4) for entry in one.entries] == mixed


def test_batches_of_a_lost_worker_go_to_another_one() -> None:
    work = Dispatcher(batches(entries(6), 2))
    first, second = work.take("a"), work.take("a")
    assert work.lose("a") == []
    taken = {work.take("b"), work.take("b"), work.take("b")}
    assert {first, second} < taken
    assert all(work.finish("b", batch) for batch in taken if batch)
    assert work.finished


def test_a_notebook_that_loses_every_worker_is_given_up_and_costs_no_other() -> None:
    """Workers are lost whenever they grade learner-3."""
    work = Dispatcher(batches(entries(8), 4))
    graded, given_up, worker = list[str](), list[str](), 0
    while not work.finished:
        worker += 1
        while (batch := work.take(str(worker))) is not None:
            if any(entry.learner == "learner-3" for entry in batch.entries):
                given_up += [entry.learner for one in work.lose(str(worker)) for entry in one.entries]
                break
            assert work.finish(str(worker), batch)
            graded += [entry.learner for entry in batch.entries]
    assert given_up == ["learner-3"]
    assert sorted(graded) == sorted(entry.learner for entry in entries(8) if entry.learner != "learner-3")
    assert worker < 2 * GIVE_UP_AFTER + 2


def test_an_idle_worker_repeats_what_another_is_slow_with_and_the_first_results_count() -> None:
    clock = Clock()
    work = Dispatcher(batches(entries(2), 1), clock)
    slow, fast = work.take("slow"), work.take("fast")
    assert fast is not None
    clock.now = 1.0
    assert work.finish("fast", fast)
    assert work.take("fast") is None, "it is not slow yet"
    clock.now = SLOW_S + 1
    assert work.take("fast") is slow
    assert slow is not None
    assert work.take("third") is None, "two have it"
    assert work.finish("fast", slow)
    assert work.finished
    assert not work.finish("slow", slow), "its results come too late"


def test_what_a_worker_refuses_is_graded_elsewhere() -> None:
    work = Dispatcher(batches(entries(1)))
    batch = work.take("refuses")
    assert batch is not None
    work.give_back("refuses", batch)
    assert work.take("other") is batch
    assert batch.losses == 0


def test_nothing_is_lost_and_nothing_counts_twice(moments: random.Random) -> None:
    clock, workers = Clock(), [f"w{number}" for number in range(5)]
    work = Dispatcher(batches(entries(200), 8), clock)
    counted: list[str] = []
    while not work.finished:
        clock.now += moments.expovariate(1)
        worker = moments.choice(workers)
        held = work.held(worker)
        kind = moments.random()
        if held and kind < 0.5:
            batch = moments.choice(held)
            if work.finish(worker, batch):
                counted += [entry.learner for entry in batch.entries]
        elif kind < 0.53:
            counted += [entry.learner for batch in work.lose(worker) for entry in batch.entries]
        elif held and kind < 0.6:
            work.give_back(worker, moments.choice(held))
        elif len(held) < 2:
            work.take(worker)
    assert sorted(counted) == sorted(entry.learner for entry in entries(200))
