"""What learners get: it runs on its own, it is the same bytes each time, and nothing hidden is in it or in its past."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from conftest import COURSES, ROOT, Grader
from fill import fill, write
from old_notebooks import NOTEBOOKS
from old_notebooks import write as old_notebook

from grader.checks.execute import execute
from grader.core.layout import PACKAGE, learner_files
from grader.course import Course, build, exercises, nbgrader_import, rules
from grader.lms import bundle
from grader.lms.bundle import NoBundle

HIDDEN = {"hidden", "wrong", "right"}
SHORTEST = 20  # characters: `return x + y` is no secret
LESSON = "01_small"


@cache
def pieces(source: str) -> frozenset[str]:
    """Every statement and expression that says something, in Python's own spelling."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # ValueError: git's own objects hold null bytes
        return frozenset()
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt))
    # Words that a reader is shown, such as a check's title, are looked for as text.
    texts = {ast.unparse(node) for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom | ast.Name)}
    return frozenset(text for text in texts if len(text) >= SHORTEST)


def secrets(course: Course) -> tuple[set[str], set[str]]:
    """Pieces of code, and sentences, that learners are not given."""
    hidden: set[str] = set()
    public: set[str] = set()
    sentences = set()
    for lesson in course.lesson_ids:
        for cell in course.lesson(lesson).cells:
            if cell.kind in HIDDEN:
                hidden |= pieces(cell.source)
                sentences |= {cell.attributes["because"]} if cell.kind == "wrong" else set()
            elif cell.kind == "answer":
                hidden |= pieces(exercises.reference(cell.source))
                public |= pieces(exercises.stub(cell.source))
            elif not cell.prose:
                public |= pieces(cell.source)
            if cell.kind == "hidden":
                public |= {ast.unparse(ast.parse(cell.source).body[0])}  # its title is shown
    for lesson in course.text_ids:
        for cell in course.text(lesson):
            public |= set() if cell.prose else pieces(cell.source)
    for path in learner_files():
        public |= pieces((PACKAGE / path).read_text()) if path.suffix == ".py" else set()
    cells = [cell for i in course.lesson_ids for cell in course.lesson(i).cells if cell.kind not in HIDDEN]
    told = "\n".join(exercises.stub(cell.source) for cell in cells)  # of a cell that is no answer, all of it
    told += "\n".join(cell.source for i in course.text_ids for cell in course.text(i))
    # Pictures are written to be shown, as prose is; the words in them stand in what draws them.
    told += "\n".join(path.read_text() for path in sorted(course.root.glob("images/src/*.py")))
    return {piece for piece in hidden - public if piece not in told}, {one for one in sentences if one not in told}


def texts(path: str, content: bytes) -> Iterator[str]:
    """What a reader of this file can see: each cell of a notebook, or the file."""
    text = content.decode("utf-8", "ignore")
    if content.startswith(b"{") and b'"cells"' in content:
        for cell in json.loads(text)["cells"]:
            yield "".join(cell["source"])
            yield json.dumps([cell["metadata"], cell.get("outputs")], ensure_ascii=False)
    else:
        yield re.sub(r' d="[^"]*"', "", text)  # the lines of a drawing


def shown(course: Course, files: dict[str, bytes]) -> list[str]:
    """Each hidden thing that one of these files holds."""
    code, sentences = secrets(course)
    # No whole word of a piece is missing where the piece stands, so it is looked for where its longest one is.
    by_word: dict[str, list[str]] = {}
    for one in code | sentences:
        by_word.setdefault(max(re.findall(r"\w+", one)[1:-1], key=len, default=""), []).append(one)
    found = []
    for path, content in files.items():
        for text in texts(path, content):
            words = {"", *re.findall(r"\w+", text)}
            found += [f"{path}: {piece}" for piece in sorted(code & pieces(text))]
            found += [f"{path}: {one}" for word in words for one in by_word.get(word, []) if one in text]
    return found


def read(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode("utf-8", "ignore")


def every_object(folder: Path) -> dict[str, bytes]:
    ids = [line.split()[0] for line in git(folder, "cat-file", "--batch-all-objects", "--batch-check").splitlines()]
    kinds = {one: git(folder, "cat-file", "-t", one).strip() for one in ids}
    return {
        one: subprocess.run(["git", "cat-file", kinds[one], one], cwd=folder, capture_output=True, check=True).stdout
        for one in ids
    }


@pytest.fixture(scope="module")
def ours(grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of this course."""
    folder = tmp_path_factory.mktemp("bundle") / "lessons"
    done = grader("bundle", "--out", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def small(built: Callable[[str], Path], grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the small course, unpacked from its zip, which lies beside it."""
    folder = tmp_path_factory.mktemp("small")
    done = grader("--course", built("small"), "bundle", "--out", folder / "small.zip")
    assert done.returncode == 0, done.stderr
    zipfile.ZipFile(folder / "small.zip").extractall(folder)
    return folder / "small"


def test_no_answer_hidden_wrong_or_right_text_goes_out(ours: Path) -> None:
    course = Course(ROOT)
    code, sentences = secrets(course)
    assert len(code) > 500
    assert len(sentences) > 50
    assert shown(course, read(ours)) == []
    folders = {path.parts[0] for path in map(Path, read(ours)) if len(path.parts) > 1}
    assert folders - {"docs"} == {"notebooks", "exercises", "images", "grader"}
    assert [path for path in read(ours) if path.startswith("docs/")] in ([], ["docs/glossary.md"])
    inside = {path.name for path in (ours / "grader").iterdir()}
    assert inside == {"__init__.py", "core", "program", "checks", "learning", "lessons.py"}
    packaged = {str(path.relative_to(ours / "grader")) for path in (ours / "grader").rglob("*") if path.is_file()}
    assert packaged == {str(path) for path in learner_files()}


@pytest.mark.parametrize("kind", ["answer", "hidden", "wrong", "right"])
def test_it_would_be_seen_if_it_did(kind: str) -> None:
    course = Course(COURSES / "course_tiny")
    cell = next(cell for cell in course.lesson("02_second").cells if cell.kind == kind)
    source = exercises.reference(cell.source) if kind == "answer" else cell.source
    notebook = {"cells": [{"source": source.splitlines(keepends=True), "metadata": {}}]}
    for name, content in (("x.ipynb", json.dumps(notebook)), ("x.py", f"# a comment\nif True:\n    pass\n{source}")):
        seen = shown(course, {name: content.encode()})
        assert seen or kind in ("wrong", "right"), "too short to tell from anybody's code"
        assert bundle.leaks(course, {name: content.encode()}) or kind in ("wrong", "right")
    because = "Loses the sign of nothing."
    assert shown(course, {"x.md": because.encode()})
    assert bundle.leaks(course, {"x.md": because.encode()})


def test_every_link_and_picture_of_a_bundle_is_in_it(ours: Path) -> None:
    one = bundle.files(Course(ROOT), ["05_vmap"])
    assert not [path for path in one if "jit" in path]
    linking = bundle.files(Course(ROOT), ["16_sharding", "17_explicit_sharding"])  # 16 links to 17 and to 19
    assert b"(17_explicit_sharding.ipynb)" in linking["notebooks/16_sharding.ipynb"]
    for files in (one, linking, read(ours)):
        for path in files:
            if path.endswith(".ipynb"):
                cells = json.loads(files[path])["cells"]
                prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
                for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", prose):
                    assert os.path.normpath(os.path.join(os.path.dirname(path), target)) in files
    for target in re.findall(r"\]\(([^)#:]+)\)", one["README.md"].decode()):
        assert target in one


def test_the_glossary_goes_out_with_links_to_the_lessons_of_the_bundle(tmp_path: Path) -> None:
    root = Path(shutil.copytree(COURSES / "course_tiny", tmp_path / "course", ignore=shutil.ignore_patterns("build")))
    assert "docs/glossary.md" not in bundle.files(Course(root))
    script = root / "notebooks" / "01_first.py"
    script.write_text(script.read_text() + "\n# %% [markdown]\n# A [sum](../docs/glossary.md#sum).\n")
    with pytest.raises(NoBundle, match=r"A notebook links to docs/glossary\.md, which does not exist"):
        bundle.files(Course(root))
    (root / "docs").mkdir()
    links = "[01](../notebooks/01_first.ipynb) and [05](../notebooks/05_vmap.ipynb)"
    (root / "docs" / "glossary.md").write_text(links)
    assert bundle.files(Course(root))["docs/glossary.md"] == b"[01](../notebooks/01_first.ipynb) and 05"


@pytest.mark.parametrize("name", ["images/../solutions/01_first.py", "images/outside.svg"])
def test_nothing_beside_the_pictures_goes_out_as_one(tmp_path: Path, name: str) -> None:
    root = Path(shutil.copytree(COURSES / "course_tiny", tmp_path / "course", ignore=shutil.ignore_patterns("build")))
    (root / "images" / "outside.svg").symlink_to(root / "course.toml")
    script = root / "notebooks" / "01_first.py"
    script.write_text(script.read_text() + f"\n# %% [markdown]\n# ![x](../{name})\n")
    with pytest.raises(NoBundle, match=f"A notebook links to {re.escape(name)}, which does not exist"):
        bundle.files(Course(root))


def test_no_cell_speaks_of_a_command_that_learners_lack(ours: Path) -> None:
    for path, content in read(ours).items():
        if path.startswith("exercises/") and path.endswith(".ipynb"):
            assert b"grader check " not in content
            assert b"python -m grader.checks" in content


def test_its_dependencies_are_those_of_what_is_in_it(ours: Path) -> None:
    project = tomllib.loads((ours / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=~;\[ ]", text)[0].lower().replace("_", "-") for text in project["dependencies"]}
    assert not declared & {"nbgrader", "sqlalchemy", "typer"}
    providers = importlib.metadata.packages_distributions()
    sources = [path.read_text() for path in (ours / "grader").rglob("*.py")]
    for notebook in ours.rglob("*.ipynb"):
        cells = json.loads(notebook.read_bytes())["cells"]
        sources += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    tops = {top for source in sources for top in re.findall(r"^\s*(?:import|from) (\w+)", source, re.MULTILINE)}
    assert (
        ("torch" in tops)
        == (ours / "requirements-torch.lock").exists()
        == ("PyTorch" in (ours / "README.md").read_text())
    )
    optional = {"torch", "torchvision", "keras", "anywidget"}
    for top in tops - sys.stdlib_module_names - optional - {"grader", "jaxlib"}:
        assert {name.lower().replace("_", "-") for name in providers[top]} & declared, top


def test_a_zip_is_the_same_bytes_each_time(
    built: Callable[[str], Path], small: Path, grader: Grader, tmp_path: Path
) -> None:
    words = ("--course", built("small"), "bundle", "--out", tmp_path / "small.zip")
    assert grader(*words, PYTHONHASHSEED="2", TZ="UTC+5").returncode == 0
    assert (tmp_path / "small.zip").read_bytes() == (small.parent / "small.zip").read_bytes()


# What learners do with it: only the bundle and installed packages are there.


def alone(bundle: Path) -> dict[str, str]:
    """Variables with which Python finds the bundle's `grader` and no other: this checkout may be installed too."""
    without = bundle.parent / "without"
    without.mkdir(exist_ok=True)
    text = "import sys\nsys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in str(one)]\n"
    (without / "sitecustomize.py").write_text(
        f"{text}sys.path[:] = [one for one in sys.path if one != {str(ROOT)!r}]\n"
    )
    return {**os.environ, "PYTHONPATH": f"{without}{os.pathsep}{bundle}"}


def checks(bundle: Path, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the bundle's own command where no other `grader` can be imported."""
    command = [sys.executable, "-m", "grader.checks", *map(str, words)]
    return subprocess.run(
        command, cwd=cwd or bundle, env=alone(bundle), capture_output=True, text=True, timeout=300, check=False
    )


def answered(bundle: Path, answers: dict[str, str], to: Path) -> Path:
    return write(fill(bundle / "exercises" / LESSON / f"{LESSON}.ipynb", answers), to)


RIGHT = {exercise.id: exercise.reference for exercise in Course(COURSES / "small").lesson(LESSON).exercises}


def test_right_answers_pass_with_nothing_but_the_bundle(small: Path, tmp_path: Path) -> None:
    asked = "import grader.program.codec, grader; print(grader.__path__[0]); import grader.course"
    there = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, env=alone(small), capture_output=True, text=True, check=False
    )
    assert there.stdout.strip() == str(small / "grader")
    assert "No module named 'grader.course'" in there.stderr
    done = checks(small, answered(small, RIGHT, tmp_path / "mine.ipynb"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ small-double-example: Doubles one and two.\n" in done.stdout
    assert done.stdout.endswith("mine: 3 of 3 checks pass. 3 hidden checks run when it is graded.\n")


def test_what_fails_is_told_as_the_notebook_tells_it(small: Path, tmp_path: Path) -> None:
    wrong = {"small-double": "def double(x):\n    return x + 2\n", "small-mean": "loss = 1 / 0\n"}
    work = tmp_path / "work" / LESSON / f"{LESSON}.ipynb"
    answered(small, wrong, work)
    done = checks(small, LESSON, cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "✗ small-double-example: Doubles one and two."
    assert lines[1].startswith("    1 of 2 values differs. The one at [0]")
    assert "    `loss` is not defined because its cell ended with ZeroDivisionError." in lines
    assert "○ small-total-example: Gives ten for one and three." in lines
    assert lines[-1] == "01_small: 0 of 3 checks pass. 3 hidden checks run when it is graded."


def test_a_kernel_that_ends_and_a_check_that_was_edited(small: Path, tmp_path: Path) -> None:
    ends = {**RIGHT, "small-total": "import os\nos._exit(0)\n"}
    notebook = json.loads(answered(small, ends, tmp_path / "ends.ipynb").read_bytes())
    for cell in notebook["cells"]:
        if cell["metadata"]["nbgrader"]["grade_id"] == "small-mean-example":
            cell["source"] = ['"""Gives five."""\n', "require(True, '')"]
    done = checks(small, write(notebook, tmp_path / "ends.ipynb"))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[-2] == "✓ small-double-example: Doubles one and two.", "what fails comes first"
    assert lines[1] == "    This check was edited. Grading uses the original check."
    assert "    An earlier cell ended the kernel." in lines
    assert "ends: 1 of 3 checks pass." in lines[-1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "There is no notebook "),
        ("", "is not a notebook: "),
        ('{"cells": [], "metadata": {}}', "contains no checks."),
    ],
)
def test_where_there_is_nothing_to_run_it_says_so(tmp_path: Path, content: str | None, said: str) -> None:
    from grader.checks import __main__ as runner

    if content is not None:
        (tmp_path / "x.ipynb").write_text(content.replace("}}", '}, "nbformat": 4, "nbformat_minor": 5}'))
    with pytest.raises(runner.NothingToRun, match=said) as problem:
        runner.read(str(tmp_path / "x.ipynb"))
    assert len(str(problem.value).splitlines()) == 1


def test_lessons_of_a_bundle_run(tmp_path: Path) -> None:
    import nbformat

    bundle.write_folder(bundle.files(Course(COURSES / "course_tiny")), tmp_path / "b")
    assert (tmp_path / "b" / "images" / "dot.svg").is_file()
    notebook = nbformat.read(tmp_path / "b" / "notebooks" / "01_first.ipynb", 4)
    execute(notebook, tmp_path / "b" / "notebooks")


def test_make_opens_it_in_one_command(small: Path) -> None:
    said = subprocess.run(["make", "-n", "lab"], cwd=small, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"-m (venv|pip)|(jupyter lab)", said) == [("venv", ""), ("pip", ""), ("", "jupyter lab")]
    assert "-c requirements.lock -e ." in said


# Its past.


def test_the_repository_of_a_bundle_holds_nothing_else(
    built: Callable[[str], Path], grader: Grader, tmp_path: Path
) -> None:
    root, folder = shutil.copytree(built("small"), tmp_path / "course"), tmp_path / "out"
    words = ("--course", root, "bundle", "--git", "--out", folder)
    hook = tmp_path / "home" / "hooks" / "pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    (tmp_path / "home" / ".gitconfig").write_text(f"[core]\nhooksPath = {hook.parent}\n[init]\ndefaultBranch = other\n")
    around = {"HOME": str(tmp_path / "home"), "GIT_DIR": str(ROOT / ".git")}
    done = grader(*words, **around)
    assert done.returncode == 0, done.stderr
    assert git(folder, "rev-list", "--all", "--count").strip() == "1"
    assert git(folder, "fsck", "--unreachable", "--no-progress") == ""
    assert git(folder, "status", "--porcelain") == ""
    assert shown(Course(root), every_object(folder)) == []
    assert bundle.commit(Course(root), bundle.files(Course(root)), folder) == "", "nothing changed"

    text = root / "solutions" / f"{LESSON}.py"
    before = text.read_text()
    text.write_text(before.replace("Twice x, float32[n].", "Two times x, float32[n].").replace("2 * x)", "x * 2)"))
    (folder / "mine.md").write_text("Of another hand.\n")
    done = grader(*words, **around)
    assert done.returncode == 0, done.stderr
    assert git(folder, "rev-list", "--all", "--count").strip() == "2"
    assert git(folder, "show", "--name-only", "--format=").split() == [".bundle", f"exercises/{LESSON}/{LESSON}.ipynb"]
    assert git(folder, "status", "--porcelain").strip() == "?? mine.md"
    assert shown(Course(root), every_object(folder)) == []
    assert not (tmp_path / "hooked").exists()


def test_a_past_that_shows_what_is_hidden_is_refused(tmp_path: Path) -> None:
    folder, course = tmp_path / "out", Course(COURSES / "small")
    folder.mkdir()
    git(folder, "init", "-q")
    shutil.copy(course.solutions(LESSON), folder / "notes.txt")
    git(folder, "add", "notes.txt")
    git(folder, "rm", "-q", "--cached", "notes.txt")  # in no commit at all
    with pytest.raises(NoBundle, match=r"contains hidden text\. Start a new repository"):
        bundle.commit(course, bundle.files(course), folder)


def test_a_bundle_of_an_overlay_holds_nothing_hidden_of_either_course(tmp_path: Path) -> None:
    shutil.copytree(COURSES / "course_tiny", tmp_path / "below", ignore=shutil.ignore_patterns("build"))
    own = tmp_path / "own"
    (own / "solutions").mkdir(parents=True)
    (own / "course.toml").write_text('extends = "../below"\nlessons = ["02_second"]\n')
    (own / "solutions" / "02_second.py").write_text(
        '# %% hidden="second-square" name="ours" points=1 instead=true\n"""Squares what nobody has seen."""\n'
        "never_shown_number = inputs.rng().integers(100)\n"
        "compare(ask(square, int(never_shown_number)), int(never_shown_number) ** 2)\n"
    )
    course = Course(own)
    files = bundle.files(course)
    assert [path for path in files if path.endswith(".ipynb")] == ["exercises/02_second/02_second.ipynb"]
    assert "Squares what nobody has seen." in files["exercises/02_second/02_second.ipynb"].decode()
    assert shown(course, files) == shown(Course(tmp_path / "below"), files) == []
    for hidden in (
        b"never_shown_number = inputs.rng().integers(100)",
        b"    expected_square = drawn_number * drawn_number",
    ):
        assert bundle.leaks(course, {"images/x.svg": hidden})


def test_a_bundle_of_an_imported_lesson_is_what_nbgrader_releases(tmp_path: Path) -> None:
    root = tmp_path / "ours"
    root.mkdir()
    for name, cells in NOTEBOOKS.items():
        path = old_notebook(tmp_path / f"{name}.ipynb", cells)
        there = nbgrader_import.import_target(root, path, None, False)
        there.write(nbgrader_import.import_notebook(path, there.lesson))
    course = Course(root)
    files = bundle.files(course)
    given = build.outputs(course)
    assert len(given) == len(NOTEBOOKS)
    assert all(files[path.relative_to(root).as_posix()] == content for path, content in given.items())
    told = 0
    for lesson in course.lesson_ids:
        shown_to_all = given[build.exercises_path(course, lesson)].decode()
        for cell in build.source(course, lesson)["cells"]:
            for region in re.findall(r"### BEGIN [A-Z ]+\n(.*?)### END", cell["source"], re.DOTALL):
                for line in rules.telling(region.split("\n")):
                    assert json.dumps(line)[1:-1] not in shown_to_all
                    assert bundle.leaks(course, {"README.md": line.encode()})
                    told += 1
    assert told >= 3


# What is refused.


def test_a_picture_that_holds_an_answer_stops_the_bundle(grader: Grader, tmp_path: Path) -> None:
    root = shutil.copytree(COURSES / "course_tiny", tmp_path / "course", ignore=shutil.ignore_patterns("build"))
    (root / "images" / "dot.svg").write_text("<svg><!--\n    squared_number = math.pow(x, 2)\n--></svg>")
    done = grader("--course", root, "bundle", "--out", tmp_path / "b")
    assert done.returncode == 2
    assert "No bundle was written, because it would contain hidden text" in done.stderr
    assert "images/dot.svg contains `squared_number = math.pow(x, 2)` of the answer of second-square." in done.stderr
    assert not (tmp_path / "b").exists()
    (root / "images" / "dot.svg").unlink()
    with pytest.raises(NoBundle, match=r"A notebook links to images/dot\.svg, which does not exist"):
        bundle.files(Course(root))


def test_files_of_other_hands_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Mine.\n")
    with pytest.raises(NoBundle, match=r"contains files that are not from a bundle: README\.md\."):
        bundle.write_folder({"README.md": b"Ours.\n"}, tmp_path)
    (tmp_path / "README.md").unlink()
    bundle.write_folder({"README.md": b"Ours.\n", "a/b.md": b""}, tmp_path)
    assert bundle.write_folder({"README.md": b"Newer.\n"}, tmp_path) == ["a/b.md"]
    assert not (tmp_path / "a").exists()
    (tmp_path / "README.md").write_text("Mine.\n")
    with pytest.raises(NoBundle):
        bundle.write_folder({"README.md": b"Newer.\n"}, tmp_path)
    assert (tmp_path / "README.md").read_text() == "Mine.\n"
    (tmp_path / ".bundle").write_text(json.dumps({"../away.md": "0"}))
    (tmp_path.parent / "away.md").write_text("")
    bundle.write_folder({"other.md": b""}, tmp_path)
    assert (tmp_path.parent / "away.md").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "The bundle needs a destination. Pass --out DIR or --out FILE.zip."),
        (("99_none", "--out", "x"), "There is no lesson 99_none. Lessons: 01_small."),
        (("--gradescope", "01_small", "--out", "x"), "requires --out FILE.zip"),
        (("--out", "/dev/null/x.zip"), "/dev/null/x.zip cannot be written: "),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(
    built: Callable[[str], Path], grader: Grader, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = grader("--course", built("small"), "bundle", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
