"""The page that a learner gets back: points by exercise, each check with its message, their code, a person's comments.

`nbgrader generate_feedback` makes it from the autograded notebook, which contains the verdict (`write_down`), and from
the points and comments in nbgrader's database. Of a learner's text nothing runs on it, nothing is loaded, and nothing
leaves its place.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

from bleach.sanitizer import Cleaner
from jinja2 import Environment, StrictUndefined
from nbconvert.exporters import Exporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbgrader.preprocessors import GetGrades
from nbgrader.utils import is_grade, is_locked, is_solution, is_task
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from grader.core.notebook import MAX_SOURCE, grade_id
from grader.core.points import number, total
from grader.core.result import MARKS, Result, possibility
from grader.core.text import legible
from grader.course import Lesson, rubric
from grader.course.rubric import RubricItem

VERDICT = "jaxercise_verdict"
GRADE = "jaxercise_grade"
MOST_OF_OWN = 300_000  # characters of cells of a learner's own; what is judged is always shown
NO_RESPONSE = "No response."  # nbgrader's own comment on an unchanged answer; its checks have messages too
OTHERS = ""  # the section of what stands before the first exercise and after the last
MOST_OF_CELL = 20_000  # characters; parsers of Markdown and of Python are slow on what is made to be
SLOW_S = 10.0  # of processor time for the cells of one page; the rest is shown as plain text
# These parsers take the square of it: each line looks for a docstring behind all white space that follows, and each
# paragraph opens all formats again that are open.
LONG_SPACE = re.compile(r"\s{1000}")
FORMATS = frozenset("a b code em i s strong".split())
MOST_OPEN = 8
TAGS = frozenset(
    "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s span strong "
    "sub summary sup table tbody td th thead tr ul".split()
)
# What a learner may link to; only a click follows it. Nothing relative: beside the page may lie files of theirs.
LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*")
ATTACHED = ("image/png", "image/jpeg", "image/gif", "image/webp")


def write_down(nb: NotebookNode, lesson: Lesson, result: Result) -> None:
    """Puts the verdict into the notebook, in place of whatever a learner wrote there."""
    parts = sorted((part.line, part.id, part.title) for kind in (lesson.exercises, lesson.tasks) for part in kind)
    told = result.to_json()
    nothing = {"status": "not graded", "message": "", "misconception": None}
    names = ("id", "exercise", "title", "hidden")
    checks = (check for exercise in lesson.exercises for check in exercise.checks)
    not_graded = [{**nothing, **{name: getattr(check, name) for name in names}} for check in checks]
    nb.metadata[VERDICT] = {
        "title": lesson.title,
        "exercises": [[name, title] for _, name, title in parts],
        "checks": told["checks"] or not_graded,
        "notes": told["notes"],
        "problem": told["problem"],
    }


class GetGradesAndHands(GetGrades):
    """nbgrader's step that fetches points and comments; also notes which points are a person's or wait for one."""

    def _get_score(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        super()._get_score(cell, resources)
        names = (cell.metadata.nbgrader.grade_id, self.notebook_id, self.assignment_id, self.student_id)
        grade = self.gradebook.find_grade(*names)
        by_hand = grade.manual_score is not None or bool(grade.extra_credit)
        waiting = grade.auto_score is None and grade.manual_score is None
        cell.metadata[GRADE] = {"by_hand": by_hand, "waiting": waiting}


class FeedbackPage(Exporter):
    """The exporter by which nbconvert gets the page."""

    file_extension = ".html"
    output_mimetype = "text/html"

    def from_notebook_node(self, nb: NotebookNode, resources: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        nb, resources = super().from_notebook_node(nb, resources, **options)
        return page(nb, resources["nbgrader"]), resources


@dataclass(frozen=True)
class Part:
    """One piece of an exercise's section; what does not apply is empty."""

    kind: str  # check, task, code or prose
    html: str = ""  # made by `markdown`, `_code` or `_plain`, so safe
    own: bool = False  # whether the course does not have this cell
    title: str = ""
    status: str = ""
    hidden: bool = False
    message: str = ""
    graded: bool = False
    points: float = 0.0
    most: float = 0.0
    by_hand: bool = False
    waiting: bool = False
    items: tuple[RubricItem, ...] = ()
    comment: str = ""

    @property
    def mark(self) -> str:
        """The sign that the terminal shows too; points of a person's count for more than a check's verdict."""
        if self.by_hand and self.points >= self.most:
            return MARKS["passed"][0]
        return MARKS[self.status][0] if self.status in MARKS else ""


@dataclass
class Section:
    """An exercise, or what stands outside of all."""

    id: str
    title: str
    parts: list[Part] = field(default_factory=list)
    perhaps: str = ""

    @property
    def graded(self) -> list[Part]:
        return [part for part in self.parts if part.graded]

    @property
    def points(self) -> float:
        return total(part.points for part in self.graded)

    @property
    def most(self) -> float:
        return total(part.most for part in self.graded)


def page(nb: NotebookNode, told: Mapping[str, Any]) -> str:
    """Returns the page for an autograded notebook with its points in it, which is changed by this. `told` is nbgrader's
    record of the submission: assignment, student, score (after the late penalty), max_score, late_penalty."""
    verdict = nb.metadata.get(VERDICT, {})
    if verdict.get("problem"):  # the page then says why, and shows points alone
        nb.cells = [cell for cell in nb.cells if "nbgrader" in cell.metadata]
    sections, left_out = _sections(nb, verdict)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"legible": legible, "markdown": markdown}
    environment.filters["number"] = lambda points: number(float(points), 2)
    template = files(__package__).joinpath("feedback.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        told=told,
        title=verdict.get("title", ""),
        problem=verdict.get("problem"),
        notes=verdict.get("notes", []),
        sections=[section for section in sections if section.parts],
        exercises=[section for section in sections if section.graded],
        waiting=total(part.most for section in sections for part in section.graded if part.waiting),
        left_out=left_out,
        colours=_colours(),
    )


def _sections(nb: NotebookNode, verdict: Mapping[str, Any]) -> tuple[list[Section], int]:
    """The notebook's cells by exercise, and how many of a learner's own were left out for their length."""
    sections = {name: Section(name, title) for name, title in verdict.get("exercises", [])}
    sections[OTHERS] = Section(OTHERS, "Outside of the exercises")
    checks = {check["id"]: check for check in verdict.get("checks", [])}
    room, left_out, began = MOST_OF_OWN, 0, time.thread_time()
    here = OTHERS
    for cell in nb.cells:
        name = grade_id(cell)
        if time.thread_time() - began > SLOW_S and cell.cell_type == "markdown":
            cell.cell_type = "raw"
        if name is not None:
            here = _exercise(name, cell, checks, sections, here)
            check = checks.get(name, {})
            said = possibility(check.get("misconception"), check.get("clue", ""))
            sections[here].perhaps = sections[here].perhaps or said
            sections[here].parts += _graded(cell, check)
        elif cell.source.strip():
            room -= len(cell.source)
            left_out += room < 0
            sections[here].parts += [_written(cell, own=True)] if room >= 0 else []
    for section in sections.values():
        seen: set[str] = set()  # a message is shown once: one fault fails several checks
        for i, part in enumerate(section.parts):
            if part.message and part.message in seen:
                section.parts[i] = replace(part, message="The same as above.")
            seen.add(part.message)
    return [*(section for name, section in sections.items() if name != OTHERS), sections[OTHERS]], left_out


def _exercise(name: str, cell: NotebookNode, checks: Mapping[str, Any], sections: dict[str, Section], here: str) -> str:
    """The section that a cell of the course belongs to."""
    if name in checks:
        return str(checks[name]["exercise"])
    for ending in ("", "-task", "-why"):
        if name.removesuffix(ending) in sections:
            return name.removesuffix(ending)
    if is_solution(cell):  # graded before verdicts were written down, or no exercise of ours
        return sections.setdefault(name, Section(name, name)).id
    return here if is_grade(cell) or is_task(cell) else OTHERS


def _graded(cell: NotebookNode, check: Mapping[str, Any]) -> list[Part]:
    """What a cell of the course's shows: a check, or what a learner wrote into it. Prose and setup are left out."""
    nbgrader, hands = cell.metadata.nbgrader, cell.metadata.get(GRADE, {})
    items, comment = (
        rubric.graded(nbgrader.get("comment") or "") if is_task(cell) else ((), nbgrader.get("comment") or "")
    )
    told: dict[str, Any] = {"items": items, "comment": markdown(comment) if comment not in ("", NO_RESPONSE) else ""}
    if is_grade(cell) or is_task(cell):
        points, most = float(nbgrader.get("score") or 0), float(nbgrader.get("points") or 0)
        by_hand, waiting = hands.get("by_hand", False), hands.get("waiting", False)
        told |= {"graded": True, "points": points, "most": most, "by_hand": by_hand, "waiting": waiting}
    if is_task(cell):  # what answers it stands in the cells below
        return [Part("task", **told)]
    if is_solution(cell):
        return [_written(cell, **told)]
    if not is_grade(cell):
        return [] if is_locked(cell) else [_written(cell, own=True)]
    verdict = {name: check[name] for name in ("title", "status", "hidden", "message") if check}
    if not check:  # no verdict is written down: the cell's output says how it ended
        error = next((output for output in cell.get("outputs", []) if output.output_type == "error"), None)
        status, message = (error.ename, error.evalue) if error else ("passed", "")
        verdict = {"title": nbgrader.grade_id, "status": status, "message": message}
    return [Part("check", **verdict, **told)]


def _written(cell: NotebookNode, **told: Any) -> Part:
    """What a learner wrote, or a person is to look at."""
    if cell.cell_type == "code":
        return Part("code", _code(cell.source), **told)
    if cell.cell_type == "markdown":
        return Part("prose", markdown(cell.source, cell.get("attachments")), **told)
    return Part("prose", _plain(legible(cell.source)), **told)


def markdown(source: str, attachments: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Markdown with HTML in it, rendered and reduced to tags that only shape text; others are shown as text. Formulas
    stay as they were typed. `attachments` are a cell's own pictures, by name."""
    text = legible(source, MOST_OF_CELL)
    own = {  # in the forms that may be shown; the renderer wants one
        name: {kind: "".join(data) for kind, data in kinds.items() if kind in ATTACHED} or {ATTACHED[0]: ""}
        for name, kinds in (attachments or {}).items()
    }
    renderer = IPythonRenderer(escape=False, exclude_anchor_links=True, attachments=own)
    try:
        page = MarkdownWithMath(renderer).render(text)
        return str(CLEANER.clean(page)) if _OpenFormats(page).most <= MOST_OPEN else _plain(text)
    except Exception:  # nested too deeply, or a fault of the parser's: it must not cost a learner the page
        return _plain(text)


class _OpenFormats(HTMLParser):
    """Finds how many formats are open at most at one place of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open = self.most = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open += tag in FORMATS
        self.most = max(self.most, self.open)

    def handle_endtag(self, tag: str) -> None:
        self.open -= tag in FORMATS and self.open > 0


def _code(source: str) -> str:
    """Python as coloured HTML, for a `<pre>`; its colours are those of `_colours`."""
    text = legible(source, MOST_OF_CELL)
    if LONG_SPACE.search(text):
        return html.escape(text)
    return str(highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))


def listing(source: str, **told: Any) -> str:
    """A filter of nbconvert's for Formgrader: code as `_code` colours it, or where that would take long, plain."""
    text = html.escape(legible(source, MAX_SOURCE)) if len(source) > MOST_OF_CELL else _code(source)
    return f'<div class="highlight"><pre>{text}</pre></div>'


def _plain(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _colours() -> str:
    """The style sheet of what `_code` returns, for light and for dark pages."""
    sheets = (HtmlFormatter(style=style, nobackground=True) for style in ("xcode", "github-dark"))
    light, dark = (re.findall(r"^pre\.code \..*$", one.get_style_defs("pre.code"), re.MULTILINE) for one in sheets)
    return "\n".join([*light, "@media screen and (prefers-color-scheme: dark) {", *dark, "}"])


def _allowed(tag: str, name: str, value: str) -> bool:
    """No attribute that styles, names or places an element: learners' text must not look like the page around it."""
    if tag == "a" and name == "href":
        return LINK.match(value) is not None
    if tag == "img" and name == "src":
        return PICTURE.fullmatch(value) is not None
    return (tag, name) in (("img", "alt"), ("td", "align"), ("th", "align"))


CLEANER = Cleaner(tags=TAGS, attributes=_allowed, protocols={"http", "https", "mailto", "data"}, strip=False)
