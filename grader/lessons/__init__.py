"""What lesson notebooks import: predictions kept and shown beside the result, the course's map, digits, grading."""

from grader.lessons.course_map import course_map
from grader.lessons.grading import grade
from grader.lessons.predictions import predict

__all__ = ["course_map", "grade", "predict"]
