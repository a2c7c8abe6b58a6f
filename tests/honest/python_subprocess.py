"""Runs programs: a shell, another Python, a compiler's version."""
# %% answer="tally"
import subprocess, sys


def tally(counts, start):
    subprocess.run("echo hello | cat", shell=True, check=True)
    program = f"print({start} + sum({list(counts.values())}))"
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
