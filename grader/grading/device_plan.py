"""Which lessons of a run are graded where: on the accelerator that was asked for, or on simulated CPU devices."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from grader.core.layout import EXAMINER
from grader.course import Course
from grader.grading.pool import Pool
from grader.sandbox.accelerators import ON_CPUS, Hardware

ON_AN_ACCELERATOR = 2  # examiners side by side: each has four processes, and each of these half a GB of the device


@dataclass(frozen=True)
class DeviceGroup:
    """Devices, the lessons graded on them, and how many of the devices one of these needs; `notes` say of lessons why
    they are here."""

    machine: Hardware
    lessons: tuple[str, ...]
    count: int = 1
    notes: dict[str, str] = field(default_factory=dict)

    def pool(self, opening: dict[str, Any], jobs: int | None, most: int, modules: Iterable[str]) -> Pool:
        """Examiners on these devices, for `most` notebooks."""
        about = {"machine": self.machine.to_json(), "notes": self.notes}
        if jobs is None and not self.machine.platform.is_cpu:
            jobs = ON_AN_ACCELERATOR
        where = self.machine.platform, self.count
        return Pool(EXAMINER, opening | about, cores(jobs, most), modules, *where)


def device_groups(course: Course, machine: Hardware, lessons: Iterable[str]) -> list[DeviceGroup]:
    """Where each of the lessons is graded. By the whole lesson: its cells share a process, its devices and its mesh."""
    needed = {lesson: course.lesson(lesson).devices for lesson in lessons}
    if machine.platform.is_cpu:
        return [DeviceGroup(machine, tuple(needed))] if needed else []
    here = {lesson: count for lesson, count in needed.items() if count <= machine.count}
    notes = {
        lesson: f"{lesson} needs {count} devices and this machine has {machine}: judged on {count} simulated CPU "
        "devices."
        for lesson, count in needed.items()
        if lesson not in here
    }
    found = [DeviceGroup(machine, tuple(here), max(here.values()))] if here else []
    return [*found, DeviceGroup(ON_CPUS, tuple(notes), notes=notes)] if notes else found


def cores(jobs: int | None, most: int) -> int:
    """How many processes to run side by side: as asked, else one for each core; never more than there is work."""
    return max(1, min(jobs or os.cpu_count() or 1, most))
