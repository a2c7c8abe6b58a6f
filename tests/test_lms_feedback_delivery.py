"""Delivery of feedback pages: a zip for a mail merge, and commits and issues in learners' repositories."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT

from grader.lms import feedback_delivery
from grader.lms import git as grader_git

LESSON = "01_by_hand"
GH = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["GH_LOG"], "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
if sys.argv[1:3] == ["issue", "list"]:
    print(os.environ.get("GH_ISSUES", "[]"))
sys.exit("gh: no access" if "none/two" in sys.argv else 0)
"""
Deliver = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def class_folder(tmp_path: Path) -> Path:
    """A course whose feedback pages exist for a class of 300."""
    course = tmp_path / "course"
    shutil.copytree(ROOT / "tests/courses/by_hand", course)
    (course / "nbgrader_config.py").write_bytes((ROOT / "nbgrader_config.py").read_bytes())
    for number in range(300):
        page = course / "build" / "feedback" / f"learner-{number:03}" / LESSON / f"{LESSON}.html"
        page.parent.mkdir(parents=True)
        page.write_text(f"<!doctype html><title>{number}</title>" + "text " * 2_000)
    return course


@pytest.fixture
def deliver(class_folder: Path, tmp_path: Path) -> Deliver:
    """Runs `grader feedback` with git's github.com in a local folder and with a gh that records its arguments."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "gh").write_text(GH)
    (tools / "gh").chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(f'[url "{tmp_path}/github/"]\n\tinsteadOf = https://github.com/\n')

    def run(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        around = {
            **os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": str(settings),
            "GH_LOG": str(tmp_path / "gh.log"), **more,
        }  # fmt: skip
        command = [sys.executable, "-m", "grader", "--course", str(class_folder), "feedback", *map(str, words)]
        return subprocess.run(command, env=around, capture_output=True, text=True, check=False, timeout=120)

    return run


def repository(path: Path) -> Path:
    """A learner's repository on the server, with a commit and with hooks that must not matter to us."""
    work = path.parent / f"{path.stem}-work"
    subprocess.run(["git", "init", "-q", "--bare", path], check=True)
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / "answer.txt").write_text("mine")
    identity = ["-c", "user.name=one", "-c", "user.email=one@localhost"]
    for words in (["add", "-A"], ["commit", "-q", "-m", "x"], ["push", "-q", str(path), "HEAD:main"]):
        subprocess.run(["git", *identity, *words], cwd=work, check=True)
    return path


def git(path: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=path, capture_output=True, text=True, check=True).stdout.strip()


def test_a_zip_has_a_folder_for_each_learner_and_a_table(deliver: Deliver, class_folder: Path, tmp_path: Path) -> None:
    lines = "".join(f"learner-{number:03},{number}@example.org\n" for number in range(299))
    (tmp_path / "roster.csv").write_text(f"student_id,email\n{lines}")
    done = deliver(LESSON, "--zip", tmp_path / "feedback.zip", "--roster", tmp_path / "roster.csv")
    assert done.returncode == 0, done.stderr
    assert "300 pages and feedback.csv." in done.stdout
    assert "Without an e-mail address: learner-299." in done.stderr
    before = (tmp_path / "feedback.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "feedback.zip") as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("feedback.csv").decode())))
        assert len(rows) == 300
        assert rows[7] == {
            "learner": "learner-007", "email": "7@example.org", "lesson": LESSON, "file": f"learner-007/{LESSON}.html",
        }  # fmt: skip
        pages = class_folder / "build" / "feedback"
        for row in rows:
            page = pages / row["learner"] / LESSON / f"{LESSON}.html"
            assert archive.read(row["file"]) == page.read_bytes()
    deliver(LESSON, "--zip", tmp_path / "feedback.zip", "--roster", tmp_path / "roster.csv")
    assert (tmp_path / "feedback.zip").read_bytes() == before
    assert (tmp_path / "feedback.zip").stat().st_mode & 0o077 == 0, "other users of the machine cannot read it"


@pytest.mark.parametrize(
    ("roster", "words", "message"),
    [
        ("name,mail\none,x\n", [], "roster.csv line 1: there is no column `learner`"),
        ("learner,email\none,x\none,y\n", [], "roster.csv line 3: `one` is already in line 2"),
        ("", ["02_none"], "There is no lesson 02_none."),
        ("", ["--issue"], "--roster requires --zip, and --issue requires --git."),
    ],
)
def test_bad_input_is_refused(deliver: Deliver, tmp_path: Path, roster: str, words: list[str], message: str) -> None:
    (tmp_path / "roster.csv").write_text(roster)
    done = deliver(*words, "--zip", tmp_path / "x.zip", "--roster", tmp_path / "roster.csv")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x.zip").exists()


def test_pages_that_do_not_exist_are_refused(deliver: Deliver, class_folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(class_folder / "build")
    done = deliver("--zip", tmp_path / "x.zip")
    assert done.returncode == 2
    assert "Create them first: nbgrader generate_feedback NN_topic" in done.stderr


def test_git_gets_a_branch_and_gh_an_issue(deliver: Deliver, class_folder: Path, tmp_path: Path) -> None:
    one = repository(tmp_path / "github" / "class" / "one.git")
    repository(tmp_path / "github" / "none" / "two.git")
    main = git(one, "rev-parse", "main")
    (tmp_path / "repos.csv").write_text(
        "learner,url\nlearner-000,https://github.com/class/one.git\nlearner-001,https://github.com/none/two.git\n"
        "learner-002,https://github.com/class/gone.git\nabsent,https://github.com/class/one.git\n"
        f"learner-003,{one}\n"
    )
    words = (LESSON, "--git", tmp_path / "repos.csv", "--issue")
    first = deliver(*words)
    assert first.returncode == 1, first.stderr
    assert "Feedback for 5 learners: 1 new, 0 unchanged." in first.stdout
    assert "learner-001: The page was pushed, but gh failed: gh: no access." in first.stderr
    assert "Not delivered, or only in part: learner-001, learner-002, learner-003." in first.stderr
    assert "is a folder, to which nothing is pushed" in first.stderr
    assert "Not in " in first.stderr
    assert "learner-299" in first.stderr
    page = class_folder / "build" / "feedback" / "learner-000" / LESSON / f"{LESSON}.html"
    assert git(one, "show", f"feedback:feedback/{LESSON}.html") == page.read_text().strip()
    assert git(one, "rev-parse", "main") == main, "the learner's own branch is unchanged"
    log = [json.loads(line) for line in (tmp_path / "gh.log").read_text().splitlines()]
    [created] = [words for words in log if words[:2] == ["issue", "create"] and "class/one" in words]
    assert created[created.index("--title") + 1] == f"Feedback on {LESSON}"
    assert f"https://github.com/class/one/blob/feedback/feedback/{LESSON}.html" in created[-1]

    (tmp_path / "gh.log").unlink()
    assert "0 new, 2 unchanged" in deliver(*words).stdout
    assert not (tmp_path / "gh.log").exists(), "the same page is not announced again"
    page.write_text("<!doctype html>changed")
    issues = json.dumps([{"number": 7, "title": f"Feedback on {LESSON}"}])
    assert "1 new" in deliver(*words, GH_ISSUES=issues).stdout
    log = [json.loads(line) for line in (tmp_path / "gh.log").read_text().splitlines()]
    assert log[-1][:5] == ["issue", "comment", "7", "--repo", "class/one"]
    assert git(one, "rev-list", "--count", "feedback") == "2"
    assert git(one, "show", f"feedback:feedback/{LESSON}.html") == "<!doctype html>changed"


def test_a_branch_that_is_too_large_or_a_silent_server_costs_one_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = repository(tmp_path / "one.git")
    work = tmp_path / "one-work"
    (work / "large").write_bytes(os.urandom(3 << 20))
    identity = ["-c", "user.name=one", "-c", "user.email=one@localhost"]
    for words in (["add", "-A"], ["commit", "-q", "-m", "x"], ["push", "-q", str(one), "HEAD:feedback"]):
        subprocess.run(["git", *identity, *words], cwd=work, check=True)
    settings = tmp_path / "gitconfig"
    settings.write_text(f'[url "{one}"]\n\tinsteadOf = https://localhost/one.git\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    page = tmp_path / "page.html"
    page.write_text("<!doctype html>")
    pages = [feedback_delivery.FeedbackFile("one", LESSON, page)]
    limits = functools.partial(grader_git.FetchLimits, seconds=5, bytes=1 << 20)
    monkeypatch.setattr(grader_git, "FetchLimits", limits)
    large = feedback_delivery.deliver(grader_git.Repository("one", "https://localhost/one.git"), pages, issue=False)
    assert large.problem == "more than 1 MB"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/one.git"
        waited = feedback_delivery.deliver(grader_git.Repository("one", url), pages, issue=False)
    assert waited.problem == "no complete answer within 5 s"
