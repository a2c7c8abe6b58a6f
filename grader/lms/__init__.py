"""Learning management systems: nbgrader, Gradescope, bundles for learners, collection from repositories."""
