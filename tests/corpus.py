"""Submissions as small percent scripts, made into a class and graded by the real command.

A script opens with a docstring (what it tries) and lines `# key: text` (how it has to end: tests/attacks/README.md).
`# %% answer="affine"` answers guard-affine; `# %%` is a cell of the learner's own before everything else,
`# %% before="affine"` and `# %% after="affine"` lie around an answer, `# %% over="affine-example"` goes in the place of
a cell of the course's, and `# %% notebook` is ours: Python that edits `notebook`, or writes what it likes at `path`.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fill
import stock
from machine import Listeners, Places

from grader.course import Course
from grader.course.build import build
from grader.learning import submit
from grader.learning.result_view import view

LESSON = "01_guarded"
PREFIX = "guard-"
CANARY = "CANARY"  # marks everything that no learner may see; no submission spells it out
NEIGHBOURS = ("aa-neighbour", "zz-neighbour")
BYSTANDER = "bystander"
FIXED = ("31000", "31337", "31_337")  # an input of a hidden check, and what it expects
CELL = re.compile(r'^# %%(?: (\w+)(?:="([^"]+)")?)?$')
LINE = re.compile(r"^# ([a-z][a-z -]*): (.+)$")
Notebook = dict[str, Any]


# Which course grades, and who: the second route differs in both, since each run of a whole corpus takes a minute. Where
# the user that runs the tests is root, it grades as one without root's rights.
COURSE, OVERLAY = "course", "overlay, as a plain user"
ROUTES = [COURSE, OVERLAY]
AS_PLAIN_USER = ["unshare", "--map-user=1000", "--map-group=1000"]
SLOW_ROUTES = int(os.environ.get("GRADER_CASES", "6"))  # cases that a run of the tests puts through a slow route
# An overlay's own hidden check instead of the one below, which it repeats: the verdicts are the same.
OVERLAY_TEXT = """# %% hidden="guard-bystander" name="values" points=1 instead=true
{source}
"""


@dataclass(frozen=True)
class Case:
    """One submission: `cells` are (kind, id without `guard-`, source), `lines` the keys and texts of its head."""

    name: str
    tries: str
    lines: tuple[tuple[str, str], ...]
    cells: tuple[tuple[str, str, str], ...]

    def said(self, key: str) -> list[str]:
        """The texts of all its lines with this key."""
        return [text for name, text in self.lines if name == key]


def read(path: Path) -> Case:
    """The case in a file. Raises ValueError where it is not written as a case is."""
    text = path.read_text(encoding="utf-8")
    if not re.match(r'r?"""', text):
        raise ValueError(f"{path} does not open with a docstring")
    head, *_ = re.split(r"^# %%.*$", text, maxsplit=1, flags=re.M)
    cells: list[tuple[str, str, list[str]]] = []
    for line in text[len(head) :].splitlines():
        begins = CELL.match(line)
        if begins:
            cells.append((begins[1] or "own", begins[2] or "", []))
        else:
            cells[-1][2].append(line)
    found = [LINE.match(line) for line in head.splitlines() if line.startswith("# ")]
    if None in found:
        raise ValueError(f"{path} has a line in its head that is no `# key: text`")
    return Case(
        path.stem,
        ast.get_docstring(ast.parse(head)) or "",
        tuple((line[1], line[2]) for line in found if line),
        tuple((kind, name, "\n".join(lines)) for kind, name, lines in cells),
    )


def tool(name: str) -> str:
    """A cell that several attacks begin with."""
    return (Path(__file__).parent / "attacks" / "with" / f"{name}.py").read_text(encoding="utf-8")


class Corpus:
    """A course, its class of cases and two neighbours, laid out under `base` with canaries in every corner."""

    def __init__(self, base: Path, built: Path, cases: list[Case], references: bool) -> None:
        self.places = places = Places(base)
        self.cases = {case.name: case for case in cases}
        self.learners: dict[str, str] = {}
        shutil.copytree(built, places.course)
        for place in (places.home, places.outside, places.scratch, places.submitted):
            place.mkdir()
        self.listeners = Listeners(places.outside / "listens")
        self.lesson = Course(places.course).lesson(LESSON)
        [hidden] = [check for check in self.lesson.exercise(PREFIX + BYSTANDER).checks if check.hidden]
        (places.overlay / "solutions").mkdir(parents=True)
        (places.overlay / "course.toml").write_text(f'extends = "../{places.course.name}"\nlessons = ["{LESSON}"]\n')
        (places.overlay / "solutions" / f"{LESSON}.py").write_text(OVERLAY_TEXT.format(source=hidden.source))
        build(Course(places.overlay))
        self.right = {exercise.id: exercise.reference for exercise in self.lesson.exercises}
        for name in NEIGHBOURS:
            self._write(name, {exercise: f"{source}\n# {CANARY}-NEIGHBOUR" for exercise, source in self.right.items()})
        for case in cases:
            self._lay_out(case, self.right if references else {PREFIX + BYSTANDER: self.right[PREFIX + BYSTANDER]})
        for root in (places.course, places.overlay):
            (root / ".secret").write_text(f"{CANARY}-SECRET")
            (root / "gradebook.db").write_text(f"{CANARY}-GRADEBOOK")
        (places.home / "notes.txt").write_text(f"{CANARY}-HOME")
        for path in [base, *base.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o777 if path.is_dir() else 0o666)

    def _filled(self, source: str) -> str:
        """`source` with @COURSE@ and the like replaced by what they are here: an attacker knows."""
        words = {"PORT": self.listeners.port, "ABSTRACT": self.listeners.abstract}
        return re.sub(
            r"@([A-Z]+)@", lambda found: str(words.get(found[1]) or getattr(self.places, found[1].lower())), source
        )

    def path(self, learner: str) -> Path:
        """The notebook that a learner submits."""
        return self.places.submitted / learner / LESSON / f"{LESSON}.ipynb"

    def _write(self, learner: str, answers: dict[str, str]) -> None:
        fill.write(fill.fill(self.places.course / "exercises" / LESSON / f"{LESSON}.ipynb", answers),
                     self.path(learner))  # fmt: skip

    def _lay_out(self, case: Case, answers: dict[str, str]) -> None:
        given = {PREFIX + name: self._filled(source) for kind, name, source in case.cells if kind == "answer"}
        released = self.places.course / "exercises" / LESSON / f"{LESSON}.ipynb"
        notebook = fill.fill(released, {**answers, **given})
        tools = [("own", "", tool(name)) for name in ", ".join(case.said("with")).split(", ") if name]
        for kind, name, source in (*tools, *case.cells):
            _put(notebook, kind, PREFIX + name, self._filled(source))
        self.learners[case.name] = case.name
        path = self.path(case.name)
        path.parent.mkdir(parents=True)
        names = {"notebook": notebook, "path": path, "learner": case.name, "json": json}
        for kind, _, source in case.cells:
            if kind == "notebook":
                exec(compile(self._filled(source), f"<{case.name}>", "exec"), names)
        if not os.path.lexists(path):
            fill.write(notebook, path)
        if names["learner"] != case.name:
            self.learners[case.name] = names["learner"]
            path.parents[1].rename(self.places.submitted / names["learner"])

    def close(self) -> None:
        """Listen no more."""
        self.listeners.close()

    def root(self, route: str) -> Path:
        """The course that grades on one of the `ROUTES`."""
        return self.places.overlay if route == OVERLAY else self.places.course

    def sample(self, moments: random.Random) -> list[str]:
        """A few of the cases that can be graded at all and whose learners have plain names: each run draws others."""
        fit = [name for name, case in self.cases.items() if not case.said("problem") and self.learners[name] == name]
        return moments.sample(fit, min(SLOW_ROUTES, len(fit)))

    def grade_in_notebooks(
        self, names: Iterable[str], route: str = COURSE
    ) -> tuple[dict[str, Notebook], list[str], list[str]]:
        """Results of what `grade()` does in these notebooks, two at a time, and what it shows as HTML and as text."""

        def one(name: str) -> tuple[Notebook, str, str]:
            path = self.root(route) / "work" / name / f"{LESSON}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.path(name), path)
            result, public_only, refusal = submit._grade_file(path, lambda text: None)
            assert (public_only, refusal) == (False, "")
            shown = view(result, submit.read_saved(path).cells, [], [], public_only)
            return result.to_json(), shown.html(), shown.plain()

        with ThreadPoolExecutor(2) as pool:
            results, pages, texts = zip(*pool.map(one, names), strict=True)
        return dict(zip(names, results, strict=True)), list(pages), list(texts)

    def store(self, names: Iterable[str], place: Path, route: str = COURSE) -> dict[str, float]:
        """Points by learner in the database of nbgrader after its commands have graded these cases."""
        root = stock.configured(self.root(route), place)
        for name in names:
            shutil.copytree(self.path(name).parents[1], root / "submitted" / name, symlinks=True)
        (root / "gradebook.db").unlink()
        for words in (("generate_assignment", LESSON, "--force"), ("autograde", LESSON)):
            done = stock.nbgrader(root, *words, timeout=600)
            assert done.returncode == 0, done.stderr[-3000:]
        points: dict[str, float] = {}
        for learner, _, _, score, *_ in stock.rows(root)["grade"]:
            points[str(learner)] = points.get(str(learner), 0.0) + float(str(score))
        return points

    def grade(self, *words: str, route: str = COURSE, timeout: float = 400) -> Run:
        """Grade the class with the real command, on one of the `ROUTES`."""
        places, results, report = self.places, self.places.base / "results.json", self.places.base / "left.json"
        before = places.guarded()
        command = [sys.executable, "-m", "grader", "--course", self.root(route), "grade", places.submitted,
                   "--json", results, "--jobs", "2", *words]  # fmt: skip
        environment = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[1]),
                       "TMPDIR": str(places.scratch), "HOME": str(places.home),
                       "CANARY": f"{CANARY}-ENVIRONMENT"}  # fmt: skip
        if route == OVERLAY and os.geteuid() == 0 and sys.platform == "linux":
            command = [*AS_PLAIN_USER, *command]
        if sys.platform == "linux":
            command = [sys.executable, Path(__file__).with_name("reaper.py"), report, *command]
        done = subprocess.run(
            list(map(str, command)), env=environment, cwd=places.base, capture_output=True, timeout=timeout, check=False
        )
        document = json.loads(results.read_text()) if results.exists() else {"results": []}
        by_learner = {result["learner"]: result for result in document["results"]}
        return Run(
            status=done.returncode,
            output=(done.stdout + done.stderr).decode(errors="backslashreplace"),
            json=results.read_text() if results.exists() else "",
            results={name: by_learner[learner] for name, learner in self.learners.items() if learner in by_learner}
            | {name: by_learner[name] for name in NEIGHBOURS if name in by_learner},
            changed=sorted(name for name, _ in before.items() ^ places.guarded().items()),
            processes=json.loads(report.read_text()) if report.exists() else [],
        )


@dataclass(frozen=True)
class Run:
    """What a run of the command gave: its text, its results by case, what changed on disk, which processes are left."""

    status: int
    output: str
    json: str
    results: dict[str, dict[str, Any]]
    changed: list[str]
    processes: list[list[str]]


def statuses(result: Notebook) -> dict[str, list[str]]:
    """The statuses of each exercise's checks, in order."""
    found: dict[str, list[str]] = {}
    for check in result["checks"]:
        found.setdefault(check["exercise"].removeprefix(PREFIX), []).append(check["status"])
    return found


def differences(case: Case, result: Notebook) -> list[str]:
    """Where a result is not what the case says; exercises that it does not name are not attempted."""
    problems, shown = case.said("problem"), json.dumps(result)
    found = [f"shows {text}" for text in (CANARY, *FIXED) if text in shown]
    if problems or result["problem"]:
        as_said = len(problems) == 1 and problems[0] in (result["problem"] or "")
        return found if as_said else [*found, f"problem: {result['problem']}"]
    wanted = {exercise: ["not attempted"] * len(ended) for exercise, ended in statuses(result).items()}
    wanted[BYSTANDER] = ["passed", "passed"]
    messages = {check["id"].removeprefix(PREFIX): check["message"] for check in result["checks"]}
    for key, text in case.lines:
        if key in wanted:
            wanted[key] = text.split(", ")
        elif key.startswith("says ") and not any(one in messages[key[5:]] for one in text.split(" | ")):
            found.append(f"{key[5:]} says {messages[key[5:]]}")
        elif key == "note" and not any(text in note for note in result["notes"]):
            found.append(f"notes: {result['notes']}")
        elif key.startswith("misconception "):
            said = {check["misconception"] for check in result["checks"] if check["exercise"] == PREFIX + key[14:]}
            found += [f"{key}: {said}"] * (said != {text})
    for exercise, ended in statuses(result).items():
        fits = [one in allowed.split("|") for one, allowed in zip(ended, wanted[exercise], strict=True)]
        if not all(fits):
            found.append(f"{exercise}: {', '.join(ended)}; expected {', '.join(wanted[exercise])}")
    return found


def cell(source: str, **metadata: Any) -> dict[str, Any]:
    """A code cell of the learner's own."""
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": [], "execution_count": None}


def place(notebook: Notebook, grade_id: str) -> int:
    """Where the cell with this id stands."""
    for i, one in enumerate(notebook["cells"]):
        if one["metadata"].get("nbgrader", {}).get("grade_id") == grade_id:
            return i
    raise KeyError(grade_id)


def _put(notebook: Notebook, kind: str, grade_id: str, source: str) -> None:
    cells = notebook["cells"]
    if kind == "own":
        cells.insert(place(notebook, f"{PREFIX}affine-task"), cell(source))
    elif kind == "before":
        cells.insert(place(notebook, grade_id), cell(source))
    elif kind == "after":
        cells.insert(place(notebook, grade_id) + 1, cell(source))
    elif kind == "over":
        cells[place(notebook, "setup" if grade_id == f"{PREFIX}setup" else grade_id)]["source"] = source
    elif kind not in ("answer", "notebook"):
        raise ValueError(f"`# %% {kind}` is no kind of cell")
