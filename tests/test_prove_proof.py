"""What a proof reports of checks whose verdict depends on the draw, and of mutants that pass them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import COURSES, Grader

from grader.course import Course
from grader.course.build import build
from grader.prove.proof import Proof, prove

LESSON = "01_small"
LINE = "return jnp.where(x > 0, SCALE * x, x + x)"
LISTED = f"moved bound, X > Y -> X >= Y: {LINE}"
KILLED = "swapped function, sum -> mean: return (x**2).sum()"
EDITS = {
    # small-double: -1 does not tell the first two wrong answers apart, and 3 does.
    '    x = inputs.rng().normal(size=5).astype("f")\n': '    x = inputs.rng().choice([-1, 3], size=1).astype("f")\n',
    "for _ in range(3):\n": "for _ in range(1):\n",
    'np.array([1, 2], "f")), np.array([2, 4], "f")': 'np.array([2], "f")), np.array([4], "f")',
    "    return SCALE * x\n": f"    {LINE}\n",
    '# %% right="small-double"\n': (
        f'# %% equivalent="small-double" because="Zero is twice zero."\n# {LISTED}\n# %% right="small-double"\n'
    ),
    # small-mean: of one number, a mean is a sum.
    'np.array([1, 3], "f")), np.array(5, "f")': 'np.array([3], "f")), np.array(9, "f")',
    'x = inputs.rng().normal(size=(4, 6)).astype("f")': (
        "size = inputs.rng().choice([1, 1, 1, 4, 1])\n"
        'x = inputs.rng().normal(size=(1, size)).astype("f")'
    ),
    # small-total: right when its cell runs first, and wrong when that runs again and the program is traced again.
    "    return x @ x\n": "    return x @ x + builtins.runs\n",
    '# %% right="small-total"\n': (
        '# %% wrong="small-total" because="Adds an axis."\ndef loss(x):\n    return (x**2).sum()[None]\n\n\n'
        f'# %% equivalent="small-total" because="A mistake."\n# {KILLED}\n\n# no such mutant\n'
        '# %% right="small-total"\nimport builtins\n\nbuiltins.runs = getattr(builtins, "runs", -1) + 1\n\n\n'
    ),
    "compare(ask(loss, x), (x**2).sum())": "compare(program(loss, x).run(x), (x**2).sum())",
    'compare(ask(loss, np.array([1, 3], "f")), np.array(10, "f"))': (
        'ones = np.ones(10, "f")\ncompare(program(loss, ones).run(ones), np.array(10, "f"))'
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/courses/small with these edits, built."""
    root = Path(shutil.copytree(COURSES / "small", tmp_path_factory.mktemp("weak") / "course"))
    path = root / "solutions" / f"{LESSON}.py"
    text = path.read_text()
    for old, new in EDITS.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    build(Course(root))
    return root


@pytest.fixture(scope="module")
def proof(weak: Path) -> Proof:
    return prove(Course(weak), [LESSON], jobs=1)


def problems(proof: Proof, exercise: str, pattern: str) -> list[str]:
    """The problems of an exercise that are of this pattern."""
    return [text for text in proof.problems if re.fullmatch(rf"{exercise}: {pattern}", text, re.DOTALL)]


def test_points_that_change_with_the_draw_are_a_problem(proof: Proof) -> None:
    changed = problems(proof, "small-mean", r"the wrong answer on line \d+ gives small-mean-program other points .*")
    assert len(changed) == 2  # the sum, and the square of the mean
    assert all("with seed " in text and "(0.0)" in text and text.endswith("than with most (2)") for text in changed)


def test_a_misconception_that_changes_with_the_draw_is_a_problem(proof: Proof) -> None:
    changed = problems(proof, "small-double", r"the wrong answer on line \d+ has another misconception named .*")
    assert len(changed) == 2
    assert "Adds two instead of multiplying by two." in changed[0]
    assert "Squares: right for two alone." in changed[1]
    assert not problems(proof, "small-double", r".* other points .*")


def test_a_mutant_whose_points_change_with_the_draw_is_a_problem(proof: Proof) -> None:
    text = (
        r"passes every check with seed 0 and fails small-mean-program with seed \d+: swapped function, mean -> sum: .*"
    )
    assert len(problems(proof, "small-mean", rf"the mutant on line 64 {text}")) == 1


def test_a_right_answer_that_traces_differently_each_time_is_a_problem(proof: Proof) -> None:
    assert (
        len(problems(proof, "small-total", r"the right answer on line \d+ fails small-total-example \(seed 1\): .*"))
        == 1
    )


def test_listed_mutants_are_those_that_pass(proof: Proof) -> None:
    text = "a mutant that is listed as equivalent on line"
    [killed] = problems(proof, "small-total", rf"{text} \d+ fails a check: .*")
    [none] = problems(proof, "small-total", rf"{text} \d+ does not exist: .*")
    assert killed.endswith(KILLED)
    assert none.endswith(": no such mutant")
    row = proof.rows[0]
    assert row.equivalent == 1
    assert LISTED not in {one.label for one in row.survivors}


def test_wrong_answers_that_fail_alike_are_tied(proof: Proof) -> None:
    row = proof.rows[2]
    assert (row.wrong, row.caught, row.tied) == (4, 4, 2)  # an axis is kept, and one is added


def test_the_table_counts_wrong_answers_caught_named_and_tied(grader: Grader, built: Callable[[str], Path]) -> None:
    done = grader("--course", built("small"), "prove", "--seeds", "1", "--jobs", "1")
    assert done.returncode == 0, done.stdout
    heading, *rows = (line.split() for line in done.stdout.splitlines() if line.strip().startswith(("exer", "small-")))
    assert heading == ["exercise", "right", "wrong", "caught", "named", "tied", "mutants", "time"]
    assert [row[:-2] for row in rows] == [
        ["small-double", "1", "3", "3", "3", "0", "0/0"],
        ["small-mean", "1", "3", "3", "3", "0", "1/1"],
        ["small-total", "1", "3", "3", "3", "0", "1/1"],
    ]


def test_suggestions_are_the_variants_that_pass_and_a_cell_to_list_them(grader: Grader, weak: Path) -> None:
    done = grader("--course", weak, "prove", "--suggest", "--seeds", "1", "--jobs", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    [double, mean, total] = re.split(r"^(?=small-\w+:)", done.stdout.partition("✗")[0], flags=re.MULTILINE)[1:]
    assert mean == dedent(
        """\
        small-mean: 1 of 1 variants pass every check.
          line 64: swapped function, mean -> sum
            - return (x**2).mean()
            + return (x ** 2).sum()
          Catch them with a check, or list those that are right answers, with the reason:
        # %% equivalent="small-mean" because=""
        # swapped function, mean -> sum: return (x**2).mean()
        """
    )
    assert double.startswith("small-double: 2 of 3 variants pass every check.\n")  # one more is listed
    assert total == "small-total: 0 of 1 variants pass every check.\n"


def test_times_list_each_check_with_its_requests(grader: Grader, tmp_path: Path) -> None:
    course = shutil.copytree(COURSES / "small", tmp_path / "small")
    done = grader("--course", course, "prove", "--exercise", "small-mean", "--times", COLUMNS="120")
    assert done.returncode == 0, done.stderr
    title, _, whole, start, example, hidden = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert title == ["check", "ms", "calls", "exports", "loads", "runs", "rest"]
    assert whole[0] == "small-mean"
    assert " ".join(start[:3]) == "start and cells"
    assert (example[0], hidden[0]) == ("example", "program")
    numbers = lambda row: [int(row[i - 1]) for i, word in enumerate(row) if word == "·"]
    assert (numbers(start), numbers(example), numbers(hidden)) == ([], [1], [1, 1, 4])
    total = int(start[3]) + int(example[1]) + int(hidden[1])
    assert abs(total - int(whole[1])) <= 2  # each is rounded
    assert int(start[3]) > 0


def test_totals_are_the_sums_of_the_lessons(grader: Grader) -> None:
    done = grader("--course", COURSES / "small", "totals", COLUMNS="120")
    assert done.returncode == 0, done.stderr
    title, _, lesson, *_, sums = [line.split() for line in done.stdout.splitlines() if line.strip()]
    course = Course(COURSES / "small")
    exercises = course.lesson(LESSON).exercises
    assert title == ["lesson", "exercises", "points", "checks", "hidden", "right", "wrong", "mutants"]
    assert lesson[0] == LESSON
    assert sums[:2] == ["1", "lesson"]
    assert lesson[1:] == sums[2:]
    counts = dict(zip(title[1:], sums[2:], strict=True))
    assert counts["exercises"] == str(len(exercises))
    assert counts["wrong"] == str(sum(len(exercise.wrong) for exercise in exercises))
    assert int(counts["hidden"]) < int(counts["checks"])
    assert int(counts["mutants"]) > 0
