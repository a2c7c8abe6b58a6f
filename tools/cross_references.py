"""The functions that a lesson uses, the lesson that teaches each of them, and the page that lists them."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import inventory
import nbformat

CONVENTIONS = {"jax": "jax", "optax": "optax", "jnp": "jax.numpy", "lax": "jax.lax", "nnx": "flax.nnx"}
OVERVIEW = "00"  # mentions most functions and teaches few
SMALL = 3  # a module with fewer functions has no heading of its own
SHORT = {"jax.numpy.": "jnp.", "flax.nnx.": "nnx."}
DOTTED = re.compile(r"(?<![\w.'\"])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
HEAD = """\
# JAX functions in this course

This page lists the functions and classes of JAX, Flax and Optax that the lessons use. A name links to its
documentation, if it has any. A function is taught in the lesson that has its name. Otherwise, the first lesson whose
summary contains it is listed, or else the first lesson that uses it. Lesson 00 is an overview, so it comes last.
"""


@dataclass
class Lesson:
    """The functions in one lesson, by their official names."""

    name: str
    title: str
    summary: "set[str]" = field(default_factory=set)
    used: "Counter[str]" = field(default_factory=Counter)
    spelled: "dict[str, Counter[str]]" = field(default_factory=dict)  # as the lesson writes each name

    @property
    def number(self) -> str:
        """The number of the lesson."""
        return self.name[:2]


def parsed(source: str) -> "ast.Module | None":
    """The syntax tree of a cell, or None if it is not Python."""
    try:
        return ast.parse(re.sub(r"(?m)^\s*[%!].*$", "pass", source))
    except SyntaxError:
        return None


def imports(sources: "list[str]") -> "dict[str, str]":
    """What each imported name stands for, such as `jnp` for `jax.numpy`."""
    names = {}
    for node in (node for source in sources if (tree := parsed(source)) for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            for part in node.names:
                first = part.name.split(".")[0]
                names[part.asname or first] = part.name if part.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {part.asname or part.name: f"{node.module}.{part.name}" for part in node.names}
    return names


def notebook_names(path: Path) -> "dict[str, str]":
    """The imported names of a notebook, and the conventional ones."""
    cells = nbformat.read(path, as_version=4).cells if path.exists() else []
    return CONVENTIONS | imports([cell.source for cell in cells if cell.cell_type == "code"])


def function(written: str, names: "dict[str, str]") -> "tuple[str, str]":
    """The function at the start of a dotted name: `jax.jit` for `jax.jit.lower`.

    Returns:
        The official name of the function, and the full name that `written` uses for it. Both are empty if `written`
        does not begin with a function or class of JAX, Flax or Optax.
    """
    first, _, rest = written.partition(".")
    parts = (names.get(first, first) + ("." + rest if rest else "")).split(".")
    if first not in names or parts[0] not in inventory.projects():
        return "", ""
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 1, -1)]
    for name in prefixes:
        official = inventory.official(name)
        if official and inventory.kind(official) != "module":
            return official, name
    return next(((name, name) for name in prefixes if inventory.exists(name)), ("", ""))


def dotted(source: str) -> "Iterator[str]":
    """The longest dotted names in Python code."""
    inner = set()
    for node in ast.walk(parsed(source) or ast.Module([], [])):
        parts, value = [], node
        while isinstance(value, ast.Attribute):
            parts.append(value.attr)
            inner.add(value.value)
            value = value.value
        if isinstance(value, ast.Name) and node not in inner:
            yield ".".join([value.id, *reversed(parts)])


def read(path: Path) -> Lesson:
    """The functions in the cells of a lesson."""
    cells = nbformat.read(path, as_version=4).cells
    names = notebook_names(path)
    title = next(line[2:] for cell in cells for line in cell.source.splitlines() if line.startswith("# "))
    lesson = Lesson(path.stem, title)
    for cell in cells:
        code = cell.cell_type == "code"
        written = (
            dotted(cell.source)
            if code
            else (name for part in INLINE.findall(cell.source) for name in DOTTED.findall(part))
        )
        for official, name in (function(one, names) for one in written):
            if official:
                lesson.used[official] += code
                lesson.spelled.setdefault(official, Counter())[name] += 1
                if not code and re.search(r"(?m)^## Summary", cell.source):
                    lesson.summary.add(official)
    return lesson


def teaches(official: str, lessons: "list[Lesson]") -> "Lesson | None":
    """The lesson that teaches a function, by the rule that the page states. None if no code uses it."""
    named = [lesson for lesson in lessons if official == "jax." + lesson.name[3:]]
    summary = [lesson for lesson in lessons if official in lesson.summary]
    used = [lesson for lesson in lessons if lesson.used[official]]
    candidates = sorted([*named, *summary, *used], key=lambda lesson: lesson.number == OVERVIEW)
    return candidates[0] if candidates else None


def spelling(official: str, lessons: "list[Lesson]") -> str:
    """The full name that the lessons use most often for a function, such as `jax.P` or `jax.sharding.PartitionSpec`."""
    return sum((lesson.spelled.get(official, Counter()) for lesson in lessons), Counter()).most_common(1)[0][0]


def group(name: str) -> str:
    """The heading for a function: its module, without modules below `jax.numpy` or `flax.nnx`."""
    parts = name.split(".")[:-1]
    return ".".join(parts[: 3 if parts[1:2] == ["experimental"] else 2])


def link(official: str, lessons: "list[Lesson]") -> str:
    """A function as most lessons write it, with a link to its documentation if it has any."""
    text = spelling(official, lessons)
    for long, short in SHORT.items():
        text = short + text.removeprefix(long) if text.startswith(long) else text
    address = inventory.address(official)
    return f"[`{text}`]({address})" if address else f"`{text}`"


def functions_page(lessons: "list[Lesson]") -> str:
    """The page that lists every function, with the lesson that teaches it and the other lessons that use it."""
    rows: dict[str, list[str]] = {}
    every = {official: spelling(official, lessons) for lesson in lessons for official in lesson.spelled}
    for official, name in sorted(every.items(), key=lambda item: item[1].lower()):
        if teacher := teaches(official, lessons):
            also = [lesson for lesson in lessons if lesson.used[official] and lesson is not teacher]
            others = ", ".join(f"[{lesson.number}](notebooks/{lesson.name}.ipynb)" for lesson in also)
            where = f"[{teacher.title}](notebooks/{teacher.name}.ipynb)"
            rows.setdefault(group(name), []).append(f"| {link(official, lessons)} | {where} | {others} |")
    small = [module for module in rows if len(rows[module]) < SMALL]
    ordered = sorted(rows, key=lambda module: (not module.startswith("jax"), module))
    sections = {f"`{module}`": rows[module] for module in ordered if module not in small}
    if small:
        sections["Other modules"] = [row for module in ordered if module in small for row in rows[module]]
    columns = "| function | taught in | also used in |\n|---|---|---|\n"
    return HEAD + "".join(f"\n## {title}\n\n{columns}" + "\n".join(lines) + "\n" for title, lines in sections.items())


def lesson_list(lesson: Lesson, lessons: "list[Lesson]") -> str:
    """A section for the end of a lesson: the functions that it uses, by the lesson that teaches them."""
    by_teacher: dict[str, list[str]] = {}
    for official in sorted((name for name, count in lesson.used.items() if count), key=str.lower):
        teacher = teaches(official, lessons) or lesson
        by_teacher.setdefault(teacher.name, []).append(link(official, lessons))
    rows = []
    for teacher in sorted(lessons, key=lambda one: (one is not lesson, one.name)):
        where = "this lesson" if teacher is lesson else f"[{teacher.title}]({teacher.name}.ipynb)"
        if teacher.name in by_teacher:
            rows.append(f"| {where} | {', '.join(by_teacher[teacher.name])} |")
    head = "## Functions in this lesson\n\n| taught in | functions |\n|---|---|\n"
    return head + "\n".join(rows) + "\n" if rows else ""
