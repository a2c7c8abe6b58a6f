"""A class of a hundred, ten of it hostile: nothing lost, every honest notebook right, nothing left, little memory."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.thorough
def test_a_hundred_notebooks_with_ten_hostile_ones() -> None:
    """`make soak`, in small. What must hold is told by its exit status, and what did not by its text."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--count", "100"],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.startswith("100 notebooks, 10 of them hostile, in ")
    medians = [int(mb) for mb in re.findall(r"(\d+) MB +\d+ MB", done.stdout)]
    assert len(medians) == 4
    assert 0 < max(medians) < 1500, done.stdout
