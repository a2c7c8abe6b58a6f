"""Everything that the doctor looks at, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grader.machine import devices, environment, kernels, packages, places
from grader.machine.aside import Aside
from grader.machine.finding import Finding
from grader.sandbox import doctor
from grader.sandbox.confine import LEVELS
from grader.sandbox.process import AT_MOST, Zygote
from grader.sandbox.wire import Fault


def examine(root: Path | None) -> Iterator[Finding]:
    """Look at this machine and its set-up, and at the course in `root` if there is one. A few seconds; offline."""
    with devices.probe() as probe, kernels.kinds() as kinds:  # slow ones, which run while the rest is looked at
        yield from _examine(root, probe, kinds)


def _examine(root: Path | None, probe: Aside, kinds: Aside) -> Iterator[Finding]:
    place = environment.checkout()
    repair = environment.repair(place)
    if place is not None:
        yield environment.environment(place)
    yield from filter(None, [environment.command()])
    if place is not None:
        yield packages.versions(place, environment.is_ours(place), repair)
    yield packages.torch()
    if root is not None:
        yield places.work(root)
        yield places.disk(root)
        yield from filter(None, [environment.course_of_another(root), places.file_system(root)])
    else:
        yield Finding("fine", "No course is here or above, so its folder was not looked at.")
    yield kernels.kernel(kinds)
    yield devices.memory()
    yield devices.devices(probe, repair)
    yield confinement()


def confinement() -> Finding:
    """How learners' processes are confined here; sandbox/doctor.py has the words."""
    try:
        zygote = Zygote.start([])
    except (Fault, OSError, ValueError) as problem:
        mend = f"unset {AT_MOST}" if isinstance(problem, ValueError) else ""
        return Finding("stops", f"Nothing can be graded: {str(problem).rstrip('.')}.", mend)
    try:
        confined = zygote.confined
    finally:
        zygote.stop()
    return Finding("fine" if confined.level == LEVELS[0] else "costs", doctor.report(confined))
