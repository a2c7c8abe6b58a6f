"""Everything that the doctor looks at, in the order in which it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grader.core.faults import Fault
from grader.doctor import confinement as confinement_module
from grader.doctor import hardware, installation, kernelspec, storage, versions
from grader.doctor.finding import Finding
from grader.doctor.probe import BackgroundProbe
from grader.sandbox.confine import LEVELS
from grader.sandbox.process import AT_MOST, Zygote


def examine(root: Path | None) -> Iterator[Finding]:
    """Look at this machine and its set-up, and at the course in `root` if there is one. A few seconds; offline."""
    with hardware.probe() as probe, kernelspec.kinds() as kinds:  # slow ones, which run while the rest is looked at
        yield from _examine(root, probe, kinds)


def _examine(root: Path | None, probe: BackgroundProbe, kinds: BackgroundProbe) -> Iterator[Finding]:
    place = installation.checkout()
    repair = installation.repair(place)
    if place is not None:
        yield installation.environment(place)
    yield from filter(None, [installation.command()])
    if place is not None:
        yield versions.versions(place, installation.is_ours(place), repair)
    yield versions.torch()
    if root is not None:
        yield storage.work(root)
        yield storage.disk(root)
        yield from filter(None, [installation.course_of_another(root), storage.file_system(root)])
    else:
        yield Finding("fine", "No course is here or above, so its folder was not looked at.")
    yield kernelspec.kernel(kinds)
    yield hardware.memory()
    yield hardware.devices(probe, repair)
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
    return Finding("fine" if confined.level == LEVELS[0] else "costs", confinement_module.report(confined))
