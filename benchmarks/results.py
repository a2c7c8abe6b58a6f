"""Replaces a section of benchmarks/RESULTS.md and leaves the others unchanged."""

from __future__ import annotations

import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def report(title: str, doc: str | None, lines: list[str]) -> None:
    """Write the section `title`: a module's `doc` without its first line, the date, the machine and `lines`."""
    about = (doc or "").partition("\n\n")[2].strip()
    put(title, [about, "", f"{date.today().isoformat()}: {machine()}", "", *lines])


def put(title: str, lines: list[str], path: Path = RESULTS) -> None:
    """Write `lines` under the heading `## title`, in the place of the section with this title, or at the end."""
    introduction, *parts = (path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n").split("\n## ")
    parts = [part.strip() for part in parts]
    own = "\n".join([title, "", *lines]).strip()
    places = [i for i, part in enumerate(parts) if part.partition("\n")[0] == title]
    if places:
        parts[places[0]] = own
    else:
        parts.append(own)
    path.write_text("\n\n## ".join([introduction.strip(), *parts]) + "\n", encoding="utf-8")


def machine() -> str:
    """The processor, the operating system and the versions of this measurement."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "optax", "nbgrader"))
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, {versions}."
