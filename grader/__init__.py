"""The grader of Jaxercise: it reads the course, checks answers and judges JAX programs."""

__version__ = "0.1.0"
