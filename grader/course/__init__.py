"""The course as data: its lessons, exercises and checks, read from authored text. It imports no other room.

`grader.course.probes` takes check cells apart, `grader.course.build` makes the notebooks, and `grader.course.workspace`
lays out a learner's copies.
"""

from grader.course.exercises import Check, Exercise, Lesson, Task, Variant
from grader.course.outline import Planned
from grader.course.percent import Cell
from grader.course.problems import CourseError, Problem
from grader.course.tree import Course

__all__ = ["Cell", "Check", "Course", "CourseError", "Exercise", "Lesson", "Planned", "Problem", "Task", "Variant"]
