"""Findings about the Python environment that `grader` runs in: its place, packages, torch, the notebooks' kernel."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from grader.core.layout import SOURCE
from grader.course import Course

TAUGHT = ("jax", "jaxlib", "flax", "optax")
PROJECT = "pyproject.toml"
LOCKS = ("requirements.lock", "requirements-torch.lock")
KERNEL = "python3"  # what the course's notebooks name
# jupyter_client takes its own Python where a kernel is called by one of these names alone.
OWN_NAMES = {"python", "python{}".format(*sys.version_info), "python{}.{}".format(*sys.version_info)}
CONDA = (Path(sys.prefix) / "conda-meta").is_dir()
MARKS = {"fine": "✓", "costs": "!", "stops": "✗"}
PATIENCE_S = 60.0
MAX_COMPLAINT = 300  # characters


@dataclass(frozen=True)
class Finding:
    """One part that was examined, with a command that fixes it. Its grade is "fine", "costs" (it works with a
    disadvantage) or "stops" (something cannot work)."""

    grade: Literal["fine", "costs", "stops"]
    text: str
    fix: str = ""

    def lines(self) -> list[str]:
        """Returns the lines to print: the mark first, the lines below it indented as far."""
        text = self.text.splitlines() + ([f"To fix it: {self.fix}"] if self.fix else [])
        return [f"{MARKS[self.grade] if i == 0 else ' '} {line}" for i, line in enumerate(text)]


class BackgroundProbe(subprocess.Popen[str]):
    """A Python process that answers one question: it runs while others do, and a hang or crash in it ends nothing else.
    It is killed at the end of the `with` block at the latest."""

    def __init__(self, *words: str) -> None:
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH", "")]))
        # Asking what devices there are should not take all memory of a GPU.
        env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": path}
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        super().__init__([sys.executable, *words], env=env, text=True, errors="replace", **streams)

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()

    def answer(self) -> tuple[str, str]:
        """Returns what it printed, and its last line on stderr; "" for what it did not print."""
        try:
            out, complaints = self.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "", f"it did not answer within {PATIENCE_S:.0f} s"
        lines = complaints.strip().splitlines()
        return out, lines[-1][:MAX_COMPLAINT] if lines else ""


def checkout() -> Path | None:
    """Returns the checkout that contains this code; None where it was installed without one."""
    return SOURCE if (SOURCE / "tools" / "environment.py").is_file() else None


def is_ours(place: Path) -> bool:
    """Returns whether this Python is that of the checkout's own `.venv`."""
    return Path(sys.prefix).resolve() == (place / ".venv").resolve()


def repair(place: Path | None) -> str:
    """Returns the command that installs what is missing in this environment."""
    if CONDA:
        return "conda env update --prune --file environment.yml"
    if place is None:
        return f"{quote(sys.executable)} -m pip install --upgrade jaxercise"
    return f"{quote(sys.executable)} -m pip install -r {quote(str(place / LOCKS[0]))}"


def environment(place: Path) -> Finding:
    """Whether `.venv` is what the locks say; `make setup` is what makes it so."""
    venv = place / ".venv"
    # The set-up's own questions: it has to run on an old Python without this package, so it cannot be a part of it.
    tool: dict[str, Any] = runpy.run_path(str(place / "tools" / "environment.py"))
    stamp = tool["stamped"](venv)
    if not is_ours(place):
        if stamp:
            text = f"`grader` runs in {sys.prefix}, but `make` uses {venv}. Their versions may differ."
            return Finding("costs", text, f"source {quote(str(venv / 'bin' / 'activate'))}")
        return Finding("fine", f"Environment: {sys.prefix}. There is no .venv in {place}.")
    if not stamp:
        text = f"{venv} is incomplete. Its setup was stopped, and packages may be missing."
    elif stamp.get("place") != str(place):
        text = (
            f"{venv} was created in {stamp.get('place')}. Its commands contain that path and start the programs there."
        )
    elif stamp != tool["wanted"](place, tool["choose"](None, stamp)):
        text = f"{venv} is older than the versions that this checkout pins. Lessons are tested with the pinned ones."
    else:
        return Finding("fine", f"Environment: {venv}, up to date.")
    return Finding("costs", text, f"make -C {quote(str(place))} setup")


def command() -> Finding | None:
    """Which `grader` this terminal finds; None where it is this one."""
    own, found = Path(sys.executable).parent, shutil.which("grader")
    activate = f"conda activate {quote(sys.prefix)}" if CONDA else f"source {quote(str(own / 'activate'))}"
    if found is None:
        return Finding("fine", f"`grader` is not on the PATH of this terminal. `{activate}` adds it.")
    if Path(found).parent.resolve() == own.resolve() or Path(found).resolve() == (own / "grader").resolve():
        return None
    text = f"In this terminal, `grader` is {found}, not the one in {own}. "
    return Finding("costs", f"{text}It may be another version or program.", activate)


def course_of_another(root: Path) -> Finding | None:
    """Where a course brings a grader, and another one runs."""
    if root == SOURCE or not (root / "grader" / "__init__.py").is_file():
        return None
    text = f"The course in {root} contains its own grader, but the one in {SOURCE} runs. Its checks may need the other."
    make = f"make -C {quote(str(root))} setup"
    return Finding("costs", text, f"{make} && source {quote(str(root / '.venv' / 'bin' / 'activate'))}")


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(checkout: Path, file: str) -> dict[str, Requirement]:
    """Returns what pyproject.toml or a lock asks for on this Python and system, by canonical name."""
    text = (checkout / file).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if file == PROJECT:
        lines = tomllib.loads(text)["project"]["dependencies"]
    found = map(Requirement, lines)
    return {canonicalize_name(one.name): one for one in found if one.marker is None or one.marker.evaluate()}


def _outside(versions: dict[str, str], wanted: dict[str, Requirement], phrase: str) -> str:
    """The versions that a requirement excludes, and what it asks for; builds such as +cpu count as equal."""
    return ", ".join(
        f"{name} {version} ({phrase.format(next(iter(wanted[name].specifier)).version)})"
        for name, version in sorted(versions.items())
        if name in wanted and not wanted[name].specifier.contains(version, prereleases=True)
    )


def versions(checkout: Path, ours: bool, repair: str) -> Finding:
    """Python, JAX and its kin, against what `checkout` declares and pins; is it `ours`, made from the pins?"""
    ranges, pins = requirements(checkout, PROJECT), requirements(checkout, LOCKS[0]) | requirements(checkout, LOCKS[1])
    found = {name: installed(name) for name in {*ranges, "jaxlib"}}
    if missing := sorted(name for name in ranges if found[name] is None):
        return Finding("stops", f"Not installed: {', '.join(missing)}. Programs that need them cannot start.", repair)
    present = {name: version or "0" for name, version in found.items()}
    if low := _outside(present, ranges, "needed: {} or newer"):
        return Finding("stops", f"Too old: {low}. Lessons and checks use newer features.", repair)
    others = _outside(present, pins, "pinned: {}")
    if ours and others:
        text = f"Not the pinned versions: {others}. Lessons and checks are tested with the pinned ones."
        return Finding("costs", text, repair)
    taught = ", ".join(f"{name} {installed(name)}" for name in TAUGHT)
    verdict = "new enough, but not all are the tested versions" if others else "the pinned versions"
    return Finding("fine", "Python {}.{}.{}, ".format(*sys.version_info[:3]) + f"{taught}: {verdict}.")


def torch(course: Course | None) -> Finding:
    """torch and torchvision, and which lessons of `course` import them; an unindented import cannot do without."""
    from grader.lms.bundle import USES_TORCH  # takes a second, which the probes take too

    torch, torchvision = installed("torch"), installed("torchvision")
    files = {lesson: [course.script(lesson), *course.sources(lesson)] for lesson in course.ids} if course else {}
    texts = {i: b"\n".join(path.read_bytes() for path in paths if path.is_file()) for i, paths in files.items()}
    using = [lesson for lesson, text in texts.items() if USES_TORCH.search(text)]
    needing = [lesson for lesson in using if re.search(rb"^(import|from) torch\b", texts[lesson], re.MULTILINE)]
    loading = [lesson for lesson in using if b".loaders" in texts[lesson]]
    if not torch:
        optional = [lesson for lesson in using if lesson not in needing]
        uses = [f"optional in {_named(optional)}"] if optional else []
        uses += [f"needed in {_named(needing)} (`make setup TORCH=cpu`)"] if needing else []
        nowhere = "imported by no lesson" if course is not None else "optional in most lessons"
        return Finding("fine", f"No torch: {', '.join(uses) or nowhere}.")
    if not torchvision and loading:
        text = f"torch {torch} is installed without torchvision. Stand-ins replace it in {_named(loading)}."
        return Finding("costs", text, f"{sys.executable} -m pip install -r {LOCKS[1]}")
    vision = f", torchvision {torchvision}" if torchvision else " without torchvision"
    return Finding("fine", f"torch {torch}{vision}{f', for {_named(using)}' if using else ''}.")


def _named(lessons: list[str]) -> str:
    """Such as `lessons 01 and 11`."""
    *most, last = (lesson.partition("_")[0] for lesson in lessons)
    return f"lessons {', '.join(most)} and {last}" if most else f"lesson {last}"


def accelerators() -> list[str]:
    """Returns the plugins of JAX that are installed for accelerators, such as jax-cuda12-plugin."""
    names = {distribution.name or "" for distribution in metadata.distributions()}
    return sorted(name for name in names if re.fullmatch(r"jax[-_](cuda|rocm)\d+[-_]plugin|libtpu", name))


def kernel(probe: BackgroundProbe) -> Finding:
    """Whether notebooks run in this environment; a kernel of another one has other packages, or none."""
    printed, complaint = probe.answer()
    again = f"{quote(sys.executable)} -m ipykernel install --sys-prefix"
    try:
        one = json.loads(printed)["kernelspecs"][KERNEL]
        place, python = Path(one["resource_dir"]), str(one["spec"]["argv"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        why = f" Jupyter prints: {complaint}" if complaint else ""
        return Finding("stops", f"JupyterLab finds no kernel `{KERNEL}`, so no notebook can run.{why}", again)
    if python in OWN_NAMES or Path(python).parent.resolve() == Path(sys.executable).parent.resolve():
        return Finding("fine", f"Kernel of notebooks: {python if os.path.sep in python else sys.executable}.")
    gone = os.path.sep in python and not shutil.which(python)
    what = f"{python}, which does not exist" if gone else f"{python} instead of {sys.executable}"
    text = f"Kernel of notebooks: {what}, set in {place}.\n"
    text += "Packages there are missing or have other versions, so imports or checks fail."
    inside = Path(sys.prefix).resolve() in place.resolve().parents
    aside = place.parent.parent / f"{place.name}-aside"  # beside the folder of kernels, where Jupyter does not look
    return Finding("stops", text, again if inside else f"mv {quote(str(place))} {quote(str(aside))}")
