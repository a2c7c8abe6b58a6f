"""The percent script: what a cell line says, where a cell's lines stand, and what cannot be read."""

from pathlib import Path

import pytest

from grader.course import percent
from grader.course.percent import Findings

COURSES = Path(__file__).parent / "courses"


CODE_KINDS = "A code cell is one of: setup, answer, check, hidden, wrong, right, equivalent"


def read(source, kinds=percent.EXERCISES):
    findings = Findings("solutions/x.py")
    return percent.read(source, kinds, findings), [(p.line, p.message, p.fix) for p in findings.problems]


def test_a_cell_line_says_what_the_cell_is():
    cells, problems = read(
        "# %% [markdown]\n# # Title\n# %% setup\nimport math\n"
        '# %% [markdown] task="a-b" stars=1 minutes=10 skills="01_x,a-c"\n# ## T\n'
        '# %% answer="a-b" timeout=2.5\nf = 1\n'
        '# %% check="a-b" name="v" points=1\n1\n# %% hidden="a-b" name="w" points=0.5 observed=true\n2\n'
        '# %% [markdown] why="a-b"\n# So.\n# %% wrong="a-b" because="Says \\"one\\", é."\nf = 2\n'
        '# %% right="a-b"\nf = 3'
    )
    assert problems == []
    kinds = "text setup task answer check hidden why wrong right".split()
    assert [cell.kind for cell in cells] == kinds
    assert [cell.id for cell in cells] == [None, None] + ["a-b"] * 7
    assert cells[2].attributes == {"stars": 1, "minutes": 10, "skills": "01_x,a-c"}
    assert cells[3].attributes == {"timeout": 2.5}
    assert cells[5].attributes == {"name": "w", "points": 0.5, "observed": True}
    assert cells[7].attributes == {"because": 'Says "one", é.'}
    assert [cell.prose for cell in cells] == [True, False, True, False, False, False, True, False, False]


def test_sources_lose_blank_lines_at_both_ends_and_know_their_lines():
    cells, problems = read("\n# %% setup\n\n\nx = 1\n\ny = 2\n\n\n# %% [markdown]\n#\n# # T\n#\n#   - in\n#\n")
    assert problems == []
    assert (cells[0].source, cells[0].line, cells[0].first) == ("x = 1\n\ny = 2", 2, 5)
    assert (cells[1].source, cells[1].line, cells[1].first) == ("# T\n\n  - in", 10, 12)


def test_a_lesson_has_code_predictions_and_tags():
    cells, problems = read('# %%\nx = 1\n# %% [markdown] predict="a-b"\n# Q\n# %% tags=["a", "b"]\n1', percent.LESSON)
    assert problems == []
    assert [(c.kind, c.id) for c in cells] == [("code", None), ("predict", "a-b"), ("code", None)]
    assert cells[2].attributes == {"tags": ["a", "b"]}


def test_what_looks_like_a_cell_line_but_is_none():
    cells, problems = read("# %%\nif True:\n    # %% inner\n    pass\n# %%time\n# %timeit f()", percent.LESSON)
    assert problems == []
    assert len(cells) == 1


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = 1\n# %% setup", (1, "the first line is no cell line", "Begin the file with a `# %%` line")),
        ("", (1, "the first line is no cell line", "Begin the file with a `# %%` line")),
        ("x = 1", (1, "the first line is no cell line", "Begin the file with a `# %%` line")),
        ('# %% exam="a-b"', (1, "`exam` is no kind of cell here", CODE_KINDS)),
        ("# %%\n1", (1, "a code cell does not say what it is", CODE_KINDS)),
        ("# %% stup", (1, "`stup` is no kind of cell here", CODE_KINDS)),
        (
            '# %% [markdown] quiz="a-b"',
            (1, "`quiz` is no kind of cell here", "A prose cell is one of: text, task, why"),
        ),
        ('# %% task="a-b"', (1, "a `task` cell is prose", "Write its line with `[markdown]`")),
        ("# %% [markdown] setup", (1, "a `setup` cell is code", "Write its line without `[markdown]`")),
        ('# %% setup answer="a-b"', (1, "the cell says it is `setup` and `answer`", "Let it say one of them")),
        (
            '# %% check="a-b" point=1',
            (1, "a `check` cell has no attribute `point`", "It takes `name`, `points`, `observed`"),
        ),
        ("# %% setup points=1", (1, "a `setup` cell has no attribute `points`", "It takes none")),
        ('# %% check="a-b" points="1"', (1, "`points=1` is not a number", "Give `points` a number")),
        ('# %% check="a-b" points=one', (1, "`points=one` is not a number", "Give `points` a number")),
        ('# %% check="a-b" observed=yes', (1, "`observed=yes` is not true or false", "Give `observed` true or false")),
        (
            '# %% [markdown] task="a-b" stars=1.5',
            (1, "`stars=1.5` is not a whole number", "Give `stars` a whole number"),
        ),
        ("# %% answer=3", (1, "`answer` names 3", 'Write `answer="topic-thing"`')),
        ("# %% answer=a-b", (1, "`answer` names a-b", 'Write `answer="topic-thing"`')),
        ("# %% answer", (1, "`answer` names nothing", 'Write `answer="topic-thing"`')),
        (
            '# %% wrong="a-b" because="open',
            (1, 'the cell line cannot be read from `because="open` on', 'Write words and `key="value"` pairs'),
        ),
        ('# %% answer="a-b" timeout=1 timeout=2', (1, "`timeout` is given twice", "Keep one")),
        (
            "# %% [markdown]\n# one\ntwo\n#three",
            (3, "a line of prose is not a comment", "Begin it with `# `"),
        ),
    ],
)
def test_a_cell_that_cannot_be_read_is_named_with_its_line_and_mend(source, problem):
    _, problems = read(source)
    assert problems[0] == problem


def test_all_problems_of_a_file_are_found_at_once():
    _, problems = read("x\n# %% nope\n# %% [markdown]\nprose\nmore\n# %% setup points=1")
    assert [line for line, _, _ in problems] == [1, 2, 4, 5, 6]


@pytest.mark.parametrize("path", sorted(COURSES.glob("course_tiny/*/*.py")), ids=lambda path: path.stem)
def test_jupytext_reads_the_same_cells(path):
    jupytext = pytest.importorskip("jupytext")
    kinds = percent.LESSON if path.parent.name == "notebooks" else percent.EXERCISES
    ours = percent.read(path.read_text(), kinds, Findings(""))
    theirs = jupytext.read(path, fmt="py:percent").cells
    assert [cell.prose for cell in ours] == [cell.cell_type == "markdown" for cell in theirs]
    for cell, other in zip(ours, theirs, strict=True):
        # Jupytext has already turned commented magics into magics; our builder does that.
        assert cell.source.replace("# %", "%") == other.source.replace("# %", "%")
