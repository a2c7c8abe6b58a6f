"""Data types and readers that every other package shares: notebooks, results, points, names in a cell, files."""
