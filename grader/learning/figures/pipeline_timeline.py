"""Pipeline timeline: when each stage runs which pass, how long it waits, and how many micro-batches it stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grader.learning.figures.drawing import FONT, LETTER, MARGIN, Drawing
from grader.learning.figures.figure import Figure
from grader.learning.plots import FILLS, PAPER

Pass = tuple[str, int]  # "F" or "B", and the micro-batch
Order = Callable[[int, int, int], list[Pass]]
STAGES, COUNTS = (2, 4, 8), (1, 2, 4, 8, 16)  # offered beside the first choice
MOST = 32
FORWARD, BACKWARD = 1, 2  # time steps
WIDTH, HEIGHT = 22, 26  # pixels of a time step in the static picture


def gpipe(stage: int, stages: int, count: int) -> list[Pass]:
    """The passes of one stage in the order of GPipe: all forward passes first."""
    return [("F", m) for m in range(count)] + [("B", m) for m in reversed(range(count))]


def one_f_one_b(stage: int, stages: int, count: int) -> list[Pass]:
    """The passes of one stage in the order of 1F1B: each backward pass as early as possible."""
    ahead = min(stages - stage, count)
    order = [("F", m) for m in range(ahead)]
    for m in range(count):
        order += [("B", m)] + [("F", ahead + m)] * (ahead + m < count)
    return order


SCHEDULES: Mapping[str, Order] = {"GPipe": gpipe, "1F1B": one_f_one_b}


def pipeline(
    stages: int = 4, micro_batches: int = 6, schedule: str = "GPipe", schedules: Mapping[str, Order] = SCHEDULES
) -> Figure:
    """Shows a pipeline step by step and counts its bubble. A forward pass takes one time step and a backward pass two.

    Args:
        stages: number of stages to start with, 1 to 32.
        micro_batches: number of micro-batches to start with, 1 to 32.
        schedule: name of the schedule to start with, "GPipe" or "1F1B".
        schedules: other schedules: a dict from names to functions of (stage, stages, micro_batches), which return the
            passes of this stage in their order, such as `[("F", 0), ("B", 0)]`.

    Raises:
        ValueError: a number or a name is out of range, or a schedule never finishes.
    """
    for name, number in {"stages": stages, "micro_batches": micro_batches}.items():
        if not isinstance(number, int) or not 1 <= number <= MOST:
            raise ValueError(f"{name} is {number!r}. It can be a number from 1 to {MOST}.")
    if schedule not in schedules:
        raise ValueError(f"There is no schedule {schedule!r}. Choose from {', '.join(schedules)}.")
    all_stages, all_counts = sorted({*STAGES, stages}), sorted({*COUNTS, micro_batches})
    tables = {
        f"{name}|{s}|{m}": timeline(name, order, s, m)
        for name, order in schedules.items()
        for s in all_stages
        for m in all_counts
    }
    data: dict[str, Any] = {
        "title": "A pipeline, step by step",
        "stages": all_stages,
        "counts": all_counts,
        "schedules": list(schedules),
        "start": [schedule, stages, micro_batches],
        "durations": {"F": FORWARD, "B": BACKWARD},
        "fills": {"F": FILLS[0][0], "B": FILLS[1][0]},
        "tables": tables,
    }
    table = tables[f"{schedule}|{stages}|{micro_batches}"]
    alt = (
        f"Timeline of {schedule} with {stages} stages and {micro_batches} micro-batches. It ends after {table['end']} "
        f"time steps, of which each stage is idle in {table['idle'][0]}, {table['fraction']:.1%}. The stages store at "
        f"most {', '.join(map(str, table['stored']))} micro-batches."
    )
    return Figure("pipeline_timeline.js", data, alt, _picture(data, table))


def timeline(name: str, order: Order, stages: int, count: int) -> dict[str, Any]:
    """When each pass of each stage starts, if it waits for its input alone; and what follows from it.

    Returns:
        `passes`: for each stage a list of [pass, micro-batch, start]; `end`: when the last one ends; `idle`: time steps
        in which a stage waits; `fraction`: idle time of all stages / total time; `stored`: for each stage the largest
        number of micro-batches between their forward and their backward pass.
    """
    orders = [list(order(stage, stages, count)) for stage in range(stages)]
    wanted = {(kind, m) for kind in "FB" for m in range(count)}
    if any(len(one) != len(wanted) or set(one) != wanted for one in orders):
        raise ValueError(f"The schedule {name} does not run each pass once on every stage.")
    ends: dict[tuple[int, str, int], int] = {}
    clocks, passes, places = [0] * stages, [[] for _ in orders], [0] * stages  # type: ignore[var-annotated]
    while any(place < len(one) for place, one in zip(places, orders, strict=True)):
        moved = False
        for stage, one in enumerate(orders):
            while places[stage] < len(one):
                kind, m = one[places[stage]]
                before = (stage - 1, "F", m) if kind == "F" else (stage + 1, "B", m)
                if kind == "B" and stage == stages - 1:
                    before = (stage, "F", m)
                if before[0] >= 0 and before not in ends:
                    break
                start = max(clocks[stage], ends.get(before, 0))
                ends[stage, kind, m] = clocks[stage] = start + (FORWARD if kind == "F" else BACKWARD)
                passes[stage].append([kind, m, start])
                places[stage] += 1
                moved = True
        if not moved:
            raise ValueError(f"The schedule {name} never finishes: each stage waits for another one.")
    end = max(clocks)
    busy = count * (FORWARD + BACKWARD)
    return {
        "passes": passes,
        "end": end,
        "idle": [end - busy] * stages,
        "fraction": 1 - busy / end,
        "stored": [_most_stored(one) for one in orders],
    }


def _most_stored(order: list[Pass]) -> int:
    stored = most = 0
    for kind, _ in order:
        stored += 1 if kind == "F" else -1
        most = max(most, stored)
    return most


def _picture(data: dict[str, Any], table: dict[str, Any]) -> str:
    drawing, left = Drawing(), MARGIN + 8 * LETTER
    for stage, passes in enumerate(table["passes"]):
        y = MARGIN + stage * HEIGHT
        drawing.text(MARGIN, y + HEIGHT / 2 + FONT / 3, f"stage {stage}")
        drawing.box(left, y, table["end"] * WIDTH, HEIGHT, PAPER)
        for kind, m, start in passes:
            x, width = left + start * WIDTH, data["durations"][kind] * WIDTH
            drawing.box(x, y, width, HEIGHT, data["fills"][kind], f"{m}" if kind == "F" else f"{m}'")
    drawing.text(
        left, drawing.height + 1.5 * FONT, "n: forward pass of micro-batch n   n': backward pass   empty: idle"
    )
    return drawing.svg()
