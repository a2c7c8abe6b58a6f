"""Rules of style for edited lessons: length of cells and of the core, names of sections to skip, private vocabulary."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import COURSES, ROOT

from grader.course import Course, CourseError, percent, rules_style, vocabulary
from grader.course import build as builder
from grader.course.percent import Findings

# Pages and modules whose words are those of the field; add a page when it is edited.
PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks/RESULTS.md",
    "docs/accelerators.md",
    "docs/ci.md",
    "docs/cluster.md",
    "docs/confinement.md",
    "docs/glossary.md",
    "docs/gradebook.md",
    "docs/gradescope.md",
    "docs/grading.md",
    "docs/importing.md",
    "docs/instructors.md",
    "docs/nbgrader.md",
    "docs/overlay.md",
    "docs/reports.md",
    "docs/repository.md",
    "docs/results.md",
    "docs/semester.md",
    "docs/setup.md",
    "docs/workshop.md",
    "examples/README.md",
    "grader/checks/errors.toml",
    "tests/attacks/README.md",
)
MODULES = (
    "grader/board/board_server.py",
    "grader/board/connections.py",
    "grader/board/event_log.py",
    "grader/board/judge_queue.py",
    "grader/board/workshop.py",
    "grader/cli/__init__.py",
    "grader/cli/app.py",
    "grader/cli/author.py",
    "grader/cli/console.py",
    "grader/cli/follow.py",
    "grader/cli/grade.py",
    "grader/cli/instructor.py",
    "grader/cli/learner.py",
    "grader/checks/__init__.py",
    "grader/checks/__main__.py",
    "grader/checks/compare.py",
    "grader/checks/devices.py",
    "grader/checks/display.py",
    "grader/checks/drawings.py",
    "grader/checks/failure.py",
    "grader/checks/inputs.py",
    "grader/checks/kernel.py",
    "grader/checks/outcomes.py",
    "grader/checks/verbs.py",
    "grader/core/board_client.py",
    "grader/course/rules_style.py",
    "grader/doctor/diagnosis.py",
    "grader/doctor/installation.py",
    "grader/grading/batch.py",
    "grader/grading/cluster.py",
    "grader/grading/cluster_worker.py",
    "grader/grading/dispatch.py",
    "grader/grading/examiner.py",
    "grader/grading/regrade.py",
    "grader/learning/course_map.py",
    "grader/learning/digits.py",
    "grader/learning/inspection.py",
    "grader/learning/loaders.py",
    "grader/learning/plots.py",
    "grader/learning/predictions.py",
    "grader/learning/progress.py",
    "grader/learning/result_view.py",
    "grader/learning/submit.py",
    "grader/learning/watch.py",
    "grader/learning/watch_screen.py",
    "grader/learning/watch_terminal.py",
    "grader/learning/workshop_panel.py",
    "grader/lms/bundle.py",
    "grader/lms/collect.py",
    "grader/lms/feedback_page.py",
    "grader/lms/git.py",
    "grader/lms/gradebook.py",
    "grader/lms/gradescope.py",
    "grader/lms/nbgrader_autograde.py",
    "grader/lms/nbgrader_database.py",
    "grader/lms/nbgrader_settings.py",
    "grader/reports/forms.py",
    "grader/reports/html.py",
    "grader/reports/terminal.py",
)

TITLE = "# %% [markdown]\n# # 01 · A lesson\n#\n# *The core takes {} minutes.*\n"


def found(text: str, minutes: int = 1) -> list[tuple[int, str, str]]:
    """What is wrong with the script of a lesson, as (line, message, fix)."""
    findings = Findings("notebooks/01_lesson.py")
    rules_style.check_lesson(percent.read(TITLE.format(minutes) + text, percent.LESSON, findings), findings)
    return [(problem.line, problem.message, problem.fix) for problem in findings.problems]


def section(heading: str, *cells: str) -> str:
    return f"# %% [markdown]\n# ## {heading}\n" + "".join(f"# %%\n{cell}\n" for cell in cells)


def test_a_cell_of_twenty_lines_is_short_enough() -> None:
    assert found("# %%\n" + "\n".join(["x = 1"] * 20)) == []
    message, fix = "the cell has 21 lines, more than 20", "Split it, or import a helper from `grader.learning`"
    assert found("# %%\n" + "\n".join(["x = 1"] * 21)) == [(5, message, fix)]


def test_alternative_texts_with_brackets_do_not_count() -> None:
    picture = "# ![" + "float32[3] " * 2000 + "](attachment:plot.png)\n"
    assert found("# %% [markdown]\n" + picture) == []


def test_the_core_takes_35_minutes_at_most() -> None:
    words = "# %% [markdown]\n# " + "word " * 1390 + "\n"
    assert found(words, minutes=35) == []
    assert found(words + "# " + "word " * 100, minutes=35) == [
        (
            1,
            "the core takes 38 minutes (1498 words, 0 code cells)",
            "Shorten it to 35, or move sections under headings `## Deeper: ...`",
        )
    ]
    assert found(words + section("Deeper: more", *["x = 1"] * 40), minutes=35) == []
    assert [one[1] for one in found("# %%\nx = 1\n" * 29, minutes=35)] == [
        "the core takes 37 minutes (8 words, 29 code cells)"
    ]


@pytest.mark.parametrize("stated", ["25", "twenty-five", "23"])
def test_the_stated_time_is_about_the_estimated_one(stated: str) -> None:
    findings = Findings("lesson")
    text = TITLE.format(stated) + "# %%\nx = 1\n" * 20
    rules_style.check_lesson(percent.read(text, percent.LESSON, findings), findings)
    assert findings.problems == []


def test_another_time_or_none_is_named_with_what_to_write() -> None:
    message = "the first cell does not state how long the core takes, which is 25 minutes (8 words, 20 code cells)"
    assert found("# %%\nx = 1\n" * 20, minutes=40) == [(1, message, "Write: the core takes 25 minutes")]


def test_words_are_those_that_a_learner_reads() -> None:
    """No code blocks, addresses, alternative texts or tags; folded answers, inline code and choices count."""
    text = """\
# %% [markdown]
# ## Two words
# A [link](https://docs.jax.dev/a-b), `jnp.sum(x)` and ![no picture](../images/dot.svg).
#
# <details><summary>Answer</summary>
#
# Folded.
# </details>
#
# ```python
# ## no = heading
# ```
# %% [markdown] predict="a-b"
# What does it print?
#
# - [ ] one | Not read by everyone.
# - [x] two | It is right.
"""
    parts = rules_style.sections(percent.read(text, percent.LESSON, Findings("lesson")))
    assert [part.heading for part in parts] == ["", "Two words"]
    # heading 2, sentence 4, answer 2; question 4, choices 2, reason of the right choice 3
    assert rules_style.pace(parts)[1:] == (2 + 4 + 2 + 4 + 2 + 3, 0)


# Each case: cells of the core, of a first and of a second Deeper section, of the core after them; what is wrong.
NAMES: dict[str, tuple[list[str], list[str], list[str], list[str], list[str]]] = {
    "its own name": (["x = 1"], ["y = x", "y"], ["y = 2\ny"], ["x"], []),
    "used in the core": ([], ["y = 1"], [], ["print(y)"], ["`y` of Deeper: one"]),
    "used in another": ([], ["y = 1"], ["print(y)"], [], ["`y` of Deeper: one"]),
    "changed for the core": (["x = 1"], ["x = 2"], [], ["print(x)"], ["`x` of Deeper: one"]),
    "bound again before use": (["x = 1"], ["x = 2"], [], ["x = 3\nprint(x)", "x"], []),
    "read and bound in one line": ([], ["x = 2"], [], ["x = x + 1"], ["`x` of Deeper: one"]),
    "read by a loop": ([], ["x = 2"], [], ["for i in range(3):\n    x = x + i"], ["`x` of Deeper: one"]),
    "added to": ([], ["x = 2"], [], ["x += 1"], ["`x` of Deeper: one"]),
    "a loop's own name": ([], ["x = 2"], [], ["for x in range(3):\n    print(x)", "[x for x in 'ab']"], []),
    "a with block": ([], ["f = 2"], [], ["with open('f') as f:\n    f.read()"], []),
    "an argument": ([], ["x = 2"], [], ["def f(x):\n    return x", "g = lambda x: x"], []),
    "read in a function": ([], ["x = 2"], [], ["def f():\n    return x"], ["`x` of Deeper: one"]),
    "bound later": (["def f():\n    return x"], ["x = 2"], [], [], ["`x` of Deeper: one"]),
    "read by a function that is called": (
        ["x = 1\ndef f():\n    return x"], ["x = 2"], [], ["f()"], ["`f`, which reads `x`, of Deeper: one"],
    ),
    "a function of its own": ([], ["x = 2\ndef f():\n    return x", "f()"], ["x = 3\nx"], [], []),
    "an import": ([], ["import math"], [], ["math.pi"], ["`math` of Deeper: one"]),
    "a magic": ([], ["# %time y = 1"], [], ["# %time print(y)"], ["`y` of Deeper: one"]),
    "a magic's own name": ([], ["# %time y = 1\ny"], [], [], []),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_a_name_of_a_section_to_skip_is_used_there_alone(case: str) -> None:
    core, one, other, after, wanted = NAMES[case]
    parts = {"The core": core, "Deeper: one": one, "Deeper: other": other, "The end": after}
    text = "".join(section(heading, *cells) for heading, cells in parts.items())
    seen = [message for _, message, _ in found(text, minutes=3)]
    assert [one.removeprefix("the cell uses ") for one in seen] == [
        one.replace(" of Deeper: one", ' of the section "Deeper: one", which readers may skip') for one in wanted
    ]


def test_the_use_of_a_name_is_reported_in_its_line() -> None:
    text = section("Deeper: one", "y = 1") + section("The end", "x = 1\nprint(\n    y\n)")
    [(line, _, fix)] = found(text)
    assert (TITLE + text).split("\n")[line - 1] == "    y"
    assert fix == "Bind it in the core, or use another name"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("We mend it.", "mend"),
        ("Read it anew", "anew"),
        ("The slope of the loss", "slope"),
        ("on the way\nback", "way back"),
        ("It turns out in each turn.", "each turn"),
        ("after ten turns", "ten turns"),
        ("The form of its tree", "form of its tree"),
        ("handed it out", "handed it out"),
        ("Work is handed\n  in on Monday.", "handed in"),
        ("It lies on all devices.", "lies on all devices"),
        ("What travels?", "travels"),
        ("is told", "is told"),
        ("and are others", "are others"),
    ],
)
def test_a_private_word_is_found(text: str, word: str) -> None:
    findings = Findings("page")
    vocabulary.check_markdown(f"First.\n\n{text}\n", 10, findings)
    [problem] = findings.problems
    assert problem.message == f'"{word}" is private vocabulary'
    assert problem.line == 12


@pytest.mark.parametrize(
    "text",
    [
        "`slope`, ``mend ` anew`` and $slope$",
        "```python\nslope = anew\n```",
        "[text](https://docs.jax.dev/slope) https://docs.jax.dev/slope/",
        "The slope of the tangent, and the line's slope.",
        "They go hand in hand.",
        "It turns into a tree, in turn; each one turns out well.",
        "recommend, amend, stubborn, marshall",
    ],
)
def test_code_addresses_and_allowed_uses_are_not_searched(text: str) -> None:
    findings = Findings("page")
    vocabulary.check_markdown(text, 1, findings)
    assert findings.problems == []


def test_alternative_texts_are_searched() -> None:
    findings = Findings("page")
    vocabulary.check_markdown('![a slope](a.svg)\n<img src="b.svg" alt="mend">', 1, findings)
    assert [problem.line for problem in findings.problems] == [1, 2]


def test_comments_and_strings_of_code_are_searched_and_names_are_not() -> None:
    code = 'slope = 1  # mend it\nprint(f"anew {slope}",\n      "whoever")\n"""Two\nslopes"""\n'
    findings = Findings("cell")
    vocabulary.check_code(code, 5, findings)
    words = sorted((problem.line, problem.message.split('"')[1]) for problem in findings.problems)
    assert [word for _, word in words] == ["mend", "anew", "whoever", "slopes"]
    assert words[0][0] == 5


def test_each_entry_of_the_list_leads_to_what_to_write() -> None:
    for pattern, instead in vocabulary.WORDS:
        assert instead
        assert not vocabulary._WORD.search(instead), pattern


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the tiny course in which `edited` of the first lesson is as stated."""

    def make(value: str) -> Path:
        root = Path(shutil.copytree(COURSES / "course_tiny", tmp_path / "course"))
        outline = root / "course.toml"
        text = outline.read_text()
        outline.write_text(text.replace('id = "01_first"', f'id = "01_first"\nedited = {value}'))
        return root

    return make


def test_the_rules_are_those_of_edited_lessons_alone(edited: Callable[[str], Path]) -> None:
    root = edited("true")
    script = root / "notebooks/01_first.py"
    script.write_text(script.read_text() + "# mend\n")
    exercises = root / "solutions/01_first.py"
    exercises.write_text(exercises.read_text() + "# %% [markdown]\n# A slope.\n")
    with pytest.raises(CourseError) as caught:
        builder.build(Course(root))
    found = {(one.path, one.message.split('"')[1]) for one in caught.value.problems if "private" in one.message}
    assert {("notebooks/01_first.py", "mend"), ("solutions/01_first.py", "slope")} <= found
    assert Course(root).lesson("01_first").exercises  # graded all the same
    (root / "course.toml").write_text((root / "course.toml").read_text().replace("edited = true\n", ""))
    builder.build(Course(root))


def test_edited_is_true_or_false(edited: Callable[[str], Path]) -> None:
    with pytest.raises(CourseError, match="`edited` of lesson `01_first` is not true or false"):
        Course(edited('"yes"'))


@pytest.mark.parametrize("page", PAGES)
def test_an_edited_page_uses_the_words_of_the_field(page: str) -> None:
    findings = Findings(page)
    vocabulary.check_markdown((ROOT / page).read_text(encoding="utf-8"), 1, findings)
    assert findings.problems == []


@pytest.mark.parametrize("module", MODULES)
def test_an_edited_module_uses_the_words_of_the_field(module: str) -> None:
    findings = Findings(module)
    text = (ROOT / module).read_text(encoding="utf-8")
    ast.parse(text)
    vocabulary.check_code(text, 1, findings)
    assert findings.problems == []
