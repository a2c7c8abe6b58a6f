"""Text of a poem for the capstone lesson: *Paradise Lost* by John Milton, which is in the public domain.

    text = poem.load()  # str, 456,741 ASCII characters

The file is beside the exercises of the lesson, with a README.md that states its source.
"""

from __future__ import annotations

from pathlib import Path

from grader.core.layout import INSTALLED_COURSE, SOURCE, course_above

LESSON, NAME = "26_capstone", "paradise_lost.txt"


def path() -> Path:
    """Returns the path of the poem.

    Raises:
        FileNotFoundError: the lesson's files are neither beside the notebooks nor in this installation.
    """
    here = Path.cwd()
    # In a checkout or a bundle, lessons and exercises are two folders; under work/, each lesson is a folder.
    folders = [here, here.parent / "exercises" / LESSON, here.parent / LESSON]
    roots = [root for root in (course_above(here), INSTALLED_COURSE, SOURCE) if root is not None]
    folders += [root / "exercises" / LESSON for root in roots]
    for folder in folders:
        if (folder / NAME).is_file():
            return folder / NAME
    raise FileNotFoundError(f"{NAME} was not found. It is in the folder of the exercises of lesson {LESSON}.")


def load() -> str:
    """Returns the poem: twelve books, each with a line such as `Book IV` in front."""
    return path().read_text(encoding="utf-8")
