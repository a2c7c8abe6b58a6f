"""The confinement level that this machine supports, in sentences, and how to get the next level."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from grader.core.faults import Fault
from grader.doctor.finding import Finding
from grader.sandbox.confine import LEVELS
from grader.sandbox.process import AT_MOST, ConfinementReport, Zygote

WHAT = {
    "full": "namespaces, Landlock, seccomp and limits",
    "namespaces": "namespaces, seccomp and limits, without Landlock",
    "landlock": "Landlock, seccomp and limits, without namespaces",
    "limits": "limits alone: a submission can read your files and use the network",
}
MACOS = "macOS cannot confine a process like this. Grade in a Linux container or virtual machine."
DOCKER = (
    "In Docker, start the container as root with "
    "`--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined`."
)
UBUNTU = "On Ubuntu 24.04, runners too: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`."
DEBIAN = "On Debian: `sudo sysctl -w kernel.unprivileged_userns_clone=1`."
NONE_LEFT = "User namespaces are switched off: `sudo sysctl -w user.max_user_namespaces=10000`."
ROOT = "Grade as root, or on a kernel that lets every user make user namespaces."
LANDLOCK = "Use Linux 6.2 or newer, with `landlock` in the list `/sys/kernel/security/lsm`."
SECCOMP = "Install libseccomp (on Debian and Ubuntu: `sudo apt-get install libseccomp2`) and pyseccomp."


def finding() -> Finding:
    """How learners' processes are confined here, as a process that was started finds it."""
    try:
        zygote = Zygote.start([])
    except (Fault, OSError, ValueError) as problem:
        mend = f"unset {AT_MOST}" if isinstance(problem, ValueError) else ""
        return Finding("stops", f"Nothing can be graded: {str(problem).rstrip('.')}.", mend)
    confined = zygote.confined
    zygote.stop()
    return Finding("fine" if confined.level == LEVELS[0] else "costs", report(confined))


def report(confined: ConfinementReport) -> str:
    """Returns what `grader doctor` prints."""
    lines = [f"Confinement of learners' processes: {confined.level} ({WHAT[confined.level]})."]
    if confined.same_user:
        lines.append(f"They run as the same user as the grader: {confined.same_user}.")
    lines += [f"{level} is refused: {confined.refused[level]}." for level in LEVELS if level in confined.refused]
    return "\n".join(lines + advice(confined))


def warning(confined: ConfinementReport) -> str | None:
    """One sentence for below the best level, for those who grade others' notebooks."""
    if confined.level == LEVELS[0]:
        return None
    return f"Learners' processes are confined by {WHAT[confined.level]}; `grader doctor` says how to get more."


def advice(confined: ConfinementReport, system: str = sys.platform, root: Path = Path("/")) -> list[str]:
    """How to get the next level on this machine; nothing where it has the best."""
    reasons = confined.refused
    if confined.level == LEVELS[0] or not reasons:
        return []
    if system != "linux":
        return [MACOS]
    if any("seccomp" in reason for reason in reasons.values()):
        return [SECCOMP]
    if confined.level == "namespaces" or "landlock" in reasons.get("landlock", ""):
        return [LANDLOCK]
    found = [DOCKER] if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")) else []
    for name, bad, text in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", UBUNTU),
        ("kernel/unprivileged_userns_clone", "0", DEBIAN),
        ("user/max_user_namespaces", "0", NONE_LEFT),
    ):
        with suppress(OSError):
            found += [text] if (root / "proc/sys" / name).read_text().strip() == bad else []
    return found or [ROOT]
