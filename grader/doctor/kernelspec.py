"""Which Python a notebook's kernel is, as the JupyterLab of this environment finds it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

from grader.doctor.finding import Finding
from grader.doctor.probe import BackgroundProbe

KERNEL = "python3"  # what the course's notebooks name
# jupyter_client takes its own Python where a kernel is called by one of these names alone.
OWN_NAMES = {"python", "python{}".format(*sys.version_info), "python{}.{}".format(*sys.version_info)}


def kinds() -> BackgroundProbe:
    """Ask Jupyter for the kernels that it finds."""
    return BackgroundProbe("-m", "jupyter", "kernelspec", "list", "--json")


def kernel(asked: BackgroundProbe) -> Finding:
    """Whether notebooks run in this environment; a kernel of another one has other packages, or none."""
    printed, complaint = asked.told()
    again = f"{shlex.quote(sys.executable)} -m ipykernel install --sys-prefix"
    try:
        one = json.loads(printed)["kernelspecs"][KERNEL]
        place, python = Path(one["resource_dir"]), str(one["spec"]["argv"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        why = f" Jupyter says: {complaint}" if complaint else ""
        return Finding("stops", f"JupyterLab finds no kernel `{KERNEL}`: no notebook can be run.{why}", again)
    found = shutil.which(python) or ("" if os.path.sep in python else python)
    if python in OWN_NAMES or Path(python).parent.resolve() == Path(sys.executable).parent.resolve():
        return Finding("fine", f"Kernel of notebooks: {python if os.path.sep in python else sys.executable}.")
    what = f"{python}, and not {sys.executable}" if found else f"{python}, which is gone"
    text = f"Kernel of notebooks: {what}; {place} says so.\n"
    text += "Packages and their versions are other ones there, if there are any: imports fail, or checks do."
    inside = Path(sys.prefix).resolve() in place.resolve().parents
    aside = place.parent.parent / f"{place.name}-aside"  # beside the folder of kernels, where Jupyter does not look
    return Finding("stops", text, again if inside else f"mv {shlex.quote(str(place))} {shlex.quote(str(aside))}")
