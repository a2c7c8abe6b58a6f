"""A learner's own way through the course: what is done, and what comes next."""
