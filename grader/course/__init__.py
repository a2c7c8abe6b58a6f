"""The course as data: its lessons, exercises and checks, read from authored text.

`probes` takes check cells apart, `build` builds the notebooks, and `workspace` makes a learner's copies.
"""

from grader.course.exercises import Check, Exercise, Lesson, Task, Variant
from grader.course.percent import Cell, CourseError, Problem
from grader.course.tree import Course, Planned

__all__ = ["Cell", "Check", "Course", "CourseError", "Exercise", "Lesson", "Planned", "Problem", "Task", "Variant"]
