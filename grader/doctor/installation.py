"""The Python environment that `grader` runs in: the `.venv` of this checkout and up to date, or another one."""

from __future__ import annotations

import runpy
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from grader.core.layout import SOURCE
from grader.doctor.finding import Finding

CHECKOUT = SOURCE


def checkout() -> Path | None:
    """The checkout that this code lies in; None where it was installed without one."""
    return CHECKOUT if (CHECKOUT / "tools" / "environment.py").is_file() else None


def is_ours(place: Path) -> bool:
    """Whether this Python is that of the checkout's own `.venv`."""
    return Path(sys.prefix).resolve() == (place / ".venv").resolve()


def repair(place: Path | None) -> str:
    """The command that puts what is missing into this environment."""
    if (Path(sys.prefix) / "conda-meta").is_dir():
        return "conda env update --prune --file environment.yml"
    if place is None:
        return f"{shlex.quote(sys.executable)} -m pip install --upgrade jaxercise"
    locks = shlex.quote(str(place / "requirements.lock"))
    return f"{shlex.quote(sys.executable)} -m pip install -r {locks}"


def environment(place: Path) -> Finding:
    """Whether `.venv` is what the locks say; `make setup` is what makes it so."""
    venv = place / ".venv"
    # The set-up's own questions: it has to run on an old Python without this package, so it cannot be a part of it.
    tool: dict[str, Any] = runpy.run_path(str(place / "tools" / "environment.py"))
    stamp = tool["stamped"](venv)
    make = f"make -C {shlex.quote(str(place))} setup"
    if not is_ours(place):
        if stamp:
            text = f"`grader` runs in {sys.prefix}, and `make` uses {venv}: their versions may differ."
            return Finding("costs", text, f"source {shlex.quote(str(venv / 'bin' / 'activate'))}")
        return Finding("fine", f"Environment: {sys.prefix}; there is no .venv in {place}.")
    if not stamp:
        return Finding("costs", f"{venv} is unfinished: its set-up was stopped, and packages may be missing.", make)
    if stamp.get("place") != str(place):
        text = f"{venv} was made in {stamp.get('place')}: its commands hold that path, and start what lies there."
        return Finding("costs", text, make)
    if stamp != tool["wanted"](place, tool["choose"](None, stamp)):
        text = f"{venv} is older than the versions that this checkout pins: lessons and checks were tried with those."
        return Finding("costs", text, make)
    return Finding("fine", f"Environment: {venv}, up to date.")


def command() -> Finding | None:
    """Which `grader` this terminal finds; None where nothing is to be said."""
    own = Path(sys.executable).parent
    found = shutil.which("grader")
    activate = f"source {shlex.quote(str(own / 'activate'))}"
    if (Path(sys.prefix) / "conda-meta").is_dir():
        activate = f"conda activate {shlex.quote(sys.prefix)}"
    if found is None:
        return Finding("fine", f"No `grader` is on this terminal's PATH; `{activate}` puts it there.")
    if Path(found).parent.resolve() == own.resolve() or Path(found).resolve() == (own / "grader").resolve():
        return None
    text = (
        f"`grader`, typed in this terminal, is {found}, and not that of {own}: it may be another version, or program."
    )
    return Finding("costs", text, activate)


def course_of_another(root: Path) -> Finding | None:
    """Where a course brings a grader, and another one runs."""
    if root == CHECKOUT or not (root / "grader" / "__init__.py").is_file():
        return None
    text = f"The course in {root} brings its own grader, and that of {CHECKOUT} runs: its checks may ask for another."
    make = f"make -C {shlex.quote(str(root))} setup"
    return Finding("costs", text, f"{make} && source {shlex.quote(str(root / '.venv' / 'bin' / 'activate'))}")
