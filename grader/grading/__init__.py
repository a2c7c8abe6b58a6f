"""Grades submissions: sessions in confined processes, the runner of checks, caches, batches."""
