"""Separate processes for what is not trusted, and the wire to them; knows nothing of courses or points."""
