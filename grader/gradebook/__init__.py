"""nbgrader: its directories, its grading step and its database, with our examiner as what judges."""
