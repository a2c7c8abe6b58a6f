"""Builds the site in build/book/html: each lesson as it runs, the tasks of its exercises, the glossary and the docs.

    .venv/bin/python tools/book.py [--lesson 05_vmap ...] [--out DIR]

Pages are copied to build/book/source first. There, the buttons of predictions and what a learner does not read on a
page (setup and check cells) are left out, and links to files that are not pages lead to the repository.
"""

import argparse
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import nbformat
from cross_references import Lesson, functions_page, lesson_list, read
from links import broken
from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "build" / "book"
PAGES = (
    "glossary jax_documentation setup instructors grading results confinement overlay importing ci nbgrader gradebook "
    "gradescope reports semester accelerators cluster workshop"
).split()
NOTE = """

```{{note}}
This page shows the tasks. To solve them, [install the course](../../docs/setup.md) and open `{name}` in JupyterLab.
```
"""
LARGE = 1_000_000  # bytes of a page that takes long to load on a phone
IN_JUPYTER = re.compile(r"grader\.learning\.predict\(|^cloud\.start\(", re.MULTILINE)
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def lesson(name: str, pages: "set[Path]", repository: str, functions: "dict[str, Lesson]") -> str:
    """A lesson with a list of its functions, without the cells that show buttons or install the package."""
    path = Path("notebooks") / f"{name}.ipynb"
    notebook = nbformat.read(ROOT / path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not IN_JUPYTER.search(cell.source)]
    listed = lesson_list(functions[name], list(functions.values()))
    exercises = Path("exercises") / name / f"{name}.ipynb"
    if (ROOT / exercises).exists():
        listed = f"Continue with [the exercises](../{exercises}) of this lesson.\n\n{listed}"
    notebook.cells.append(nbformat.v4.new_markdown_cell(listed, id="functions"))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = linked(cell.source, path, pages, repository)
    return str(nbformat.writes(notebook))


def tasks(path: Path) -> str:
    """The text of an exercise notebook and its stubs, as Markdown."""
    notebook, parts = nbformat.read(ROOT / path, as_version=4), []
    for cell in notebook.cells:
        told = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "markdown" and not told.get("grade_id", "").endswith("-why"):
            parts.append(cell.source)
        elif told.get("solution"):
            parts.append(f"```python\n{cell.source}\n```")
    parts[0] = parts[0].replace("\n", NOTE.format(name=path.stem), 1)
    return "\n\n".join(parts) + "\n"


def linked(text: str, page: Path, pages: "set[Path]", repository: str) -> str:
    """The text of a page. Its links to files that are not pages lead to the repository, or are plain words."""

    def replace(found: "re.Match[str]") -> str:
        words, target, part = found[1], found[2], found[3] or ""
        file = Path(os.path.normpath(page.parent / target))
        if "://" in target or not (ROOT / file).exists() or file.suffix in (".svg", ".png"):
            return found[0]
        if file in pages:
            return f"{words}({target}{part})"
        if file.with_suffix(".md") in pages:  # the tasks of an exercise notebook
            return f"{words}({Path(target).with_suffix('.md')}{part})"
        return f"{words}({repository}/blob/main/{file}{part})" if repository else words.strip("[]")

    text = re.sub(r'<a id="([a-z0-9_-]+)"></a>([^|]*?)(?= \|)', r"[\2]{#\1}", text)  # an anchor that Sphinx knows
    # JupyterLab keeps capitals and punctuation in the anchor of a heading.
    text = re.sub(r"\]\(#([^)]+)\)", lambda found: f"](#{re.sub(r'[^a-z0-9_-]', '', found[1].lower())})", text)
    return LINK.sub(replace, text)


def contents(lessons: "list[str]") -> str:
    """The lists of lessons on the start page, one for each part of the course."""
    parts: dict[str, list[str]] = {}
    for entry in tomllib.loads((ROOT / "course.toml").read_text())["lesson"]:
        if entry["id"] in lessons:
            parts.setdefault(entry["part"], []).append(f"notebooks/{entry['id']}\n")
    return "\n".join(
        f"```{{toctree}}\n:caption: {part}\n:maxdepth: 1\n\n{''.join(pages)}```\n" for part, pages in parts.items()
    )


def stage(lessons: "list[str]", source: Path, repository: str) -> None:
    """Writes every page below `source`, at the place that it has in the repository."""
    texts = {Path("docs") / f"{name}.md": (ROOT / "docs" / f"{name}.md").read_text() for name in PAGES}
    texts |= {Path(path.name): path.read_text() for path in (ROOT / "book").glob("*.md")}
    texts[Path("index.md")] = texts[Path("index.md")].replace("{lessons}\n", contents(lessons))
    exercises = [Path("exercises") / name / f"{name}.ipynb" for name in lessons]
    texts |= {path.with_suffix(".md"): tasks(path) for path in exercises if (ROOT / path).exists()}
    notebooks = {name: Path("notebooks") / f"{name}.ipynb" for name in lessons}
    functions = {path.stem: read(path) for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))}
    texts[Path("functions.md")] = functions_page(list(functions.values()))
    pages = {*texts, *notebooks.values()}
    written = {page: linked(text, page, pages, repository) for page, text in texts.items()}
    written |= {page: lesson(name, pages, repository, functions) for name, page in notebooks.items()}
    shutil.rmtree(source, ignore_errors=True)
    for page, text in written.items():
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        (source / page).write_text(text)
    for folder in ("images", "docs"):
        for picture in [*(ROOT / folder).glob("*.svg"), *(ROOT / folder).glob("*.png")]:
            (source / folder).mkdir(exist_ok=True)
            shutil.copy(picture, source / folder)


def build(lessons: "list[str]", out: Path, repository: str) -> int:
    """Stages the pages, runs Sphinx and checks the links between pages. Returns the exit code."""
    os.environ |= {
        "PYTHONPATH": str(ROOT),
        "JAXERCISE_DIGITS": "embedded",
        "JAX_PLATFORMS": "cpu",
        "JAXERCISE_BOOK": str(out),
    }
    stage(lessons, out / "source", repository)
    options = ["-b", "html", "-q", "-c", str(ROOT / "book"), "-d", str(out / "doctrees"), "--keep-going", "-W"]
    options += ["-D", f"nb_execution_cache_path={out / 'executed'}"]
    if code := build_main([*options, str(out / "source"), str(out / "html")]):
        return int(code)
    wrong = broken(out / "html")
    for page, link in wrong:
        print(f"{page}: {link} is no page or anchor of the site", file=sys.stderr)
    for path in (out / "html").rglob("*.html"):
        if path.stat().st_size > LARGE:
            print(f"{path.name} has {path.stat().st_size / 1e6:.1f} MB. Reduce its outputs or plots.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lesson", action="append", help="build only these lessons")
    parser.add_argument("--out", type=Path, default=BOOK, help="folder of the site, which is in html/ below it")
    parser.add_argument("--repository", default="", help="address of the repository, for links to its other files")
    told = parser.parse_args()
    every = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    sys.exit(build(told.lesson or every, told.out.resolve(), told.repository))
