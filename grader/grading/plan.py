"""Plan of a submission: the order in which its cells run, and the exercise that each belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from grader.core.notebook import Submission
from grader.course import Exercise, Lesson
from grader.course.exercises import GRADING, INSTALL

SETUP = "setup"
MAX_PIECES = 20  # of one answer that are joined to see whether they are Python together
Binds = Callable[[str], Collection[str] | None]


@dataclass(frozen=True)
class RunCell:
    """Run this text.

    Attributes:
        source: the text.
        label: what a message calls it: the id of the exercise in whose answer cell it stands, or "code cell 7".
        answers: ids of the exercises that it answers; none for a cell that helps, or explores.
        passed: texts of the course's cells before it that do not run here, but count as cells that ran.
        setup: whether it stands in the place of a setup cell.
    """

    source: str
    label: str
    answers: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    setup: bool = False


@dataclass(frozen=True)
class JudgeExercise:
    """Now run the checks of this exercise; `untouched` when its answer is as it was released, or missing, and
    `not_code` when the missing answer's cell has become a Markdown or raw cell."""

    exercise: Exercise
    untouched: bool = False
    missing: bool = False
    not_code: bool = False


@dataclass
class _Answer:
    """Where an exercise's answer stands: places of its cells, of copies of the stub, and of its checks."""

    cells: list[int] = field(default_factory=list)
    stubs: list[int] = field(default_factory=list)
    checks: dict[str, int] = field(default_factory=dict)


def plan(submission: Submission, lesson: Lesson, binds: Binds) -> tuple[list[RunCell | JudgeExercise], list[str]]:
    """Returns steps in order, and sentences about the notebook that its author should read.

    Every cell that is not the course's runs, in notebook order. An exercise is judged where its checks stand, by what
    ran before them, as in a notebook that runs from top to bottom. Where its answer comes only later, or its checks are
    gone, it is judged after its answer and the learner's own cells that follow.

    An answer is known by its cell's id. Cells that carry one exercise's id are pieces of one answer, of which untouched
    stubs are dropped. Where nothing is left, the cells below the stub that define one of its names are its answer.

    Args:
        submission: the notebook.
        lesson: its lesson.
        binds: returns the names that the text of a cell binds; None where the text is not Python.
    """
    return _Planner(submission, lesson, binds).plan()


class _Planner:
    def __init__(self, submission: Submission, lesson: Lesson, binds: Binds) -> None:
        self.cells, self.lesson, self.binds = submission.cells, lesson, binds
        self.not_code = submission.not_code
        self.exercises = {exercise.id: exercise for exercise in lesson.exercises}
        self.answers = {name: _Answer() for name in self.exercises}
        self.notes: list[str] = []
        setups = {_plain(cell.source) for cell in lesson.cells if SETUP in (cell.kind, (cell.id or "").split("-")[0])}
        checks = {check.id: check.exercise for exercise in lesson.exercises for check in exercise.checks}
        by_text = {_plain(c.source): c.id for e in lesson.exercises for c in e.checks if not c.hidden}
        by_text |= dict.fromkeys(setups, SETUP)
        # What the cell at each place is: the id of an exercise, of a check, "setup", "install" or "grade"; "" for one's
        # own.
        self.roles: list[str] = []
        there = {cell.grade_id for cell in self.cells}
        for place, cell in enumerate(self.cells):
            name = cell.grade_id or ""
            role = SETUP if name.split("-")[0] == SETUP else name
            if name == INSTALL and not _plain(cell.source).rpartition("\n")[2].startswith("cloud.start("):
                role = ""  # somebody's own cell
            if role not in checks and role not in self.exercises and role not in (SETUP, INSTALL, GRADING):
                role = by_text.get(_plain(cell.source), "")
                role = "" if role in there else role  # a copy: one's own
            self.roles.append(role)
            if role in checks:
                self.answers[checks[role]].checks[role] = place  # the last of copies
            elif role in self.exercises:
                answer = self.answers[role]
                untouched = _plain(cell.source) in ("", _plain(self.exercises[role].stub))
                (answer.stubs if untouched else answer.cells).append(place)
        self.edited = {
            place
            for place, role in enumerate(self.roles)
            if role == SETUP and _plain(self.cells[place].source) not in setups
        }
        self._note_course_cells(checks, has_setup=bool(setups))

    def _note_course_cells(self, checks: Collection[str], has_setup: bool) -> None:
        found = Counter(self.roles)
        for name, number in found.items():
            if name in checks and number > 1:
                self.notes.append(f"The check {name} occurs {number} times in the notebook. The last one counts.")
        gone = sorted(set(checks) - set(found))
        if gone and len(gone) < len(checks) + len(self.exercises) - len(set(self.exercises) & set(found)):
            self.notes.append(
                f"Check cells are missing from the notebook ({', '.join(gone)}). Those of the course were used."
            )
        if has_setup and SETUP not in found and not any("grader.checks" in cell.source for cell in self.cells):
            self.notes.append("The setup cell is missing from the notebook. That of the course was run first.")
        for place in sorted(self.edited):
            self.notes.append(
                f"Your {self._cell(place)} is a changed setup. The setup of the course was run, and then what yours "
                "adds or changes."
            )

    def _cell(self, place: int) -> str:
        return f"code cell {self.cells[place].number}"

    def plan(self) -> tuple[list[RunCell | JudgeExercise], list[str]]:
        worked = {place for answer in self.answers.values() for place in answer.cells}
        for name, answer in self.answers.items():
            if not answer.cells:
                self._match_by_name(name, worked)
            elif len(answer.cells) > 1:
                number = len(answer.cells)
                self.notes.append(f"The answer of {name} is in {number} cells. All were run, in order.")
        dropped = {place for answer in self.answers.values() for place in self._dropped(answer)}
        judged: dict[int, list[JudgeExercise]] = {}
        for name, answer in self.answers.items():
            missing = not answer.cells + answer.stubs
            not_code = missing and name in self.not_code
            judge = JudgeExercise(self.exercises[name], not answer.cells, missing, not_code)
            judged.setdefault(self._place_of_verdict(name, answer), []).append(judge)
        steps: list[RunCell | JudgeExercise] = []
        passed: list[str] = []
        after_own = False  # whether a cell of the learner's has run
        for place, cell in enumerate(self.cells):
            steps += judged.get(place, [])
            role = self.roles[place]
            answers = tuple(name for name, answer in self.answers.items() if place in answer.cells)
            if role == SETUP and (after_own or place in self.edited):
                run = RunCell(cell.source, self._cell(place), answers, setup=True)
            elif place in dropped or (role and role not in self.exercises):
                passed.append(cell.source)
                continue
            elif role:
                run = RunCell(cell.source, role, () if place in self.answers[role].stubs else answers)
            else:
                run = RunCell(cell.source, self._cell(place), answers)
            before = steps[-1] if steps else None
            if isinstance(before, RunCell) and self._torn(before, run, place):
                run = replace(before, source=f"{before.source}\n{run.source}")
                steps.pop()
            steps.append(replace(run, passed=run.passed or tuple(passed)))
            after_own, passed = True, []
        return steps + judged.get(len(self.cells), []), self.notes

    def _match_by_name(self, name: str, worked: Collection[int]) -> None:
        """Find the answer of an exercise whose own cell is untouched or gone, by the names that it should define."""
        answer, exercise = self.answers[name], self.exercises[name]
        others = {one for other in self.lesson.exercises if other is not exercise for one in other.names}
        first = min(answer.checks.values(), default=len(self.cells))
        for place in range(answer.stubs[0] + 1 if answer.stubs else 0, len(self.cells)):
            role, source = self.roles[place], self.cells[place].source
            others_cell = role and place not in self.edited  # in a changed setup, all exercises may be answered
            if (others_cell and place not in worked) or _plain(source) == _plain(exercise.stub):
                continue
            # Exercises may ask for the same name: below the checks, and in another's cell, it is the other's.
            names = set(exercise.names) - (others if others_cell or place > first else set())
            if names & set(self.binds(source) or ()):
                answer.cells.append(place)
        state = "is missing from the notebook" if name not in self.not_code else "is not a code cell"
        state = "is as it was released" if answer.stubs else state
        if answer.cells:
            where = " and ".join(self._cell(place) for place in answer.cells[:3])
            where += f" and {len(answer.cells) - 3} more" if len(answer.cells) > 3 else ""
            self.notes.append(f"The answer cell of {name} {state}. The definition in {where} was graded instead.")
        elif not answer.stubs:
            self.notes.append(f"The answer cell of {name} {state}.")
        else:
            own = [place for place in range(answer.stubs[0]) if not self.roles[place] or place in self.edited]
            above = [place for place in own if set(exercise.names) & set(self.binds(self.cells[place].source) or ())]
            if above:
                self.notes.append(
                    f"The answer cell of {name} is as it was released. It replaces the definition in your "
                    f"{self._cell(above[-1])}, which is above it. Move that definition into the answer cell."
                )

    @staticmethod
    def _dropped(answer: _Answer) -> list[int]:
        """Untouched stubs that are not run: all but one, and that one too where it would undo the answer."""
        kept = answer.stubs[:1] if not answer.cells or answer.stubs[:1] < answer.cells[:1] else []
        return [place for place in answer.stubs if place not in kept]

    def _place_of_verdict(self, name: str, answer: _Answer) -> int:
        """The place of the cell before which an exercise is judged."""
        checks = sorted(answer.checks.values())
        if not answer.cells:
            return min((place + 1 for place in answer.stubs), default=len(self.cells))
        answered = [place for place in checks if place > answer.cells[0]]
        if answered:
            return answered[0]
        if checks:
            self.notes.append(
                f"The answer of {name} is below its checks, and was graded there. In a notebook that runs from top to "
                "bottom it comes too late. Move it above them."
            )
        answers = {place for other in self.answers.values() for place in other.cells} - set(answer.cells)
        later = range(answer.cells[-1] + 1, len(self.cells))
        return next((place for place in later if self.roles[place] or place in answers), len(self.cells))

    def _torn(self, before: RunCell, run: RunCell, place: int) -> bool:
        """Whether two neighbouring pieces of one answer are Python only together, perhaps with those that follow.

        A broken attempt above an answer that is Python by itself is no piece of it: together they are no Python either.
        """
        same = bool(run.answers) and before.label == run.label and self.roles[place - 1] == self.roles[place]
        if not same or not (self.binds(before.source) is None or self.binds(run.source) is None):
            return False
        joined = before.source
        for i in range(place, min(place + MAX_PIECES, len(self.cells))):
            if self.roles[i] != self.roles[place]:
                return False
            joined = f"{joined}\n{self.cells[i].source}"
            if self.binds(joined) is not None:
                return True
        return False


def _plain(source: str) -> str:
    """A text without what editors and systems add: spaces at ends of lines, other line ends."""
    return "\n".join(line.rstrip() for line in source.strip().splitlines())
