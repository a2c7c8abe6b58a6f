"""Adds the course to a wheel, in `grader.core.layout.INSTALLED_COURSE`. Everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
COURSE = (
    *("course.toml", "docs/glossary.md", "images/*.svg", "images/*.png"),
    *("notebooks/*.py", "notebooks/*.ipynb", "exercises/*/**/*", "solutions/*.py", "solutions/*/**/*"),
)


class BuildWithCourse(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout is a course itself
            for path in (path for pattern in COURSE for path in ROOT.glob(pattern)):
                if path.is_file() and "__pycache__" not in path.parts and ".ipynb_checkpoints" not in path.parts:
                    copy = Path(self.build_lib, "grader", "installed_course", path.relative_to(ROOT))
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)


setup(cmdclass={"build_py": BuildWithCourse})
