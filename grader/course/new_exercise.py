"""Writes the skeleton of an exercise: all that the rules ask for, with `FILL IN` where its author has to say it."""

from __future__ import annotations

import keyword
from pathlib import Path

from grader.core import symbols
from grader.course import overlay, percent, rules_parts
from grader.course.new_overlay import ScaffoldError
from grader.course.problems import Findings
from grader.course.tree import Course

TITLE = """\
# %% [markdown]
# # {number} · Exercises: {title}
# Run the setup, then each exercise: fill in its cell, run it, run the checks below it.
# Hidden checks run when you are graded; what they look at stands under **Judged**.

# %% setup
from grader.checks import ask, compare, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np

"""

SKELETON = '''\
# %% [markdown] task="{id}" stars=1 minutes=10 skills="{lesson}"
# ## FILL IN: what it is about, in a few words
# **Goal.** FILL IN: what to write, and what for, in a sentence or two.
#
# **Signature.** `{name}(x)`: FILL IN: what it takes and what it returns, with shapes and dtypes.
#
# **Example.** FILL IN: an input and its result, small enough to work out by hand.
#
# **Judged.** FILL IN: what the checks look at, such as the values for any length, or the program.
# **Not judged.** FILL IN: what learners are free in, such as speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# FILL IN: a question that leads the way
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# FILL IN: the tool to take, or the first step
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# FILL IN: all but the answer itself
#
# </details>


# %% answer="{id}"
def {name}(x):
    """FILL IN: what it takes and what it returns, in a line, with shapes."""
    ### BEGIN SOLUTION
    return x  # FILL IN: the answer, in at most 15 lines
    ### END SOLUTION


# %% check="{id}" name="example" points=1
"""FILL IN: the sentence that a learner reads, such as: The example of the task."""
{public}x = np.array([1, 2], np.float32)  # FILL IN: the input of the example
compare(ask({name}, x), x)  # FILL IN: its result in place of the last x, worked out by hand

# %% hidden="{id}" name="values" points=2
"""FILL IN: the sentence that a learner reads, such as: Right for any numbers."""
{hidden}

def by_hand(x):
    return x  # FILL IN: the result in plain NumPy, not by way of the answer


made = program({name}, np.zeros(5, np.float32))
for _ in range(3):
    x = inputs.rng().normal(size=5).astype(np.float32)
    compare(made.run(x), by_hand(x))

# %% [markdown] why="{id}"
# FILL IN: why the answer works, in a sentence or two. **Next:** FILL IN: a question that goes further


# %% wrong="{id}" because="FILL IN: the thought behind a wrong answer that people really give."
def {name}(x):
    return x  # FILL IN: that answer


# %% wrong="{id}" because="FILL IN: the thought behind another."
def {name}(x):
    return x  # FILL IN: that answer


# %% wrong="{id}" because="FILL IN: the thought behind a third."
def {name}(x):
    return x  # FILL IN: that answer


# %% right="{id}"
def {name}(x):
    return x  # FILL IN: the answer by another way
'''

# What the checks of the skeleton take from setup, and how each comes where setup has it not.
PUBLIC = ("ask", "compare", "np")
HIDDEN = ("compare", "inputs", "program", "np")


def add(course: Course, exercise: str, lesson: str) -> tuple[Path, int]:
    """Append the skeleton to the course's own text of `lesson`; the file, and the line where it begins.

    NotMade for an id or a lesson that cannot be, and for a file that cannot be written.
    """
    legal(course, exercise, lesson)
    path = course.solutions(lesson)
    try:
        before = path.read_text(encoding="utf-8").rstrip("\n") + "\n\n\n" if path.is_file() else ""
        if not course.sources(lesson):
            before = TITLE.format(number=lesson[:2], title=course.planned(lesson).title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(before + _skeleton(course, exercise, lesson), encoding="utf-8")
    except OSError as problem:
        raise ScaffoldError(f"{path} cannot be written: {problem.strerror}.") from None
    return path, before.count("\n") + 1


def legal(course: Course, exercise: str, lesson: str) -> None:
    """Refuse an id or a lesson that cannot be: NotMade says why."""
    if lesson not in course.ids:
        there = ", ".join(course.ids)
        raise ScaffoldError(
            f"There is no lesson {lesson}. Name one of {there}, or list it in {course.root}/course.toml."
        )
    if not rules_parts.ID.fullmatch(exercise) or exercise.split("-")[0] in rules_parts.RESERVED_WORDS:
        raise ScaffoldError(
            f"{exercise} is no legal id of an exercise. Use small letters and hyphens, as in vmap-pairwise."
        )
    owner = next((one for one in course.ids if exercise in course.exercise_ids(one)), None)
    if owner is not None:
        below = course.base is not None and exercise in course.base.exercise_ids(owner)
        more = (
            f" To add hidden checks to it, see docs/overlay.md of {course.base.root}." if below and course.base else ""
        )
        raise ScaffoldError(f"{exercise} is an exercise of {owner} already. Choose another id.{more}")


def _skeleton(course: Course, exercise: str, lesson: str) -> str:
    taken = _setup_names(course, lesson)
    name = exercise.partition("-")[2].replace("-", "_")
    if not name.isidentifier() or keyword.iskeyword(name) or name in taken | symbols.BUILTINS:
        name = exercise.replace("-", "_")
    imports = {one: f"from grader.checks import {one}\n" for one in (*PUBLIC, *HIDDEN)} | {"np": "import numpy as np\n"}
    public, hidden = ("".join(imports[n] for n in wanted if n not in taken) for wanted in (PUBLIC, HIDDEN))
    return SKELETON.format(id=exercise, lesson=lesson, name=name, public=public, hidden=hidden)


def _setup_names(course: Course, lesson: str) -> set[str]:
    """What the lesson's setup binds, as far as it can be read: the text may be half written."""
    written = [path.read_text(encoding="utf-8") for path in course.sources(lesson)] or [TITLE]
    cells = [cell for one in written for cell in percent.read(one, overlay.KINDS, Findings(lesson))]
    setup = [cell.source for cell in cells if cell.kind == "setup" and symbols.syntax_error(cell.source) is None]
    return {name for source in setup for name in symbols.cell_names(source).binds}
