"""The examinations of `grader doctor`, in the order in which their findings are printed."""

from __future__ import annotations

from collections.abc import Iterator

from grader.course import Course
from grader.doctor import confinement, hardware, installation, storage
from grader.doctor.finding import Finding


def examine(course: Course | None) -> Iterator[Finding]:
    """Examines this machine and its set-up, and `course` if there is one. Takes a few seconds; works offline."""
    with hardware.probe() as devices, installation.kernels() as kernels:  # slow ones, which run beside the rest
        checkout = installation.checkout()
        repair = installation.repair(checkout)
        if checkout is not None:
            yield installation.environment(checkout)
        yield from filter(None, [installation.command()])
        if checkout is not None:
            yield installation.versions(checkout, installation.is_ours(checkout), repair)
        yield installation.torch(course)
        if course is not None:
            yield storage.work(course.root)
            yield storage.disk(course.root)
            others = [installation.course_of_another(course.root), storage.file_system(course.root)]
            yield from filter(None, others)
        else:
            yield Finding("fine", "No course is here or above, so its folder was not looked at.")
        yield installation.kernel(kernels)
        yield hardware.memory()
        yield hardware.devices(devices, repair)
        yield confinement.finding()
