"""A new version of the course: `git pull` touches nothing in work/, and `grader carry` brings over what is there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import COURSES, Grader
from old_notebooks import SQUARES, write

from grader.core import notebook as notebooks
from grader.core.notebook import Unreadable, read_complete, text
from grader.course import Course, build, migrate, workspace
from grader.course.nbgrader_import import import_notebook

LESSON = "01_small"
OWN, LESSON_OWN = f"work/{LESSON}/{LESSON}.ipynb", f"work/lessons/{LESSON}.ipynb"
DOUBLE = 'def double(x):\n    """Mine."""\n    return SCALE * x'
MEAN = "def loss(x):\n    return (x**2).mean()"
TOTAL = "def loss(x):\n    return (x**2).sum()"
OLD = "def old(x):\n    return (x**2).sum()"
TEXT = """\
# %% [markdown]
# # 01 · Small
#
# Then the [exercises](../exercises/01_small/01_small.ipynb).

# %%
total = 1 + 1
total

# %% [markdown] predict="small-none"
# What is the sum of nothing?
#
# - [ ] an error | Tempting: the largest of nothing is one.
# - [x] `0` | Right: that is where adding begins.

# %%
sum([])

# %% [markdown]
# The end.
"""


def git(folder: Path, *words: str) -> str:
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=one", "-c", "user.email=one@example.invalid", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *who, *words]
    done = subprocess.run(command, env={**os.environ, **alone}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)


def publish(upstream: Path, why: str) -> None:
    build.build(Course(upstream))
    git(upstream, "add", "-A")
    git(upstream, "commit", "-q", "-m", why)


def block(source: str, exercise: str, name: str) -> str:
    """The last exercise of the text again, under another id, asking for another name."""
    last = source[source.index('# %% [markdown] task="small-total"') :]
    return last.replace("small-total", exercise).replace("loss", name).replace("Another loss", exercise)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a course of one lesson and four exercises."""
    upstream = tmp_path_factory.mktemp("git") / "upstream"
    shutil.copytree(COURSES / "small", upstream, ignore=shutil.ignore_patterns("build", "exercises"))
    source = upstream / "solutions" / f"{LESSON}.py"
    source.write_text(source.read_text() + block(source.read_text(), "small-old", "old"))
    (upstream / "notebooks").mkdir()
    (upstream / "notebooks" / f"{LESSON}.py").write_text(TEXT)
    (upstream / ".gitignore").write_text("/work/\n/build/\n")
    git(upstream, "init", "-q")
    publish(upstream, "First")
    return upstream


@pytest.fixture
def upstream(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "upstream"))


@pytest.fixture
def clone(upstream: Path) -> Path:
    """A learner's clone, with copies laid out."""
    git(upstream.parent, "clone", "-q", str(upstream), "clone")
    workspace.copies(Course(upstream.parent / "clone"))
    return upstream.parent / "clone"


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def save(notebook: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(notebook, indent=1))


def place(notebook: dict[str, Any], name: str) -> int:
    """Where the course's cell of that name stands."""
    names = [said.name if (said := notebooks.origin_of(cell)) else "" for cell in notebook["cells"]]
    return names.index(name if name in names else name.replace("_", "-"))


def note(text: str, kind: str = "markdown", **more: Any) -> dict[str, Any]:
    code = {"outputs": [], "execution_count": None} if kind == "code" else {}
    ours = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
    return {"cell_type": kind, "id": ours, "metadata": {}, "source": text} | code | more


def write_in(path: Path, answers: dict[str, str] | None = None, **after: dict[str, Any]) -> None:
    """Answer, and add cells after the course's of these names (with _ for -)."""
    notebook = load(path)
    for name, source in (answers or {}).items():
        notebook["cells"][place(notebook, name)]["source"] = source
    for name, cell in after.items():
        notebook["cells"].insert(place(notebook, name) + 1, cell)
    save(notebook, path)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def texts(path: Path) -> list[str]:
    return [text(cell) for cell in load(path)["cells"]]


def kept(said: str, course: Path) -> list[Path]:
    return [course / name for name in re.findall(r"old notebook is now (\S+)\.\n", said)]


def carry(course: Path, of: str = OWN) -> migrate.Migration:
    """Carry one copy over, and see that nothing is left to carry and that the format is kept."""
    copy = next(c for c in workspace.planned(Course(course), LESSON) if c.own == course / of)
    assert migrate.diff_copy(copy) is not None
    done = migrate.migrate(Course(course), copy)
    assert migrate.diff_copy(copy) is None
    nbformat.validate(nbformat.read(copy.own, as_version=4))
    return done


def points(said: str) -> dict[str, str]:
    """By title, as `grader check` says it."""
    missed = re.findall(r"^  (\w[\w ]+?)  ([\d.]+ of [\d.]+) points", said, re.MULTILINE)
    [others] = re.findall(r"✓ Full points: (.*)", said)
    return {**dict(missed), **dict(re.findall(r"([\w ]+?) \(([\d.]+)\)", others.replace(", ", ",")))}


def test_a_pull_touches_nothing_and_what_was_written_is_carried_over(
    upstream: Path, clone: Path, grader: Grader
) -> None:
    picture = {"image/png": "aGk="}
    shown = note("double(2)", "code", outputs=[{"output_type": "display_data", "data": picture, "metadata": {}}])
    answers = {"small-double": DOUBLE, "small-mean": MEAN, "small-total": TOTAL, "small-old": OLD}
    write_in(
        clone / OWN, answers, small_double=shown, small_mean_task=note("Mine: divide."), small_old_why=note("Odd.")
    )
    write_in(clone / LESSON_OWN, predict_small_none=note("I say 0."))
    mine = grader("--course", clone, "check", LESSON)
    before = tree(clone / "work")

    source = upstream / "solutions" / f"{LESSON}.py"
    script = source.read_text()
    total, old = script.index('# %% [markdown] task="small-total"'), script.index('# %% [markdown] task="small-old"')
    changed = script[total:old].replace("loss", "total")
    source.write_text(script[:total] + changed + block(script[:old], "small-new", "new"))
    edit(
        source,
        ("Doubles one and two.", "Doubles a one and a two."),
        ("# **Goal.** Double an", "# **Goal.** Double one"),
    )
    edit(upstream / "notebooks" / f"{LESSON}.py", ("# The end.", "# The end of it."))
    publish(upstream, "Second")
    git(clone, "pull", "-q", "--ff-only")
    assert tree(clone / "work") == before
    assert git(clone, "status", "--porcelain") == ""

    told = grader("--course", clone, "lab", "--no-open")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines() == [
        "work/: 0 new files, nothing overwritten.",
        "The course has changed since you got your copies:",
        "  01_small  changed: small-double (task, checks), small-total (task, answer cell, checks); "
        "not in your copy: small-new; no longer in the course: small-old",
        "  only the text of 1 notebook",
        "`grader carry`, in a terminal of JupyterLab, copies everything that you wrote into the new notebooks. "
        "The old ones are kept.",
    ]
    assert "The course has changed 01_small since you got your copies: `grader carry` copies your answers into" in (
        grader("--course", clone, "progress").stdout
    )
    assert tree(clone / "work") == before

    done = grader("--course", clone, "carry")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{LESSON_OWN}: 1 cell of yours carried over." in done.stdout
    assert f"{OWN}: 4 answers and 3 cells of yours carried over." in done.stdout
    assert "The answer cell of small-total begins differently now. A comment at your answer shows how." in done.stdout
    assert "No longer in the course: small-old. Your answers are below the exercises." in done.stdout
    assert [path.read_bytes() for path in kept(done.stdout, clone)] == [before[LESSON_OWN[5:]], before[OWN[5:]]]
    own = load(clone / OWN)
    nbformat.validate(nbformat.from_dict(own))
    cells = {name: own["cells"][place(own, name)] for name in ("small-double", "small-mean", "small-new")}
    assert (text(cells["small-double"]), text(cells["small-mean"])) == (DOUBLE, MEAN)
    assert "raise NotImplementedError()" in text(cells["small-new"])
    following = own["cells"][place(own, "small-double") + 1]
    assert (text(following), following["outputs"]) == ("double(2)", shown["outputs"])
    assert text(own["cells"][place(own, "small-mean-task") + 1]) == "Mine: divide."
    now = text(own["cells"][place(own, "small-total")])
    assert now.startswith("# The beginning of this cell has changed in the course")
    assert "#     def total(x):\n" in now
    assert now.endswith(f"\n\n{TOTAL}")
    end = place(own, "closing")
    assert texts(clone / OWN)[end - 3 : end] == [migrate.HEADING, OLD, "Odd."]
    assert "nbgrader" not in own["cells"][end - 2]["metadata"]
    lesson = texts(clone / LESSON_OWN)
    assert lesson[lesson.index("I say 0.") - 1].startswith("**Predict first.**")
    assert lesson[-1] == "The end of it."

    assert migrate.diff_all(Course(clone)) == []
    theirs = grader("--course", clone, "check", LESSON)
    first, second = points(mine.stdout), points(theirs.stdout)
    assert first == {"Double": "3", "A loss": "3", "Another loss": "3", "Another old": "3"}
    assert second == {"Double": "3", "A loss": "3", "Another total": "0 of 3"}
    assert "○ Not attempted: Another new\n" in theirs.stdout
    assert "has changed since" not in theirs.stdout


@pytest.fixture
def course(first: Path, tmp_path: Path) -> Path:
    """The course without its repository, with copies laid out."""
    root = Path(shutil.copytree(first, tmp_path / "course", ignore=shutil.ignore_patterns(".git", "work")))
    workspace.copies(Course(root))
    return root


def change(course: Path, *changes: tuple[str, str], of: str = "solutions") -> None:
    """A new version of the course."""
    edit(course / of / f"{LESSON}.py", *changes)
    build.build(Course(course))


WORDS = ("Two times x is x plus x.", "Two times x is x plus x, too.")
CHECK = ("Doubles one and two.", "Doubles a one and a two.")


def test_other_words_alarm_nobody(course: Path, grader: Grader) -> None:
    write_in(course / OWN, {"small-double": DOUBLE})
    change(course, WORDS, ("minutes=1", "minutes=2"))
    told = grader("--course", course, "lab", "--no-open").stdout.splitlines()
    assert told[1:3] == ["The course has changed since you got your copies:", "  only the text of 1 notebook"]
    assert "has changed" not in grader("--course", course, "progress").stdout
    assert (carry(course).answers, texts(course / OWN)[3]) == (1, DOUBLE)


def test_a_course_cell_that_a_copy_has_not_yet_comes_without_alarm(course: Path) -> None:
    notebook = load(course / OWN)
    del notebook["cells"][place(notebook, "grade")]
    save(notebook, course / OWN)
    write_in(course / OWN, {"small-double": DOUBLE})
    [found] = migrate.diff_all(Course(course))
    assert (found.matters, found.words) == (False, True)
    assert carry(course).answers == 1
    assert place(load(course / OWN), "grade") == len(notebook["cells"])


def test_a_changed_check_is_told_where_it_counts(course: Path, grader: Grader) -> None:
    change(course, CHECK)
    said = "`grader carry 01_small` copies your answers into the new notebooks."
    changed = "since you got your copy (changed: small-double (checks))"
    assert f"The course has changed {changed}: {said}" in grader("--course", course, "check", LESSON).stdout
    done = grader("--course", course, "carry", LESSON)
    assert (
        f"{OWN}: replaced, because it contained nothing of yours. The old notebook is now work/earlier/" in done.stdout
    )
    again = grader("--course", course, "carry", LESSON)
    assert again.stdout == "Your copies are up to date. There is nothing to carry over.\n"
    assert grader("--course", course, "carry", "7").stderr == "There is no lesson 7. Lessons: 01_small.\n"


def test_the_pieces_of_an_answer_stay_pieces_where_they_are(course: Path) -> None:
    notebook = load(course / OWN)
    at = place(notebook, "small-mean")
    piece = json.loads(json.dumps(notebook["cells"][at])) | {"id": "piece", "source": "loss = jax.jit(loss)"}
    notebook["cells"][at]["source"] = MEAN
    notebook["cells"].insert(at + 1, note("between"))
    notebook["cells"].insert(place(notebook, "small-mean-example") + 1, piece)
    notebook["cells"].insert(place(notebook, "small-mean-example") + 2, note("below"))
    save(notebook, course / OWN)
    change(course, CHECK)
    done = carry(course)
    assert (done.answers, done.cells) == (1, 2)
    cells = load(course / OWN)["cells"]
    at = place({"cells": cells}, "small-mean")
    assert [text(cell) for cell in cells[at : at + 2]] == [MEAN, "between"]
    at = place({"cells": cells}, "small-mean-example")
    assert [text(cell) for cell in cells[at + 1 : at + 3]] == ["loss = jax.jit(loss)", "below"]
    assert cells[at + 1]["metadata"]["nbgrader"]["grade_id"] == "small-mean"
    assert cells[at + 1]["id"] == "piece"


def test_a_copied_cell_that_nobody_touched_is_not_carried(course: Path) -> None:
    notebook = load(course / OWN)
    at = place(notebook, "small-mean")
    notebook["cells"].insert(at, json.loads(json.dumps(notebook["cells"][at])) | {"id": "pasted"})
    notebook["cells"][at + 1]["source"] = MEAN
    save(notebook, course / OWN)
    change(course, CHECK)
    count = len(load(course / OWN)["cells"])
    assert carry(course).answers == 1
    found = load(course / OWN)
    assert len(found["cells"]) == count - 1
    assert text(found["cells"][place(found, "small-mean")]) == MEAN


def test_what_an_older_jupyter_saved_without_ids_is_carried_over(course: Path) -> None:
    write_in(course / OWN, {"small-double": DOUBLE}, small_double_example=note("One."), small_mean_example=note("One."))
    write_in(course / LESSON_OWN, predict_small_none=note("I say 0."))
    for path in (course / OWN, course / LESSON_OWN):
        notebook = load(path) | {"nbformat_minor": 4}
        for cell in notebook["cells"]:
            del cell["id"]
        save(notebook, path)
    change(course, CHECK)
    change(course, ("# The end.", "# The end of it."), of="notebooks")
    assert (carry(course).cells, carry(course, LESSON_OWN).cells) == (2, 1)
    cells = load(course / OWN)["cells"]
    assert text(cells[place({"cells": cells}, "small-mean-example") + 1]) == "One."
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert texts(course / LESSON_OWN).count("I say 0.") == 1
    assert "The end." not in texts(course / LESSON_OWN)


def test_a_lesson_laid_out_before_cells_were_marked_is_known_by_its_ids(course: Path) -> None:
    notebook = load(course / LESSON_OWN)
    for cell in notebook["cells"]:
        cell["metadata"].pop("jaxercise", None)
    [plain] = [cell for cell in notebook["cells"] if text(cell) == "sum([])"]
    plain["source"] = "sum([1])"
    save(notebook, course / LESSON_OWN)
    write_in(course / LESSON_OWN, predict_small_none=note("I say 0."))
    change(course, ("# The end.", "# The end of it."), of="notebooks")
    done = carry(course, LESSON_OWN)
    assert (done.told, done.cells) == (True, 2)
    found = texts(course / LESSON_OWN)
    assert found[found.index("I say 0.") - 1].startswith("**Predict first.**")
    assert found[-3:] == ["sum([])", "sum([1])", "The end of it."]


def test_a_lesson_that_does_not_say_what_was_the_courses_is_begun_anew(course: Path, grader: Grader) -> None:
    notebook = load(course / LESSON_OWN)
    for cell in notebook["cells"]:
        cell["metadata"].pop("jaxercise", None)
        del cell["id"]
    notebook["cells"].append(note("Mine."))
    save(notebook, course / LESSON_OWN)
    assert migrate.diff_all(Course(course)) == []  # it is as new as the course
    change(course, ("# The end.", "# The end of it."), of="notebooks")
    done = grader("--course", course, "carry")
    assert f"{LESSON_OWN}: replaced, because nothing in it marks which cells are yours." in done.stdout
    [old] = kept(done.stdout, course)
    assert texts(old)[-1] == "Mine."
    assert texts(course / LESSON_OWN)[-1] == "The end of it."


def test_what_cannot_be_read_is_told_and_left(course: Path, grader: Grader) -> None:
    (course / OWN).write_text("half {")
    change(course, ("# The end.", "# The end of it."), of="notebooks")
    said = f"{OWN} cannot be read: it is not JSON. Rename it, and `grader lab` creates a new copy.\n"
    told = grader("--course", course, "lab", "--no-open")
    assert (told.returncode, told.stderr) == (0, said)
    done = grader("--course", course, "carry")
    assert (done.returncode, done.stderr) == (1, said)
    assert LESSON_OWN in done.stdout
    assert (course / OWN).read_text() == "half {"


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "[" * 100_000, '{"nbformat": 3, "worksheets": []}', '{"nbformat": 4}', "\udcff"),
        *(json.dumps({"nbformat": 4, "cells": [cell]}) for cell in (7, {}, {"cell_type": "code", "metadata": {}})),
    ],
    ids=range(9),
)
def test_many_things_cannot_be_read(content: str, tmp_path: Path) -> None:
    (tmp_path / "own.ipynb").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(Unreadable, match=r"^(it|its) .* (JSON|of format 4|malformed)$"):
        read_complete(tmp_path / "own.ipynb")


def test_cells_of_the_courses_are_the_courses_again(course: Path) -> None:
    mine = "compare(1, 1)"
    write_in(course / OWN, {"small-mean-example": mine, "small-old-task": "Mine."})
    source = (course / "solutions" / f"{LESSON}.py").read_text()
    change(course, (source[source.index('# %% [markdown] task="small-old"') :], ""))
    done = carry(course)
    assert list(dict.fromkeys(done.restored)) == ["small-mean-example", "small-old-task"]
    assert mine not in texts(course / OWN)
    assert mine in texts(done.earlier)


def test_an_exercise_under_another_id_is_the_same(course: Path) -> None:
    write_in(course / OWN, {"small-old": OLD}, small_old_task=note("Look here."))
    change(course, ("small-old", "small-sum"))
    done = carry(course)
    assert (done.answers, done.cells, done.ended) == (1, 1, [])
    notebook = load(course / OWN)
    assert text(notebook["cells"][place(notebook, "small-sum")]) == OLD
    assert text(notebook["cells"][place(notebook, "small-sum-task") + 1]) == "Look here."


def test_a_comment_says_how_the_cell_begins_now_and_does_not_pile_up(course: Path) -> None:
    write_in(course / OWN, {"small-double": DOUBLE, "small-mean": "%%time\n" + MEAN})
    change(course, ('"""Twice x, float32[n]."""', '"""Twice x."""'), ('"""Mean of the', '"""The mean of the'))
    assert carry(course).begin == ["small-double", "small-mean"]
    change(course, ('"""Twice x."""', '"""Two times x.\n\n    An array.\n    """'))
    assert carry(course).begin == ["small-double"]
    notebook = load(course / OWN)
    assert text(notebook["cells"][place(notebook, "small-double")]).splitlines() == [
        f"# {migrate.NOTE}",
        "#     def double(x):",
        '#         """Two times x.',
        "#",
        "#         An array.",
        '#         """',
        "#         # YOUR CODE HERE",
        "#         raise NotImplementedError()",
        "",
        *DOUBLE.splitlines(),
    ]
    at = place(notebook, "small-mean")
    assert text(notebook["cells"][at]) == "%%time\n" + MEAN
    assert text(notebook["cells"][at + 1]).startswith(f"{migrate.NOTE}\n\n```python\ndef loss(x):\n")


def test_what_was_changed_in_a_lesson_stays_or_stands_beside(course: Path) -> None:
    notebook = load(course / LESSON_OWN)
    by_text = {text(cell): cell for cell in notebook["cells"]}
    question = next(text for text in by_text if text.startswith("**Predict"))
    by_text["total = 1 + 1\ntotal"]["source"] = "total = 2 + 2"
    by_text["sum([])"]["source"] = "sum([1])"
    by_text[question]["source"] = question + "\n\nI say 0."
    save(notebook, course / LESSON_OWN)
    change(
        course,
        ("# %%\nsum([])", "# %%\nsum(())"),
        ("What is the sum of nothing?", "What is the sum of none?"),
        of="notebooks",
    )
    done = carry(course, LESSON_OWN)
    assert done.cells == 3
    found = texts(course / LESSON_OWN)
    assert "total = 1 + 1\ntotal" not in found
    assert found[1] == "total = 2 + 2"
    assert found[2].startswith("**Predict first.** What is the sum of none?")
    assert found[3] == question + "\n\nI say 0."
    assert found[-3:] == ["sum([1])", "sum(())", "The end."]


def test_a_link_is_left_alone(course: Path) -> None:
    (course / OWN).rename(course / "mine.ipynb")
    (course / OWN).symlink_to("../../mine.ipynb")
    change(course, CHECK)
    assert migrate.diff_all(Course(course)) == []


def test_odd_characters_and_ids_come_through(course: Path) -> None:
    notebook = load(course / OWN)
    odd = [note("\ud800 half", "code"), note("Same.") | {"id": "setup"}, note("Same.") | {"id": "a b"}]
    notebook["cells"][0:0] = odd
    notebook["metadata"]["kernelspec"]["name"] = "mine"
    save(notebook, course / OWN)
    change(course, CHECK)
    assert carry(course).cells == 3
    assert texts(course / OWN)[:3] == ["? half", "Same.", "Same."]
    assert load(course / OWN)["metadata"]["kernelspec"]["name"] == "mine"


def test_a_full_disk_leaves_the_notebook_where_it_was(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    write_in(course / OWN, {"small-double": DOUBLE})
    before = (course / OWN).read_bytes()
    change(course, CHECK)
    monkeypatch.setattr(workspace.files, "write", full)
    with pytest.raises(OSError, match="No space"):
        carry(course)
    assert (course / OWN).read_bytes() == before
    assert list((course / "work" / "earlier").iterdir()) == []


def test_what_a_person_grades_is_carried_over(tmp_path: Path) -> None:
    root = Path(shutil.copytree(COURSES / "by_hand", tmp_path / "course"))
    build.build(Course(root))
    [own] = workspace.copies(Course(root))
    write_in(own, {"hand-essay-answer": "Because."})
    edit(root / "solutions" / "01_by_hand.py", ("Halves two and four.", "Halves a two and a four."))
    build.build(Course(root))
    [found] = migrate.diff_all(Course(root))
    assert found.changed == {"hand-half": ("checks",)}
    migrate.migrate(Course(root), found.copy)
    notebook = load(own)
    assert text(notebook["cells"][place(notebook, "hand-essay-answer")]) == "Because."
    assert "*Write your answer here" not in own.read_text()


def test_what_was_imported_is_carried_over(tmp_path: Path) -> None:
    root = tmp_path / "course"
    (root / "solutions").mkdir(parents=True)
    (root / "course.toml").write_text(
        'name = "Old"\n\n[[lesson]]\nid = "01_squares"\ntitle = "Squares"\npart = "Old"\n'
    )
    script = import_notebook(write(tmp_path / "old.ipynb", SQUARES), "01_squares").text
    (root / "solutions" / "01_squares.py").write_text(script)
    build.build(Course(root))
    [own] = workspace.copies(Course(root))
    cells = {"squares": "def squares(n):\n    return [1]", "sum_of_squares_equation": "$s$"}
    write_in(own, cells, correct_squares=note("One."))
    notebook = load(own)
    plain = next(cell for cell in notebook["cells"] if text(cell) == "squares(3)")
    plain["source"] = "squares(4)"
    save(notebook, own)
    edit(root / "solutions" / "01_squares.py", ("Various inputs", "Some inputs"))
    build.build(Course(root))
    [found] = migrate.diff_all(Course(root))
    assert found.summary == "changed: sums (checks)"
    done = migrate.migrate(Course(root), found.copy)
    assert (done.answers, done.cells) == (2, 2)
    now = texts(own)
    assert {*cells.values(), "squares(4)"} <= {*now}
    assert "squares(3)" not in now
    assert now[now.index("One.") - 1].startswith('"""Several inputs"""')
    assert migrate.diff_all(Course(root)) == []
