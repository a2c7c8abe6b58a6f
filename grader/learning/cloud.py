"""Notebooks on Colab, Kaggle and similar services, where a kernel has neither the package nor the notebook's file.

The first code cell of a notebook installs the package if it cannot be imported. It then calls `install`, which adds
missing dependencies without changing the platform's own packages, and `start`, which provides the lesson's files.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from grader.core import files
from grader.core.layout import COURSE_FILE, INSTALLED_COURSE, LEARNERS_COURSE, SOURCE, course_above, session_notebook
from grader.core.notebook import (
    Notebook,
    NotebookCell,
    Unreadable,
    grade_id,
    is_answer,
    nbgrader,
    read_complete,
    text,
)
from grader.core.symbols import defined, notebook_cell_names

PACKAGE_NAME = "jaxercise"
# The releases on the package index, newest first, and the oldest JAX that each runs with.
RELEASES = (("0.1.0", "0.10.2"),)
# Dependencies for JupyterLab, for `grader watch` and for profiles in TensorBoard. Platforms have a notebook server of
# their own, and installing these would replace packages that it uses.
NOT_IN_CLOUD = frozenset(
    "ipykernel ipympl ipython jupyter-server jupyterlab nbconvert notebook tensorboard tensorboard-plugin-profile "
    "watchfiles".split()
)
FIXED = ("jax", "jaxlib", "numpy")  # never replaced: the platform's accelerator libraries belong to them
TAUGHT = ("flax", "optax", "orbax-checkpoint")  # updated if the platform's version is older than this course
# If pip finds no solution with every installed package at its version, it may change any but these.
SERVER = (
    *("ipykernel", "ipython", "jupyter-client", "notebook", "pandas", "prompt-toolkit", "protobuf", "pyzmq"),
    *("requests", "scipy", "tensorflow", "torch", "tornado", "traitlets"),
)
IMPORTED_AS = {"scikit-learn": "sklearn", "orbax-checkpoint": "orbax.checkpoint", "ml-dtypes": "ml_dtypes"}
PICTURE = re.compile(r"!\[([^\]]*)\]\((?:\.\./)+images/([\w.-]+)\)|<img [^>]*?src=\"(?:\.\./)+images/([\w.-]+)\"[^>]*>")
TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
ADDED = "jaxercise-cloud"  # tag of the learner's own cells in the notebook that `save_answers` writes
LONGEST = 300  # characters of pip's last line

_lesson: str | None = None  # of this kernel's notebook, if this platform does not store the notebook here


class NotInstallable(Exception):
    """The package cannot run on this platform. The text states why and what to do."""

    def _render_traceback_(self) -> list[str]:  # in a notebook the text alone
        return [str(self)]


def platform() -> str | None:
    """Returns the name of the service that runs this kernel, or None."""
    if "COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules:
        return "Colab"
    return "Kaggle" if "KAGGLE_KERNEL_RUN_TYPE" in os.environ else None


def install() -> None:
    """Installs the dependencies that this platform lacks and prints what changed.

    Packages that are present stay as they are, except for those of `TAUGHT`. If this release requires a newer JAX, an
    older release is installed instead. Raises NotInstallable.
    """
    here, own = _versions(), _release()
    oldest = next(one.specifier for one in own if one.name == "jax")
    jax = here.get("jax")
    if jax is not None and not oldest.contains(jax, prereleases=True):
        return _install_older(jax, str(oldest))
    wanted = [one for one in own if not _has(one, here)]
    if wrong := [one for one in wanted if one.name in FIXED and one.name in here]:
        names = " and ".join(f"{one.name}{one.specifier}" for one in wrong)
        raise NotInstallable(f"{PACKAGE_NAME} requires {names}, but this platform has {here[wrong[0].name]}.")
    if wanted:
        _pip_with_pins(wanted, here)
    importlib.invalidate_caches()
    _add_user_site()
    now = _versions()
    added = [f"{name} {now[name]}" for name in sorted(now) if name not in here]
    changed = [name for name in sorted(now) if name in here and now[name] != here[name]]
    said = f"Installed {PACKAGE_NAME} {now.get(PACKAGE_NAME, '')}"
    count = "1 package" if len(added) == 1 else f"{len(added)} packages"
    said += f" and {count} that it requires: {', '.join(added)}." if added else "."
    said += "".join(f" Updated {name} from {here[name]} to {now[name]}." for name in changed)
    print(f"{said} JAX {'is' if jax is None else 'stays'} {now.get('jax')}.")
    if old := [name for name in changed if _imported(name)]:
        print(f"Restart the kernel before you continue, because it has imported the older {' and '.join(old)}.")


def _release() -> list[Any]:
    """The requirements of the installed release that notebooks need."""
    requirement = _packaging("requirements").Requirement
    found = [requirement(one) for one in metadata.requires(PACKAGE_NAME) or ()]
    found = [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [one for one in found if _plain(one.name) not in NOT_IN_CLOUD]


def _packaging(module: str) -> Any:
    try:
        return importlib.import_module(f"packaging.{module}")
    except ModuleNotFoundError:  # pip has a copy
        return importlib.import_module(f"pip._vendor.packaging.{module}")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _versions() -> dict[str, str]:
    """The installed packages. Of one that is installed twice, the version that Python imports."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        if one.metadata["Name"]:
            found.setdefault(_plain(one.metadata["Name"]), one.version)
    return found


def _has(one: Any, here: Mapping[str, str]) -> bool:
    """Whether a requirement needs no installation. Tools stay as they are, since the platform may depend on them."""
    name = _plain(one.name)
    if name not in (*FIXED, *TAUGHT):
        return name in here
    return name in here and bool(one.specifier.contains(here[name], prereleases=True))


def _imported(name: str) -> bool:
    return IMPORTED_AS.get(name, name.replace("-", "_")) in sys.modules


def _pip_with_pins(wanted: Iterable[Any], here: Mapping[str, str]) -> None:
    """Installs packages. The others keep their versions, or if that has no solution, those of `FIXED` and `SERVER`."""
    texts, names = [f"{one.name}{one.specifier}" for one in wanted], {_plain(one.name) for one in wanted}
    problem = ""
    for pinned in (set(here), {*FIXED, *SERVER}):
        with tempfile.TemporaryDirectory() as folder:
            pins = Path(folder) / "pins.txt"
            lines = [f"{name}=={here[name]}" for name in sorted(pinned & set(here) - names - {PACKAGE_NAME})]
            pins.write_text("\n".join(lines), encoding="utf-8")
            problem = _pip("--constraint", str(pins), *texts)
        if not problem:
            return
    raise NotInstallable(f"pip could not install what {PACKAGE_NAME} requires ({', '.join(texts)}): {problem}")


def _pip(*words: str) -> str:
    """Runs pip install; returns "" or the reason for which it failed."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    return "" if done.returncode == 0 else (lines or [f"status {done.returncode}"])[-1][:LONGEST]


def _add_user_site() -> None:
    """pip installs here if the system's folder is read-only. Python reads it only if it existed at the start."""
    if site.ENABLE_USER_SITE is not None and Path(site.getusersitepackages()).is_dir():
        site.addsitedir(site.getusersitepackages())


def _install_older(jax: str, wanted: str) -> None:
    """Installs the newest release that runs with this JAX, and lets it complete the installation."""
    version = _packaging("version").Version
    from_index = metadata.distribution(PACKAGE_NAME).read_text("direct_url.json") is None
    older = [name for name, oldest in RELEASES if from_index and version(oldest) <= version(jax)]
    if not older:
        raise NotInstallable(
            f"{PACKAGE_NAME} requires jax{wanted}, but this platform has JAX {jax}. To replace it, run\n"
            '    %pip install --upgrade jax    # on a GPU "jax[cuda12]", on a TPU "jax[tpu]"\n'
            "and restart the kernel. This replaces the platform's JAX."
        )
    if problem := _pip("--no-deps", f"{PACKAGE_NAME}=={older[0]}"):
        raise NotInstallable(f"pip could not install {PACKAGE_NAME} {older[0]}, the newest for JAX {jax}: {problem}")
    print(f"This platform has JAX {jax}, so {PACKAGE_NAME} {older[0]} is used.")
    for name in [name for name in sys.modules if name.partition(".")[0] == "grader"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    importlib.import_module("grader.learning.cloud").install()


def start(notebook: str) -> None:
    """Provides what belongs to a notebook where only the notebook was opened; elsewhere it does nothing.

    Writes the lesson's data files and a course.toml to the current folder, or to ~/jaxercise if that is read-only, and
    shows the notebook's pictures, because the platform does not resolve relative links. After this, `grade` grades the
    answers that ran in this kernel.

    Args:
        notebook: "notebooks/" or "exercises/" and the lesson's id.
    """
    global _lesson
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    place = platform()
    if place is None or shell is None or "NBGRADER_EXECUTION" in os.environ or session_notebook(shell.user_ns):
        return
    kind, _, lesson = notebook.partition("/")
    course = _installed_course()
    exercises = course / "exercises" / lesson
    opened = course / "notebooks" / f"{lesson}.ipynb" if kind == "notebooks" else exercises / f"{lesson}.ipynb"
    if not opened.is_file():
        print(f"{place}: the installed course does not contain {notebook}, so only public checks can run here.")
        return
    here = _writable_folder()
    data = [one for one in sorted(exercises.glob("*")) if one.is_file() and one.suffix != ".ipynb"]
    new = [one for one in data if not (here / one.name).exists()]
    for one in new:
        shutil.copyfile(one, here / one.name)
    _lesson = lesson if kind == "exercises" else None
    files_of_lesson = f" Added {', '.join(one.name for one in new)}." if new else ""
    print(f"{place}: your folder of the course is {here}.{files_of_lesson}")
    _show_pictures(opened, course)


def _installed_course() -> Path:
    return INSTALLED_COURSE if INSTALLED_COURSE.is_dir() else SOURCE


def _writable_folder() -> Path:
    """The current folder as a learner's folder of the course; ~/jaxercise takes its place if it is read-only."""
    here = Path.cwd()
    if not os.access(here, os.W_OK):
        here = Path.home() / PACKAGE_NAME
        here.mkdir(parents=True, exist_ok=True)
        os.chdir(here)
    if course_above(here) is None:
        files.write(here / COURSE_FILE, LEARNERS_COURSE, mode=0o644)
    return here


def _show_pictures(notebook: Path, course: Path) -> None:
    """Displays the pictures that a notebook of the course links to, in a fold."""
    from IPython.display import HTML, display

    shown: dict[str, str] = {}
    with contextlib.suppress(OSError, Unreadable):
        for cell in read_complete(notebook)["cells"]:
            for match in PICTURE.finditer(text(cell)) if cell["cell_type"] == "markdown" else ():
                alt = match[1] or next(iter(re.findall(r'alt="([^"]*)"', match[0])), "")
                shown.setdefault(match[2] or match[3], alt)
    parts = []
    for name, alt in shown.items():
        picture = course / "images" / name
        if picture.is_file() and picture.suffix in TYPES:
            data = f"data:{TYPES[picture.suffix]};base64,{b64encode(picture.read_bytes()).decode()}"
            parts.append(f'<p><b>{escape(name)}</b></p><p><img src="{data}" alt="{escape(alt)}" width="700"></p>')
    if parts:
        count = "1 picture" if len(parts) == 1 else f"{len(parts)} pictures"
        display(HTML(f"<details><summary>{count} of this notebook</summary>{''.join(parts)}</details>"))


class SavedAnswers(NamedTuple):
    """The notebook that the answers were written to, and sentences for the learner about what is graded."""

    path: Path
    remarks: tuple[str, ...]


def save_answers(shell: Any) -> SavedAnswers | None:
    """Writes the answers that ran in this kernel to the learner's copy of the exercises.

    Returns None if `start` has not provided the files of exercises, so if the notebook may have a file of its own.
    An answer cell is recognised by the names that it defines; the last cell that ran counts. Other cells that ran and
    define names are stored before the first answer that ran after them. Answers of earlier kernels stay.
    """
    if _lesson is None or shell is None:
        return None
    root = course_above(Path.cwd())
    if root is None:
        return None
    path = root / "work" / _lesson / f"{_lesson}.ipynb"
    if not path.is_file():
        package = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-P", "-m", "grader", "lab", "--no-open"]
        subprocess.run(
            command, cwd=root, capture_output=True, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": package},
        )  # fmt: skip
    try:
        notebook = read_complete(path)
    except (OSError, Unreadable):
        return None
    released = read_complete(_installed_course() / "exercises" / _lesson / path.name)
    stubs = {str(grade_id(cell)): frozenset(defined(text(cell))) for cell in released["cells"] if is_answer(cell)}
    number = merge_runs(notebook, stubs, [*shell.history_manager.input_hist_raw][1:])
    files.write(path, json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", mode=0o644)
    ran = "1 answer cell" if number == 1 else f"{number} answer cells"
    what = (
        f"{platform()} does not store this notebook where it can be read. The {ran} that ran in this kernel were graded"
    )
    return SavedAnswers(path, (f"{what}, with what earlier runs have stored in {path.name}.",))


def merge_runs(notebook: Notebook, asked: Mapping[str, frozenset[str]], sources: Iterable[str]) -> int:
    """Puts cells that ran into a notebook of the course.

    Args:
        notebook: the learner's copy, which is changed.
        asked: the names that each answer cell should define, by its id.
        sources: the texts of the cells, in the order in which they ran.

    Returns:
        The number of answers that ran.
    """
    cells: list[NotebookCell] = notebook["cells"]
    course = {text(cell).strip() for cell in cells if grade_id(cell) is not None and not is_answer(cell)}
    answers: dict[str, tuple[int, str]] = {}
    own: dict[frozenset[str], tuple[int, str]] = {}
    for when, source in enumerate(sources):
        binds = notebook_cell_names(source).binds
        if not binds or source.strip() in course:
            continue
        found = [(len(names & binds), name) for name, names in asked.items() if names & binds]
        if found:
            answers[max(found)[1]] = (when, source)
        else:
            own = {names: one for names, one in own.items() if not names <= binds} | {binds: (when, source)}
    for cell in cells:
        if is_answer(cell) and grade_id(cell) in answers:
            cell["source"] = answers[str(grade_id(cell))][1].splitlines(keepends=True)
    newer = {name for names in own for name in names}
    cells[:] = [c for c in cells if not (ADDED in _tags(c) and notebook_cell_names(text(c)).binds <= newer)]
    for number, (when, source) in enumerate(sorted(own.values())):
        following = {name for name, (then, _) in answers.items() if then > when}
        place = next((n for n, cell in enumerate(cells) if is_answer(cell) and grade_id(cell) in following), None)
        if place is not None:
            added: NotebookCell = {"cell_type": "code", "execution_count": None, "metadata": {"tags": [ADDED]}}
            added |= {"id": f"cloud-{len(cells)}-{number}", "outputs": [], "source": source.splitlines(keepends=True)}
            cells.insert(place, added)
    return len(answers)


def _tags(cell: NotebookCell) -> list[Any]:
    found = cell["metadata"].get("tags")
    return found if isinstance(found, list) and not nbgrader(cell) else []
