"""What feedback tells of one notebook is of no use in the next: inputs are drawn anew for every text of its cells."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grader.course import Course, filled

LESSON = "01_small"
Told = Callable[..., tuple[dict[str, Any], list[str]]]
# Right, and keeps what it is asked; the next answer raises all that was kept, in a public check.
SPY = """\
seen = []
def double(x):
    seen.append(np.asarray(x).tobytes().hex())
    return 2 * x
"""
TELLS = "def loss(x):\n    raise ValueError(seen)\n"
# Hard-codes the replies to all that was seen.
REPLAYS = """\
seen = []
replies = {known!r}
def double(x):
    seen.append(np.asarray(x).tobytes().hex())
    return 2 * x if seen[-1] in replies else x
"""


@pytest.fixture(scope="module")
def told(built, grader, tmp_path_factory) -> Told:
    """Grade one learner's notebook with this first answer: its results, and the inputs that its feedback tells."""
    root = Path(shutil.copytree(built("small"), tmp_path_factory.mktemp("course") / "small"))  # gets secrets of its own
    references = {exercise.id: exercise.reference for exercise in Course(root).lesson(LESSON).exercises}
    released = root / "exercises" / LESSON / f"{LESSON}.ipynb"
    secret = root / ".secret"

    def grade(double: str, learner: str = "one", salt: str = "salt") -> tuple[dict[str, Any], list[str]]:
        folder: Path = tmp_path_factory.mktemp("class")
        secret.write_text(salt)
        notebook = filled.fill(released, {**references, "small-double": double, "small-mean": TELLS})
        filled.write(notebook, folder / learner / LESSON / f"{LESSON}.ipynb")
        done = grader("--course", root, "grade", folder, "--force", "--json", folder / "results.json")
        assert done.returncode == 0, done.stderr
        [result] = json.loads((folder / "results.json").read_text())["results"]
        checks = {check["id"]: check for check in result["checks"]}
        [listed] = re.findall(r"raised ValueError: (\[.*?\])", checks["small-mean-example"]["message"])
        return checks, ast.literal_eval(listed)

    return grade


def test_an_answer_learnt_from_feedback_is_no_answer(told: Told) -> None:
    checks, inputs = told(SPY)
    assert checks["small-double-values"]["status"] == "passed"
    assert len(inputs) == 4  # the example, then three that are drawn
    checks, others = told(REPLAYS.format(known=inputs))
    assert checks["small-double-example"]["status"] == "passed"  # the same for all
    assert checks["small-double-values"]["status"] == "failed"
    assert set(inputs) & set(others) == {inputs[0]}


def test_inputs_depend_on_every_character_the_learner_and_the_secret(told: Told) -> None:
    first = told(SPY)[1]
    assert told(SPY)[1] == first  # a regrade of the same file is fair
    for changed in ({"double": SPY + " \n"}, {"learner": "two"}, {"salt": "other"}):
        assert set(told(**{"double": SPY} | changed)[1]) & set(first) == {first[0]}, changed
