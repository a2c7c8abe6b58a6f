"""Pairs of submissions that share code: what is found, what is explained, and that no text of a learner's is markup."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Grader

from grader.core.notebook import Submission, SubmittedCell
from grader.course import Course
from grader.course.build import exercises_path
from grader.reports.similar import MAX_CHARACTERS, Learner, SimilarAnswers, tokens

LESSON = "05_vmap"
# Answers to two exercises that nobody else would write in this way.
WRITTEN = """
def pairwise(f, xs, ys):
    rows = []
    for index in range(len(xs)):
        partial = [f(xs[index], ys[other]) for other in range(len(ys))]
        rows.append(jnp.stack(partial, axis=0))
    table = jnp.stack(rows)
    table = jnp.where(jnp.isnan(table), 0, table)
    assert table.ndim >= 2, "two axes"
    return table.astype(jnp.result_type(xs, ys)).reshape(len(xs), len(ys))
"""
# The same with other names, comments, layout, quotes and a docstring.
DISGUISED = '''
def pairwise(f, xs, ys):
    """All of them."""
    # mine
    lines = []
    for i in range( len(xs) ):
        inner = [f(xs[i], ys[j]) for j in range(len(ys))]   # each
        lines.append(
            jnp.stack(inner, axis=0))
    matrix = jnp.stack(lines)
    matrix = jnp.where(jnp.isnan(matrix), 0, matrix)
    assert matrix.ndim >= 2, 'a matrix'
    return matrix.astype(jnp.result_type(xs, ys)).reshape(len(xs), len(ys))
'''
OTHER = """
def pairwise(f, xs, ys):
    left, right = jnp.broadcast_arrays(xs[:, None], ys[None])
    values = jax.lax.map(lambda pair: f(*pair), (left.reshape(-1), right.reshape(-1)))
    shape = (xs.shape[0], ys.shape[0])
    return jnp.moveaxis(values.reshape(shape[::-1] if False else shape), (0, 1), (0, 1))
"""


@pytest.fixture(scope="module")
def compared() -> SimilarAnswers:
    course = Course(ROOT)
    cells = json.loads(exercises_path(course, LESSON).read_text())["cells"]
    return SimilarAnswers(course.lesson(LESSON), ["".join(c["source"]) for c in cells if c["cell_type"] == "code"])


def learner(name: str, *cells: str) -> Learner:
    return Learner(name, tuple((f"cell {i}", source) for i, source in enumerate(cells)))


def test_other_names_layout_and_comments_hide_nothing(compared: SimilarAnswers) -> None:
    [pair] = compared.pairs([learner("a", WRITTEN), learner("b", DISGUISED), learner("c", OTHER)])
    assert (pair.first.learner.name, pair.second.learner.name) == ("a", "b")
    assert pair.tokens > 80
    marked = "".join(text for text, shared in pair.second.marked if shared)
    assert "matrix.ndim >= 2" in marked
    assert "".join(text for text, _ in pair.second.marked) == pair.second.learner.text


def test_code_that_moved_into_another_cell_is_found(compared: SimilarAnswers) -> None:
    [pair] = compared.pairs([learner("a", WRITTEN), learner("b", OTHER, "x = 1", DISGUISED)])
    assert pair.cells == ("cell 0", "cell 2")


def test_what_the_course_and_most_of_the_class_have_is_explained(compared: SimilarAnswers) -> None:
    course = Course(ROOT)
    for exercise in course.lesson(LESSON).exercises:
        for source in (exercise.stub, exercise.reference, *(v.source for v in (*exercise.right, *exercise.wrong))):
            assert not compared.pairs([learner("a", source), learner("b", source)]), exercise.id
    few = [learner(f"{n}", WRITTEN) for n in range(4)]
    others = [learner(f"other {n}", OTHER) for n in range(2)]
    assert len([pair for pair in compared.pairs([*few, *others]) if pair.first.learner.name.isdigit()]) == 6
    assert not compared.pairs([learner(f"{n}", WRITTEN) for n in range(40)])  # the idiom of this class
    assert not compared.pairs([learner("a", "y = jax.vmap(f)(x)\n" * 2), learner("b", "y = jax.vmap(f)(x)\n" * 2)])


def test_any_text_is_split_into_tokens() -> None:
    for text in ("def f(:\n  '''", "%timeit x\n!ls", "\ud800 \x00", "(" * 10_000, "x = 'a' # c", ""):
        found = list(tokens(text, ()))
        assert all(text[t.start : t.end].strip() for t in found)


@pytest.mark.parametrize(
    "text", [" \n" * 99_000, "\n" + " " * 199_000 + "x", "'\\N{" * 49_000, " \x0c \x0b\n" * 39_000]
)
def test_text_that_is_made_to_be_slow_takes_seconds(compared: SimilarAnswers, text: str) -> None:
    """The lexer takes the square of it: the first would take ten minutes, and a notebook may have a hundred of them."""
    cells = tuple(SubmittedCell(None, f"{text}x = {number}", number) for number in range(3))
    began = time.process_time()
    one = compared.learner(Submission("one", LESSON, cells, ""), ())
    assert len("".join(source for _, source in one.cells)) <= MAX_CHARACTERS
    compared.pairs([one, learner("two", WRITTEN)])
    assert time.process_time() - began < 20


def test_a_large_class_is_compared_in_time_that_grows_with_it(compared: SimilarAnswers) -> None:
    """Only pairs with a passage in common are compared: the class's own pairs are two million."""
    texts = [WRITTEN.replace("isnan", f"isnan_{n}").replace("stack", f"stack_{n}") for n in range(400)]
    began = time.process_time()
    assert not compared.pairs([learner(str(n), text) for n, text in enumerate(texts)])
    assert time.process_time() - began < 60


def submit(folder: Path, name: str, source: str) -> None:
    notebook: dict[str, Any] = json.loads(exercises_path(Course(ROOT), LESSON).read_text())
    cell = next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "vmap-pairwise")
    cell["source"] = source
    place = folder / name / LESSON
    place.mkdir(parents=True)
    (place / f"{LESSON}.ipynb").write_text(json.dumps(notebook))


def test_the_command_lists_pairs_and_writes_a_page(grader: Grader, tmp_path: Path) -> None:
    evil = '"</pre><script>alert(1)</script>"'
    for name, source in {"ann": WRITTEN, "<b>bob": f"{DISGUISED}\nx = {evil}", "cem": OTHER}.items():
        submit(tmp_path / "class", name, source)
    broken = tmp_path / "class" / "dee" / LESSON
    broken.mkdir(parents=True)
    (broken / f"{LESSON}.ipynb").write_text("{")
    done = grader("similar", str(tmp_path / "class"), "--html", str(tmp_path / "page.html"))
    assert done.returncode == 1
    assert "1 pair among 3 submissions" in done.stdout
    assert "dee" in done.stderr
    assert "not JSON" in done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "<mark>" in page
    assert "<script>" not in page
    assert "&lt;b&gt;bob" in page
    assert oct((tmp_path / "page.html").stat().st_mode)[-3:] == "600"
    shutil.rmtree(broken.parent)
    assert grader("similar", str(tmp_path / "class"), "--html", str(tmp_path / "page.html")).returncode == 0


def test_a_folder_without_submissions_is_refused(grader: Grader, tmp_path: Path) -> None:
    done = grader("similar", str(tmp_path))
    assert done.returncode == 2
    assert "No submission in" in done.stderr


@pytest.mark.thorough
def test_a_class_of_300_with_unreadable_submissions_and_one_exercise(grader: Grader, tmp_path: Path) -> None:
    folder = tmp_path / "class"
    for n in range(280):
        unique = OTHER.replace("left", f"left_{n}").replace("values", f"values_{n}").replace("reshape", f"reshape_{n}")
        submit(folder, f"own-{n:03}", unique if n % 2 else "")
    submit(folder, "ann", WRITTEN)
    submit(folder, "bob", DISGUISED)
    half, rest = DISGUISED.split("    matrix = jnp.where")[0], "    return jax.tree.map(lambda one: one + 0, matrix)\n"
    submit(
        folder,
        "cem",
        half + rest + "".join(f"\ndef helper_{n}(a):\n    return a.part_{n}(a) ** {n}\n" for n in range(12)),
    )
    broken: list[bytes | None] = [b"{", b"", b"\xff\xfe", b"[]", b'{"cells": 3}', None]
    for n, content in enumerate(broken * 2):
        (folder / f"broken-{n:02}" / LESSON).mkdir(parents=True)
        if content is not None:
            (folder / f"broken-{n:02}" / LESSON / f"{LESSON}.ipynb").write_bytes(content)
    page, file = tmp_path / "page.html", tmp_path / "similar.json"
    words = ("similar", folder, "--lesson", LESSON, "--html", page, "--json", file)

    def run(*more: str) -> Any:
        done = grader(*words, *more)
        assert done.returncode == 1, done.stderr
        assert done.stderr.count("broken-") >= len(broken) * 2
        assert "Traceback" not in done.stderr
        return json.loads(file.read_text())

    found = run()
    assert found["submissions"] == {LESSON: 283}
    assert [one["learners"] for one in found["pairs"]] == [["ann", "bob"]]
    assert found["pairs"][0]["cells"] == [["vmap-pairwise"], ["vmap-pairwise"]]
    assert len({one["learner"] for one in found["not_compared"]}) == len(broken) * 2
    assert all(one["reason"] for one in found["not_compared"])
    assert [one["learners"] for one in run("--exercise", "vmap-pairwise")["pairs"]] == [["ann", "bob"]]
    other = next(one.id for one in Course(ROOT).lesson(LESSON).exercises if one.id != "vmap-pairwise")
    assert run("--exercise", other)["pairs"] == []
    assert ["bob", "cem"] in [one["learners"] for one in run("--min-share", "20")["pairs"]]
    assert oct(file.stat().st_mode)[-3:] == "600"
    for wrong in (("--exercise", "no-such"), ("--min-share", "0"), ("--min-share", "101")):
        assert grader(*words, *wrong).returncode == 2
    assert "requires --lesson" in grader("similar", folder, "--exercise", "vmap-pairwise").stderr
