"""A result as text for a terminal and as JSON."""
