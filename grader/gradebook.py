"""Alias of `grader.lms.nbgrader_settings` for nbgrader_config.py files that import `grader.gradebook.settings`."""

import sys

from grader.lms import nbgrader_settings as settings

sys.modules[f"{__name__}.settings"] = settings
