"""What lesson notebooks import: predictions kept and shown beside the result, the course's map, digits, grading."""

from grader.learning.course_map import course_map
from grader.learning.predictions import predict
from grader.learning.submit import grade

__all__ = ["course_map", "grade", "predict"]
