"""The action and the example workflows: their steps, taken out and run in a shell, as GitHub runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from ci_log import commands
from conftest import ROOT
from fill import fill, write
from ports import free_port

import grader.cli
from grader.course import Course

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
EXAMPLES = sorted((ROOT / "examples" / "ci").rglob("workflows/*.yml"))
GITLAB = sorted((ROOT / "examples" / "ci" / "gitlab").rglob(".gitlab-ci.yml"))
LESSON = "01_small"
EXERCISES = f"exercises/{LESSON}/{LESSON}.ipynb"
GITHUBS = {"runner.os", "runner.temp", "github.run_id", "matrix.lesson", "secrets.LEARNERS_TOKEN"}
OURS = {"actions/checkout", "actions/setup-python", "actions/cache", "actions/upload-artifact"}


def steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    if "runs" in document:
        return list(document["runs"]["steps"])
    return [step for job in document["jobs"].values() for step in job["steps"]]


class Runner:
    """A job of GitHub's, as far as our steps know it: files, variables, expressions."""

    def __init__(self, folder: Path, workspace: Path, inputs: dict[str, str]) -> None:
        self.folder, self.workspace = folder, workspace
        defaults = {name: told["default"] for name, told in ACTION["inputs"].items()}
        self.context = {f"inputs.{name}": value for name, value in (defaults | inputs).items()}
        self.context |= {"runner.os": "Linux", "runner.temp": str(folder), "matrix.lesson": LESSON}
        self.files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        # What changes the machine is noted, not done.
        (bin_folder / "sudo").write_text(f'#!/bin/sh\necho "$@" >>{folder}/sudo\n')
        (bin_folder / "python").write_text(
            f'#!/bin/sh\nif [ "$2" = pip ]; then echo "$@" >>{folder}/pip; else exec {sys.executable} "$@"; fi\n'
        )
        for path in bin_folder.iterdir():
            path.chmod(0o755)
        # As of the environment that the action installs into: nbgrader calls alembic by its name.
        self.path = os.pathsep.join([str(bin_folder), str(Path(sys.executable).parent), os.environ["PATH"]])

    def fill(self, text: str) -> str:
        """Expressions replaced; one that we do not know is a mistake of ours."""
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda found: self.context[found[1]], text)

    def wanted(self, step: dict[str, Any]) -> bool:
        if "if" not in step:
            return True
        name, sign, value = re.fullmatch(r"([\w.]+) (==|!=) '(.*)'", step["if"]).groups()  # type: ignore[union-attr]
        return (self.context[name] == value) == (sign == "==")

    def run(self, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        self.files["GITHUB_OUTPUT"].write_text("")
        variables = {name: self.fill(value) for name, value in step.get("env", {}).items()}
        around = {"PATH": self.path, "HOME": str(self.folder), "PYTHONPATH": str(ROOT), "GITHUB_ACTION_PATH": str(ROOT)}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        files = {name: str(path) for name, path in self.files.items()}
        done = subprocess.run(
            command, cwd=self.workspace, env={**around, **files, **variables},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        for line in self.files["GITHUB_OUTPUT"].read_text().splitlines():
            name, _, value = line.partition("=")
            self.context[f"steps.{step['id']}.outputs.{name}"] = value
        return done

    def run_all(self, document: dict[str, Any]) -> tuple[int, str]:
        """All steps until one fails: its status, and what was printed."""
        said = ""
        for step in steps(document):
            if "run" in step and self.wanted(step):
                done = self.run(step)
                said += done.stdout + done.stderr
                if done.returncode:
                    return done.returncode, said
        return 0, said


@pytest.fixture(scope="module")
def workspace(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instructor's checkout with a list of learners' repositories; one of the learners has none."""
    top = tmp_path_factory.mktemp("action")
    course = shutil.copytree(built("small"), top / "course")
    right = {exercise.id: exercise.reference for exercise in Course(course).lesson(LESSON).exercises}
    answers = {"all_right": right, "partly": {**right, "small-mean": "def loss(x):\n    return (x**2).sum()\n"}}
    for learner, given in answers.items():
        folder = top / learner
        write(fill(course / EXERCISES, given), folder / EXERCISES)
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
            identity = ["-c", "user.name=one", "-c", "user.email=one@localhost"]
            subprocess.run(["git", *identity, *words], cwd=folder, check=True)
    (course / "repos.csv").write_text("learner,url\nall_right,../all_right\npartly,../partly\ngone,../gone\n")
    return course


def test_the_action_collects_grades_and_reports(workspace: Path, tmp_path: Path) -> None:
    runner = Runner(
        tmp_path, workspace, {"repositories": "repos.csv", "lesson": LESSON, "forms": "html csv junit canvas"}
    )
    status, said = runner.run_all(ACTION)
    assert status == 0, said
    assert (tmp_path / "pip").read_text() == f"-m pip install --quiet -c {ROOT}/requirements.lock {ROOT}\n"
    results = Path(runner.context["steps.grade.outputs.results"])
    assert sorted(path.name for path in results.iterdir()) == [
        "canvas.csv", "class.html", "csv.csv", "junit.xml", "results.json", "summary.md",
    ]  # fmt: skip
    scores = {one["learner"]: one["score"] for one in json.loads((results / "results.json").read_text())["results"]}
    assert scores == {"all_right": 9.0, "partly": 6.0}
    summary = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert "**6 of 9 points**" in summary
    assert summary == (results / "summary.md").read_text()
    assert "::warning title=Not every repository could be read::" in said
    assert "::error title=partly/01_small small-mean::Gives five for one and three." in said
    assert len(runner.context["steps.key.outputs.lock"]) == 32


def test_an_unknown_report_does_not_keep_the_others_from_being_stored(workspace: Path, tmp_path: Path) -> None:
    inputs = {"repositories": "repos.csv", "lesson": LESSON, "forms": "../moodle html", "annotations": "false"}
    runner = Runner(tmp_path, workspace, inputs)
    status, said = runner.run_all(ACTION)
    assert status == 0, said
    assert "::warning title=A report is missing::___moodle could not be written." in said
    assert "csv, canvas" in said, "the known ones are listed"
    assert (Path(runner.context["steps.grade.outputs.results"]) / "class.html").is_file()


def test_the_action_pushes_feedback_and_announces_it(workspace: Path, tmp_path: Path) -> None:
    """On learners' repositories on a server of git's own. nbgrader makes the pages."""
    course = shutil.copytree(workspace, tmp_path / "course")
    shutil.copy(ROOT / "nbgrader_config.py", course)
    lines = ["learner,url"]
    for learner in ("all_right", "partly"):
        bare = tmp_path / "server" / "class" / f"{learner}.git"
        subprocess.run(["git", "clone", "-q", "--bare", workspace.parent / learner, bare], check=True)
        lines.append(f"{learner},https://github.com/class/{learner}.git")
    (course / "repos.csv").write_text("\n".join(lines) + "\n")
    job = tmp_path / "job"
    job.mkdir()
    port = free_port()
    (job / ".gitconfig").write_text(f'[url "git://127.0.0.1:{port}/"]\n\tinsteadOf = https://github.com/\n')
    runner = Runner(job, course, {"repositories": "repos.csv", "lesson": LESSON, "forms": "", "feedback": "issue"})
    gh = job / "bin" / "gh"
    gh.write_text(f'#!/bin/sh\necho "$1 $2 $4" >>{job}/gh\nif [ "$2" = list ]; then echo "[]"; fi\n')
    gh.chmod(0o755)
    serve = ["git", "daemon", "--export-all", "--enable=receive-pack", "--listen=127.0.0.1", f"--port={port}"]
    server = subprocess.Popen([*serve, f"--base-path={tmp_path}/server"], stderr=subprocess.DEVNULL, process_group=0)
    try:
        status, said = runner.run_all(ACTION)
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # git, and the daemon that it started
        server.wait(10)
    assert status == 0, said
    assert "Feedback for 2 learners: 2 new, 0 unchanged." in said
    assert "[instructor]" in (job / "pip").read_text(), "nbgrader belongs to it"
    page = ["git", "show", f"feedback:feedback/{LESSON}.html"]
    shown = subprocess.run(
        page, cwd=tmp_path / "server/class/partly.git", capture_output=True, text=True, check=True
    ).stdout
    assert "Gives five for one and three." in shown
    assert (job / "gh").read_text().splitlines() == [
        f"issue {verb} class/{learner}" for learner in ("all_right", "partly") for verb in ("list", "create")
    ]


@pytest.mark.parametrize("path", GITLAB, ids=lambda path: path.parent.name)
def test_gitlab_takes_the_example(path: Path) -> None:
    """By GitLab's own schema, which check-jsonschema contains."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.gitlab-ci", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_example_for_gitlab_collects_grades_and_reports(workspace: Path, tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "examples/ci/gitlab/instructor/.gitlab-ci.yml").read_text())["grade"]
    course = shutil.copytree(workspace, tmp_path / "group" / "course")
    for learner in ("all_right", "partly"):
        shutil.copytree(workspace.parent / learner, tmp_path / "group" / learner)
    (tmp_path / "job").mkdir()
    runner = Runner(tmp_path / "job", course, {})
    step = {"id": "grade", "env": {"LESSON": LESSON}, "run": "\n".join(job["script"])}
    done = runner.run(step)
    assert done.returncode == 0, done.stderr
    assert "gone" in done.stdout, "a repository that cannot be read is listed"
    results = json.loads((course / "results" / "results.json").read_text())["results"]
    assert {one["learner"]: one["score"] for one in results} == {"all_right": 9.0, "partly": 6.0}
    assert (course / job["artifacts"]["reports"]["junit"]).is_file()
    assert (course / "results" / "class.html").is_file()


def test_what_could_not_be_graded_fails_the_job_and_is_reported_first(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "one" / LESSON).mkdir(parents=True)
    (tmp_path / "in" / "one" / LESSON / f"{LESSON}.ipynb").write_text("no notebook")
    runner = Runner(tmp_path, workspace, {"submitted": str(tmp_path / "in"), "annotations": "false", "forms": ""})
    status, said = runner.run_all(ACTION)
    assert status == 1
    assert "Not graded, or only in part: one/01_small." in said
    assert "The file is not a notebook" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert "::error" not in said


def test_the_log_takes_nothing_of_a_learners_for_a_command(workspace: Path, tmp_path: Path) -> None:
    evil = "::error title=forged::x\n ::add-mask::1\n##[error]x ##vso[task.complete]x"
    answers = {"small-double": f"def double(x):\n    raise ValueError({evil!r})\n"}
    for name in ("::error::name", "##[group]name"):
        write(fill(workspace / EXERCISES, answers), tmp_path / "in" / name / LESSON / f"{LESSON}.ipynb")
    write(fill(workspace / EXERCISES, answers), tmp_path / f"{LESSON}.ipynb")
    around = {**os.environ, "PYTHONPATH": str(ROOT), "GITHUB_ACTIONS": "true", "COLUMNS": "80"}

    def log(*words: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *map(str, words)], cwd=workspace, env=around, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert "add-mask" in done.stdout
        return done.stdout

    for words in (("grader", "grade", tmp_path / "in"), ("grader", "check", tmp_path / f"{LESSON}.ipynb")):
        lines = log(*words).splitlines()
        token = lines[0].removeprefix("::stop-commands::")
        assert (len(token), lines[-1]) == (32, f"::{token}::")
        assert commands("\n".join(lines[1:-1])) == [], "nor where a service knows no such thing"
    assert commands(log("grader.checks", tmp_path / f"{LESSON}.ipynb")) == []


def test_where_nothing_was_handed_in_the_job_ends_with_the_reason(workspace: Path, tmp_path: Path) -> None:
    marked = f"$(touch {tmp_path}/ran) `touch {tmp_path}/ran` ; touch {tmp_path}/ran #"
    runner = Runner(tmp_path, workspace, {"submitted": marked, "lesson": LESSON})
    status, said = runner.run_all(ACTION)
    assert status == 2
    assert "There is no folder" in said
    assert not (tmp_path / "ran").exists(), "an input is text, never part of a script"


def test_the_example_of_public_checks_runs_them(workspace: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(
        (ROOT / "examples" / "ci" / "learner" / ".github" / "workflows" / "checks.yml").read_text()
    )
    runner = Runner(tmp_path, workspace.parent / "partly", {})
    status, _ = runner.run_all(document)
    assert status == 1, "a check that fails shows in the learner's list of commits"
    assert (tmp_path / "pip").read_text() == "-m pip install --quiet -c requirements.lock -e .\n"
    summary = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert "✗ small-mean-example: Gives five for one and three." in summary
    assert "01_small: 2 of 3 checks pass. 3 hidden checks run when it is graded." in summary


# Of all of them.


@pytest.mark.parametrize("path", [ROOT / "action.yml", *EXAMPLES], ids=lambda path: path.name)
def test_every_step_is_one_that_github_takes(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    text = path.read_text()
    composite = "runs" in document
    for step in steps(document):
        assert ("run" in step) != ("uses" in step), step
        assert set(step) <= {"name", "id", "if", "shell", "env", "run", "uses", "with"}, step
        assert "shell" in step or not composite or "uses" in step, "a composite action has to name the shell"
        assert "${{" not in step.get("run", ""), "text of others' would become part of the script"
        if "uses" in step and step["uses"] != "./":
            name, _, version = step["uses"].partition("@")
            assert name in OURS
            assert re.fullmatch(r"v\d+", version)
    known = {f"inputs.{name}" for name in document.get("inputs", {})}
    ids = {step["id"] for step in steps(document) if "id" in step}
    for name in re.findall(r"\$\{\{ *([\w.-]+) *\}\}", text):
        parts = name.split(".")
        assert name in known | GITHUBS or (parts[0] == "steps" and parts[1] in ids), name
    assert "secrets." not in text or path.parts[-4] == "instructor"
    assert composite or document["permissions"] == {"contents": "read"}


def test_the_inputs_of_the_example_are_those_of_the_action() -> None:
    [used] = [step for path in EXAMPLES for step in steps(yaml.safe_load(path.read_text())) if step.get("uses") == "./"]
    assert set(used["with"]) <= set(ACTION["inputs"])
    told = (ROOT / "docs" / "ci.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|", told[told.index("### The action") :], re.MULTILINE)
    assert set(rows) >= set(ACTION["inputs"])
    assert all(isinstance(value["default"], str) for value in ACTION["inputs"].values())


@pytest.mark.parametrize("name", ["ci.md", "gradescope.md"])
def test_commands_in_the_docs_are_commands(name: str) -> None:
    verbs: Any = typer.main.get_command(grader.cli.app)
    lines = re.findall(r"^ {4}grader (.+)$", (ROOT / "docs" / name).read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        verb, *words = line.split()
        options = {option for parameter in verbs.commands[verb].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line
    text = (ROOT / "docs" / name).read_text()
    for target in re.findall(r"\]\(([^)#:]+)", text):
        assert (ROOT / "docs" / target).exists(), target
