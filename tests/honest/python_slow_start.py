"""Computes for a second in a cell of its own before anything else."""
# %%
import time

until = time.process_time() + 1.0
while time.process_time() < until:
    pass
