"""The first impression: README's table is the course, and no link of the front pages is dead."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LESSONS = tomllib.loads((ROOT / "course.toml").read_text())["lesson"]
BUILT = [lesson["id"] for lesson in LESSONS if (ROOT / "notebooks" / f"{lesson['id']}.ipynb").exists()]


START = "notebooks/00_start_here.py"
TABLES = pytest.mark.parametrize(("page", "folder"), [("README.md", "notebooks/"), (START, "")])


def table(page: str) -> str:
    """The text of a page; a script's prose without the signs of its comments."""
    return (
        re.sub(r"^# ?", "", (ROOT / page).read_text(), flags=re.MULTILINE)
        if page == START
        else (ROOT / page).read_text()
    )


def rows(page: str) -> list[list[str]]:
    """The cells of a page's lesson table, without the rows that name a part."""
    lines = re.findall(r"^\| .*\|$", table(page), re.MULTILINE)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if re.fullmatch(r"\d\d", row[0])]


@TABLES
def test_the_table_lists_the_course_in_order(page: str, folder: str) -> None:
    topics = [f"{row[0]}_{re.sub(r'[^a-z_].*', '', row[1].lstrip('['))}" for row in rows(page)]
    assert topics == [lesson["id"] for lesson in LESSONS]


@TABLES
def test_the_table_lists_its_parts(page: str, folder: str) -> None:
    parts = re.findall(r"\| \*\*(\w+)\*\* \| \*\*(.+?)\*\* \|", table(page))
    assert [f"{number}. {name}" for number, name in parts] == list(dict.fromkeys(one["part"] for one in LESSONS))


@TABLES
def test_what_is_built_is_linked_and_what_is_coming_says_so(page: str, folder: str) -> None:
    expected = [
        f"[{one['id'][3:]}]({folder}{one['id']}.ipynb)" if one["id"] in BUILT else f"{one['id'][3:]} *(coming)*"
        for one in LESSONS
    ]
    assert [row[1] for row in rows(page)] == expected


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_no_link_is_dead(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_table_of_jax_pages_names_what_the_lessons_contain() -> None:
    lines = re.findall(r"^\| (?!page).*\|$", (ROOT / "docs/jax_documentation.md").read_text(), re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    exercises = set(re.findall(r'answer="([\w-]+)"', "".join(p.read_text() for p in (ROOT / "solutions").glob("*.py"))))
    assert len(rows) > 40
    for page, lessons, practised in rows:
        for lesson, sections in re.findall(r"notebooks/(\w+)\.ipynb\)((?:,? \*[^*]+\*)*)", lessons):
            text = (ROOT / f"notebooks/{lesson}.py").read_text().replace("`", "").lower()
            headings = set(re.findall(r"^# ## (?:deeper: )?(.*)$", text, re.MULTILINE))
            assert {name.lower() for name in re.findall(r"\*([^*]+)\*", sections)} <= headings, (page, sections)
        assert set(filter(None, practised.split(", "))) <= {*exercises, "all"}, page


def test_the_picture_of_the_lessons_has_only_paths_that_contain_what_they_require(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "images/src"))
    script = runpy.run_path(str(ROOT / "images/src/start_here_lessons.py"))
    names, requires = script["lessons"]()
    assert sorted(names) == [lesson[:2] for lesson in BUILT]
    assert {"04", "12", "15"} <= requires["22"]
    for number, before in requires.items():
        assert all(one < number for one in before), f"lesson {number} requires a later one"
    assert len(script["paths"]()) == 3
    for title, path in script["paths"]().items():
        for number in path & set(requires):
            assert requires[number] <= path, f"{title}: lesson {number} requires {requires[number] - path}"
    assert set(script["PLACES"]) >= {number for number in names if number >= "09"}


def test_the_changelog_counts_the_exercises() -> None:
    exercises = sum(len(re.findall(r'(?m)^# %% answer="', path.read_text())) for path in ROOT.glob("solutions/*.py"))
    assert f"lessons with {exercises} exercises" in (ROOT / "CHANGELOG.md").read_text()
