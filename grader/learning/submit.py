"""In the last cell of an exercise notebook: grades the notebook as it is saved, in a process of its own."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

from grader.learning import grading_process, saved_notebook


def grade() -> None:
    """Grade the notebook that this runs in, as it was saved last, and show what each exercise earned.

    Where the course is at hand, hidden checks are judged too, confined, as `grader check` does; else only the checks in
    the notebook. Where nothing says which notebook this is (nbclient, nbconvert, nbgrader, a script), one line says how
    it is graded, and nothing is started. Interrupting the kernel ends all that was started. Raises nothing.
    """
    path = saved_notebook.path()
    if path is None:
        print(f"Nothing is graded here. In a terminal: {_command()}")
        return
    from IPython.display import display

    shown = display({"text/plain": f"Grading {path.stem} ..."}, raw=True, display_id=True)
    try:
        bundle = _graded(path, lambda text: shown.update({"text/plain": text}, raw=True))
    except (saved_notebook.NotSaved, grading_process.NotGradable) as problem:
        bundle = {"text/plain": str(problem)}
    except KeyboardInterrupt:
        bundle = {"text/plain": "Stopped. Nothing was graded; run this cell again when you like."}
    except OSError as problem:  # no process, no folder for what it writes
        bundle = {"text/plain": f"Nothing was graded: {problem.strerror}. Mend that, then run this cell again."}
    shown.update(bundle, raw=True)


def _graded(path: Path, show: Callable[[str], None]) -> dict[str, str]:
    from grader.learning.result_view import verdict

    notebook = saved_notebook.read(path)
    unsaved, began = saved_notebook.unsaved(notebook), time.time()
    at = time.strftime("%H:%M:%S", time.localtime(notebook.when))

    def tell(judged: str) -> None:
        show(f"Grading {path.stem} as saved at {at} ... {time.time() - began:.0f} s\n{judged}".strip())

    judged = grading_process.judge(path, tell)
    return verdict(judged, notebook, unsaved, f"at {at}, {_ago(began - notebook.when)} before").bundle()


def _ago(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"


def _command() -> str:
    """What grades a notebook in a terminal: of the folder's, if there is one in it that is called as it."""
    here = Path.cwd()
    lesson = here.name if (here / f"{here.name}.ipynb").is_file() else "NN_topic"
    whole = importlib.util.find_spec("grader.cli") is not None
    return f"{'grader check' if whole else 'python -m grader.checks'} {lesson}"
