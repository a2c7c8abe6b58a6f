"""Which versions are installed, against what the course declares and what is pinned; torch, which may be missing."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from grader.doctor.finding import Finding

TAUGHT = ("jax", "jaxlib", "flax", "optax")
LOCKS = ("requirements.lock", "requirements-torch.lock")
_RANGE = re.compile(r"([\w.-]+?)\s*>=\s*([\w.]+)\s*(?:;\s*sys_platform\s*==\s*'(\w+)')?$")
_PIN = re.compile(r"([\w.-]+)==([^\s;]+)")


def installed(name: str) -> str | None:
    """The version of a package here, or None where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def number(version: str) -> tuple[int, ...]:
    """A version as far as two of them are compared here: 0.10.2 and 0.10.2+cpu are the same, zeros at the end count
    for nothing."""
    parts = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def ranges(checkout: Path) -> dict[str, str]:
    """The lowest version of each package that pyproject.toml asks for on this system."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {}
    for text in project["dependencies"]:
        name, lowest, system = _RANGE.match(text).groups()  # type: ignore[union-attr]  # the tests hold it to this form
        if system in (None, sys.platform):
            found[name] = lowest
    return found


def pins(checkout: Path) -> dict[str, str]:
    """What the locks pin; where a marker tells Pythons apart, the last."""
    text = "\n".join((checkout / name).read_text(encoding="utf-8") for name in LOCKS)
    return dict(_PIN.findall(text))


def versions(checkout: Path, ours: bool, repair: str) -> Finding:
    """Python, JAX and its kin. `ours`: the environment is the `.venv` that `make` made from the pins, by `repair` to be
    had again."""
    pinned = pins(checkout)
    there = {name: installed(name) for name in ranges(checkout)}
    said = ", ".join(f"{name} {installed(name)}" for name in TAUGHT)
    python = "Python {}.{}.{}".format(*sys.version_info[:3])
    if missing := sorted(name for name, version in there.items() if version is None):
        return Finding("stops", f"Not installed: {', '.join(missing)}. What needs them will not start.", repair)
    low = {name: lowest for name, lowest in ranges(checkout).items() if number(there[name] or "") < number(lowest)}
    if low:
        listed = ", ".join(f"{name} {there[name]} (needed: {lowest} or newer)" for name, lowest in sorted(low.items()))
        return Finding("stops", f"Too old: {listed}. Lessons and checks use what these versions lack.", repair)
    others = _others(there, pinned)
    if ours and others:
        text = f"Not the pinned versions: {others}. Lessons and checks were tried with the pinned ones."
        return Finding("costs", text, repair)
    if others:
        return Finding("fine", f"{python}, {said}: new enough, though not all are the versions that were tried.")
    return Finding("fine", f"{python}, {said}: the pinned versions.")


def _others(there: Mapping[str, str | None], pinned: Mapping[str, str]) -> str:
    both = {name: version for name, version in there.items() if name in pinned and version is not None} | {
        "jaxlib": installed("jaxlib") or "none"
    }
    return ", ".join(
        f"{name} {version} (pinned: {pinned[name]})"
        for name, version in both.items()
        if name in pinned and number(version) != number(pinned[name])
    )


def torch() -> Finding:
    """torch and torchvision, and which lessons miss them."""
    found = {name: installed(name) for name in ("torch", "torchvision")}
    if not found["torch"]:
        text = "No torch: lesson 11 goes without it, lesson 12 needs it (`make setup TORCH=cpu`), no other uses it."
        return Finding("fine", text)
    if not found["torchvision"]:
        text = f"torch {found['torch']} is here without torchvision: lesson 11 takes its way without torch."
        return Finding("costs", text, f"{sys.executable} -m pip install -r requirements-torch.lock")
    return Finding("fine", f"torch {found['torch']}, torchvision {found['torchvision']}, for lessons 11 and 12.")


def accelerators_installed() -> list[str]:
    """The plugins of JAX that are installed for accelerators, such as jax-cuda12-plugin."""
    names = {distribution.name or "" for distribution in metadata.distributions()}
    return sorted(name for name in names if re.fullmatch(r"jax[-_](cuda|rocm)\d+[-_]plugin|libtpu", name))
