"""The learner's copies: added, never overwritten, with links and pictures that lead somewhere."""

import json
import re
import shutil
from pathlib import Path

import desk
import pytest

from grader.course import Course, build, migrate, workspace

TINY = Path(__file__).parent / "courses" / "course_tiny"
COPIES = ["work/lessons/01_first.ipynb", "work/01_first/01_first.ipynb", "work/02_second/02_second.ipynb"]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@pytest.fixture
def tiny(tmp_path):
    root = tmp_path / "course"
    shutil.copytree(TINY, root)
    task = root / "solutions/02_second.py"
    links = "![the dot](../../images/dot.svg), a [product](../../docs/glossary.md#product)"
    task.write_text(task.read_text().replace("# Multiply.", f"# Multiply {links}."))
    (root / "docs").mkdir()
    (root / "docs/glossary.md").write_text("In [01](../notebooks/01_first.ipynb), see [product](#product).")
    build.build(Course(root))
    return root


def shown(root, paths):
    return [path.relative_to(root).as_posix() for path in paths]


def test_what_is_new_is_added_and_what_is_there_is_left(tiny):
    course = Course(tiny)
    assert shown(tiny, workspace.copies(course)) == COPIES
    (tiny / COPIES[0]).write_text("my notes")
    (tiny / COPIES[1]).unlink()
    assert shown(tiny, workspace.copies(course)) == COPIES[1:2]
    assert (tiny / COPIES[0]).read_text() == "my notes"
    assert workspace.copies(course) == []


def test_even_an_empty_file_or_a_link_to_nowhere_is_the_learners(tiny):
    (tiny / "work/lessons").mkdir(parents=True)
    (tiny / COPIES[0]).symlink_to("elsewhere.ipynb")
    (tiny / "work/01_first").mkdir()
    (tiny / COPIES[1]).write_text("")
    assert shown(tiny, workspace.copies(Course(tiny))) == COPIES[2:]
    assert (tiny / COPIES[0]).is_symlink()
    assert (tiny / COPIES[1]).read_text() == ""


def test_no_half_written_copy_is_left_behind(tiny, monkeypatch):
    def interrupted(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            workspace.copies(Course(tiny))
    assert shown(tiny, workspace.copies(Course(tiny))) == COPIES
    assert list((tiny / "work").rglob("*.new")) == []


def links(path):
    text = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    return [link for link in LINK.findall(text) if "://" not in link]


def test_links_and_pictures_lead_somewhere_in_both_places(tiny):
    workspace.copies(Course(tiny))
    built = ["notebooks/01_first.ipynb", "exercises/01_first/01_first.ipynb", "exercises/02_second/02_second.ipynb"]
    for place in (*built, *COPIES):
        found = links(tiny / place)
        assert found, place
        for link in found:
            assert (tiny / place).parent.joinpath(link).is_file(), f"{place}: {link}"


def test_in_this_course_too_every_link_leads_somewhere_on_a_code_host_and_in_jupyterlab(tmp_path):
    course = Course(desk.copy_course(tmp_path))
    copies = workspace.copies(course)
    built = [*course.root.glob("notebooks/*.ipynb"), *course.root.glob("exercises/*/*.ipynb")]
    assert len(copies) == len(built) > 10
    for place in (*built, *copies):
        prose = [cell for cell in json.loads(place.read_text())["cells"] if cell["cell_type"] == "markdown"]
        text = "\n".join("".join(cell["source"]) for cell in prose)
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", re.sub(r"`[^`\n]*`", "", text)):
            target = place.parent.joinpath(link).resolve()
            assert target.is_file(), f"{place}: {link}"
            assert place in built or target.is_relative_to(course.root / "work"), f"{place}: {link}"


def test_copies_lead_to_copies(tiny):
    """Opening and running a committed notebook would change it; and JupyterLab may have been opened in work/."""
    workspace.copies(Course(tiny))
    for place in COPIES:
        for link in links(tiny / place):
            target = (tiny / place).parent.joinpath(link).resolve()
            assert target.is_relative_to(tiny / "work"), f"{place}: {link}"


def test_a_copy_that_links_nowhere_has_the_same_bytes(tiny):
    path = tiny / "solutions/02_second.py"
    text = path.read_text().replace("02_second,first-double,01_first", "first-double")
    path.write_text(text.replace("../../images", "x").replace("../../docs", "x"))
    build.build(Course(tiny))
    workspace.copies(Course(tiny))
    assert (tiny / COPIES[2]).read_bytes() == (tiny / "exercises/02_second/02_second.ipynb").read_bytes()


def test_nbgrader_finds_every_locked_cell_of_a_copy_unchanged(tiny):
    import nbformat
    from nbgrader.utils import compute_checksum

    workspace.copies(Course(tiny))
    for place in COPIES[1:]:
        for cell in nbformat.read(tiny / place, 4).cells:
            assert cell.metadata.nbgrader.checksum == compute_checksum(cell)


def test_pictures_are_brought_up_to_date(tiny):
    course = Course(tiny)
    workspace.copies(course)
    (tiny / "images/dot.svg").write_text("<svg/>")
    assert workspace.copies(course) == []
    assert (tiny / "work/images/dot.svg").read_text() == "<svg/>"


def test_the_glossary_leads_to_copies_and_is_brought_up_to_date(tiny):
    course = Course(tiny)
    workspace.copies(course)
    copy = tiny / "work/docs/glossary.md"
    assert copy.read_text() == "In [01](../lessons/01_first.ipynb), see [product](#product)."
    assert copy.parent.joinpath("../lessons/01_first.ipynb").is_file()
    (tiny / "docs/glossary.md").write_text("changed")
    assert workspace.copies(course) == []
    assert copy.read_text() == "changed"


def test_lessons_that_are_not_built_are_not_copied(tiny):
    shutil.rmtree(tiny / "exercises")
    assert shown(tiny, workspace.copies(Course(tiny))) == COPIES[:1]


def test_a_learner_begins_with_the_first_lesson(tiny):
    course = Course(tiny)
    assert workspace.first(course) == ""
    workspace.copies(course)
    assert workspace.first(course) == "lessons/01_first.ipynb"
    shutil.rmtree(tiny / "work/lessons")
    assert workspace.first(course) == "01_first/01_first.ipynb"


def test_a_learners_folder_of_the_installed_course(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("grader.core.layout.INSTALLED_COURSE", tiny)
    home = tmp_path / "learner"
    assert workspace.create(home)
    assert not workspace.create(home), "what is there stays"
    course = Course(home)
    assert (course.home, course.root) == (home, tiny)
    assert shown(home, workspace.copies(course)) == COPIES
    assert course.shown(home / COPIES[0]) == COPIES[0]
    assert not (tiny / "work").exists()
    (home / COPIES[1]).write_text("mine")
    own, earlier = workspace.renew(course, "01_first")
    assert (own, earlier.parent) == (home / COPIES[1], home / "work/earlier")


def test_a_newer_installed_course_is_carried_over(tiny, tmp_path, monkeypatch):
    """As after `pip install --upgrade`: the learner's folder stays, and the course below it changes."""
    monkeypatch.setattr("grader.core.layout.INSTALLED_COURSE", tiny)
    home = tmp_path / "learner"
    workspace.create(home)
    workspace.copies(Course(home))
    script = tiny / "solutions/01_first.py"
    changed = script.read_text().replace("# Add", "# Now add")
    assert changed != script.read_text()
    script.write_text(changed)
    build.build(Course(tiny))
    course = Course(home)
    [one] = [one for one in migrate.diff_all(course) if one.copy.own == home / COPIES[1]]
    migrate.migrate(course, one.copy)
    assert "Now add" in (home / COPIES[1]).read_text()
    assert migrate.diff_all(course) == []
