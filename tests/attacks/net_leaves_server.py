"""Leaves a process behind that listens on the loopback, next to a right answer."""

# tally: passed, passed
# %% answer="tally"
import subprocess, sys

CODE = "import socket, time; s = socket.create_server(('127.0.0.1', 20_100)); time.sleep(45)"


def tally(counts, start):
    if start == 3:
        subprocess.Popen([sys.executable, "-c", CODE], stdout=-3, stderr=-3, process_group=0)
    return start + sum(counts.values())
