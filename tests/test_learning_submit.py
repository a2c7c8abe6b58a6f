"""The last cell of an exercise notebook, in a real kernel: what is saved is graded, and what that one says of it."""

from __future__ import annotations

import html
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fill
import psutil
import pytest
from conftest import ROOT, Grader
from kernels import started

from grader.course import Course, build
from grader.course.exercises import GRADING
from grader.learning import submit

LESSON = "01_small"
WRONG = "def loss(x):\n    return (x**2).sum()\n"  # its misconception is known
ENDLESS = "def double(x):\n    while True:\n        pass\n"
LAST = "from grader.learning import grade\n\ngrade()"
Message = dict[str, Any]


class Kernel:
    """A kernel as JupyterLab starts one for the notebook at `path`."""

    def __init__(self, path: Path | None, package: Path = ROOT) -> None:
        variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        variables |= {"PYTHONPATH": str(package)} | ({"JPY_SESSION_NAME": str(path)} if path is not None else {})
        folder = path.parent if path is not None else package
        self.running = ExitStack()
        self.manager, self.client = self.running.enter_context(started(variables, folder))

    def begin(self, source: str, cell: str = "") -> str:
        """Ask for a cell to be run; the id of the request."""
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,  # or a request that arrives soon after an error is aborted
        }
        message = self.client.session.msg("execute_request", content, metadata={"cellId": cell} if cell else {})
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def messages(self, request: str) -> Iterator[Message]:
        """What comes of it, until it has run."""
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") == request:
                if message["content"].get("execution_state") == "idle":
                    return
                yield message

    def run(self, source: str, cell: str = "") -> str:
        """Run a cell; what then stands below it, as text. What is HTML says the same."""
        shown: dict[object, str] = {}
        for message in self.messages(self.begin(source, cell)):
            content = message["content"]
            if message["msg_type"] in ("display_data", "update_display_data"):
                data = content["data"]
                shown[content["transient"].get("display_id")] = data["text/plain"]
                if "text/html" in data:
                    _say_the_same(data["text/html"], data["text/plain"])
            elif message["msg_type"] == "stream":
                shown[len(shown)] = f"{content['name']}: {content['text']}"
            elif message["msg_type"] == "error":
                shown[len(shown)] = f"{content['ename']}: {content['evalue']}"
        return "\n".join(shown.values())

    def close(self) -> None:
        self.running.close()


def _say_the_same(page: str, plain: str) -> None:
    words = html.unescape(re.sub(r"<[^>]*>", " ", page)).split()
    for line in plain.splitlines():
        said = re.split(r": (?=\d)", line)[0]
        assert " ".join(said.split()).lstrip("✓◐○✗! ") in " ".join(words)


@pytest.fixture(scope="module")
def course(built: Callable[[str], Path], grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("grade") / "course"
    shutil.copytree(built("small"), root, ignore=shutil.ignore_patterns("work"))
    assert grader("--course", root, "lab", "--no-open").returncode == 0
    return root


@pytest.fixture(scope="module")
def own(course: Path) -> Path:
    """The learner's copy."""
    return course / "work" / LESSON / f"{LESSON}.ipynb"


@pytest.fixture(scope="module")
def lab(own: Path) -> Iterator[Kernel]:
    """One kernel of the learner's copy, its setup run."""
    kernel = Kernel(own)
    assert kernel.run(cell(own, "setup"), "setup") == ""
    yield kernel
    kernel.close()


def cell(path: Path, name: str) -> str:
    return next("".join(one["source"]) for one in json.loads(path.read_text())["cells"] if one["id"] == name)


def answer(course: Path, path: Path, **answers: str) -> dict[str, str]:
    """Save a notebook with these answers, the others being right: double, mean, total."""
    right = {exercise.id: exercise.reference for exercise in Course(course).lesson(LESSON).exercises}
    found = {**right, **{f"small-{name}": source for name, source in answers.items()}}
    fill.write(fill.fill(path, found), path)
    return found


def test_the_last_cell_is_locked_and_gives_no_points(own: Path) -> None:
    last = json.loads(own.read_text())["cells"][-1]
    said = last["metadata"]["nbgrader"]
    assert (last["id"], said["locked"], said["grade"], said["solution"]) == (GRADING, True, False, False)
    assert "".join(last["source"]).endswith(LAST)
    assert "".join(last["source"]).startswith("# Save first (Ctrl+S)")


def test_what_is_missing_is_shown_by_exercise(course: Path, own: Path, lab: Kernel) -> None:
    markup = "def double(x):\n    raise ValueError('<b>no</b> <script>no')\n"
    stub = cell(course / "exercises" / LESSON / f"{LESSON}.ipynb", "small-total")
    answer(course, own, double=markup, mean=WRONG, total=stub)
    rows = lab.run(cell(own, GRADING), GRADING).splitlines()
    assert rows[:2] == ["✗ Double: 0 of 3, not yet", "    Doubles one and two."]
    assert rows[2].endswith("<b>no</b> <script>no")
    rows = rows[rows.index("✗ A loss: 0 of 3, not yet") - 1 :]
    assert rows[1] == "✗ A loss: 0 of 3, not yet"
    assert rows[2] == "    Gives five for one and three."
    assert rows[3].startswith("    The result is 10")
    clue = 'It would explain why "Gives five for one and three" fails (see line 2 of the answer).'
    assert rows[4] == f"    Perhaps: Sums where a mean is asked for. {clue}"
    assert rows[5].endswith(": 0 of 3, not started")
    assert rows[-2] == "0 of 9 points."
    assert re.fullmatch(rf"Graded: work/{LESSON}/{LESSON}\.ipynb, saved at [\d:]{{8}}, \d+ s before\.", rows[-1])


def test_what_was_run_and_not_saved_is_named_until_it_is_saved(course: Path, own: Path, lab: Kernel) -> None:
    sources = answer(course, own)
    lab.run(sources["small-double"], "small-double")  # the text that was saved
    lab.run(WRONG, "small-mean")
    lab.run("1 + 1", "scratch")
    lab.run("step = 2", "new")
    lab.run("def double(x):\n    ...", "small-double-values")  # a check's cell is the course's
    said = lab.run(LAST, GRADING).splitlines()
    assert said[:2] == ["✓ Double: 3 of 3", "✓ A loss: 3 of 3"]
    assert said[-3:-1] == [
        "9 of 9 points.",
        "! “A loss”, the cell that binds `step` were run after unsaved changes. Save (Ctrl+S) and run this cell again.",
    ]
    own.touch()
    assert unsaved(lab, own) == []
    kept = json.loads((course / "work" / ".jaxercise.json").read_text())["graded"][LESSON]
    assert kept["small-double"] == [3, 3], "the map of the course has moved"


def unsaved(lab: Kernel, own: Path) -> list[str]:
    """What the kernel names as run and not saved; the question binds nothing itself."""
    module = "__import__('grader.learning.submit').learning.submit"
    request, found = lab.begin(f"{module}.unsaved_cells({module}.read_saved({module}.Path({str(own)!r})))"), ""
    for message in lab.messages(request):
        if message["msg_type"] == "execute_result":
            found = message["content"]["data"]["text/plain"]
    return list(map(str, json.loads(found.replace("'", '"'))))


def test_without_ids_a_cell_is_known_by_what_it_binds(own: Path, lab: Kernel) -> None:
    """VS Code tells ids of its own."""
    own.touch()
    time.sleep(0.05)
    sources = ("def loss(x):\n    return 1", "%%time\ndef double(x):\n    return 7", "%timeit -n1 -r1 1", "1 +")
    for number, source in enumerate(sources):
        lab.run(source, f"vscode-notebook-cell:/x#W{number}")
    several = "the cell that binds `loss`"  # two exercises ask for it
    assert unsaved(lab, own) == [several, "small-double"]
    lab.run(cell(own, "small-double"))
    assert unsaved(lab, own) == [several], "the last run of it counts"
    own.touch()


def test_interrupting_ends_all_that_was_started(course: Path, own: Path, lab: Kernel, moments: random.Random) -> None:
    answer(course, own, double=ENDLESS)
    # grader check, what it forks from, the examiner, and what runs the answer; as VS Code interrupts a kernel
    interrupt(lab, 4, moments, lambda top: top.send_signal(signal.SIGINT))
    assert lab.run("print('alive')") == "stdout: alive\n"


def interrupt(kernel: Kernel, least: int, moments: random.Random, stop: Callable[[psutil.Process], object]) -> None:
    """Begin to grade, interrupt the kernel once so many processes are at it, and see all of them end."""
    top = psutil.Process(kernel.manager.provisioner.process.pid)
    request, said, started = kernel.begin(LAST, GRADING), "", []
    for message in kernel.messages(request):
        if message["msg_type"] in ("display_data", "update_display_data"):
            said = message["content"]["data"]["text/plain"]
            if not started and len(top.children(recursive=True)) >= least:
                time.sleep(moments.uniform(0, 0.5))
                started = top.children(recursive=True)
                stop(top)
    assert top.children() == [], "what was started first has ended, and not in its own time"
    assert said == "Stopped. Nothing was graded. Run this cell again to grade."
    assert len(started) >= least
    assert psutil.wait_procs(started, timeout=20)[1] == []


def test_without_a_notebook_one_line_says_how(own: Path) -> None:
    """As in nbclient, nbconvert and nbgrader; nothing is started, and nothing is said on stderr."""
    kernel = Kernel(None)
    try:
        told = kernel.run(f"import os; os.chdir({str(own.parent)!r})\n{LAST}", GRADING)
        assert told == f"stdout: Nothing is graded here. Run in a terminal: grader check {LESSON}\n"
        told = kernel.run(f"os.environ.update(JPY_SESSION_NAME={str(own)!r}, NBGRADER_EXECUTION='autograde')\n{LAST}")
        assert told.startswith("stdout: Nothing is graded here.")
        del_ = "del os.environ['NBGRADER_EXECUTION'], os.environ['JPY_SESSION_NAME']"
        gone = own.with_name("gone.ipynb")
        told = kernel.run(f"{del_}; __vsc_ipynb_file__ = {str(gone)!r}\n{LAST}")
        assert told.startswith(f"{gone} does not exist.")
    finally:
        kernel.close()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("gone", None, ".* does not exist. If you renamed or moved it, restore its name"),
        ("half", '{"cells": [', "half.ipynb is incomplete on disk, .* Save it"),
        ("list", "[]", "list.ipynb is incomplete on disk"),
        ("empty", "", "empty.ipynb is incomplete on disk"),
        (
            "copy",
            '{"cells": [], "metadata": {"jaxercise": {"lesson": "01_small"}}}',
            "called copy.ipynb, but only 01_small.ipynb is graded",
        ),
    ],
)
def test_what_is_no_notebook_to_grade_gets_a_sentence(
    tmp_path: Path, name: str, content: str | None, says: str
) -> None:
    path = tmp_path / f"{name}.ipynb"
    if content is not None:
        path.write_text(content)
    with pytest.raises(submit.NotGradable, match=says):
        submit.read_saved(path)


def test_a_course_that_is_broken_or_a_grader_that_is(course: Path, tmp_path: Path) -> None:
    """The public checks are judged where the course's text is at fault; a grader that ends gets a sentence."""
    broken = shutil.copytree(course, tmp_path / "broken", ignore=shutil.ignore_patterns("build"))
    text = broken / "solutions" / f"{LESSON}.py"
    text.write_text(text.read_text().replace('answer="small-double"', 'answer="smalldouble"'))
    package = tmp_path / "package"
    shutil.copytree(ROOT / "grader", package / "grader", ignore=shutil.ignore_patterns("__pycache__"))
    own = broken / "work" / LESSON / f"{LESSON}.ipynb"
    answer(course, own)
    kernel = Kernel(own, package)
    try:
        said = kernel.run(LAST, GRADING).splitlines()
        assert said[0] == "✓ Double: 1 of 1 check"
        assert said[-3].startswith(
            "3 of 3 checks in this notebook pass. 3 hidden checks are not available here and did not run"
        )
        assert said[-2].startswith("Hidden checks did not run here: ")
        (package / "grader" / "cli" / "app.py").write_text("raise RuntimeError('no grader today')\n")
        said = kernel.run(LAST, GRADING).splitlines()
        assert said == [
            "`grader check` ended without a result: RuntimeError: no grader today. "
            f"Run it in a terminal for details: grader check {LESSON}"
        ]
    finally:
        kernel.close()


def test_in_a_bundle_the_checks_that_are_there_are_judged(
    course: Path, grader: Grader, tmp_path: Path, moments: random.Random
) -> None:
    bundle = tmp_path / "bundle"
    assert grader("--course", course, "bundle", "--out", bundle).returncode == 0
    own = bundle / "exercises" / LESSON / f"{LESSON}.ipynb"
    answer(course, own, mean=WRONG)
    kernel = Kernel(own, bundle)
    try:
        said = kernel.run(cell(own, GRADING), GRADING).splitlines()
        answer(course, own, double=ENDLESS)
        # What runs the checks, and the kernel in which it does; as Jupyter interrupts one.
        interrupt(kernel, 2, moments, lambda top: kernel.manager.interrupt_kernel())
    finally:
        kernel.close()
    assert said[0] == "✗ A loss: 0 of 1 check, not yet"
    assert said[-4:-2] == ["✓ Double: 1 of 1 check", "✓ Another loss: 1 of 1 check"]
    absent = "3 hidden checks are not available here and did not run. Your instructor's grader runs them."
    assert said[-2:-1] == [f"2 of 3 checks in this notebook pass. {absent}"]
    assert said[-1].startswith(f"Graded: {LESSON}.ipynb, saved")


def test_checks_of_an_overlay_that_are_not_here_are_promised_to_nobody(course: Path, own: Path, tmp_path: Path) -> None:
    (tmp_path / "solutions").mkdir()
    (tmp_path / "course.toml").write_text(f'extends = "{course}"\n')
    hidden = '"""Is ours."""\ncompare(ask(double, 3.0), 6.0)\n'
    text = "".join(f'# %% hidden="small-double" name="ours-{n}" points=1\n{hidden}' for n in range(4))
    (tmp_path / "solutions" / f"{LESSON}.py").write_text(text)
    build.build(Course(tmp_path))
    released = (tmp_path / "exercises" / LESSON / f"{LESSON}.ipynb").read_text()
    assert "hidden ones too" not in released
    assert "hidden checks too" not in released
    assert "grader check" not in released.replace("python -m grader.checks", "")
    # As a learner has it, who has the public course.
    before = own.read_text()
    own.write_text(released)
    answer(course, own)
    kernel = Kernel(own)
    try:
        said = kernel.run(cell(own, GRADING), GRADING).splitlines()
    finally:
        kernel.close()
        own.write_text(before)
    assert said[-2] == (
        "4 checks of this notebook were not run, because this course does not contain small-double-ours-0, "
        "small-double-ours-1, small-double-ours-2 and others. Your instructor's course does."
    )


def test_the_document_and_the_lines(course: Path, own: Path, grader: Grader, tmp_path: Path) -> None:
    """And what a learner writes into the last cell counts for nothing."""
    answer(course, own, mean=WRONG)
    notebook = json.loads(own.read_text())
    notebook["cells"][-1]["source"] = "raise SystemExit\n"
    changed, without = tmp_path / "changed" / own.name, tmp_path / "without" / own.name
    fill.write(notebook, changed)
    fill.write({**notebook, "cells": notebook["cells"][:-1]}, without)
    found = []
    for path in (changed, without):
        done = grader("--course", course, "check", path, "--json", tmp_path / "result.json")
        assert done.returncode == 1
        lines = done.stderr.splitlines()
        assert lines[:2] == ["✓ small-double  3 of 3", "✗ small-mean  0 of 3"]
        document = json.loads((tmp_path / "result.json").read_text())
        assert document["version"] == 1
        [result] = document["results"]
        assert (result["learner"], result["score"], result["notes"]) == ("you", 6, [])
        found.append([(check["id"], check["status"], check["points"]) for check in result["checks"]])
    assert found[0] == found[1]
    done = grader("--course", course, "check", own, "--json", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"The result cannot be written to {tmp_path}.")
