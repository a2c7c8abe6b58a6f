"""Is a pipe that nobody writes to, and that a reader waits for."""
# problem: not a regular file
# %% notebook
import os

os.mkfifo(path)
