"""Puts files where they go out from: a folder, a zip that is the same bytes each time, a commit without a past."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from grader.core import files as files_module
from grader.course import Course
from grader.lms import git, leaks
from grader.lms.checkout import NoBundle

LIST = ".bundle"  # what lies in a folder of ours: paths and hashes
PROGRAMS = frozenset({"setup.sh", "run_autograder"})


def write_zip(files: Mapping[str, bytes], path: Path, top: str = "") -> None:
    """Write a zip, whole or not at all. Not compressed: every machine then writes the same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{top}{name}")  # dated 1980
            entry.create_system = 3
            entry.external_attr = (0o100755 if name in PROGRAMS else 0o100644) << 16
            archive.writestr(entry, content)
    _put(path, stream.getvalue())


def write_folder(files: Mapping[str, bytes], folder: Path) -> list[str]:
    """Write files into a folder; returns the paths that an earlier bundle had there beside these, which are removed.

    Files of other hands are left alone. Raises NoBundle where one of ours was changed there.
    """
    before = _listed(folder)
    strangers = [path for path, digest in before.items() if _digest(folder / path) not in (digest, None)]
    strangers += [path for path in files if path not in before and os.path.lexists(folder / path)]
    if strangers:
        raise NoBundle(f"{folder} holds files that no bundle wrote: {', '.join(strangers[:5])}. Move them away first.")
    for path in before.keys() - files.keys():
        (folder / path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (folder / path).parent.rmdir()
    for path, content in files.items():
        if before.get(path) != hashlib.sha256(content).hexdigest() or not (folder / path).is_file():
            _put(folder / path, content)
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    _put(folder / LIST, (json.dumps(digests, indent=1) + "\n").encode())
    return sorted(before.keys() - files.keys())


def commit(course: Course, files: Mapping[str, bytes], folder: Path) -> str:
    """Write the folder and commit what changed, in a repository of its own; the commit's id, empty if nothing changed.

    A new repository has this one commit and no other object. Raises NoBundle, also where the past of the repository
    shows what is hidden.
    """
    gone = write_folder(files, folder)
    try:
        if not (folder / ".git").exists():
            git.run(folder, "init", "--quiet", "--template=", "--initial-branch=main")
        _refuse_history(course, folder)
        git.run(folder, "add", "--force", "--", *files, LIST)
        if gone:
            git.run(folder, "rm", "--quiet", "--cached", "--ignore-unmatch", "--", *gone)
        changed = _changed(folder) & {*files, LIST, *gone}
        if not changed:
            return ""
        words = ["commit", "--quiet", "--no-verify", "--no-gpg-sign", "-m", f"{course.name}: lessons and exercises"]
        git.run(folder, *_identity(folder, course), *words, "--only", "--", *sorted(changed))
        _refuse_history(course, folder)
        return git.run(folder, "rev-parse", "HEAD").decode().strip()
    except git.GitFailed as problem:
        raise NoBundle(f"git could not commit in {folder}: {problem}.") from None


def objects(folder: Path) -> dict[str, bytes]:
    """Every object of a repository, reachable or not, by its id."""
    listed = git.run(folder, "cat-file", "--batch-all-objects", "--batch-check").split(b"\n")
    ids = [line.split()[0].decode() for line in listed if line and line.split()[1] != b"tree"]
    return {one: git.run(folder, "cat-file", "-p", one) for one in ids}


def _changed(folder: Path) -> set[str]:
    """What is staged and differs from the last commit, if there is one."""
    lines = git.run(folder, "status", "--porcelain", "--untracked-files=no", "--no-renames", "-z").decode().split("\0")
    return {line[3:] for line in lines if line and line[0] in "AMD"}


def _refuse_history(course: Course, folder: Path) -> None:
    found = leaks.find(course, {_named(one, content): content for one, content in objects(folder).items()})
    if found:
        raise NoBundle(f"The history of {folder} shows what is hidden, so begin a new one. {found[0]}")


def _named(one: str, content: bytes) -> str:
    return f"{one}.ipynb" if content.lstrip()[:1] == b"{" and b'"cells"' in content else one


def _identity(folder: Path, course: Course) -> list[str]:
    """Whose commit it is: the person's, where git knows one."""
    try:
        git.run(folder, "var", "GIT_COMMITTER_IDENT")
        return []
    except git.GitFailed:
        return ["-c", f"user.name={course.name}", "-c", "user.email=grader@localhost"]


def _listed(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / LIST).read_text(encoding="utf-8"))
        return {str(path): str(digest) for path, digest in found.items() if _stays_below(path)}
    except (OSError, ValueError, AttributeError):
        return {}


def _stays_below(path: str) -> bool:
    return not Path(path).is_absolute() and ".." not in Path(path).parts


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _put(path: Path, content: bytes) -> None:
    try:
        files_module.write(path, content, mode=0o644, alone=True)
    except OSError as problem:
        raise NoBundle(f"{path} cannot be written: {problem.strerror}.") from None
