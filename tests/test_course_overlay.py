"""An overlay: text of an instructor's own over a course that it extends, by every rule, and nothing written below."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from conftest import COURSES, ROOT

from grader.course import Course, CourseError, build
from grader.course.percent import EXERCISES, OVERLAY
from grader.course.tree import OVERLAY_KEYS

SMALL = "01_small"
TEXT = f"solutions/{SMALL}.py"


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """The overlay in a folder of its own, beside the course that it extends."""
    for name in ("small", "overlaid"):
        shutil.copytree(COURSES / name, tmp_path / name, ignore=shutil.ignore_patterns("build", "exercises"))
    return tmp_path / "overlaid"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def refusal(root: Path, lesson: str = SMALL) -> str:
    with pytest.raises(CourseError) as caught:
        Course(root).lesson(lesson)
    return str(caught.value)


def tree(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_lesson_is_both_texts(overlay: Path) -> None:
    course = Course(overlay)
    lesson = course.lesson(SMALL)
    assert course.name == "A class of its own"
    assert [one.id for one in lesson.exercises] == ["small-double", "small-half", "small-mean", "small-total"]
    double, half, mean, _ = lesson.exercises
    assert [check.id for check in double.checks] == ["small-double-example", "small-double-own"]
    assert [check.id for check in mean.checks] == ["small-mean-example", "small-mean-program"]
    assert (double.points, half.points, lesson.points) == (4, 2.5, 12.5)
    assert double.wrong[-1].because == "Leaves small numbers alone."
    assert len(double.wrong) == 4
    assert lesson.setup.endswith("SCALE = 2.0\n\nHALF = 0.5")
    assert lesson.where(double.line) == "line 12 of ../small/solutions/01_small.py"
    assert lesson.where(half.line) == f"line 13 of {TEXT}"


def test_a_course_below_is_as_it_was_without_the_overlay(overlay: Path) -> None:
    below = Course(overlay.parent / "small")
    assert below.base is None
    assert [one.points for one in below.lesson(SMALL).exercises] == [3, 3, 3]


def test_everything_is_built_in_the_overlay(overlay: Path) -> None:
    pictures = overlay.parent / "small" / "images"
    (pictures / "src").mkdir(parents=True)
    (pictures / "src" / "draw.py").write_text("")
    (pictures / "shared.svg").write_text("<svg/>")
    (pictures / "other.svg").write_text("<svg/>")
    (pictures.parent / "docs").mkdir()
    (pictures.parent / "docs" / "glossary.md").write_text("Terms.")
    (overlay / "images").mkdir()
    (overlay / "images" / "other.svg").write_text("mine")
    below = tree(overlay.parent / "small")
    course = Course(overlay)
    written = build.build(course)
    assert [path.relative_to(overlay).as_posix() for path in written] == [
        "build/source/01_small/01_small.ipynb",
        "docs/glossary.md",
        "exercises/01_small/01_small.ipynb",
        "images/shared.svg",
    ]
    assert (overlay / "images" / "other.svg").read_text() == "mine"
    assert build.build(course) == build.stale(course) == []
    assert tree(overlay.parent / "small") == below
    built = json.loads((overlay / "exercises" / SMALL / f"{SMALL}.ipynb").read_text())["cells"]
    order = [cell["id"] for cell in built]
    assert order.index("small-double-why") < order.index("text-2") < order.index("small-half-task")
    assert order.index("small-half-why") < order.index("small-mean-task")
    assert "small-double-values" not in order
    text = "".join(line for cell in built for line in cell["source"])
    assert "12.5 points" in text
    assert "Doubles what this class draws." in text
    assert "uniform(5, 9" not in text
    assert "HALF * x" not in text


def test_a_check_for_an_exercise_below_comes_after_its_own(overlay: Path) -> None:
    edit(
        overlay / TEXT,
        'hidden="small-double" name="own" points=3 instead=true',
        'check="small-double" name="own" points=3',
    )
    double = Course(overlay).lesson(SMALL).exercises[0]
    assert [check.id for check in double.checks] == [f"small-double-{name}" for name in ("example", "values", "own")]
    assert [check.hidden for check in double.checks] == [False, True, False]
    assert double.points == 6
    build.build(Course(overlay))
    order = [cell["id"] for cell in json.loads((overlay / "exercises" / SMALL / f"{SMALL}.ipynb").read_text())["cells"]]
    assert order.index("small-double-values") + 1 == order.index("small-double-own")
    assert order.index("small-double-own") + 1 == order.index("small-double-why")


def test_the_guide_has_every_word_that_an_overlay_may_say() -> None:
    guide = (ROOT / "docs" / "overlay.md").read_text()
    example = re.search(r"```toml\n(.*?)```", guide, re.DOTALL)
    assert example is not None
    assert set(tomllib.loads(example[1])) == set(OVERLAY_KEYS)
    for words in (
        OVERLAY["task"].keys() - EXERCISES["task"].keys(),
        OVERLAY["hidden"].keys() - EXERCISES["hidden"].keys(),
    ):
        assert all(f"`{word}=" in guide for word in words)


CASES = {
    "a second task": (
        '# %% wrong="small-double"',
        '# %% [markdown] why="small-double"\n# Why?\n# %% wrong="small-double"',
        f"{TEXT}:8: a second `why` for `small-double`: a duplicate id",
    ),
    "an id of the course below": ('name="own" points=3 instead=true', 'name="values" points=3',
        f"{TEXT}:3: `small-double-values` is taken: a duplicate id"),
    "a leak of the course below": ("# Now something", "# Now `made = program(loss, x[0])`, something",
        f"{TEXT}:12: the text shows a hidden check of `small-mean`"),
    "a hidden check shown": ("# Now something", '# Now x = inputs.rng().uniform(5, 9, size=4).astype("f") something',
        f"{TEXT}:12: the text shows a hidden check of `small-double`"),
    "no such neighbour": ('after="small-double"', 'after="small-triple"',
        f"{TEXT}:13: `after` names `small-triple`, which is no exercise above"),
    "two neighbours": ('after="small-double"', 'after="small-double" before="small-mean"',
        f"{TEXT}:13: the task says both `before` and `after`"),
    "instead of nothing": ("points=1.5", "points=1.5 instead=true",
        f"{TEXT}:31: `small-half` is no exercise of the course below: there are no checks to leave out"),
    "setup too late": ('# %% right="small-half"', '# %% setup\nLATE = 1\n# %% right="small-half"',
        f"{TEXT}:46: a setup cell stands after an exercise"),
    "still to write": ("Halve an array.", "FILL IN: what to halve.",
        f"{TEXT}:15: still to write: what to halve. Write it in place of `FILL IN: ...`."),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_rule_holds_over_both(overlay: Path, case: str) -> None:
    old, new, said = CASES[case]
    edit(overlay / TEXT, old, new)
    assert said in refusal(overlay)
    assert "../small" not in refusal(overlay)


def toml(overlay: Path, *lines: str) -> str:
    """The course.toml of an overlay with these lines instead of what it says of itself."""
    text = (overlay / "course.toml").read_text()
    (overlay / "course.toml").write_text("\n".join(lines) + text[text.index("\n\n") :])
    try:
        Course(overlay).lesson(SMALL)
    except CourseError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['extends = "../small"', 'lesons = ["01_small"]'], "course.toml:2: an overlay has no `lesons`. It takes"),
        (['extends = "../smal"'], "course.toml:1: there is no course in `../smal`, which `extends` names. Let it lead"),
        (["extends = 3"], "course.toml:1: there is no course in `3`"),
        (['extends = "../small"', 'lessons = "01_small"'], "course.toml:2: `lessons` is no list of ids."),
        (['extends = "../small"', 'lessons = ["02_big"]'], "`lessons` names `02_big`, which is no lesson. The"),
        (['extends = "../small"', 'without = ["small-x"]'], "`without` names `small-x`, which is no exercise of the"),
        (['extends = "."'], "course.toml:1: this is an overlay, and an overlay extends no other."),
        (['extends = "../small"', 'lessons = ["07_extra"]'], "there is no lesson `01_small`. The lessons are 07"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_outline_is_said(overlay: Path, lines: list[str], said: str) -> None:
    assert said in toml(overlay, *lines)


def test_a_number_is_taken_once(overlay: Path) -> None:
    edit(overlay / "course.toml", 'id = "07_extra"', 'id = "01_extra"')
    edit(overlay / "course.toml", '"07_extra"', '"01_extra"')
    with pytest.raises(CourseError, match="lesson `01_extra` has the number of `01_small` of the course below"):
        Course(overlay)


def test_what_is_wrong_below_is_told_with_its_place(overlay: Path) -> None:
    edit(overlay.parent / "small" / TEXT, "Becomes a program", 'Becomes"""; """a program')
    assert refusal(overlay).startswith("../small/solutions/01_small.py:68: ")
    (overlay.parent / "small" / "solutions" / "02_stray.py").write_text("")
    assert refusal(overlay).startswith(f"{overlay.parent}/small/solutions/02_stray.py:1: course.toml lists no lesson")


def test_lessons_and_exercises_may_be_left_out(overlay: Path) -> None:
    assert toml(overlay, 'extends = "../small"', 'without = ["small-mean", "small-total"]') == ""
    course = Course(overlay)
    assert course.name == "Three small exercises"
    assert (course.ids, course.lesson_ids) == ((SMALL, "07_extra"), (SMALL,))
    assert [one.id for one in course.lesson(SMALL).exercises] == ["small-double", "small-half"]
    # Its id is free, and what it taught counts as taught.
    edit(overlay / TEXT, "01_small,small-double", "01_small,small-mean")
    (overlay / TEXT).write_text((overlay / TEXT).read_text().replace("small-half", "small-total"))
    assert [one.id for one in Course(overlay).lesson(SMALL).exercises] == ["small-double", "small-total"]


def test_what_a_lesson_that_is_not_offered_teaches_counts_as_taught(overlay: Path) -> None:
    shutil.move(overlay / TEXT, overlay / "solutions" / "07_extra.py")
    path = overlay / "solutions" / "07_extra.py"
    text = path.read_text()
    setup = "from grader.checks import ask, compare, inputs\nimport numpy as np\nHALF = 0.5\n"
    new = (
        text[text.index("# %% [markdown] task") :]
        .replace(' after="small-double"', "")
        .replace("small-half", "extra-half")
    )
    path.write_text(f"# %% [markdown]\n# # 07 · Exercises: Extra\n# %% setup\n{setup}{new}")
    assert toml(overlay, 'extends = "../small"', 'lessons = ["07_extra"]') != ""
    course = Course(overlay)
    assert course.lesson_ids == ("07_extra",)
    assert course.lesson("07_extra").exercises[0].skills == ("01_small", "small-double")
    assert course.lesson("07_extra").where(3) == "line 3"
    path.write_text(path.read_text().replace("extra-half", "small-mean"))
    assert "`small-mean` is taken: a duplicate id" in refusal(overlay, "07_extra")


def test_an_overlays_own_text_stands_in_for_the_lesson_below(overlay: Path) -> None:
    for root, said in ((overlay.parent / "small", "below"), (overlay, "above")):
        (root / "notebooks").mkdir()
        (root / "notebooks" / f"{SMALL}.py").write_text(f"# %% [markdown]\n# # 01 · Small, {said}\n")
    course = Course(overlay)
    assert "above" in course.text(SMALL)[0].source
    (overlay / "notebooks" / f"{SMALL}.py").unlink()
    assert "below" in Course(overlay).text(SMALL)[0].source
    assert build.lesson_path(Course(overlay), SMALL) == overlay / "notebooks" / f"{SMALL}.ipynb"
