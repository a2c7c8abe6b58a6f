"""`grader watch`: each save is judged, whatever editors and learners do to files; keys; nothing is left at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import Grader
from watching import LESSON, Desk, eventually

from grader.course import Course
from grader.learning.progress import NotebookState

SUMS = "def loss(x):\n    return (x**2).sum()\n"
SLOW = "import time\ndef double(x):\n    time.sleep(2)\n    return 2 * x\n"


@pytest.fixture
def desk(built: Callable[[str], Path], tmp_path: Path) -> Desk:
    return Desk.make(built("small"), tmp_path)


def test_each_save_is_judged_as_grader_check_would(desk: Desk, grader: Grader) -> None:
    with desk.piped() as watching:
        seen = watching.says("Watching the notebooks under")
        desk.save(double="right")
        seen = watching.says(f"✓ {LESSON} · Double: 3 of 3 points", seen)
        seen = watching.says(f'{LESSON}: 3 of 9 points. Next: "A loss" (n).', seen)
        desk.save(double="right", mean=SUMS)
        seen = watching.says(f"✗ {LESSON} · A loss: 0 of 3 points", seen)
        assert eventually(lambda: len(watching.lines) > seen + 3)
        assert watching.lines[seen : seen + 3] == [
            "  ✗ Gives five for one and three.",
            "    The result is 10; expected 5.",
            f'{LESSON}: 3 of 9 points. Next: fix "A loss" in work/{LESSON}/{LESSON}.ipynb, and save.',
        ]
        seen = watching.says("A loss. Perhaps: Sums where a mean is asked for.", seen)
        assert "Double" not in "\n".join(watching.lines[5:])  # it did not change, nor anything before it
        assert json.loads(desk.progress)["graded"][LESSON] == {
            "small-double": [3.0, 3.0], "small-mean": [0.0, 3.0], "small-total": [0.0, 3.0]
        }  # fmt: skip
    checked = " ".join(grader("--course", desk.root, "check", LESSON).stdout.split())
    assert "3 of 9 points" in checked
    assert "The result is 10; expected 5." in checked
    assert "Perhaps: Sums where a mean is asked for." in checked


def test_however_it_is_saved(desk: Desk) -> None:
    with desk.piped() as watching:
        watching.says("Watching")
        other = desk.own.with_name(".~renamed")
        other.write_text(desk.text(double="right"))
        os.replace(other, desk.own)
        seen = watching.says("✓ 01_small · Double: 3 of 3")
        text = desk.text(double="right", mean="right")
        desk.own.write_text(text[: len(text) // 2])
        time.sleep(0.5)
        desk.own.write_text("")
        time.sleep(0.5)
        desk.own.write_text(text)
        now = watching.says("✓ 01_small · A loss: 3 of 3", seen)
        assert not [line for line in watching.lines[seen:now] if "cannot" in line]
        desk.own.write_text(text[: len(text) // 2])  # and so it stays
        seen = watching.says("cannot be read as a notebook. Save it again to grade it.", now)
        desk.save(double="right", mean="right", total="right")
        watching.says("✓ 01_small · Another loss: 3 of 3", seen)
        watching.says("All exercises are done.", seen)


def test_whatever_becomes_of_its_folder(desk: Desk) -> None:
    shutil.rmtree(desk.root / "work")
    with desk.piped() as watching:
        seen = watching.says("Watching")
        desk.lay_out()
        desk.save(double=SLOW)
        assert eventually(lambda: list(watching.temporary.glob("grader-watch-*/grade/*/*.ipynb")))  # it is being judged
        desk.own.unlink()
        seen = watching.says("✓ 01_small · Double: 3 of 3", seen)
        seen = watching.says("work/01_small/01_small.ipynb no longer exists. `grader lab` creates a new copy", seen)
        shutil.rmtree(desk.root / "work")
        desk.lay_out()
        desk.save(double="right", mean="right")
        watching.says("✓ 01_small · A loss: 3 of 3", seen)


def test_the_course_may_change_meanwhile(desk: Desk) -> None:
    text = desk.root / "solutions" / f"{LESSON}.py"
    whole = text.read_text()
    with desk.piped() as watching:
        watching.says("Watching")
        desk.save(double="right")
        seen = watching.says("✓ 01_small · Double: 3 of 3")
        text.write_text(whole.replace('check="small-double"', 'check="small-dubble"'))
        desk.save(double="right", mean="right")
        seen = watching.says("The course's text has changed and breaks a rule. The previous version is used.", seen)
        seen = watching.says("✓ 01_small · A loss: 3 of 3", seen)
        text.write_text(whole.replace('name="example" points=1', 'name="example" points=4', 1))
        desk.save(double="right", mean="right", total="right")
        seen = watching.says("✓ 01_small · Double: 6 of 6", seen)
        watching.says("01_small: 12 of 12 points. All exercises are done.", seen)


def test_processes_that_die_cost_one_judgement(desk: Desk) -> None:
    with desk.piped() as watching:
        watching.says("Watching")
        desk.save(double="import os\ndef double(x):\n    os._exit(0)\n")
        seen = watching.says("Your answer ended the process in which it ran")
        desk.save(double="right")
        seen = watching.says("✓ 01_small · Double: 3 of 3", seen)
        for process in psutil.Process(watching.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # the examiner, and what it was forked from
        desk.save(double="right", mean="right")
        watching.says("✓ 01_small · A loss: 3 of 3", seen)


def test_an_exercise_that_is_not_judged_again_leaves_the_same_behind(desk: Desk) -> None:
    """Before an exercise's checks, names of the setup are put back: what comes later finds them so."""
    rebinds = "SCALE = 3.0\ndef double(x):\n    return 2 * x\n"
    reads = "half = SCALE / 4\ndef loss(x):\n    return 2 * half * (x**2).mean()\n"
    desk.save(double=rebinds)
    with desk.piped() as watching:
        seen = watching.says("✓ 01_small · Double: 3 of 3")
        desk.save(double=rebinds, mean=reads)
        watching.says("✓ 01_small · A loss: 3 of 3", seen)
        assert not [line for line in watching.lines[seen:] if "Double: " in line]


def test_two_watch_one_notebook(desk: Desk) -> None:
    with desk.piped() as one, desk.piped() as other:
        one.says("Watching")
        other.says("Watching")
        desk.save(double="right")
        one.says("✓ 01_small · Double: 3 of 3")
        other.says("✓ 01_small · Double: 3 of 3")


def test_keys_on_a_terminal(desk: Desk) -> None:
    with desk.on_terminal(80, 24) as terminal:
        terminal.shows("Not started: the answer cell is unchanged.")
        terminal.press("s")
        terminal.shows('Try it first: answer "Double" and save.')
        terminal.press("\x1b[B")  # an arrow is no key of ours
        terminal.press("h")
        terminal.shows("What is two times x?")
        terminal.press("hh")
        terminal.shows("Multiply.")
        terminal.press("h")
        terminal.shows('"Double" has no more hints.')
        desk.save(double="def double(x):\n    return x + 2\n", mean="right")
        terminal.shows("✗ 1 Double")
        terminal.shows("Perhaps: Adds two instead of multiplying by two.")
        terminal.shows("3 of 9 points, 0 of 1 lessons done")
        terminal.press("s")
        terminal.shows('Show a solution of "Double"? Press y, or any other key to go back.')
        assert "return SCALE * x" not in terminal.raw
        terminal.press("n")
        terminal.shows('Next: fix "Double"')
        terminal.press("sy")
        terminal.shows("return SCALE * x")
        terminal.press(" ")
        terminal.shows("✓ 2 A loss")
        assert eventually(lambda: len(terminal.screen) == 24), terminal.screen  # the frame arrives in pieces
        assert max(map(len, terminal.screen)) <= 80
        terminal.press("n")
        terminal.shows('Next: answer "Another loss"')
        terminal.press("q")
        terminal.ends(0)
        assert f"{LESSON}: 3 of 9 points." in terminal.raw.rpartition("\x1b[?1049l")[2]


def test_ctrl_c_leaves_the_terminal_as_it_was(desk: Desk) -> None:
    desk.save(double=SLOW)
    with desk.on_terminal(100, 30, NO_COLOR="1") as terminal:
        terminal.shows("grading ...")
        terminal.resize(60, 12)
        terminal.process.send_signal(signal.SIGWINCH)
        assert eventually(lambda: len(terminal.screen) == 12)
        assert max(map(len, terminal.screen)) <= 60
        assert "…" not in "".join(terminal.screen[-2:]), "what there is no room for is left out, not cut"
        terminal.press("\x03")
        terminal.ends(0)
        assert termios.tcgetattr(terminal.second) == terminal.before
        assert terminal.raw.rindex("\x1b[?1049l") > terminal.raw.rindex("\x1b[?1049h")  # the screen of before is back
        assert terminal.raw.rindex("\x1b[?25h") > terminal.raw.rindex("\x1b[?25l")  # and so is the cursor
        assert "\x1b[31" not in terminal.raw
        assert "\x1b[32" not in terminal.raw


def test_only_what_can_have_changed_is_judged_again(desk: Desk) -> None:
    standing = NotebookState(Course(desk.root).lesson(LESSON))

    def take(**answers: str) -> list[str]:
        standing.take(desk.text(**answers).encode())
        return [name.removeprefix("small-") for name in standing.todo]

    def judge() -> None:
        for name in list(standing.todo):
            standing.file(name, standing.key(name), ())

    assert take() == []
    assert take(double="right", mean="right") == ["double", "mean"]
    judge()
    assert take(double="right", mean="right") == []
    assert take(double="right", mean=SUMS) == ["mean"]
    assert take(double="right", mean=SUMS, total="right") == ["total", "mean"]
    judge()
    # An answer may use what stands before it; the one that was worked on comes first.
    assert take(double="right", mean=f"{SUMS}# again", total="right") == ["mean", "total"]
    assert take(double="right", mean=f"{SUMS}# again", total=f"{SUMS}# now") == ["total", "mean"]
    judge()
    assert take(mean=f"{SUMS}# again", total=f"{SUMS}# now") == ["mean", "total"]
    old = standing.key("small-mean")
    take(mean="right", total="right")
    assert not standing.file("small-mean", old, ())  # a verdict on what was there before
    assert [name.removeprefix("small-") for name in standing.todo] == ["mean", "total"]
