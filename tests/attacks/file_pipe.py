"""Is a pipe that nobody writes to, and that a reader waits for."""
# problem: no file at all
# %% notebook
import os

os.mkfifo(path)
