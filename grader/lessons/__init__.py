"""What lesson notebooks import: predictions that are kept and shown beside the result."""

from grader.lessons.predictions import predict

__all__ = ["predict"]
