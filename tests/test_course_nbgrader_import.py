"""`grader import`: a notebook of nbgrader's becomes a text, and is the same notebook when it is built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PYTHONPATH
from fill import fill
from fill import write as hand_in
from old_notebooks import FLAGS, NOTEBOOKS, RAISES, SQUARES, cell, prose, write

from grader.course import Course, CourseError, assertions, nbgrader_lesson
from grader.course.nbgrader_import import ImportedNotebook, ImportRefused, import_notebook

Grader = Callable[..., subprocess.CompletedProcess[str]]
LESSONS = {"squares": "01_squares", "explain": "02_explain", "odd": "03_odd"}
DROPPED = {"collapsed", "scrolled"}


def nbgrader(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run nbgrader itself."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader calls alembic by its name
    home = {
        **os.environ,
        "PATH": path,
        "JUPYTER_CONFIG_DIR": str(cwd / "none"),
        "HOME": str(cwd),
        "PYTHONPATH": PYTHONPATH,
    }
    command = [sys.executable, "-m", "nbgrader", *words]
    return subprocess.run(command, cwd=cwd, env=home, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nbgrader's own command releases of the notebooks: the folder that holds them."""
    theirs = tmp_path_factory.mktemp("theirs")
    for name, cells in NOTEBOOKS.items():
        write(theirs / "source" / "ps1" / f"{name}.ipynb", cells, authors=[{"name": "one"}])
    done = nbgrader("generate_assignment", "ps1", cwd=theirs)
    assert done.returncode == 0, done.stderr
    return theirs / "release" / "ps1"


@pytest.fixture(scope="module")
def course(released: Path, grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebooks imported one by one into an empty folder, and built."""
    ours = tmp_path_factory.mktemp("ours")
    for name in NOTEBOOKS:
        done = grader("import", released.parents[1] / "source" / "ps1" / f"{name}.ipynb", cwd=ours)
        assert done.returncode == 0, done.stderr
        (ours / f"{name}.txt").write_text(done.stdout)
    done = grader("build", cwd=ours)
    assert done.returncode == 0, done.stderr
    return ours


def _shown(path: Path) -> list[Any]:
    """The cells, less what docs/importing.md says is not kept; a flag that is not there is false."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for one in cells:
        one.pop("id", None)
        one["source"] = "".join(one["source"])
        one["metadata"] = {key: value for key, value in one["metadata"].items() if key not in DROPPED}
        said = one["metadata"].get("nbgrader", {})
        said.pop("locked", None)  # nbgrader's checksum tells whether it is
        if not said.get("task"):
            said.pop("task", None)
    return cells


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_learners_get_is_what_nbgrader_releases(name: str, released: Path, course: Path) -> None:
    ours = course / "exercises" / LESSONS[name] / f"{LESSONS[name]}.ipynb"
    theirs = _shown(released / f"{name}.ipynb")
    assert _shown(ours) == theirs
    assert sum("checksum" in one["metadata"].get("nbgrader", {}) for one in theirs) >= 2
    metadata = json.loads(ours.read_text(encoding="utf-8"))["metadata"]
    assert metadata.pop("jaxercise")["lesson"] == LESSONS[name]
    assert metadata == json.loads((released / f"{name}.ipynb").read_text(encoding="utf-8"))["metadata"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_source_notebook_has_the_same_cells(name: str, course: Path) -> None:
    ours = json.loads((course / "build" / "source" / LESSONS[name] / f"{LESSONS[name]}.ipynb").read_text("utf-8"))
    assert len(ours["cells"]) == len(NOTEBOOKS[name])
    for made, old in zip(ours["cells"], NOTEBOOKS[name], strict=True):
        assert ("".join(made["source"]), made["cell_type"]) == (old["source"], old["cell_type"])
        assert made.get("attachments") == old.get("attachments")
        said, was = made["metadata"].get("nbgrader", {}), old["metadata"].get("nbgrader", {})
        assert (said.get("grade_id"), said.get("points")) == (was.get("grade_id"), was.get("points"))
        assert not made.get("outputs")


def test_nbgrader_validates_a_learners_notebook(course: Path) -> None:
    by_hand = {"sum_of_squares_equation": "$i^2$", "sum_of_squares_application": "print(sum_of_squares(3))"}
    mine = "def squares(n):\n    if n < 1:\n        raise ValueError(n)\n    return [i * i for i in range(1, n + 1)]"
    given = by_hand | {
        "squares": mine,
        "sum_of_squares": "def sum_of_squares(n):\n    return sum(squares(n))",
    }
    hand_in(fill(course / "exercises" / "01_squares" / "01_squares.ipynb", given), course / "mine.ipynb")
    done = nbgrader("validate", "mine.ipynb", cwd=course)
    assert "Success" in done.stdout, done.stdout + done.stderr


def test_importing_what_was_built_gives_the_same_text(course: Path) -> None:
    for lesson in LESSONS.values():
        again = import_notebook(course / "build" / "source" / lesson / f"{lesson}.ipynb", lesson)
        text = (course / "solutions" / f"{lesson}.py").read_text(encoding="utf-8")
        assert again.text.partition("\n")[2] == text.partition("\n")[2]


def test_the_text_shows_roles_ids_and_points(course: Path) -> None:
    text = (course / "solutions" / "01_squares.py").read_text(encoding="utf-8")
    for line in (
        '# %% answer="squares"\ndef',
        '# %% check="sums" points=0.5',
        '# %% [markdown] task="cell-93" points=4',
    ):
        assert line in text
    listed = [(one.id, one.title[:7]) for one in Course(course).outline]
    assert listed == [("01_squares", "Squares"), ("02_explain", "explain"), ("03_odd", "Odd · ü")]


def test_the_table_tells_what_is_left_to_do(course: Path) -> None:
    told = (course / "squares.txt").read_text()
    text = (course / "solutions" / "01_squares.py").read_text(encoding="utf-8").split("\n")
    line = text.index("kept = squares") + 1
    assert f"to do, line {line}: it uses `squares` other than by calling it" in told
    assert "1 check is left" in told
    assert "is one now (course.toml, .gitignore, nbgrader_config.py, .secret)." in told
    assert told.count("runs it unchanged") == 3
    assert told.count("a person grades it") == 3
    assert "`grader prove 03_odd`" in (course / "odd.txt").read_text()


def test_a_lesson_with_a_check_left_is_built_but_not_graded(course: Path, grader: Grader, tmp_path: Path) -> None:
    built = course / "exercises" / "01_squares" / "01_squares.ipynb"
    hand_in(fill(built, {}), tmp_path / "one" / "01_squares" / "01_squares.ipynb")
    done = grader("grade", tmp_path, cwd=course)
    assert done.returncode == 2
    text = (course / "solutions" / "01_squares.py").read_text(encoding="utf-8").split("\n")
    place = f"solutions/01_squares.py:{text.index('kept = squares') + 1}: "
    assert done.stderr.startswith(f"{place}the grader cannot judge `sum_of_squares_uses_squares`: it uses `squares` ")
    assert len(done.stderr.splitlines()) == 1


def test_an_odd_lesson_is_graded_as_nbgrader_would(course: Path, grader: Grader, tmp_path: Path) -> None:
    built = course / "exercises" / "03_odd" / "03_odd.ipynb"
    answers = {exercise.id: exercise.reference for exercise in Course(course).lesson("03_odd").exercises}
    assert list(answers) == ["Q1_a", "Q1-b"]
    partly = answers | {"Q1-b": "value = other = 3\ndef two(n):\n    return n + 3 if n < 4 else 0"}
    for learner, given in (("all_right", answers), ("partly", partly), ("untouched", {})):
        hand_in(fill(built, given), tmp_path / learner / "03_odd" / "03_odd.ipynb")
    done = grader("grade", tmp_path, "--json", tmp_path / "results.json", cwd=course)
    assert done.returncode == 0, done.stderr
    assert "words (03_odd) is graded by a person" in done.stdout
    results = {one["learner"]: one for one in json.loads((tmp_path / "results.json").read_text())["results"]}
    seen = {who: [(check["id"], check["status"]) for check in one["checks"]] for who, one in results.items()}
    ids = ("far_from_its_answer", "Q1-b-test", "zero")
    assert seen["all_right"] == [(name, "passed") for name in ids]
    assert seen["partly"] == list(zip(ids, ("passed", "failed", "failed"), strict=True))
    assert seen["untouched"] == [(name, "not attempted") for name in ids]
    assert results["partly"]["score"] == 2
    hidden = next(check for check in results["partly"]["checks"] if check["id"] == "Q1-b-test")
    assert hidden["hidden"]
    assert "8" not in hidden["message"]


def test_a_check_put_into_words_is_graded(course: Path, grader: Grader, tmp_path: Path) -> None:
    for name in ("course.toml", "solutions/01_squares.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((course / name).read_bytes())
    text = tmp_path / "solutions" / "01_squares.py"
    old = text.read_text(encoding="utf-8")
    begin = old.index("kept = squares")
    new = """from grader.checks import ask


def without_squares(n):
    global squares
    kept, squares = squares, None
    try:
        sum_of_squares(n)
    except TypeError:
        return "stops"
    finally:
        squares = kept
    return "goes on"


assert ask(without_squares, 2) == "stops", "It should call `squares`."

"""
    text.write_text(old[:begin] + new + old[old.index("# %%", begin) :], encoding="utf-8")
    (tmp_path / "course.toml").write_text('name = "One"\n[[lesson]]\nid = "01_squares"\ntitle = "One"\npart = "I"\n')
    assert grader("build", cwd=tmp_path).returncode == 0
    built = tmp_path / "exercises" / "01_squares" / "01_squares.ipynb"
    answers = {exercise.id: exercise.reference for exercise in Course(tmp_path).lesson("01_squares").exercises}
    own = {"squares": "def squares(n):\n    return [i * i for i in range(1, n + 1)]"}
    own |= {"sum_of_squares": "def sum_of_squares(n):\n    return sum(i * i for i in range(n + 1))"}
    for learner, given in (("all_right", answers), ("partly", own)):
        hand_in(fill(built, given), tmp_path / "in" / learner / "01_squares" / "01_squares.ipynb")
    done = grader("grade", "in", "--json", "results.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = {one["learner"]: one["score"] for one in json.loads((tmp_path / "results.json").read_text())["results"]}
    assert scores == {"all_right": 3, "partly": 1.5}
    assert "squares did not raise ValueError" in done.stdout
    assert "It should call `squares`." in done.stdout


def test_nothing_is_overwritten_unless_told_to(course: Path, released: Path, grader: Grader) -> None:
    text = course / "solutions" / "02_explain.py"
    before = text.read_bytes()
    source = released.parents[1] / "source" / "ps1" / "explain.ipynb"
    done = grader("import", source, "--lesson", "02_explain", cwd=course)
    assert (done.returncode, text.read_bytes()) == (2, before)
    assert "is there already" in done.stderr
    text.write_bytes(before + b"\n# %%\nmine = 1\n")
    assert grader("import", source, "--lesson", "02_explain", "--force", cwd=course).returncode == 0
    assert text.read_bytes() == before
    done = grader("import", source, "--lesson", "02_other", cwd=course)
    assert "lists lessons by number, up to 03" in done.stderr
    assert len(Course(course).ids) == 3


# Below, no command is run: what it says comes from here, word for word.


def _take(tmp_path: Path, cells: list[Any], **metadata: Any) -> ImportedNotebook:
    return import_notebook(write(tmp_path / "old.ipynb", cells, **metadata), "01_old")


ANSWER = cell("def f(n):\n    return n", "answer", "f")
R = {"display_name": "R", "language": "R", "name": "ir"}


@pytest.mark.parametrize(
    ("cells", "metadata", "said"),
    [
        ([cell("x = 1"), prose("Text.")], {}, "has no cell that nbgrader would know: it is a lesson's text"),
        ([ANSWER], {"kernelspec": R}, "is written in R"),
        ([ANSWER, ANSWER], {}, "nbgrader refuses .*Duplicate grade id: f"),
        ([cell("x", "check", "", 1)], {}, "nbgrader refuses|no legal grade id"),
        ([cell("x", "check", "a b", 1)], {}, "nbgrader refuses .*a b"),
        ([cell("x", "check", "a")], {}, "nbgrader refuses .*does not have points"),
        ([prose("x", "check", "a", 1)], {}, "nbgrader refuses .*not marked as a solution"),
        ([cell("### AUTOTEST f(1)", "check", "a", 1)], {}, "Cell 1 has an AUTOTEST line.*source_with_tests"),
        ([cell("### BEGIN SOLUTION\nx = 1", "answer", "a")], {}, "`BEGIN SOLUTION` without its end"),
        ([ANSWER, cell("### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS")], {}, "`BEGIN HIDDEN TESTS` in a plain cell"),
    ],
)
def test_what_cannot_be_taken_is_refused_in_words(
    cells: list[Any], metadata: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ImportRefused, match=said):
        _take(tmp_path, cells, **metadata)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\xff\xfe", b'{"cells": 3, "nbformat": 4}', b'{"nbformat": 9}']
)
def test_what_is_no_notebook_is_refused_in_words(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "old.ipynb").write_bytes(content)
    with pytest.raises(ImportRefused, match="is not a notebook"):
        import_notebook(tmp_path / "old.ipynb", "01_old")
    with pytest.raises(ImportRefused, match="cannot be read: No such file"):
        import_notebook(tmp_path / "none.ipynb", "01_old")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_schemas_are_brought_up_to_date(version: int, tmp_path: Path) -> None:
    old = json.loads(json.dumps(SQUARES[:-1]))  # task cells are younger
    for one in old:
        said = one["metadata"].get("nbgrader", {})
        said.pop("task", None)
        if said:
            said["schema_version"] = version
        if said and not version:
            del said["schema_version"]
            said |= {"points": str(said["points"])} if "points" in said else {"points": ""}
    theirs, ours = _take(tmp_path, old).text, _take(tmp_path, SQUARES[:-1]).text
    assert (theirs.replace(".0\n", "\n") if not version else theirs) == ours


def test_line_ends_become_line_feeds(tmp_path: Path) -> None:
    old = [cell(one["source"].replace("\n", "\r\n"), "check", "a", 1) for one in [cell("assert 1\nassert 2")]]
    assert "assert 1\nassert 2\n" in _take(tmp_path, old).text
    assert "\r" not in _take(tmp_path, old).text


def test_words_of_ones_own_become_nbgraders(tmp_path: Path) -> None:
    (tmp_path / "nbgrader_config.py").write_text(
        "c = get_config()\nraise SystemExit('read, not run')\n"
        "c.ClearSolutions.begin_solution_delimeter = 'ANSWER>'\nc.ClearSolutions.end_solution_delimeter = '<ANSWER'\n"
        "c.ClearHiddenTests.begin_test_delimeter = '# SECRET>'\nc.ClearHiddenTests.end_test_delimeter = '# <SECRET'\n"
        "c.ClearSolutions.code_stub = {'python': '...'}\n"
    )
    answer = cell("def f(n):\n    # ANSWER>\n    return 2\n    # <ANSWER", "answer", "f")
    taken = _take(tmp_path, [answer, cell("# SECRET>\nassert f(0) == 2\n# <SECRET", "check", "t", 1)])
    assert "def f(n):\n    # BEGIN SOLUTION\n    return 2\n    # END SOLUTION\n" in taken.text
    assert "### BEGIN HIDDEN TESTS\nassert f(0) == 2\n### END HIDDEN TESTS\n" in taken.text
    assert any("code_stub" in note for note in taken.notes)


@pytest.mark.parametrize("role", FLAGS)
def test_a_role_alone_comes_through(role: str, tmp_path: Path) -> None:
    points = None if role in ("locked", "answer") else 2
    one = prose("Do.", role, "a_B-3", points) if role == "task" else cell("x = 1", role, "a_B-3", points)
    [kept] = _take(tmp_path, [one]).lesson.cells
    assert (kept.kind, kept.id, kept.attributes.get("points")) == (role, "a_B-3", points)


@pytest.mark.parametrize("role", ["locked", "manual"])
def test_the_name_of_the_cell_that_grades_is_kept_for_it(role: str, tmp_path: Path) -> None:
    """Grading passes over the cell of that name; an answer or a check may have it all the same."""
    points = 2 if role == "manual" else None
    with pytest.raises(CourseError, match="`grade` would not run when it is graded"):
        nbgrader_lesson.lesson(_take(tmp_path, [ANSWER, cell("f(1)", role, "grade", points)]).lesson, "Old")
    answer = cell("### BEGIN SOLUTION\ng = 1\n### END SOLUTION", "answer", "grade")
    found = nbgrader_lesson.lesson(_take(tmp_path, [answer, cell("assert g == 1", "check", "a", 1)]).lesson, "Old")
    assert [exercise.id for exercise in found.exercises] == ["grade"]


ANSWERS = {"f": "function", "g": "function", "Model": "class", "w": "value"}


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("assert f(2) == 4", "assert ask(f, 2) == 4"),
        ("assert f(n=2, x=xs) == 4", "assert ask(lambda k0, k1: f(n=k0, x=k1), 2, xs) == 4"),
        ("assert f(1, n=2) == 4", "assert ask(lambda a0, k0: f(a0, n=k0), 1, 2) == 4"),
        ("assert f(g(1)) == 4, 'no'", "assert ask(f, ask(g, 1)) == 4, 'no'"),
        ("y = f(2)\nassert y == 4", "y = ask(f, 2)\nassert y == 4"),
        ("assert w == 3", "assert ask(lambda: w) == 3"),
        ("for i in xs:\n    assert f(i) == i", "for i in xs:\n    assert ask(f, i) == i"),
        ("import numpy as np\nnp.testing.assert_allclose(f(1), 2)",
         "import numpy as np\nnp.testing.assert_allclose(ask(f, 1), 2)"),
        ("assert w\n### BEGIN HIDDEN TESTS\nassert f(2)\n### END HIDDEN TESTS",
         "assert ask(lambda: w)\nassert ask(f, 2)"),
        ("assert ask(f, 2) == 4  # kept as it is", "assert ask(f, 2) == 4  # kept as it is"),
    ],
)  # fmt: skip
def test_what_is_read_as_a_question(source: str, read: str) -> None:
    assert assertions.read(source, ANSWERS, frozenset({"xs", "np"})) == read


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("x = 1\nassert callable(f)", 2, "uses `f` other than by calling it"),
        ("assert f.__name__ == 'f'", 1, "uses `f` other than"),
        ("f(xs)\nassert xs == [1]", 1, "calls `f` for something other than its result"),
        ("w.append(1)\nassert len(w) == 3", 1, "calls `w` for something other"),
        ("del f", 1, "binds or deletes `f`"),
        ("w = 3\nassert f(w)", 1, "binds or deletes `w`"),
        ("assert [f for f in xs]", 1, "`f`"),
        ("assert Model(3).size == 3", 1, "makes a `Model`"),
        ("assert f(*xs) == 1", 1, "with `*`"),
        ("with raises(ValueError):\n    f(0)", 1, "inside `with`"),
        ("def twice(n):\n    return f(f(n))\nassert twice(1)", 1, "inside a function"),
        ("try:\n    assert f(0)\nexcept ValueError:\n    print('no')", 1, "inside `try`"),
        ("try:\n    f(0)\nexcept ValueError as e:\n    assert str(e)\nelse:\n    assert 0", 1, "inside `try`"),
        (RAISES.format(0).replace("squares", "f").replace("ValueError", "own.Error"), 1, "inside `try`"),
        (RAISES.format(0).replace("squares", "f") + "finally:\n    print(0)", 1, "inside `try`"),
        ("score = 0\nif f(1): score += 1\nscore", 3, "partial credit"),
        ("assert True", 1, "asks the answer nothing"),
        ("assert f(1) == elsewhere", 1, "`elsewhere`"),
        ("%time f(1)", 1, "not Python"),
    ],
)
def test_what_is_left_to_its_author(source: str, line: int, reason: str) -> None:
    with pytest.raises(assertions.UngradableError) as raised:
        assertions.read(source, ANSWERS, frozenset({"xs"}))
    left = raised.value
    assert reason in left.reason
    assert left.line == line


def test_files_beside_a_notebook_are_copied_and_released(grader: Grader, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "ps1", tmp_path / "ours"
    ours.mkdir()
    write(theirs / "squares.ipynb", NOTEBOOKS["squares"])
    for name in ("data/table.csv", "helper.py", "page.HTML", "notes.IPYNB", ".hidden"):
        (theirs / name).parent.mkdir(exist_ok=True)
        (theirs / name).write_text(f"# {name}\n")
    (theirs / "link.csv").symlink_to("/etc/passwd")
    (theirs / "a course").mkdir()
    for name in ("course.toml", "answers.txt"):
        (theirs / "a course" / name).touch()
    done = grader("import", theirs / "squares.ipynb", cwd=ours)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "Copied to solutions/01_squares/, and released to learners: helper.py, data/table.csv." in told
    assert "Not copied, because a lesson cannot release them: link.csv, notes.IPYNB, page.HTML." in told
    assert grader("build", cwd=ours).returncode == 0
    for folder in ("solutions", "exercises"):
        assert (ours / folder / "01_squares" / "data" / "table.csv").read_text() == "# data/table.csv\n"
    (ours / "solutions" / "01_squares" / "helper.py").write_text("# changed here\n")
    done = grader("import", theirs / "squares.ipynb", "--lesson", "01_squares", "--force", cwd=ours)
    assert "because other files have these names there: helper.py." in " ".join(done.stdout.split())
    assert (ours / "solutions" / "01_squares" / "helper.py").read_text() == "# changed here\n"
    (theirs / "course.toml").touch()
    whole = import_notebook(theirs / "squares.ipynb", "01_squares")
    assert whole.data == {}, "it may contain answers and submissions"
    assert "its folder is a whole course: it contains course.toml." in " ".join(whole.notes)


def test_the_courses_header_and_footer_are_part_of_the_text(tmp_path: Path) -> None:
    write(tmp_path / "source" / "ps1" / "squares.ipynb", NOTEBOOKS["squares"])
    write(tmp_path / "source" / "header.ipynb", [prose("# Problem sets of the class")])
    settings = "c.IncludeHeaderFooter.header = 'source/header.ipynb'\nc.IncludeHeaderFooter.footer = 'gone.ipynb'\n"
    (tmp_path / "nbgrader_config.py").write_text(f"c = get_config()\n{settings}")
    imported = import_notebook(tmp_path / "source" / "ps1" / "squares.ipynb", "01_squares")
    sources = [one.source for one in imported.lesson.cells]
    assert sources[0] == "# Problem sets of the class"
    assert len(sources) == len(NOTEBOOKS["squares"]) + 1
    header, footer = imported.notes
    assert header.endswith("header.ipynb, as nbgrader_config.py sets IncludeHeaderFooter.header.")
    assert "gone.ipynb, which cannot be read" in footer
