"""Build the notebooks from the text that they come from, and find those that are out of date."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from grader.core import files
from grader.core.layout import GLOSSARY
from grader.core.notebook import Notebook
from grader.course import notebook_builder, rules_style
from grader.course.percent import CourseError, Problem
from grader.course.tree import Course

# What `nbgrader generate_assignment` runs, without its database: its list without IncludeHeaderFooter and
# InstantiateTests, which find nothing to do in our notebooks, and without SaveCells, which writes a gradebook.
RELEASE_STEPS = (
    *("LockCells", "ClearSolutions", "ClearOutput", "CheckCellMetadata", "ComputeChecksums", "ClearHiddenTests"),
    *("ClearMarkScheme", "ComputeChecksums", "CheckCellMetadata"),
)
SOURCE_STEPS = ("CheckCellMetadata", "ComputeChecksums")


def build(course: Course, lessons: Iterable[str] | None = None) -> list[Path]:
    """Writes the notebooks that differ from their text, removes those whose text is gone, and returns their paths.
    Raises CourseError with all problems of all files; then nothing is written."""
    wanted = outputs(course, lessons) | sources(course, lessons)
    gone = orphans(course) if lessons is None else []
    changed = _changed(wanted)
    for path in changed:
        files.write(path, wanted[path], mode=0o644)
    for path in gone:
        path.unlink()
        if path.parent.name == path.stem and not any(path.parent.iterdir()):
            path.parent.rmdir()
    return sorted([*changed, *gone])


def copy_data(course: Course) -> None:
    """Has nbgrader release the data files that lessons have now, and no others. Raises CourseError and OSError."""
    for lesson_id in course.lesson_ids:
        folder = source_path(course, lesson_id).parent
        wanted = data(course, lesson_id, folder)
        for path in _changed(wanted):
            files.write(path, wanted[path], mode=0o644)
        for path in folder.rglob("*"):
            if path.is_file() and path not in wanted and path != source_path(course, lesson_id):
                path.unlink()


def stale(course: Course, lessons: Iterable[str] | None = None) -> list[Path]:
    """Returns the committed notebooks that a rebuild would write or, without `lessons`, remove; none in build/."""
    gone = orphans(course) if lessons is None else []
    return sorted([*_changed(outputs(course, lessons)), *gone])


def outputs(course: Course, lessons: Iterable[str] | None = None) -> dict[Path, bytes]:
    """Returns the committed notebooks: lessons, and exercises as a learner gets them; in an overlay also what they
    link to."""
    found = _linked(course)
    for lesson_id in _checked(course, lessons):
        if lesson_id in course.text_ids:
            notebook = notebook_builder.lesson_notebook(lesson_id, course.text(lesson_id), course)
            found[lesson_path(course, lesson_id)] = text(notebook).encode()
        if lesson_id in course.lesson_ids:
            found[exercises_path(course, lesson_id)] = text(release(source(course, lesson_id))).encode()
            found |= data(course, lesson_id, exercises_path(course, lesson_id).parent)
    return found


def data(course: Course, lesson_id: str, folder: Path) -> dict[Path, bytes]:
    """Returns the content of a lesson's data files, for their places beside its notebook in `folder`."""
    return {folder / name: content for name, content in course.data(lesson_id).items()}


def sources(course: Course, lessons: Iterable[str] | None = None) -> dict[Path, bytes]:
    """Returns the content of nbgrader's source notebooks: everything, with hidden checks, solutions and checksums."""
    ids = [lesson_id for lesson_id in _checked(course, lessons) if lesson_id in course.lesson_ids]
    found = {source_path(course, i): text(_run(source(course, i), SOURCE_STEPS)).encode() for i in ids}
    for lesson_id in ids:
        found |= data(course, lesson_id, source_path(course, lesson_id).parent)
    return found


def source(course: Course, lesson_id: str, alone: bool = False) -> Notebook:
    """Returns a lesson's exercises as nbgrader's source notebook; `alone` if it goes out without its hidden checks, as
    that of an overlay always does."""
    imported = course.adopted(lesson_id)
    if imported is not None:
        return notebook_builder.imported_notebook(imported)
    return notebook_builder.exercise_notebook(course.lesson(lesson_id), course, alone or course.base is not None)


def release(notebook: Notebook) -> Notebook:
    """Returns the notebook as a learner gets it: `nbgrader generate_assignment` without its database."""
    return _run(notebook, RELEASE_STEPS)


def text(notebook: Notebook) -> str:
    """Returns the notebook as nbgrader and Jupyter write it: sorted keys, one space, a line end."""
    import nbformat

    return nbformat.writes(nbformat.from_dict(notebook), version=4) + "\n"


def lesson_path(course: Course, lesson_id: str) -> Path:
    return course.root / "notebooks" / f"{lesson_id}.ipynb"


def exercises_path(course: Course, lesson_id: str) -> Path:
    return course.root / "exercises" / lesson_id / f"{lesson_id}.ipynb"


def source_path(course: Course, lesson_id: str) -> Path:
    return course.root / "build" / "source" / lesson_id / f"{lesson_id}.ipynb"


def orphans(course: Course) -> list[Path]:
    """Returns notebooks that an earlier build wrote and whose text is gone, and no others."""
    wanted = {lesson_path(course, i) for i in course.text_ids} | {exercises_path(course, i) for i in course.lesson_ids}
    found = [*course.root.glob("notebooks/*.ipynb"), *course.root.glob("exercises/*/*.ipynb")]
    return sorted(path for path in found if path not in wanted and _is_built(path))


def _is_built(path: Path) -> bool:
    try:
        return "holds" in json.loads(path.read_bytes())["metadata"]["jaxercise"]
    except (ValueError, KeyError, TypeError):
        return False


def _linked(course: Course) -> dict[Path, bytes]:
    """Pictures and the glossary of the course below. A file that is there already may be the instructor's own, and
    stays as it is."""
    if course.base is None:
        return {}
    below = [*sorted((course.base.root / "images").glob("*")), course.base.root / GLOSSARY]
    here = {course.root / one.relative_to(course.base.root): one for one in below if one.is_file()}
    return {own: one.read_bytes() for own, one in here.items() if not own.exists()}


def _changed(wanted: Mapping[Path, bytes]) -> list[Path]:
    return [path for path, content in wanted.items() if not path.is_file() or path.read_bytes() != content]


def _checked(course: Course, lessons: Iterable[str] | None) -> list[str]:
    """The ids of the lessons to build. Raises CourseError with all problems of all their files."""
    written = {*course.text_ids, *course.lesson_ids}
    ids = [i for i in course.ids if i in written] if lessons is None else [course.planned(i).id for i in lessons]
    problems: list[Problem] = []
    for read, known in ((course.text, course.text_ids), (course.lesson, course.lesson_ids)):
        for lesson_id in ids:
            try:
                # An imported text is built whether or not all of its checks can be judged here.
                if lesson_id in known and (read == course.text or course.adopted(lesson_id) is None):
                    read(lesson_id)
            except CourseError as error:
                problems.extend(error.problems)
    for lesson_id in ids if not problems else ():
        if course.base is None and course.planned(lesson_id).edited:
            problems.extend(rules_style.problems(course, lesson_id))
    if problems:
        raise CourseError(problems)
    return ids


def _run(notebook: Notebook, steps: Iterable[str]) -> Notebook:
    with warnings.catch_warnings():
        # nbgrader and what it imports still use names that Python and setuptools have deprecated.
        warnings.simplefilter("ignore")
        import nbformat
        from nbgrader import preprocessors  # takes nearly two seconds: only building does it
    node = nbformat.from_dict(notebook)
    for step in steps:
        node, _ = getattr(preprocessors, step)().preprocess(node, {})
    return node
