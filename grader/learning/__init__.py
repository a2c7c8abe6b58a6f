"""Tools for learners: predictions, the course map, plots and digits in lessons; progress, `watch` and `grade()`."""

from grader.learning.course_map import course_map
from grader.learning.predictions import predict
from grader.learning.submit import grade
from grader.learning.workshop_panel import workshop

__all__ = ["course_map", "grade", "predict", "workshop"]
