"""nbgrader's configuration for a course of ours: its commands, Formgrader and the Assignment List then work in it."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment
from nbgrader import converters
from nbgrader.apps import api, autogradeapp
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import Exchange
from nbgrader.preprocessors import Execute

from grader.core import files
from grader.core.layout import PAGES
from grader.core.text import stop_commands
from grader.course import Course, CourseError, build
from grader.course.deadlines import BadTable, LatePolicy
from grader.lms.feedback_page import FeedbackPage, GetGradesAndHands
from grader.lms.formgrader import TEMPLATES, FormgraderPage
from grader.lms.late_policy import CourseLatePolicy
from grader.lms.nbgrader_autograde import Autograde, ExecuteByExaminer


def configure(config: Any, root: Path) -> None:
    """Fills in nbgrader's configuration for the course in `root`, and builds missing source notebooks. What is set
    afterwards holds. Our examiner runs learners' code, instead of the kernel that nbgrader would start."""
    stop_commands(sys.stderr)  # where nbgrader logs names of submitted files
    config.CourseDirectory.root = str(root)
    for name in ("source", "autograded", "feedback", "solution"):
        config.CourseDirectory[f"{name}_directory"] = f"build/{name}"
    config.CourseDirectory.release_directory = "exercises"
    config.CourseDirectory.submitted_directory = "submitted"
    # What is released lies in this repository already; without this nbgrader leaves it, and the gradebook, as they are.
    config.GenerateAssignment.force = True
    # Patched, as there is no setting for it: nbgrader's command and Formgrader make their converter by its name.
    autogradeapp.Autograde = api.Autograde = Autograde
    steps = converters.Autograde.autograde_preprocessors.default_args[0]
    config.Autograde.autograde_preprocessors = [ExecuteByExaminer if step is Execute else step for step in steps]
    config.GenerateFeedback.preprocessors = [GetGradesAndHands]
    config.GenerateFeedback.exporter_class = FeedbackPage
    # Formgrader shows a learner's notebook to an instructor, in a page that may do all that the instructor may.
    config.HTMLExporter.sanitize_html = True  # outputs
    pages = "grader.lms.feedback_page"
    config.HTMLExporter.filters = {"markdown2html": f"{pages}.markdown", "highlight_code": f"{pages}.listing"}
    # nbgrader would hand pages on from beside a notebook, to be opened in that same place.
    config.CourseDirectory.ignore = [*CourseDirectory.ignore.default(), *PAGES]
    formgrader: Any = sys.modules.get("nbgrader.server_extensions.formgrader.formgrader")
    if formgrader is not None:  # in JupyterLab
        config.HTMLExporter.preprocessors = [FormgraderPage]
        config.FormgraderPage.root = str(root)
        config.HTMLExporter.template_name = TEMPLATES.name
        config.HTMLExporter.extra_template_basedirs = [str(TEMPLATES.parent), formgrader.handlers.template_path]
        config.HTMLExporter.extra_template_paths = [formgrader.handlers.template_path]
        # Patched, as Formgrader makes its Environment itself: its templates put learners' names into pages unescaped.
        formgrader.Environment = partial(Environment, autoescape=True)
    config.FormgradeExtension.debug = False  # else it prints this configuration above the list of assignments
    if not Path(Exchange.root.default_value).is_dir():  # where assignments are released and submitted
        own = root / "exchange"  # not under build/: submissions there are nowhere else until it is collected
        with contextlib.suppress(OSError):  # nbgrader says so itself when it needs one
            own.mkdir(parents=True, exist_ok=True)
        config.Exchange.root = str(own)
    # Assignments are fetched to where `make lab` puts them too; neither overwrites what is there.
    config.Exchange.assignment_dir = str(root / "work")
    if _has_late_policy(root):
        config.AssignLatePenalties.plugin_class = CourseLatePolicy
        config.CourseLatePolicy.root = str(root)
    _build_sources(root)


def _has_late_policy(root: Path) -> bool:
    """Whether course.toml states what being late costs; a mistake in it is reported where the lessons are read."""
    try:
        return Course(root).deadlines.policy != LatePolicy()
    except (CourseError, BadTable, OSError):
        return False


def _build_sources(root: Path) -> None:
    """Source notebooks are derived and not committed: what is missing, or older than its text, is built first."""
    changed = lambda path: path.stat().st_mtime
    try:
        course = Course(root)
        built = [(build.source_path(course, lesson), course.sources(lesson)) for lesson in course.lesson_ids]
        if any(not path.is_file() or changed(path) < max(map(changed, texts)) for path, texts in built):
            for path, content in build.sources(course).items():
                files.write(path, content, mode=0o644)
        build.copy_data(course)
    except (CourseError, OSError) as problem:
        # Not an end: a mistake in one lesson is no reason to keep the feedback of another back.
        print(f"The source notebooks could not be built: {problem}", file=sys.stderr)
