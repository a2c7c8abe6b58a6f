"""Every rule of an exercise file: the tiny course keeps them all, and each case breaks one of them in one place."""

import re
import shutil
from pathlib import Path

import pytest

from grader.course import Course, CourseError

TINY = Path(__file__).parent / "courses" / "course_tiny"
LESSON = "02_second"
BEGIN, END = "    ### BEGIN SOLUTION\n", "    ### END SOLUTION\n"
HINT = "<details><summary>Hint 2 · a nudge</summary>\n#\n# Multiply.\n# </details>\n# "
WRONG = '# %% wrong="second-square" because="Doubles instead."\nSIDES = 4\ndef square(x):\n    return 2 * x\n\n'
RIGHT = '# %% right="second-square"\nSIDES = 4\ndef square(x):\n    return x * x\n'
WHY = '# %% [markdown] why="second-square"\n# A power says it. And a cube?\n'
VALUES = '# %% check="second-square" name="values" points=1\n"""Squares one number."""\n'
MANY = '# %% hidden="second-square" name="many" points=2.5\n"""Squares every number, drawn anew."""\n'
ONCE = '# %% hidden="second-square" name="once" points=1 observed=true\n"""Runs once."""\n'


@pytest.fixture
def tiny(tmp_path):
    shutil.copytree(TINY, tmp_path / "course")
    return tmp_path / "course"


def problems(course_root, replace=None, by=None, lesson=LESSON):
    """What is wrong after a replacement in the lesson's file, as `(line, message, fix)`."""
    path = course_root / "solutions" / f"{lesson}.py"
    if replace is not None:
        text = path.read_text()
        assert replace in text
        path.write_text(text.replace(replace, by, 1))
    try:
        Course(course_root).lesson(lesson)
    except CourseError as error:
        found = error.problems
    else:
        found = ()
    assert {problem.path for problem in found} <= {f"solutions/{lesson}.py"}
    return [(problem.line, problem.message, problem.fix) for problem in found]


def line_of(course_root, text, lesson=LESSON):
    before, found, _ = (course_root / "solutions" / f"{lesson}.py").read_text().partition(text)
    assert found, text
    return before.count("\n") + 1


def test_the_tiny_course_keeps_every_rule(tiny):
    for lesson in ("01_first", "02_second"):
        assert problems(tiny, lesson=lesson) == []


# Each case: what is replaced, by what, the text whose line the problem names, its message, its fix.
CASES = {
    "no title": (
        "# # 02 · Exercises", "# # Exercises", "# %% [markdown]",
        "the first cell is not the title",
        "Begin with a `# %% [markdown]` cell: `# 02 · Exercises: Second`",
    ),
    "no task": (
        'task="second-square" stars=2 minutes=10 skills="02_second,first-double,01_first"', "",
        '# %% answer="second-square"',
        "`second-square` has no task",
        'Add `# %% [markdown] task="second-square"` before the answer',
    ),
    "no heading": (
        "# ## The square", "# The square", '# %% [markdown] task',
        "the task has no heading", "Begin it with `## What it is about`",
    ),
    "no label": (
        "# **Example.**", "# An example:", '# %% [markdown] task',
        "the task does not say **Example.**", "Add a line `**Example.** ...`",
    ),
    "two hints": (
        HINT, "", '# %% [markdown] task',
        "the task has 2 hints", "Write exactly three `<details>`: a question, a nudge, and nearly there",
    ),
    "four hints": (
        HINT, HINT + HINT, '# %% [markdown] task',
        "the task has 4 hints", "Write exactly three `<details>`: a question, a nudge, and nearly there",
    ),
    "no summary": (
        "<summary>Hint 1 · a question</summary>", "Hint 1", '# %% [markdown] task',
        "a hint is not whole", "Give each `<details>` a `<summary>` and a `</details>`",
    ),
    "stars": (
        "stars=2", "stars=4", '# %% [markdown] task',
        "the task's `stars` are missing or not 1, 2 or 3", "Write `stars=`1, 2 or 3",
    ),
    "minutes": (
        " minutes=10", "", '# %% [markdown] task',
        "the task's `minutes` are missing or not 1 to 240", "Write `minutes=`1 to 240",
    ),
    "no skill": (
        ' skills="02_second,first-double,01_first"', "", '# %% [markdown] task',
        "the task names no skill that it uses", 'Name lessons or exercises: `skills="01_arrays,vmap-pairwise"`',
    ),
    "skill of a later lesson": (
        "02_second,first", "03_later,first", '# %% [markdown] task',
        "the skill `03_later` is taught in a later lesson", "Name what is taught before this exercise",
    ),
    "skill of nothing": (
        "first-double,", "first-triple,", '# %% [markdown] task',
        "the skill `first-triple` is no lesson of course.toml and no exercise",
        "Name what is taught before this exercise",
    ),
    "skill of itself": (
        "first-double,", "second-square,", '# %% [markdown] task',
        "the skill `second-square` is an exercise of 02_second, which comes no earlier",
        "Name what is taught before this exercise",
    ),
    "setup after the task": (
        '# %% answer="second-square"', '# %% setup\nlate = 1\n# %% answer="second-square"', "# %% setup\nlate",
        "a setup cell stands after an exercise", "Put it before the first task",
    ),
    "star import": (
        "import math", "from math import *", "from math",
        "a star import hides which names it binds", "Name them",
    ),
    "setup binds Probe": (
        "scale = 2.5", "Probe = 2.5", "# %% setup\nProbe",
        "setup binds `Probe`, a name that the grader keeps", "Choose another name",
    ),
    "no begin": (
        BEGIN, "", "    ### END SOLUTION",
        "a solution ends that did not begin", "Write `### BEGIN SOLUTION` before it",
    ),
    "no end": (
        END, "", "    ### BEGIN SOLUTION",
        "a solution does not end", "Close it with `### END SOLUTION`",
    ),
    "nested": (
        BEGIN, BEGIN + BEGIN, "    ### BEGIN SOLUTION\n    squared",
        "a solution begins inside another", "Write `### END SOLUTION` before it",
    ),
    "marker beside code": (
        "### END SOLUTION", "pass  ### END SOLUTION", "    pass  ###",
        "a SOLUTION marker shares its line", "Write `### BEGIN SOLUTION` on a line of its own",
    ),
    "marker in a check": (
        "\nresult = ask", "\n### BEGIN SOLUTION\nresult = ask", "### BEGIN SOLUTION\nresult",
        "a SOLUTION marker outside an answer cell", "Take the marker out",
    ),
    "marker in prose": (
        "# More prose", "# ### END SOLUTION\n# More prose", "# ### END",
        "a SOLUTION marker outside an answer cell", "Take the marker out",
    ),
    "hidden markers by hand": (
        "\nresult = ask", "\n### BEGIN HIDDEN TESTS\nresult = ask", "### BEGIN HIDDEN",
        "`BEGIN HIDDEN TESTS` is written by hand", 'Put hidden text into a `# %% hidden="..."` cell',
    ),
    "a solution that is a cell's end": (
        "    return type(x)(squared_number)\n    ### END SOLUTION", "    ### END SOLUTION\n    return (",
        "    return (",
        "a Python syntax error: '(' was never closed", "Fix the code",
    ),
    "answer binds a setup name": (
        "SIDES = 4\n\n\ndef", "SIDES = scale = 4\n\n\ndef", "SIDES = scale",
        "the answer binds `scale`, which setup binds", "Choose another name, or leave it to setup",
    ),
    "wrong answer binds a setup name": (
        "SIDES = 4\ndef square(x):\n    return 2 * x", "SIDES = 4\nimport math\ndef square(x):\n    return 2 * x",
        "import math\ndef square",
        "the answer binds `math`, which setup binds", "Choose another name, or leave it to setup",
    ),
    "wrong answer binds no name": (
        "def square(x):\n    return 2 * x", "def sqare(x):\n    return 2 * x",
        '# %% wrong="second-square" because="Dou',
        "a wrong answer does not bind `square`", "Write the whole answer cell, with `square`",
    ),
    "right answer binds no name": (
        RIGHT, RIGHT.replace("SIDES", "sides"), "# %% right",
        "a right answer does not bind `SIDES`", "Write the whole answer cell, with `SIDES`",
    ),
    "no visible check": (
        VALUES, VALUES.replace("check=", "hidden="), '# %% answer="second-square"',
        "`second-square` has no check that the learner can run",
        'Add `# %% check="second-square" name="values" points=1`',
    ),
    "no name": (
        'name="once" ', "", ONCE.split(" name=")[0] + " points=1 obs",
        "the check has no name", "Use small letters, digits and hyphens; `task` and `why` are taken",
    ),
    "illegal name": (
        'name="once"', 'name="Once!"', '# %% hidden="second-square" name="Once',
        "the check has no legal name", "Use small letters, digits and hyphens; `task` and `why` are taken",
    ),
    "reserved name": (
        'name="once"', 'name="why"', '# %% hidden="second-square" name="why',
        "the check has no legal name", "Use small letters, digits and hyphens; `task` and `why` are taken",
    ),
    "the same name twice": (
        'name="once"', 'name="values"', '# %% hidden="second-square" name="values',
        "`second-square-values` is taken: a duplicate id", "Give the check another name",
    ),
    "no points": (
        " points=2.5", "", '# %% hidden="second-square" name="many"',
        "the check's points are missing", "Write `points=1` or more",
    ),
    "zero points": (
        "points=2.5", "points=0", '# %% hidden="second-square" name="many"',
        "the check's points are 0, not positive", "Write `points=1` or more",
    ),
    "negative points": (
        "points=2.5", "points=-1", '# %% hidden="second-square" name="many"',
        "the check's points are -1, not positive", "Write `points=1` or more",
    ),
    "points that are no number": (
        "points=2.5", "points=NaN", '# %% hidden="second-square" name="many"',
        "the check's points are nan, not positive", "Write `points=1` or more",
    ),
    "too much observed": (
        "points=1 observed", "points=4 observed", '# %% hidden="second-square" name="once"',
        "observed checks hold 4 of the 7.5 points of `second-square`, more than half",
        "Move points to checks on values or on the program",
    ),
    "a count that is not marked": (
        "return square(*number), len(number)", "return square(*number), counted(square).calls",
        "return square(*number)",
        "the check uses `counted`, which only the answer's own process can say, and is not marked so",
        "Write `observed=true` in its cell line, or judge a value or the program",
    ),
    "a verdict beside the answer": (
        "return square(*number), len(number)", "return square(*number), [not number, 1]",
        "return square(*number)",
        "a probe returns `not number`, a verdict of the answer's own process",
        "Return what it is about, and judge that here. Write `observed=true` in its cell line, or judge a value or the "
        "program",
    ),
    "no docstring": (
        '"""Squares one number."""\n', "", '# %% check="second-square"',
        "the check has no one-line docstring", 'Open it with """One sentence that the learner reads."""',
    ),
    "long docstring": (
        '"""Squares one number."""', '"""Squares\none number."""', '# %% check="second-square"',
        "the check has no one-line docstring", 'Open it with """One sentence that the learner reads."""',
    ),
    "asks nothing": (
        "compare(ask(lambda x: square(x), 2), 4)", "compare(4, 4)", '"""Runs once."""',
        "the check asks the answer nothing", "Call `ask`, `error` or `program`",
    ),
    "probe with a free name": (
        "compare(ask(lambda x: square(x), 2), 4)", "two = 2\ncompare(ask(lambda: square(two)), 4)",
        "compare(ask(lambda: square(two",
        "a lambda probe uses `two`, which is no name of setup, of an answer or of its own",
        "Pass `two` as an argument, or bind it in a setup cell",
    ),
    "probe with an answer of another lesson": (
        "lambda x: square(x), 2", "lambda x: double(x), 2", "compare(ask(lambda x: double",
        "a lambda probe uses `double`, which is no name of setup, of an answer or of its own",
        "Pass `double` as an argument, or bind it in a setup cell",
    ),
    "answer used outside": (
        "compare(ask(lambda: SIDES), 4)", "compare(SIDES, 4)", "compare(SIDES",
        "the answer's name `SIDES` is used outside `ask`, `error`, `program` and probes",
        "Write `ask(SIDES, ...)` with data, or do it inside a probe",
    ),
    "first argument": (
        "ask(square, drawn_number)", "ask(math.sqrt, drawn_number)", "    compare(ask(math",
        "`ask` is called with `math.sqrt`, which is neither an answer's name nor a probe",
        "Pass an answer's name, a `def` of this cell or a lambda first, and data after it",
    ),
    "check binds a setup name": (
        "result = ask(probe, 3)\ncompare(result[0], 9)", "scale = ask(probe, 3)\ncompare(scale[0], 9)", "scale = ask",
        "the check binds `scale`, which setup binds", "Choose another name",
    ),
    "name of another check": (
        "compare(ask(lambda x: square(x), 2), 4)", "compare(ask(lambda x: square(x), 2), result)",
        "compare(ask(lambda x",
        "the check uses `result`, which neither setup nor this cell binds",
        "Bind it in this cell or in a setup cell: each check stands alone",
    ),
    "an expression that judges nothing": (
        "compare(result[0], 9)", "result[0] == 9", "result[0] ==",
        "`result[0] == 9` judges nothing", 'Write `require(..., "what should hold")`',
    ),
    "two wrong": (
        WRONG, "", '# %% answer="second-square"',
        "`second-square` has 2 wrong answers of at least 3",
        'Add `# %% wrong="second-square" because="..."` as learners really answer',
    ),
    "no right": (
        RIGHT, "", '# %% answer="second-square"',
        "`second-square` has no right answer beside its reference",
        'Add `# %% right="second-square"` with the answer written another way',
    ),
    "no because": (
        ' because="Gives a float."', "", '# %% wrong="second-square"\n',
        "a wrong answer does not say `because`",
        'Write `because="..."`: the misconception behind it, in one sentence',
    ),
    "empty because": (
        'because="Gives a float."', 'because=" "', '# %% wrong="second-square" because=" "',
        "a wrong answer does not say `because`",
        'Write `because="..."`: the misconception behind it, in one sentence',
    ),
    "no reason for an equivalent mutant": (
        RIGHT, f'# %% equivalent="second-square"\n# swapped axes, 0 -> 1: y\n{RIGHT}', "# %% equivalent",
        "an `equivalent` cell has no `because`", 'Write `because="..."`: why these mutants are right answers',
    ),
    "no equivalent mutant": (
        RIGHT, f'# %% equivalent="second-square" because="It is."\n{RIGHT}', "# %% equivalent",
        "an `equivalent` cell does not list mutants",
        "Copy the label of each mutant from the output of `grader prove`, a comment each",
    ),
    "an equivalent mutant as code": (
        RIGHT, f'# %% equivalent="second-square" because="It is."\n# a\nx = 1\n{RIGHT}', "# %% equivalent",
        "an `equivalent` cell does not list mutants",
        "Copy the label of each mutant from the output of `grader prove`, a comment each",
    ),
    "no why": (
        WHY, "", '# %% answer',
        "`second-square` has no cell that explains why its answer works",
        'Add `# %% [markdown] why="second-square"`: two sentences, a question',
    ),
    "two whys": (
        WHY, WHY + WHY.replace("cube", "root"), WHY.replace("cube", "root"),
        "a second `why` for `second-square`: a duplicate id", "Give it an id of its own",
    ),
    "cell before its answer": (
        "# %% [markdown]\n# More prose", WRONG + "# %% [markdown]\n# More prose", "# %% wrong",
        "a `wrong` cell stands before its answer", "Put it after the answer",
    ),
    "a cell without its answer": (
        "# %% right=", '# %% check="second-sqare" name="x" points=1\n"""X."""\n# %% right=',
        '# %% check="second-sqare"',
        "a `check` cell without its answer: no answer cell names `second-sqare`",
        'Add `# %% answer="second-sqare"`, or correct the id',
    ),
    "solution in prose": (
        "# Multiply.", "# Try `squared_number = math.pow(x, 2)` now.", "# Try",
        "the text shows the solution of `second-square`: `squared_number = math.pow(x, 2)`", "Say it in other words",
    ),
    "solution in why": (
        "# A power says it.", "# Just `type(x)(squared_number)`.", "# Just",
        "the text shows the solution of `second-square`: `type(x)(squared_number)`", "Say it in other words",
    ),
    "solution in a check": (
        "result = ask", "x = 3\nsquared_number = math.pow(x, 2)\nresult = ask",
        "squared_number = math.pow(x, 2)\nresult",
        "the cell shows the solution of `second-square`: `squared_number = math.pow(x, 2)`", "Write it another way",
    ),
    "solution in setup": (
        "scale = 2.5", "def given(x):\n    return type(x)(squared_number)", "    return type(x)",
        "the cell shows the solution of `second-square`: `type(x)(squared_number)`", "Write it another way",
    ),
    "hidden check in prose": (
        "# Multiply.", "# We test with inputs.rng().integers(100, size=5).tolist()\n"
        "# `drawn_numbers = inputs.rng().integers(100, size=5).tolist()`.", "# `drawn",
        "the text shows a hidden check of `second-square`: "
        "`drawn_numbers = inputs.rng().integers(100, size=5).tolist()`",
        "Say it in other words",
    ),
    "hidden check in a visible one": (
        "compare(result[0], 9)",
        "drawn_numbers = inputs.rng().integers(100, size=5).tolist()\nfor drawn_number in drawn_numbers:\n"
        "    expected_square = drawn_number * drawn_number\n",
        "drawn_numbers =",
        "the cell shows 3 lines of a hidden check of `second-square`, from "
        "`drawn_numbers = inputs.rng().integers(100, size=5).tolist()` on",
        "Let the hidden check differ, or move what they share to setup",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_broken_rule_is_named_with_its_line_and_mend(tiny, case):
    replace, by, place, message, fix = CASES[case]
    found = problems(tiny, replace, by)
    assert (line_of(tiny, place), message, fix) in found
    assert len(found) <= 3, "one mistake should not read like many"


@pytest.mark.parametrize("kind", ["setup", "answer", "check", "hidden", "wrong", "right"])
def test_a_syntax_error_is_named_with_its_line(tiny, kind):
    path = tiny / "solutions" / f"{LESSON}.py"
    lines = path.read_text().split("\n")
    start = next(n for n, line in enumerate(lines) if line.startswith(f"# %% {kind}"))
    end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("# %%")), len(lines))
    lines[end - 1 : end] = ["x = = 1", *lines[end - 1 : end]]
    path.write_text("\n".join(lines))
    assert (end, "a Python syntax error: invalid syntax", "Fix the code") in problems(tiny)


def test_syntax_errors_that_only_compiling_finds_count_too(tiny):
    found = problems(tiny, "compare(ask(lambda: SIDES), 4)", "compare(ask(lambda: SIDES), 4)\nreturn 1")
    assert [message for _, message, _ in found] == ["a Python syntax error: 'return' outside function"]


@pytest.mark.parametrize("legal", ["second", "Second-square", "second_square", "setup-square", "text-2", "a--b"])
def test_illegal_ids(tiny, legal):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text(path.read_text().replace('"second-square"', f'"{legal}"'))
    fix = "Use small letters, digits and hyphens, as in `topic-thing`; it may not begin with `setup` or `text`"
    message = f"`{legal}` is no legal id for an exercise"
    assert problems(tiny) == [(line_of(tiny, "# %% [markdown] task"), message, fix)]


def test_ids_are_unique_in_the_course(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text(path.read_text().replace('"second-square"', '"first-double"').replace(",first-double", ""))
    fix = "Choose an id that no other exercise or check has"
    message = "`first-double` is taken: a duplicate id"
    assert problems(tiny) == [(line_of(tiny, "# %% [markdown] task"), message, fix)]


def test_an_exercise_may_not_take_the_id_of_a_check(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    text = path.read_text()
    second = text[text.index("# %% [markdown] task") :].replace('"second-square"', '"second-square-values"')
    path.write_text(text + second)
    assert [message for _, message, _ in problems(tiny)] == ["`second-square-values` is taken: a duplicate id"]


def two_exercises(text):
    """The file with a second exercise, `second-cube`, that uses the first as a skill."""
    second = text[text.index("# %% [markdown] task") :].replace("second-square", "second-cube")
    second = (
        second.replace("def square", "def cube").replace("(square", "(cube").replace("return square", "return cube")
    )
    second = (
        second.replace("squared_number", "a_cubed_number")
        .replace("drawn", "thrown")
        .replace("first-double", "second-square")
    )
    return text + second.replace("lambda x: square", "lambda x: cube")


def test_two_exercises_may_define_the_same_name_and_build_on_each_other(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text(two_exercises(path.read_text()))
    assert problems(tiny) == []
    lesson = Course(tiny).lesson(LESSON)
    assert [exercise.names for exercise in lesson.exercises] == [("SIDES", "square"), ("SIDES", "cube")]


def test_a_check_may_not_use_the_answer_of_a_later_exercise(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text(two_exercises(path.read_text()))
    found = problems(tiny, "ask(lambda x: square(x), 2)", "ask(lambda x: cube(x), 2)")
    assert [message for _, message, _ in found] == [
        "a lambda probe uses `cube`, which is no name of setup, of an answer or of its own"
    ]


def test_the_cells_of_an_exercise_stand_together(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text(two_exercises(path.read_text()) + "\n" + RIGHT)
    fix = "Keep the cells of an exercise together"
    assert [(m, fix) for _, m, fix in problems(tiny)] == [
        ("a cell of `second-square` stands among those of `second-cube`", fix)
    ]


def test_no_hidden_check(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text(path.read_text().replace("# %% hidden=", "# %% check="))
    fix = 'Add `# %% hidden="second-square" name="program" points=2`'
    message = "`second-square` has no hidden check"
    assert problems(tiny) == [(line_of(tiny, "# %% answer"), message, fix)]


def test_only_observed_checks(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text(re.sub(r"points=[\d.]+$", "points=1 observed=true", path.read_text(), flags=re.MULTILINE))
    assert (
        line_of(tiny, "# %% check"),
        "every check of `second-square` is observed",
        "Add a check on values or on the program beside them",
    ) in problems(tiny)


def test_a_stub_without_a_name(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    text = path.read_text()
    start, end = text.index("SIDES = 4\n\n\ndef"), text.index("# %% check")
    path.write_text(text[:start] + "### BEGIN SOLUTION\nsquare = SIDES = 4\n### END SOLUTION\n" + text[end:])
    assert (
        line_of(tiny, "# %% answer"),
        "the stub binds no name that a check could ask for",
        "Leave a `def`, `class` or `name = None` outside the SOLUTION markers",
    ) in problems(tiny)


def test_no_solution_at_all(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text(path.read_text().replace(BEGIN, "").replace(END, ""))
    fix = "Put the answer between `### BEGIN SOLUTION` and `### END SOLUTION`"
    assert problems(tiny) == [(line_of(tiny, "# %% answer"), "the answer has no SOLUTION markers", fix)]


def test_a_file_without_exercises(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    path.write_text("# %% [markdown]\n# # 02 · Exercises: Second\n")
    fix = 'Add a task, its answer and its checks: `# %% answer="topic-thing"`'
    assert problems(tiny) == [(1, "the file has no exercise", fix)]


def test_every_problem_of_a_file_is_told_at_once(tiny):
    path = tiny / "solutions" / f"{LESSON}.py"
    text = path.read_text().replace("stars=2", "stars=9").replace("points=2.5", "points=0").replace(WHY, "")
    path.write_text(text.replace("return 2 * x", "return 2 *"))
    with pytest.raises(CourseError) as caught:
        Course(tiny).lesson(LESSON)
    assert len(caught.value.problems) == 4
    assert str(caught.value).split("\n")[0] == (
        "solutions/02_second.py:15: the task's `stars` are missing or not 1, 2 or 3. Write `stars=`1, 2 or 3."
    )
