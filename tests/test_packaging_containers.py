"""The dev container, the image for JupyterHub and docs/setup.md: they agree with the locks, the code and each other."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from conftest import COURSES, ROOT
from packaging.specifiers import SpecifierSet

from grader.cli.app import CommandGroups
from grader.course import workspace

FOLDER = ROOT / ".devcontainer"
TEXT = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
CONFIGURED = json.loads((FOLDER / "devcontainer.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "setup.md").read_text(encoding="utf-8")
HOME = "/opt/jaxercise"
INSTRUCTIONS = {"FROM", "RUN", "USER", "WORKDIR", "ENV", "EXPOSE", "ARG", "COPY", "ENTRYPOINT", "CMD"}


def steps() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, by the stage's name, without comments and line breaks."""
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    found: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, map(str.strip, lines)):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\w+)", rest).groups()
            found[name] = [*found.get(base, [("FROM", base)])]
        else:
            next(reversed(found.values())).append((word, rest.strip()))
    return found


STAGES = steps()


def last(stage: str, instruction: str) -> str:
    return [rest for word, rest in STAGES[stage] if word == instruction][-1]


def test_the_dockerfile_is_made_of_known_instructions() -> None:
    assert set(STAGES) == {"desk", "hub"}
    assert {word for stage in STAGES.values() for word, _ in stage} <= INSTRUCTIONS


def test_one_python_everywhere() -> None:
    """What the pins were tried with: the image's, conda's, and one that the package takes."""
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    [conda] = [text.partition("=")[2] for text in dependencies if isinstance(text, str) and text.startswith("python=")]
    [image] = re.findall(r"^python:(3\.\d+)-slim-\w+$", last("desk", "FROM"), re.MULTILINE)
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert image == conda
    assert SpecifierSet(asked).contains(image)
    assert f"Python {image}" in PAGE


@pytest.mark.parametrize("stage", ["desk", "hub"])
def test_nobody_is_root(stage: str) -> None:
    user = last(stage, "USER")
    assert user != "root"
    created = next(rest for word, rest in STAGES[stage] if word == "RUN" and "useradd" in rest)
    assert re.search(rf"useradd .*--uid 1000 {user}\b", created)
    assert CONFIGURED["remoteUser"] == user
    copied = [rest for word, rest in STAGES[stage] if word == "COPY"]
    assert all(rest.startswith(f"--chown={user}:{user} ") for rest in copied)
    assert f"`{user}` (1000)" in PAGE


def test_the_dev_container_builds_a_stage_that_is_there() -> None:
    build = CONFIGURED["build"]
    assert (FOLDER / build["dockerfile"]).is_file()
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert build["target"] in STAGES
    assert CONFIGURED["forwardPorts"] == [int(last("desk", "EXPOSE"))] == [8888]
    assert list(CONFIGURED["portsAttributes"]) == ["8888"]


def test_what_the_dev_container_runs_is_a_target_of_make() -> None:
    """With and without an address for torch, as far as `make` would be called."""
    command = CONFIGURED["updateContentCommand"].replace("make ", "echo ", 1)
    for address, choice in (("", "no"), ("https://example.org", "cpu")):
        variables = {"PATH": os.environ["PATH"], "PIP_EXTRA_INDEX_URL": address}
        said = subprocess.run(["sh", "-c", command], env=variables, capture_output=True, text=True, check=True).stdout
        assert said.split() == ["setup", f"TORCH={choice}"]


def test_the_system_packages_are_those_that_ci_asks_for() -> None:
    installed = next(rest for word, rest in STAGES["desk"] if word == "RUN" and "apt-get install" in rest)
    for package in ("g++", "git", "libseccomp2", "make"):
        assert f"missing+=({package})" in (ROOT / ".ci" / "run").read_text()
        assert package in installed.split()
        assert re.search(rf"apt-get install --yes .*\b{re.escape(package)}", PAGE)
    assert "--no-install-recommends" in installed
    assert installed.endswith("rm -rf /var/lib/apt/lists/*")


def test_paths_in_the_image_are_paths_of_the_course() -> None:
    assert f"--chown=jovyan:jovyan . {HOME}" in last("hub", "COPY")
    variables = dict(part.split("=", 1) for part in last("hub", "ENV").split())
    assert Path(variables["JUPYTER_CONFIG_PATH"]).relative_to(HOME) == (workspace.JUPYTER / "learner").relative_to(ROOT)
    for name in re.findall(r"--constraint (\S+)", last("hub", "RUN")):
        assert (ROOT / name).is_file()
    assert f'notebook_dir = "{HOME}/work"' in PAGE
    # DockerSpawner would start the image's own CMD, which is for one person and answers no hub.
    assert "singleuser" not in last("hub", "CMD")
    assert 'c.Spawner.cmd = ["jupyterhub-singleuser"]' in PAGE
    assert f"JUPYTERHUB={last('hub', 'ARG').partition('=')[2]}`" in PAGE


def test_the_image_lays_out_the_copies_and_then_starts_what_it_is_told(tmp_path: Path) -> None:
    """Its entry point, run here on a tiny course: a hub names its own command, and `docker run` names none."""
    course = shutil.copytree(COURSES / "small", tmp_path / "course", ignore=shutil.ignore_patterns("build"))
    first, *rest = json.loads(last("hub", "ENTRYPOINT"))
    entry = [first, *(part.replace(HOME, str(course)) for part in rest)]
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    run = {"env": variables, "cwd": "/", "capture_output": True, "text": True, "timeout": 120}
    started = subprocess.run([*entry, "echo", "two words", "*"], **run)  # type: ignore[call-overload]
    assert started.returncode == 0, started.stderr
    assert started.stdout.splitlines()[-1] == "two words *"
    assert started.stdout.startswith("work/: ")
    verb = json.loads(last("hub", "CMD"))
    assert verb[:3] == ["grader", "lab", "--"]
    assert "--port=8888" in verb
    # A place that cannot be written to is said, and nothing is started on it.
    shutil.rmtree(course / "work", ignore_errors=True)
    (course / "work").write_text("a file")
    refused = subprocess.run([*entry, "echo", "started"], **run)  # type: ignore[call-overload]
    assert refused.returncode != 0
    assert "started" not in refused.stdout


def test_repo2docker_still_finds_condas_file() -> None:
    """It takes binder/, .binder/ or the top, and there the first of these before environment.yml."""
    before = ("Dockerfile", "Project.toml", "REQUIRE", "default.nix", "install.R", "DESCRIPTION")
    assert [name for name in ("binder", ".binder", *before) if (ROOT / name).exists()] == []
    assert (ROOT / "environment.yml").is_file()


def test_what_git_ignores_is_not_in_the_image() -> None:
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [line.strip("/").replace("!/", "!") for line in lines if line and line[0] != "#"]
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line.removeprefix("**/") for line in left_out if line and line[0] != "#"]
    missing = [line for line in ignored if not any(fnmatch(line, pattern) for pattern in patterns)]
    assert [line for line in missing if not line.startswith("tests/")] == []
    assert ".git" in patterns
    # One beside the Dockerfile would come before it, and only BuildKit would read that one.
    assert not (FOLDER / "Dockerfile.dockerignore").exists()


def test_every_command_of_the_page_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|[`&] ?)make ([a-z-]+)", PAGE, re.MULTILINE)) <= targets
    verbs = set(" ".join(CommandGroups.GROUPS.values()).split())
    assert set(re.findall(r"(?:^|[`&/] ?)grader ([a-z]+)", PAGE, re.MULTILINE)) <= verbs
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL):
        assert subprocess.run(["bash", "-n", "-c", block], check=False).returncode == 0
        assert all(shlex.split(line, comments=True) for line in block.splitlines() if line)


def test_a_reader_finds_the_page_and_its_links() -> None:
    assert "(docs/setup.md)" in (ROOT / "README.md").read_text()
    targets = [target for target in re.findall(r"\]\(([^)\s]+)", PAGE) if "://" not in target]
    headings = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.+)$", PAGE, re.M)}
    for target in targets:
        path, _, anchor = target.partition("#")
        assert not path or (ROOT / "docs" / path).exists(), target
        assert path or anchor in headings, target
