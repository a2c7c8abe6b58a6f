"""Builds the notebooks from the text that they come from, and says which are out of date."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from grader.course import notebook_builder
from grader.course.problems import CourseError, Problem
from grader.course.tree import Course


def build(course: Course, lessons: Iterable[str] | None = None) -> list[Path]:
    """Writes every notebook that differs from its text and removes the ones whose text is gone; returns their paths.

    `lessons` limits it to these ids. CourseError with all problems of all files; then nothing is written.
    """
    wanted = outputs(course, lessons) | sources(course, lessons)
    changed = [path for path, text in wanted.items() if _read(path) != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    gone = orphans(course) if lessons is None else []
    for path in gone:
        path.unlink()
        if path.parent.name == path.stem and not any(path.parent.iterdir()):
            path.parent.rmdir()
    return sorted([*changed, *gone])


def build_sources(course: Course) -> None:
    """Writes only what nbgrader releases from. CourseError with all problems of all files."""
    for path, text in sources(course).items():
        if _read(path) == text:
            path.touch()  # as new as its text, which says so to whoever asks for its age
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)


def stale(course: Course, lessons: Iterable[str] | None = None) -> list[Path]:
    """The committed notebooks that a rebuild would write or, without `lessons`, remove. build/ is not looked at."""
    wanted = outputs(course, lessons)
    gone = orphans(course) if lessons is None else []
    return sorted([*(path for path, text in wanted.items() if _read(path) != text), *gone])


def outputs(course: Course, lessons: Iterable[str] | None = None) -> dict[Path, bytes]:
    """What the committed notebooks should hold: lessons, and exercises as a learner gets them; in an overlay, also the
    pictures that they link to."""
    from grader.course import release  # brings nbgrader, which takes seconds to import

    ids = _chosen(course, lessons)
    _check_all(course, ids)
    found: dict[Path, bytes] = _pictures(course)
    for lesson_id in ids:
        if lesson_id in course.text_ids:
            notebook = notebook_builder.lesson_notebook(lesson_id, course.text(lesson_id))
            found[lesson_path(course, lesson_id)] = release.text(notebook).encode()
        if lesson_id in course.lesson_ids:
            released = release.release(source(course, lesson_id))
            found[exercises_path(course, lesson_id)] = release.text(released).encode()
    return found


def sources(course: Course, lessons: Iterable[str] | None = None) -> dict[Path, bytes]:
    """What nbgrader's source notebooks should hold: everything, hidden checks and solutions too."""
    from grader.course import release

    ids = [lesson_id for lesson_id in _chosen(course, lessons) if lesson_id in course.lesson_ids]
    _check_all(course, ids)
    return {source_path(course, i): release.text(release.source(source(course, i))).encode() for i in ids}


def source(course: Course, lesson_id: str, alone: bool = False) -> notebook_builder.Notebook:
    """A lesson's exercises as nbgrader's source notebook; `alone` for one that goes out without its hidden checks."""
    adopted = course.adopted(lesson_id)
    if adopted is not None:
        return notebook_builder.adopted_notebook(adopted)
    return notebook_builder.exercise_notebook(course.lesson(lesson_id), course, alone)


def lesson_path(course: Course, lesson_id: str) -> Path:
    return course.root / "notebooks" / f"{lesson_id}.ipynb"


def exercises_path(course: Course, lesson_id: str) -> Path:
    return course.root / "exercises" / lesson_id / f"{lesson_id}.ipynb"


def source_path(course: Course, lesson_id: str) -> Path:
    return course.root / "build" / "source" / lesson_id / f"{lesson_id}.ipynb"


def orphans(course: Course) -> list[Path]:
    """Notebooks that an earlier build wrote and whose text is gone. Notebooks of other hands are left alone."""
    kept = {lesson_path(course, i) for i in course.text_ids} | {exercises_path(course, i) for i in course.lesson_ids}
    there = [*course.root.glob("notebooks/*.ipynb"), *course.root.glob("exercises/*/*.ipynb")]
    return sorted(path for path in there if path not in kept and _is_built(path))


def _pictures(course: Course) -> dict[Path, bytes]:
    """Pictures of the course below. One that is there already may be the instructor's own, and stays as it is."""
    below = sorted((course.base.root / "images").glob("*")) if course.base is not None else []
    here = {course.root / "images" / picture.name: picture for picture in below if picture.is_file()}
    return {own: picture.read_bytes() for own, picture in here.items() if not own.exists()}


def _is_built(path: Path) -> bool:
    try:
        return "holds" in json.loads(path.read_bytes())["metadata"]["jaxercise"]
    except (ValueError, KeyError, TypeError):
        return False


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _chosen(course: Course, lessons: Iterable[str] | None) -> list[str]:
    if lessons is None:
        return [i for i in course.ids if i in course.text_ids or i in course.lesson_ids]
    return [course.planned(lesson_id).id for lesson_id in lessons]


def _exercises(course: Course, lesson_id: str) -> object:
    """An imported text is built whether or not all of its checks can be judged here."""
    return course.adopted(lesson_id) or course.lesson(lesson_id)


def _check_all(course: Course, ids: Iterable[str]) -> None:
    problems: list[Problem] = []
    for lesson_id in ids:
        for known, read in ((course.text_ids, Course.text), (course.lesson_ids, _exercises)):
            if lesson_id in known:
                try:
                    read(course, lesson_id)
                except CourseError as error:
                    problems.extend(error.problems)
    if problems:
        raise CourseError(problems)
