"""Bundles for learners: notebooks, pictures and the part of the package that runs checks; nothing that is hidden.

A bundle becomes a folder, a zip or a commit, after a search for the course's hidden text in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import re
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from string import Template
from typing import Any

from packaging.requirements import Requirement

import grader
from grader.core import files as files_module
from grader.core.layout import GLOSSARY, PACKAGE, SOURCE, learner_files
from grader.course import Cell, Course, build, exercises, notebook_builder
from grader.course.rules import telling
from grader.lms import git

LOCK = "requirements.lock"
TORCH_LOCK = "requirements-torch.lock"
TEMPLATES = Path(__file__).parent / "for_learners"
# Dependencies of building and grading alone.
GRADERS_OWN = frozenset(
    "alembic bleach jinja2 jsonschema jupytext nbgrader packaging psutil pygments pyseccomp rich sqlalchemy typer "
    "watchfiles".split()
)
NOTEBOOK_LINK = re.compile(r"\[([^\]]*)\]\(([\w./-]+\.ipynb)(?:#[^)\s]*)?\)")
USES_TORCH = re.compile(rb"(import|from) (torch\b|grader\.(learning|lessons)\.loaders\b)")
LINKED = re.compile(rf"(?:\.\./)+(images/[\w./-]+|{re.escape(GLOSSARY)})")
LIST = ".bundle"  # what lies in a folder of ours: paths and hashes
PROGRAMS = frozenset({"setup.sh", "run_autograder"})
WORD = re.compile(r"\w+")
HIDDEN = frozenset({"hidden", "wrong", "right", "equivalent"})


class NoBundle(Exception):
    """A bundle cannot be made; the text says why and what to do."""


def files(course: Course, lessons: Iterable[str] | None = None) -> dict[str, bytes]:
    """Returns the bundle of these lessons, or of all, by path. Built from the authored text, so never stale.
    Raises NoBundle where a picture is missing, or something hidden would go out."""
    ids = list(lessons or [i for i in course.ids if i in course.text_ids or i in course.lesson_ids])
    notebooks = _notebooks(course, ids)
    torch = any(USES_TORCH.search(content) for path, content in notebooks.items() if path.endswith(".ipynb"))
    project = tomllib.loads(checkout_file("pyproject.toml").decode())["project"]
    needed = [text for text in project["dependencies"] if Requirement(text).name not in GRADERS_OWN]
    made = {
        **notebooks,
        **{f"grader/{path.as_posix()}": (PACKAGE / path).read_bytes() for path in learner_files()},
        **{name: checkout_file(name) for name in ("LICENSE", LOCK, *([TORCH_LOCK] if torch else []))},
        **{name: (TEMPLATES / name.lstrip(".")).read_bytes() for name in ("Makefile", ".gitignore", ".gitattributes")},
        "pyproject.toml": _fill(
            "pyproject.toml.template",
            python=project["requires-python"],
            version=grader.__version__,
            dependencies="".join(f"    {json.dumps(text)},\n" for text in needed),
        ),
        "README.md": _readme(course, ids, notebooks, torch, project["requires-python"].lstrip(">=")),
    }
    if found := leaks(course, made):
        raise NoBundle("No bundle was written, because it would contain hidden text. " + " ".join(found[:5]))
    return dict(sorted(made.items()))


def checkout_file(name: str) -> bytes:
    """Returns a file at the top of the checkout, which an installed package lacks. Raises NoBundle."""
    try:
        return (SOURCE / name).read_bytes()
    except OSError:
        text = "Bundles require a checkout of the grader. An installed package is not enough."
        raise NoBundle(f"There is no {SOURCE / name}. {text}") from None


def _notebooks(course: Course, ids: list[str]) -> dict[str, bytes]:
    unlinked: dict[str, Any] = {}
    for lesson in ids:
        if lesson in course.text_ids:
            unlinked[f"notebooks/{lesson}.ipynb"] = notebook_builder.lesson_notebook(
                lesson, course.text(lesson), course
            )
        if lesson in course.lesson_ids:
            unlinked[f"exercises/{lesson}/{lesson}.ipynb"] = build.source(course, lesson, alone=True)
    data = [(lesson, file) for lesson in ids if lesson in course.lesson_ids for file in course.data(lesson).items()]
    made, linked = {f"exercises/{lesson}/{name}": content for lesson, (name, content) in data}, set[str]()

    def relink(text: str, path: str) -> str:
        """Without the links to notebooks that are not in the bundle, from a file at `path`."""
        there = lambda link: posixpath.normpath(posixpath.join(posixpath.dirname(path), link)) in unlinked
        return NOTEBOOK_LINK.sub(lambda found: found[0] if there(found[2]) else found[1], text)

    for path, notebook in unlinked.items():
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = relink(cell["source"], path)
                linked |= set(LINKED.findall(cell["source"]))
        given = build.release(notebook) if path.startswith("exercises/") else notebook
        made[path] = build.text(given).encode()
    made |= {name: _linked(course, name) for name in linked}
    if GLOSSARY in made:
        made[GLOSSARY] = relink(made[GLOSSARY].decode(), GLOSSARY).encode()
    return made


def _linked(course: Course, name: str) -> bytes:
    """A picture or the glossary of the course, else of the course that it extends."""
    for root in (one.root for one in (course, course.base) if one is not None):
        path = root / name
        if path.is_file() and path.resolve().is_relative_to(root / name.split("/")[0]):
            return path.read_bytes()
    raise NoBundle(f"A notebook links to {name}, which does not exist.")


def _fill(template: str, **values: str) -> bytes:
    return Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values).encode()


def _readme(course: Course, ids: list[str], made: dict[str, bytes], torch: bool, python: str) -> bytes:
    rows = []
    for lesson in ids:
        places = {"read": f"notebooks/{lesson}.ipynb", "fill in": f"exercises/{lesson}/{lesson}.ipynb"}
        links = (f"[{text}]({place})" if place in made else "" for text, place in places.items())
        rows.append(f"| {lesson[:2]} · {course.planned(lesson).title} | {' | '.join(links)} |")
    example = next((lesson for lesson in ids if lesson in course.lesson_ids), ids[0])
    return _fill(
        "README.md",
        name=course.name,
        count="One lesson" if len(ids) == 1 else f"{len(ids)} lessons",
        python=python,
        lesson=example,
        notebook=f"`exercises/{example}/{example}.ipynb`",
        lessons="\n".join(rows),
        torch=(TEMPLATES / "torch.md").read_text(encoding="utf-8") if torch else "",
    )


def write_zip(files: Mapping[str, bytes], path: Path, top: str = "") -> None:
    """Writes a zip, whole or not at all. Not compressed: every machine then writes the same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{top}{name}")  # dated 1980
            entry.create_system = 3
            entry.external_attr = (0o100755 if name in PROGRAMS else 0o100644) << 16
            archive.writestr(entry, content)
    _put(path, stream.getvalue())


def write_folder(files: Mapping[str, bytes], folder: Path) -> list[str]:
    """Writes files into a folder; removes, and returns, those of an earlier bundle that are no longer among them.
    Raises NoBundle where one of the bundle's files was changed there, or another file is in its place."""
    before = _listed(folder)
    there = {path: (folder / path).read_bytes() for path in before if (folder / path).is_file()}
    strangers = [path for path, content in there.items() if hashlib.sha256(content).hexdigest() != before[path]]
    strangers += [path for path in files if path not in before and os.path.lexists(folder / path)]
    if strangers:
        raise NoBundle(
            f"{folder} contains files that are not from a bundle: {', '.join(strangers[:5])}. Move them away first."
        )
    for path in before.keys() - files.keys():
        (folder / path).unlink(missing_ok=True)
        with suppress(OSError):
            (folder / path).parent.rmdir()
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    for path, content in files.items():
        if before.get(path) != digests[path] or not (folder / path).is_file():
            _put(folder / path, content)
    _put(folder / LIST, (json.dumps(digests, indent=1) + "\n").encode())
    return sorted(before.keys() - files.keys())


def commit(course: Course, files: Mapping[str, bytes], folder: Path) -> str:
    """Writes the folder and commits what changed in its own repository; returns the commit's id, "" without changes.
    Raises NoBundle where it cannot be written, or the history of the repository shows what is hidden."""
    gone = write_folder(files, folder)
    try:
        if not (folder / ".git").exists():
            git.run(folder, "init", "--quiet", "--template=", "--initial-branch=main")
        _refuse_history(course, folder)
        git.run(folder, "add", "--force", "--", *files, LIST)
        if gone:
            git.run(folder, "rm", "--quiet", "--cached", "--ignore-unmatch", "--", *gone)
        status = git.run(folder, "status", "--porcelain", "--untracked-files=no", "--no-renames", "-z").decode()
        staged = {line[3:] for line in status.split("\0") if line[:1] in {*"AMD"}}  # unlike in the last commit
        changed = staged & {*files, LIST, *gone}
        if not changed:
            return ""
        try:
            git.run(folder, "var", "GIT_COMMITTER_IDENT")
            identity = []  # the person's
        except git.GitFailed:
            identity = ["-c", f"user.name={course.name}", "-c", "user.email=grader@localhost"]
        words = ["commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", f"{course.name}: lessons and exercises"]
        git.run(folder, *identity, *words, "--only", "--", *sorted(changed))
        _refuse_history(course, folder)
        return git.run(folder, "rev-parse", "HEAD").decode().strip()
    except git.GitFailed as problem:
        raise NoBundle(f"git could not commit in {folder}: {problem}.") from None


def _refuse_history(course: Course, folder: Path) -> None:
    """Looks at every object of the repository, reachable or not."""
    listed = git.run(folder, "cat-file", "--batch-all-objects", "--batch-check").split(b"\n")
    named = {}
    for name in [line.split()[0].decode() for line in listed if line and line.split()[1] != b"tree"]:
        content = git.run(folder, "cat-file", "-p", name)
        is_notebook = content.lstrip()[:1] == b"{" and b'"cells"' in content
        named[f"{name}.ipynb" if is_notebook else name] = content
    if found := leaks(course, named):
        raise NoBundle(f"The history of {folder} contains hidden text. Start a new repository. {found[0]}")


def _listed(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, AttributeError):
        found = json.loads((folder / LIST).read_text(encoding="utf-8"))
        inside = lambda path: not path.is_absolute() and ".." not in path.parts
        return {path: str(digest) for path, digest in found.items() if inside(Path(path))}
    return {}


def _put(path: Path, content: bytes) -> None:
    try:
        files_module.write(path, content, mode=0o644, alone=True)
    except OSError as problem:
        raise NoBundle(f"{path} cannot be written: {problem.strerror}.") from None


def leaks(course: Course, files: Mapping[str, bytes]) -> list[str]:
    """Returns a sentence for each hidden line in a file. Lines that public text contains too are no secret."""
    texts = [text for one in (course, course.base) if one is not None for text in _texts(one)]
    package = [(PACKAGE / path).read_text(encoding="utf-8") for path in learner_files()]
    is_public = _search("\n".join([*(public for public, _, _ in texts), *package]))
    lines = {line: owner for _, hidden, owner in texts for line in telling(hidden.split("\n"))}
    secrets = {line: owner for line, owner in lines.items() if not is_public(line)}
    found = []
    for path, content in files.items():
        # Of a notebook, all its strings as they are meant, without JSON's escapes.
        notebook = path.endswith(".ipynb")
        text = "\n".join(_strings(json.loads(content))) if notebook else content.decode("utf-8", "ignore")
        is_shown = _search(text)
        found += [f"{path} contains `{line}` of {owner}." for line, owner in secrets.items() if is_shown(line)]
    return found


def _search(text: str) -> Callable[[str], bool]:
    """Whether a line is in `text`, also within longer words. Most are ruled out by two words that never meet in it."""
    pairs = set(pairwise(WORD.findall(text)))
    return lambda line: pairs.issuperset(pairwise(WORD.findall(line)[1:-1])) and line in text


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, list) and data and all(isinstance(line, str) for line in data):
        yield "".join(data)
    elif isinstance(data, dict | list):
        for value in chain(*data.items()) if isinstance(data, dict) else data:
            yield from _strings(value)


def _texts(course: Course) -> Iterator[tuple[str, str, str]]:
    """Of every cell the text that learners are given, the text that they are not, and whose that is."""
    for lesson in course.text_ids:
        yield from ((cell.source, "", "") for cell in course.text(lesson))
    for lesson in course.lesson_ids:
        if course.adopted(lesson) is None:
            yield from map(_text, course.lesson(lesson).cells)
        else:
            before = build.source(course, lesson)
            for cell, released in zip(before["cells"], build.release(before)["cells"], strict=True):
                yield released["source"], cell["source"], f"a cell of {lesson}"


def _text(cell: Cell) -> tuple[str, str, str]:
    if cell.kind == "answer":
        solution = "\n".join(exercises.solution(cell.source))
        return exercises.stub(cell.source), solution, f"the answer of {cell.id}"
    if cell.kind not in HIDDEN:
        return cell.source, "", ""
    title = exercises.title_of_check(cell.source) if cell.kind == "hidden" else None
    hidden = f"{cell.source}\n{cell.attributes.get('because', '')}"
    return title or "", hidden, f"a {cell.kind} cell of {cell.id}"
