"""What comes back from learners' repositories: the notebook's bytes, whatever else a repository tries."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Grader

from grader.course import Course
from grader.grading import batch
from grader.lms import collect
from grader.lms.collect import Collection
from grader.lms.git import FetchedRepository, FetchLimits, Repository

LESSON = "01_small"
COURSE = ROOT / "tests" / "courses" / "small"
EXERCISES = f"exercises/{LESSON}/{LESSON}.ipynb"
NOTEBOOK = '{"cells": [], "by": "%s"}\n'


def git(folder: Path, *words: str) -> str:
    around = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-c", "user.name=one", "-c", "user.email=one@localhost", "-c", "core.hooksPath=/dev/null", *words]
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, check=True).stdout


def commit(folder: Path, *, branch: str = "main", **files: str | bytes) -> Path:
    """A repository with these files committed; `__` in a name stands for a slash."""
    folder.mkdir(exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", branch)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "work", "--date", "2001-01-01T00:00:00Z")
    return folder


def a_home(folder: Path) -> Path:
    """The home of an instructor whose own git would run a hook at every step, and any filter; all leave a mark."""
    touch = f"touch {folder.parent}/ran"
    for hook in ("post-checkout", "post-merge", "reference-transaction", "post-index-change", "fsmonitor"):
        path = folder / "template" / "hooks" / hook
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{touch}\n")
        path.chmod(0o755)
    (folder / ".gitconfig").write_text(
        f"[init]\ntemplateDir = {folder}/template\n[core]\nhooksPath = {folder}/template/hooks\n"
        f'fsmonitor = {folder}/template/hooks/fsmonitor\n[filter "mark"]\nsmudge = {touch}; cat\nclean = {touch}; cat\n'
        f'required = true\n[diff "mark"]\ntextconv = {touch}; cat\n[submodule]\nrecurse = true\n'
        "[fetch]\nrecurseSubmodules = true\n[protocol]\nallow = always\n"
    )
    return folder


@pytest.fixture(scope="module")
def learners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository of each kind, a list of them, and a home whose configuration is a trap."""
    top = tmp_path_factory.mktemp("learners")
    a_home(top / "home")
    right = {EXERCISES: NOTEBOOK % "all_right"}
    commit(top / "all_right", **right)
    commit(top / "in_work", **{EXERCISES: "given out", f"work/{LESSON}/{LESSON}.ipynb": NOTEBOOK % "in_work"})
    commit(top / "at_top", **{f"{LESSON}.ipynb": NOTEBOOK % "at_top"})
    commit(top / "on_branch", branch="mine", **{EXERCISES: NOTEBOOK % "on_branch"})
    git(top / "on_branch", "checkout", "-q", "-b", "other")
    commit(top / "on_branch", **{EXERCISES: NOTEBOOK % "other branch"})
    commit(top / "nothing", **{"README.md": "Soon."})
    commit(top / "filtered", **right, **{".gitattributes": "*.ipynb filter=mark diff=mark\n"})
    commit(top / "large_file", **right, **{"model.bin": os.urandom(3 << 20)})
    commit(top / "large_notebook", **{EXERCISES: b"0" * (21 << 20)})
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12\n" % ("0" * 64)
    commit(top / "in_lfs", **{EXERCISES: pointer, ".gitattributes": "*.ipynb filter=lfs diff=lfs merge=lfs -text\n"})
    (top / "secret").mkdir()
    (top / "secret" / "key").write_text("a secret of the instructor's")
    (top / "secret" / f"{LESSON}.ipynb").write_text("a secret of the instructor's")
    for name, place, target in (
        ("linked", EXERCISES, top / "secret" / "key"),
        ("linked_folder", f"exercises/{LESSON}", top / "secret"),
    ):
        (top / name / place).parent.mkdir(parents=True)
        (top / name / place).symlink_to(target)
        commit(top / name, **{"README.md": "x"})
    commit(top / "folder", **{f"{EXERCISES}/x": "a folder of that name"})
    modules = f'[submodule "m"]\npath = exercises\nurl = ext::sh -c "touch {top}/ran"\n'
    commit(top / "submodule", **{".gitmodules": modules})
    tip = git(top / "submodule", "rev-parse", "HEAD").strip()
    git(top / "submodule", "update-index", "--add", "--cacheinfo", f"160000,{tip},exercises")
    git(top / "submodule", "commit", "-q", "-m", "module")
    hook = top / "all_right" / ".git" / "hooks" / "pre-upload"
    hook.parent.mkdir(exist_ok=True)
    git(top / "all_right", "config", "uploadpack.packObjectsHook", f"touch {top}/ran; :")
    (top / "no_repository").mkdir()
    (top / "no_commit").mkdir()
    git(top / "no_commit", "init", "-q")
    names = sorted(path.name for path in top.iterdir() if path.name not in ("home", "secret"))
    rows = [f"{name},{name}" for name in names if name != "on_branch"]
    (top / "repos.csv").write_text("\n".join(["learner,url,branch", *rows, "on_branch,on_branch,mine", "gone,away"]))
    return top


@pytest.fixture(scope="module")
def collected(learners: Path, grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str, int]:
    """All of them collected at once: the folder, and what the command said."""
    to = tmp_path_factory.mktemp("collected") / "submitted"
    words = ("--course", COURSE, "collect", learners / "repos.csv", "--to", to, "--megabytes", "2")
    done = grader(*words, HOME=str(learners / "home"), GIT_DIR=str(ROOT / ".git"), COLUMNS="300")
    return to, done.stdout, done.stderr, done.returncode


def taken(to: Path) -> dict[str, str]:
    return {path.parts[-3]: path.read_text() for path in to.glob(f"*/{LESSON}/{LESSON}.ipynb")}


def test_notebooks_come_from_where_learners_keep_them(collected: tuple[Path, str, str, int]) -> None:
    to, said, wrong, status = collected
    assert status == 1, wrong
    assert taken(to) == {
        **{name: NOTEBOOK % name for name in ("all_right", "in_work", "at_top", "on_branch")},
        "filtered": NOTEBOOK % "all_right",
    }
    assert "5 notebooks of 16 learners: 5 new, 0 changed, 0 unchanged." in said
    assert {entry.learner for entry in batch.find(to, Course(COURSE))} == set(taken(to))
    seen = (to / "all_right" / LESSON / "timestamp.txt").read_text()
    assert datetime.strptime(seen, "%Y-%m-%d %H:%M:%S UTC\n").year > 2020, "not the date that the learner gave"


@pytest.mark.parametrize(
    ("learner", "reason"),
    [
        ("linked", f"{EXERCISES} is a link. Commit the notebook itself."),
        ("large_notebook", f"{EXERCISES} is larger than 20 MB. Clear its outputs."),
        ("in_lfs", f"{EXERCISES} is stored in Git LFS. Commit the notebook itself."),
        ("folder", f"{EXERCISES} is a folder. Commit the notebook itself."),
        ("large_file", "more than 2 MB"),
        ("no_repository", "does not appear to be a git repository"),
        ("no_commit", "couldn't find remote ref HEAD"),
        ("gone", "does not appear to be a git repository"),
        ("nothing", "none"),
        ("linked_folder", "none"),
        ("submodule", "none"),
    ],
)
def test_what_is_not_taken_is_told_with_its_reason(
    collected: tuple[Path, str, str, int], learner: str, reason: str
) -> None:
    to, said, wrong, _ = collected
    [line] = [line for line in said.splitlines() if re.match(rf"\s*{learner} ", line)]
    assert reason in line
    assert (f" {learner}," in wrong or f" {learner}." in wrong) == (reason != "none")
    assert not (to / learner).exists()


def test_nothing_of_a_repository_and_of_ones_own_settings_ran(
    collected: tuple[Path, str, str, int], learners: Path
) -> None:
    to, said, wrong, _ = collected
    assert not (learners / "ran").exists()
    assert "a secret" not in "".join([said, wrong, *(path.read_text() for path in to.rglob("*") if path.is_file())])


def test_the_trap_would_have_sprung(learners: Path, tmp_path: Path) -> None:
    around = {**os.environ, "HOME": str(a_home(tmp_path / "home"))}
    clone = ["git", "clone", "-q", str(learners / "filtered"), str(tmp_path / "clone")]
    subprocess.run(clone, env=around, capture_output=True, check=False)
    assert (tmp_path / "ran").exists()


def test_what_has_not_changed_keeps_its_date_and_is_not_fetched(tmp_path: Path) -> None:
    source = commit(tmp_path / "one", **{EXERCISES: "first"})
    one, to = Repository("one", str(source)), tmp_path / "to"

    def collect() -> tuple[str, str, str]:
        [result] = Collection(to, [LESSON], FetchLimits()).collect([one], 1)
        notebook = result.notebooks[LESSON]
        return notebook.state, notebook.seen, (to / "one" / LESSON / f"{LESSON}.ipynb").read_text()

    assert collect()[0::2] == ("new", "first")
    date = to / "one" / LESSON / "timestamp.txt"
    record = json.loads((to / "collected.json").read_text())
    record["learners"]["one"]["notebooks"][LESSON]["seen"] = "2020-01-01 00:00:00 UTC"
    (to / "collected.json").write_text(json.dumps(record))
    objects = (source / ".git" / "objects").rename(tmp_path / "away")
    (source / ".git" / "objects").mkdir()
    for kept in ("pack", "info"):
        (source / ".git" / "objects" / kept).mkdir()
    tip = git(source, "rev-parse", "HEAD").strip()
    (source / ".git" / "objects" / tip[:2]).mkdir()
    (objects / tip[:2] / tip[2:]).rename(source / ".git" / "objects" / tip[:2] / tip[2:])  # the commit and no file
    assert collect() == ("unchanged", "2020-01-01 00:00:00 UTC", "first")

    (source / ".git" / "objects" / tip[:2] / tip[2:]).rename(objects / tip[:2] / tip[2:])
    subprocess.run(["rm", "-r", str(source / ".git" / "objects")], check=True)
    objects.rename(source / ".git" / "objects")
    commit(source, **{"README.md": "another file"})
    assert collect() == ("unchanged", "2020-01-01 00:00:00 UTC", "first")
    commit(source, **{EXERCISES: "second"})
    state, seen, text = collect()
    assert (state, text) == ("changed", "second")
    assert date.read_text() == f"{seen}\n" != "2020-01-01 00:00:00 UTC\n"
    (to / "one" / LESSON / f"{LESSON}.ipynb").unlink()
    assert collect() == ("new", seen, "second")


def borrows_by_file(own: Path, neighbour: Path) -> None:
    (own / ".git").write_text(f"gitdir: {neighbour}/.git\n")


def borrows_by_link(own: Path, neighbour: Path) -> None:
    (own / ".git").symlink_to(neighbour / ".git")


def is_a_link(own: Path, neighbour: Path) -> None:
    own.rmdir()
    own.symlink_to(neighbour)


def borrows_by_a_file_inside(own: Path, neighbour: Path) -> None:
    git(own, "init", "-q", "-b", "main")
    (own / ".git" / ".git").write_text(f"gitdir: {neighbour}/.git\n")


def borrows_as_a_worktree(own: Path, neighbour: Path) -> None:
    own.rmdir()
    git(neighbour, "worktree", "add", "-q", "--detach", str(own))


def borrows_by_commondir(own: Path, neighbour: Path) -> None:
    git(own, "init", "-q", "-b", "main")
    (own / ".git" / "commondir").write_text(f"{neighbour}/.git\n")


def borrows_by_alternates(own: Path, neighbour: Path) -> None:
    git(own, "init", "-q", "-b", "main")
    (own / ".git" / "objects" / "info" / "alternates").write_text(f"{neighbour}/.git/objects\n")
    (own / ".git" / "refs" / "heads" / "main").write_text(git(neighbour, "rev-parse", "HEAD"))


def links_objects(own: Path, neighbour: Path) -> None:
    git(own, "init", "-q", "-b", "main")
    shutil.rmtree(own / ".git" / "objects")
    (own / ".git" / "objects").symlink_to(neighbour / ".git" / "objects")
    (own / ".git" / "refs" / "heads" / "main").write_text(git(neighbour, "rev-parse", "HEAD"))


def links_a_branch(own: Path, neighbour: Path) -> None:
    shutil.copytree(neighbour / ".git", own / ".git")
    (own / ".git" / "refs" / "heads" / "main").unlink()
    (own / ".git" / "refs" / "heads" / "main").symlink_to(neighbour / ".git" / "refs" / "heads" / "main")


def bare_with_alternates(own: Path, neighbour: Path) -> None:
    git(own, "init", "-q", "--bare", "-b", "main")
    (own / "objects" / "info" / "alternates").write_text(f"{neighbour}/.git/objects\n")
    (own / "refs" / "heads" / "main").write_text(git(neighbour, "rev-parse", "HEAD"))


def lies_beside_it(own: Path, neighbour: Path) -> None:
    git(own.parent, "clone", "-q", "--bare", str(neighbour), f"{own.name}.git")


def fetches_what_it_lacks(own: Path, neighbour: Path) -> None:
    git(own, "init", "-q", "-b", "main")
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": str(neighbour),
        "remote.origin.promisor": "true",
    }.items():
        git(own, "config", name, value)
    (own / ".git" / "refs" / "heads" / "main").write_text(git(neighbour, "rev-parse", "HEAD"))


@pytest.mark.parametrize(
    ("leads_out", "reason"),
    [
        (borrows_by_file, "its .git is a link or a file that leads to another repository"),
        (borrows_by_link, "its .git is a link or a file that leads to another repository"),
        (is_a_link, "is a link. Use the folder that it points to"),
        (borrows_by_a_file_inside, "its .git leads to another repository. Instead, delete it"),
        (borrows_as_a_worktree, "its .git is a link or a file that leads to another repository"),
        (borrows_by_commondir, "its commondir leads to another repository. Instead, clone it"),
        (
            borrows_by_alternates,
            "its objects/info/alternates leads to another repository. Instead, run `git repack -a -d`",
        ),
        (links_objects, "its objects is a link that leads out of the repository"),
        (links_a_branch, "its refs/heads/main is a link that leads out of the repository"),
        (bare_with_alternates, "its objects/info/alternates leads to another repository"),
        (lies_beside_it, "does not appear to be a git repository"),
        (fetches_what_it_lacks, "it is a partial clone"),
    ],
)
def test_a_local_repository_that_leads_to_a_neighbours_is_refused(
    tmp_path: Path, leads_out: Callable[[Path, Path], None], reason: str
) -> None:
    neighbour = commit(tmp_path / "neighbour", **{EXERCISES: "the neighbour's work"})
    (tmp_path / "own").mkdir()
    leads_out(tmp_path / "own", neighbour)
    (tmp_path / "repos.csv").write_text("own,own\n")
    to = tmp_path / "to"
    [result] = Collection(to, [LESSON], FetchLimits()).collect(collect.read_list(tmp_path / "repos.csv"), 1)
    assert reason in result.problem
    assert not (to / "own").exists()


def test_a_commit_without_a_date_has_none(tmp_path: Path) -> None:
    source = commit(tmp_path / "one", **{EXERCISES: "work"})
    text = f"tree {git(source, 'rev-parse', 'HEAD^{tree}')}author one <one> x y\ncommitter one <one> x y\n\nwork\n"
    (tmp_path / "commit").write_text(text)
    tip = git(source, "hash-object", "-t", "commit", "-w", "--literally", str(tmp_path / "commit")).strip()
    git(source, "update-ref", "refs/heads/main", tip)
    [result] = Collection(tmp_path / "to", [LESSON], FetchLimits()).collect([Repository("one", str(source))], 1)
    assert (result.problem, result.commit, result.committed) == ("", tip, "")
    assert list(result.notebooks) == [LESSON]


def test_a_local_repository_that_leads_out_after_it_was_checked_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = commit(tmp_path / "neighbour", **{EXERCISES: "the neighbour's work"})
    own = commit(tmp_path / "own", **{EXERCISES: "own work"})
    checked = FetchedRepository._contained

    def changed(self: FetchedRepository, repository: Path) -> Path:
        found = checked(self, repository)
        shutil.rmtree(own / ".git")
        (own / ".git").symlink_to(neighbour / ".git")
        return found

    monkeypatch.setattr(FetchedRepository, "_contained", changed)
    [result] = Collection(tmp_path / "to", [LESSON], FetchLimits()).collect([Repository("own", str(own))], 1)
    assert (result.problem, taken(tmp_path / "to")) == ("", {"own": "own work"})


def test_a_link_that_takes_the_place_of_a_file_while_it_is_copied_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour, own = commit(tmp_path / "neighbour", **{EXERCISES: "theirs"}), tmp_path / "own"
    shutil.copytree(neighbour, own)
    head, looked_at = own / ".git" / "HEAD", os.lstat

    def changed(path: Any, **where: Any) -> os.stat_result:
        found = looked_at(path, **where)
        if path == "HEAD" and not head.is_symlink():
            head.unlink()
            head.symlink_to(neighbour / ".git" / "HEAD")
        return found

    monkeypatch.setattr(os, "lstat", changed)
    [result] = Collection(tmp_path / "to", [LESSON], FetchLimits()).collect([Repository("own", str(own))], 1)
    assert "symbolic link" in result.problem
    assert taken(tmp_path / "to") == {}


def test_a_large_local_repository_is_not_copied_to_its_end(tmp_path: Path) -> None:
    own = commit(tmp_path / "own", **{EXERCISES: "own work"})
    (own / ".git" / "large").write_bytes(bytes(3 << 20))
    limits = FetchLimits(bytes=2 << 20)
    [result] = Collection(tmp_path / "to", [LESSON], limits).collect([Repository("own", str(own))], 1)
    assert result.problem == "more than 2 MB"


def test_honest_local_repositories_of_every_kind_are_read(tmp_path: Path) -> None:
    source = commit(tmp_path / "plain", **{EXERCISES: "own work", "hook": "#!/bin/sh"})
    git(tmp_path, "clone", "-q", "--bare", "plain", "bare")
    git(tmp_path, "clone", "-q", "plain", "hooks")
    hooks = tmp_path / "hooks" / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "pre-commit").symlink_to("/usr/bin/true")
    git(source, "worktree", "add", "-q", "--detach", str(tmp_path / "elsewhere"))
    git(source, "pack-refs", "--all")
    git(source, "gc", "-q")
    (tmp_path / "repos.csv").write_text("plain,plain\nbare,bare\nhooks,hooks\n")
    results = Collection(tmp_path / "to", [LESSON], FetchLimits()).collect(collect.read_list(tmp_path / "repos.csv"), 1)
    assert [(one.learner, one.problem, list(one.notebooks)) for one in results] == [
        (name, "", [LESSON]) for name in ("plain", "bare", "hooks")
    ]


def server() -> socket.socket:
    """One that takes connections and never says a word."""
    return socket.create_server(("127.0.0.1", 0))


def test_a_server_that_never_answers_costs_its_time_and_nobody_else(tmp_path: Path) -> None:
    source = commit(tmp_path / "one", **{EXERCISES: "first"})
    with server() as silent:
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/x"
        collection = Collection(tmp_path / "to", [LESSON], FetchLimits(seconds=2))
        [slow] = collection.collect([Repository("slow", url)], 1)
        collection = Collection(tmp_path / "to", [LESSON], FetchLimits(seconds=60))
        [fine] = collection.collect([Repository("fine", str(source))], 2)
    assert slow.problem == "no complete answer within 2 s"
    assert fine.notebooks[LESSON].state == "new"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_what_runs_and_keeps_what_is_done(
    tmp_path: Path, number: signal.Signals, moments: random.Random
) -> None:
    source = commit(tmp_path / "one", **{EXERCISES: "first"})
    with server() as silent:
        silent.settimeout(60)
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/x"
        (tmp_path / "repos.csv").write_text(f"one,{source}\nslow,{url}\n")
        command = [sys.executable, "-m", "grader", "--course", str(COURSE), "collect", "repos.csv", "--jobs", "1"]
        around = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, cwd=tmp_path, env=around, stderr=subprocess.PIPE, text=True) as running:
            spoken, _ = silent.accept()
            time.sleep(moments.uniform(0, 1))
            running.send_signal(number)
            assert running.stderr is not None
            said = running.stderr.read()
        assert running.returncode == 128 + number
        with spoken:
            spoken.settimeout(60)
            while spoken.recv(1 << 16):
                pass  # until nobody is at the other end
    assert said.endswith("Stopped after 1 of 2 repositories. The same command continues from there.\n")
    assert taken(tmp_path / "submitted") == {"one": "first"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("../one,x", "`../one` cannot be a learner's folder"),
        ("..,x", "`..` cannot be a learner's folder"),
        ("a..b,x", "`a..b` cannot be a learner's folder"),
        ("a/b,x", "`a/b` cannot be a learner's folder"),
        (".git,x", "`.git` cannot be a learner's folder"),
        (",x", "`` cannot be a learner's folder"),
        ("one,", "`` is not the address of a repository"),
        ("one,--upload-pack=touch x", "`--upload-pack=touch x` is not the address"),
        ("one,ext::sh -c touch% x", "`ext::sh -c touch% x` may not be fetched"),
        ("one,file:///etc", "`file:///etc` may not be fetched"),
        ("one,http://host/x", "`http://host/x` may not be fetched"),
        ("one,https://-host/x", "may not be fetched"),
        ("one,ssh://-oProxyCommand=touch/x", "may not be fetched"),
        ("one,git@host:-x", "may not be fetched"),
        ("one,-u@host:x", "is not the address"),
        ("one,https://host/\x1b[2J", "is not the address"),
        ("one,https://host/x,--exec=x", "`--exec=x` is not the name of a branch"),
        ("one,https://host/x,a..b", "`a..b` is not the name of a branch"),
        ("one,https://host/x,+a:b", "`+a:b` is not the name of a branch"),
        ("one,x\nONE,y", "line 2: `ONE` is already in line 1"),
    ],
)
def test_a_bad_line_of_the_list_is_refused(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "repos.csv"
    path.write_text(row)
    with pytest.raises(collect.BadList) as problem:
        collect.read_list(path)
    assert said in str(problem.value)
    assert "\x1b" not in str(problem.value)


def test_a_good_line_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "repos.csv"
    path.write_bytes(
        b"\xef\xbb\xbfname,URL,learner\r\nOne,https://me:token@host.org:8443/a/b.git,one@school.org\r\n"
        b'"Two, T.",git@host:a/b.git,two\r\n,ssh://git@host:22/a,z\xc3\xbc\r\n\r\n,../three,three\r\n'
    )
    rows = collect.read_list(path)
    assert [row.learner for row in rows] == ["one@school.org", "two", "zü", "three"]
    assert [Path(row.url).is_absolute() for row in rows] == [False, False, False, True]
    assert rows[3].url == str(tmp_path.parent / "three")
    assert rows[0].shown == "https://me@host.org:8443/a/b.git"


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        (None, (), "none.csv cannot be read: No such file or directory."),
        (b"one,x\n\xff\xfe", (), "is not a CSV file in UTF-8. Line 2 contains other bytes."),
        (b'one,x\n"two,y\n', (), "is not a CSV file. The row in line 2 is wrong: unexpected end of data."),
        (b"\n", (), "lists no repository. Each line is learner,url or learner,url,branch."),
        (b"one,x", ("--lesson", "02_none"), "There is no lesson 02_none. Lessons with exercises: 01_small."),
        (b"one,x", ("--to", "/dev/null/x"), "/dev/null/x cannot be written: "),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(
    grader: Grader, tmp_path: Path, content: bytes | None, words: tuple[str, ...], said: str
) -> None:
    path = tmp_path / "none.csv"
    if content is not None:
        path.write_bytes(content)
    done = grader("--course", COURSE, "collect", path, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "submitted").exists()
