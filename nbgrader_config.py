"""nbgrader's configuration of this course: its commands, Formgrader and the Assignment List work in this folder."""

from pathlib import Path

from grader.lms.nbgrader_settings import configure

c = get_config()  # noqa: F821 (nbgrader defines it)
configure(c, Path(__file__).resolve().parent)
c.CourseDirectory.course_id = "jaxercise"
# Grades go to gradebook.db here. For another database, such as PostgreSQL:
# c.CourseDirectory.db_url = "postgresql://..."
