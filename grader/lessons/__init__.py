"""What lesson notebooks import: predictions kept and shown beside the result, and digits to train on."""

from grader.lessons.predictions import predict

__all__ = ["predict"]
