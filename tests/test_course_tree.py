"""The course as a tree: course.toml, which lessons there are, and what reading one gives."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grader.course import Course, CourseError

TINY = Path(__file__).parent / "courses" / "course_tiny"
ROOT = Path(__file__).parent.parent


@pytest.fixture
def tiny(tmp_path):
    shutil.copytree(TINY, tmp_path / "course")
    return tmp_path / "course"


def refusal(root):
    with pytest.raises(CourseError) as caught:
        Course(root)
    return str(caught.value).split("\n")


def test_a_course_knows_its_lessons_in_order(tiny):
    course = Course(tiny)
    assert course.name == "Tiny"
    assert course.ids == ("01_first", "02_second", "03_later")
    assert course.lesson_ids == ("01_first", "02_second")
    assert course.text_ids == ("01_first",)
    assert course.planned("03_later").part == "II. Not written"


def test_a_lesson_is_data(tiny):
    course = Course(tiny)
    lesson = course.lesson("02_second")
    assert lesson is course.lesson("02_second")
    assert (lesson.title, lesson.path) == ("Second", tiny / "solutions/02_second.py")
    assert course.script("01_first") == tiny / "notebooks/01_first.py"
    assert lesson.setup == (
        "import math\n\nfrom grader.checks import ask, compare, counted, error, inputs, program, require\n\nscale = 2.5"
    )
    checks = {"ask", "compare", "counted", "error", "inputs", "program", "require"}
    assert lesson.setup_names == checks | {"math", "scale"}
    assert lesson.points == 4.5
    (exercise,) = lesson.exercises
    assert exercise is lesson.exercise("second-square")
    assert (exercise.title, exercise.stars, exercise.minutes, exercise.timeout) == ("The square", 2, 10, None)
    assert exercise.skills == ("02_second", "first-double", "01_first")
    assert exercise.names == ("SIDES", "square")
    assert exercise.points == 4.5
    assert exercise.why == "A power says it. And a cube?"
    assert [(v.because, "def square" in v.source) for v in exercise.wrong] == [
        ("Doubles instead.", True),
        ("Gives a float.", True),
        ("Loses the sign of nothing.", True),
    ]
    assert [variant.because for variant in exercise.right] == [None]
    assert course.lesson("01_first").exercises[0].timeout == 20


def test_stub_and_reference_are_the_answer_cell_without_and_with_its_solution(tiny):
    exercise = Course(tiny).lesson("02_second").exercise("second-square")
    head = 'SIDES = 4\n\n\ndef square(x):\n    """x: a number; returns its square."""\n'
    assert exercise.stub == head + "    # YOUR CODE HERE\n    raise NotImplementedError()"
    assert exercise.reference == head + "    squared_number = math.pow(x, 2)\n    return type(x)(squared_number)"


def test_checks_carry_their_points_and_lines(tiny):
    lesson = Course(tiny).lesson("02_second")
    values, many, once = lesson.exercises[0].checks
    assert (values.id, values.exercise) == ("second-square-values", "second-square")
    assert values.title == "Squares one number."
    assert [(c.points, c.hidden, c.observed) for c in (values, many, once)] == [
        (1, False, False),
        (2.5, True, False),
        (1, True, True),
    ]
    lines = lesson.path.read_text().split("\n")
    assert lines[many.line - 1].startswith("# %% hidden=")
    assert lines[many.line] == many.source.split("\n")[0]


def test_points_are_added_without_rounding_errors(tiny):
    lesson = Course(tiny).lesson("02_second")
    [exercise] = lesson.exercises
    checks = tuple(
        replace(check, points=points) for check, points in zip(exercise.checks, (0.1, 0.2, 0.3), strict=True)
    )
    exercise = replace(exercise, checks=checks)
    assert exercise.points == replace(lesson, exercises=(exercise,)).points == 0.6


def test_a_course_is_found_from_below(tiny, monkeypatch):
    assert Course.find(tiny / "solutions").root == tiny
    monkeypatch.chdir(tiny / "notebooks")
    assert Course.find().root == tiny


def test_no_course_above(tmp_path):
    with pytest.raises(CourseError) as caught:
        Course.find(tmp_path)
    fix = "Change to the folder of a course, pass --course DIR, or create a folder with `grader lab`"
    assert str(caught.value) == f"{tmp_path}: no course.toml in this folder or in one above it. {fix}."


@pytest.mark.parametrize(
    ("lesson", "problem"),
    [
        ("05_vmap", "course.toml:1: there is no lesson `05_vmap`. The lessons are 01_first, 02_second, 03_later."),
        (
            "03_later",
            "solutions/03_later.py:1: lesson `03_later` has no exercises yet. "
            "Lessons with exercises: 01_first, 02_second.",
        ),
    ],
)
def test_a_lesson_that_is_not_there(tiny, lesson, problem):
    with pytest.raises(CourseError) as caught:
        Course(tiny).lesson(lesson)
    assert str(caught.value) == problem


LESSON = '[[lesson]]\nid = "{}"\ntitle = "T"\npart = "P"\n'


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("", 'course.toml:1: the course has no name. Add `name = "..."` at the top.'),
        ('name = "X"', "course.toml:1: the course lists no lesson. Add `[[lesson]]` with id, title and part."),
        (
            'name = "X"\n' + LESSON.format("1_first"),
            "course.toml:3: `1_first` is no legal id for a lesson. Write it as `05_vmap`.",
        ),
        (
            'name = "X"\n' + LESSON.format("01_first") * 2,
            "course.toml:7: `01_first` is listed twice: a duplicate id. Keep one.",
        ),
        (
            'name = "X"\n' + LESSON.format("02_second") + LESSON.format("01_first"),
            "course.toml:7: `01_first` stands after `02_second`. List lessons by number, each number once.",
        ),
        (
            'name = "X"\n[[lesson]]\nid = "01_first"\npart = "P"\n',
            'course.toml:3: lesson `01_first` has no title. Add `title = "..."`.',
        ),
    ],
)
def test_course_toml_has_rules_too(tmp_path, toml, problem):
    (tmp_path / "course.toml").write_text(toml)
    assert problem in refusal(tmp_path)


def test_course_toml_that_is_not_toml_is_named_with_its_line(tmp_path):
    (tmp_path / "course.toml").write_text('name = "X"\nname = "Y"\n')
    assert refusal(tmp_path)[0].startswith("course.toml:2: not TOML: ")


def test_a_file_that_no_lesson_lists_is_refused(tiny):
    (tiny / "notebooks" / "09_stray.py").write_text("")
    assert refusal(tiny) == [
        "notebooks/09_stray.py:1: course.toml lists no lesson `09_stray`. Add it there, or rename the file."
    ]


def lesson_problems(root, text):
    (root / "notebooks" / "01_first.py").write_text(text)
    with pytest.raises(CourseError) as caught:
        Course(root).text("01_first")
    return [str(problem).removeprefix("notebooks/01_first.py:") for problem in caught.value.problems]


TITLE = "# %% [markdown]\n# # 01 · First\n"
ASK = TITLE + '# %% [markdown] predict="first-thing"\n# What?\n#\n'
CHOICES = "# - [ ] one | Tempting.\n# - [x] two | Right.\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "# %%\n1\n",
            "1: the first cell is not the title. Begin with a `# %% [markdown]` cell: `# 01 · Title`.",
        ),
        (
            TITLE.replace("01", "02"),
            "1: the first cell is not the title. Begin with a `# %% [markdown]` cell: `# 01 · Title`.",
        ),
        (
            TITLE + "# %%\n\nx =\n",
            "5: a Python syntax error: invalid syntax. Fix the code; write a magic as a comment, `# %timeit f(x)`.",
        ),
        (TITLE + "# %% tags=[1]\n1\n", '3: a tag is not text. Write `tags=["raises-exception"]`.'),
        (
            ASK + "# - [ ] one | Tempting.\n# - [ ] two | Also.\n",
            "3: 0 choices are ticked. Tick exactly one: `- [x] choice | why it is right`.",
        ),
        (
            ASK + CHOICES.replace("[ ]", "[x]"),
            "3: 2 choices are ticked. Tick exactly one: `- [x] choice | why it is right`.",
        ),
        (
            ASK + CHOICES.replace(" | Tempting.", ""),
            "6: the choice has no reason. Write `- [ ] choice | why it is tempting`.",
        ),
        (
            ASK + "# - [x] two | Right.\n",
            "3: the prediction has 1 choices. Write two to 8 lines `- [ ] choice | why it is tempting`.",
        ),
        (
            (ASK + CHOICES).replace("# What?\n", ""),
            "3: the prediction asks nothing. Write the question above its choices.",
        ),
        (
            (ASK + CHOICES).replace("first-thing", "Thing"),
            "3: `Thing` is no legal id for a prediction. Use small letters, digits and hyphens, as in `topic-thing`.",
        ),
        (
            ASK + CHOICES + (ASK + CHOICES).removeprefix(TITLE),
            "8: `first-thing` is taken: a duplicate id. Choose another id.",
        ),
    ],
)
def test_a_lessons_own_text_has_rules(tiny, text, problem):
    assert lesson_problems(tiny, text) == [problem]


def test_reading_a_lesson_imports_nothing_heavy():
    """A grading process reads a lesson; what only building needs would cost it seconds."""
    code = (
        "import sys; from grader.course import Course, probes, workspace; Course.find().lesson_ids; "
        "print([m for m in ('jax', 'numpy', 'nbgrader', 'nbformat', 'jupytext', 'nbconvert') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_lesson_of_this_course_keeps_the_rules():
    course = Course(ROOT)
    assert len(course.ids) == 29
    for lesson_id in course.lesson_ids:
        assert course.lesson(lesson_id).exercises
    for lesson_id in course.text_ids:
        assert course.text(lesson_id)
