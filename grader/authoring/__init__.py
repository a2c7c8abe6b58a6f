"""Begins texts of a course: the skeleton of an exercise, a private overlay, a notebook of nbgrader's taken over."""
