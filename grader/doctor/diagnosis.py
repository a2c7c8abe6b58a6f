"""Diagnosis of the machine: all findings in the order they are printed; devices, memory, disks, confinement."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote

import psutil

from grader.core.faults import Fault
from grader.course import Course
from grader.doctor import installation
from grader.doctor.installation import BackgroundProbe, Finding
from grader.sandbox.confine import LEVELS
from grader.sandbox.process import AT_MOST, ConfinementReport, Zygote

CHOOSING = ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")  # variables that say which devices there are
PROBE = """
import json, jax
from grader.program.environment import simulate
simulate(8)  # lessons ask for as many
found = [[one.platform, one.device_kind] for one in jax.devices()]
print(json.dumps({"found": found, "simulated": len(jax.devices("cpu"))}))
"""
# Measured on two cores with jax 0.10.2: the kernel of lesson 18 held 0.97 GB at its highest, lesson 11 0.81 GB, lesson
# 16 0.45 GB. JupyterLab itself and a browser come on top, and so does grading: two examiners with their workers and
# executors held 0.58 GB of their own (lesson 05).
LESSON_GB, FREE_MEMORY_GB = 1.0, 2.0
# On the disk: compiled operations are kept below build/, and a notebook with pictures has megabytes.
FREE_DISK_GB, NEEDED_DISK_GB = 1.0, 0.1
WINDOWS = {"9p", "drvfs", "v9fs", "virtiofs"}  # as WSL shows Windows' own disks
ELSEWHERE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "webdav", "fuse.sshfs", "fuse.rclone"}
LEVEL_TEXTS = {
    "full": "namespaces, Landlock, seccomp and limits",
    "namespaces": "namespaces, seccomp and limits, without Landlock",
    "landlock": "Landlock, seccomp and limits, without namespaces",
    "limits": "only limits: a submission can read your files and use the network",
}
MACOS = "macOS cannot confine a process like this. Grade in a Linux container or virtual machine."
DOCKER = (
    "In Docker, start the container as root with "
    "`--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined`."
)
UBUNTU = "On Ubuntu 24.04 (also its CI runners): `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`."
DEBIAN = "On Debian: `sudo sysctl -w kernel.unprivileged_userns_clone=1`."
NONE_LEFT = "User namespaces are disabled: `sudo sysctl -w user.max_user_namespaces=10000`."
ROOT = "Grade as root, or on a kernel that allows every user to create user namespaces."
LANDLOCK = "Use Linux {} or newer, with `landlock` listed in `/sys/kernel/security/lsm`."
SECCOMP = "Install libseccomp (on Debian and Ubuntu: `sudo apt-get install libseccomp2`) and pyseccomp."


def examine(course: Course | None) -> Iterator[Finding]:
    """Examines this machine and its set-up, and `course` if there is one. Takes a few seconds; works offline."""
    listing = ("-m", "jupyter", "kernelspec", "list", "--json")
    with BackgroundProbe("-c", PROBE) as jax, BackgroundProbe(*listing) as jupyter:  # slow ones, beside the rest
        checkout = installation.checkout()
        repair = installation.repair(checkout)
        if checkout is not None:
            yield installation.environment(checkout)
        yield from filter(None, [installation.command()])
        if checkout is not None:
            yield installation.versions(checkout, installation.is_ours(checkout), repair)
        yield installation.torch(course)
        if course is not None:
            yield work(course.home)
            yield disk(course.home)
            yield from filter(None, [installation.course_of_another(course.home), file_system(course.home)])
        else:
            yield Finding("fine", "This folder is not in a course, so no course was checked.")
        yield installation.kernel(jupyter)
        yield memory()
        yield devices(jax, repair)
        yield confinement()


def devices(probe: BackgroundProbe, repair: str) -> Finding:
    """What JAX found when `probe` asked it. `repair` is the command that installs what is pinned."""
    printed, complaint = probe.answer()
    try:
        answer = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError):
        text = f"JAX does not start: {complaint or 'it ended without a message'}".rstrip(".")
        fix = next((f"unset {name}" for name in CHOOSING if os.environ.get(name)), repair)
        return Finding("stops", f"{text}. Every lesson needs it.", fix)
    real = [kind for backend, kind in answer["found"] if backend != "cpu"]
    simulated = f"{answer['simulated']} simulated CPU devices start, as many as lessons need."
    if real:
        kinds = ", ".join(f"{real.count(kind)} x {kind}" for kind in dict.fromkeys(real))
        return Finding("fine", f"Devices: {kinds}; {simulated}")
    plugins = installation.accelerators()
    if not plugins:
        return Finding("fine", f"Devices: {simulated} There is no GPU or TPU, and none is needed.")
    text = f"JAX was installed with {', '.join(plugins)}"
    if chosen := os.environ.get("JAX_PLATFORMS"):
        text += f", and JAX_PLATFORMS={chosen} restricts it to the CPU, where lessons run."
        return Finding("costs", text, "unset JAX_PLATFORMS")
    text += " but finds no such device, so lessons run on the CPU." + (f" JAX prints: {complaint}" if complaint else "")
    if any("cuda" in name for name in plugins):
        text += "\nIf `nvidia-smi` does not list the GPU either, its driver is missing. To continue without a GPU:"
    return Finding("costs", text, f"{sys.executable} -m pip uninstall -y {' '.join(plugins)}")


def memory() -> Finding:
    """Free memory, against what lessons were measured to take."""
    total, free = available_gb()
    there = f"{free:.1f} of {total:.1f} GB of memory are free"
    if free >= FREE_MEMORY_GB:
        return Finding("fine", f"Memory: {there}. A lesson takes up to {LESSON_GB:.0f} GB, and grading half as much.")
    text = f"Only {there}. A lesson takes up to {LESSON_GB:.0f} GB, and grading half as much in addition."
    text += "\nA kernel that ends without a message has run out of memory. Shut down kernels that you do not need"
    text += "\n(JupyterLab: Kernel > Shut Down All Kernels), close other programs, or list the largest processes:"
    return Finding("costs", text, "ps -axo rss,pid,comm | sort -rn | head")


def available_gb(cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Returns total and available memory in GB; in a container no more than it may use."""
    total, free, *_ = psutil.virtual_memory()
    for folder, limit_file, used_file in (
        (cgroup, "memory.max", "memory.current"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),  # where cgroups are of version 1
    ):
        limit = _number(folder / limit_file)
        if 0 < limit < total:
            # Files kept in memory until it is needed are counted as used, and free to be had.
            files = _number(folder / "memory.stat", "total_inactive_file", "inactive_file")
            total, free = limit, max(0, min(free, limit - _number(folder / used_file) + files))
    return total / 1e9, free / 1e9


def _number(path: Path, *names: str) -> int:
    """The number in a cgroup's file, or behind the first of these names that is there; 0 where there is none."""
    try:
        words = path.read_text().split()
        return int(next(words[words.index(name) + 1] for name in names if name in words) if names else words[0])
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def disk(root: Path) -> Finding:
    """Room for copies, compiled operations and what the learner makes."""
    free = shutil.disk_usage(root).free / 1e9
    if free >= FREE_DISK_GB:
        return Finding("fine", f"Disk: {free:,.0f} GB are free.")
    text = f"Only {free:.2f} GB are free on the disk of {root}. Notebooks cannot be saved on a full disk."
    fix = f"make -C {quote(str(root))} clean; pip cache purge"
    return Finding("costs" if free >= NEEDED_DISK_GB else "stops", text, fix)


def work(root: Path) -> Finding:
    """Whether the learner's copies can be made and saved: all of work/ is looked at, or the folder it will be in."""
    own = root / "work"
    if os.path.lexists(own) and not own.is_dir():
        text = f"{own} is not a folder, so `grader lab` cannot create your copies."
        return Finding("stops", text, f"mv {quote(str(own))} {quote(f'{own}-aside')}")
    top, below = (own, [*own.glob("*"), *own.glob("*/*.ipynb")]) if own.is_dir() else (root, [])
    for path in [top, *below]:
        if not path.is_symlink() and not os.access(path, os.W_OK):
            text = f"{path} is not writable, so your work there cannot be saved. "
            fix = f'sudo chown -R "$(id -un)" {quote(str(top))}'
            return Finding("stops", f"{text}It belongs to another user, such as root.", fix)
    return Finding("fine", f"Your copies: {own}, which is writable.")


def file_system(root: Path, release: str = "", mounts: Iterable[tuple[str, str]] = ()) -> Finding | None:
    """What is slow about where the course lies; by default with this machine's kernel, and places of file systems."""
    release = release or platform.release()
    mounts = mounts or [(one.mountpoint, one.fstype) for one in psutil.disk_partitions(all=True)]
    above = [(len(Path(place).parts), kind) for place, kind in mounts if Path(place) in (root, *root.parents)]
    kind = max(above, default=(0, ""))[1]
    inside = "microsoft" in release.lower()
    if inside and "wsl2" not in release.lower() and "microsoft-standard" not in release:
        text = "This is WSL 1, which is slow and cannot confine learners' code. Use WSL 2. In a Windows terminal:"
        return Finding("costs", text, f"wsl --set-version {quote(os.environ.get('WSL_DISTRO_NAME', 'NAME'))} 2")
    if inside and kind in WINDOWS:
        text = f"{root} is on a Windows disk. File access is many times slower there, and saves are noticed late."
        return Finding("costs", text, f"cp -r {quote(str(root))} ~/ && cd ~/{quote(root.name)} && make setup")
    if kind in ELSEWHERE:
        text = f"{root} is on a network disk ({kind}). Starting is slow, and saves are noticed late."
        return Finding("costs", text, f"cp -r {quote(str(root))} /a/folder/on/this/machine")
    return None


def confinement() -> Finding:
    """How learners' processes are confined here, as a process that was started finds it."""
    try:
        zygote = Zygote.start([])
    except (Fault, OSError, ValueError) as problem:
        fix = f"unset {AT_MOST}" if isinstance(problem, ValueError) else ""
        return Finding("stops", f"Nothing can be graded: {str(problem).rstrip('.')}.", fix)
    confined = zygote.confined
    zygote.stop()
    return Finding("fine" if confined.level == LEVELS[0] else "costs", confinement_report(confined))


def confinement_report(confined: ConfinementReport) -> str:
    """Returns what `grader doctor` prints about a level, with how to get the next one."""
    lines = [f"Confinement of learners' processes: {confined.level} ({LEVEL_TEXTS[confined.level]})."]
    if confined.same_user:
        lines.append(f"They run as the same user as the grader: {confined.same_user}.")
    lines += [f"{level} is not available: {confined.refused[level]}." for level in LEVELS if level in confined.refused]
    return "\n".join(lines + confinement_advice(confined))


def confinement_warning(confined: ConfinementReport) -> str | None:
    """One sentence for below the best level, for those who grade others' notebooks."""
    if confined.level == LEVELS[0]:
        return None
    return (
        f"Learners' processes are confined by {LEVEL_TEXTS[confined.level]}. `grader doctor` explains how to get more."
    )


def confinement_advice(confined: ConfinementReport, system: str = sys.platform, root: Path = Path("/")) -> list[str]:
    """How to get the next level on this machine; nothing where it has the best."""
    reasons = confined.refused
    if confined.level == LEVELS[0] or not reasons:
        return []
    if system != "linux":
        return [MACOS]
    if any("seccomp" in reason for reason in reasons.values()):
        return [SECCOMP]
    if confined.level == "namespaces":
        return [LANDLOCK.format("5.13")]
    if "landlock" in reasons.get("landlock", ""):  # without namespaces, it has to restrict truncation too
        return [LANDLOCK.format("6.2")]
    found = [DOCKER] if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")) else []
    for name, bad, text in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", UBUNTU),
        ("kernel/unprivileged_userns_clone", "0", DEBIAN),
        ("user/max_user_namespaces", "0", NONE_LEFT),
    ):
        with suppress(OSError):
            found += [text] if (root / "proc/sys" / name).read_text().strip() == bad else []
    return found or [ROOT]
