"""The environment: what pyproject.toml, conda's file and the locks say agrees, and the set-up does what it says."""

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import environment
import lock
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RANGES = [
    Requirement(text) for text in (*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra))
]

# What conda-forge calls them, where that is not the name that pip knows.
CONDA_NAMES = {"flatbuffers": "python-flatbuffers", "torch": "pytorch"}
# What conda has to bring that pip cannot or need not.
CONDA_ONLY = {"pip", "cxx-compiler"}


def pinned(name: str) -> dict[str, set[str]]:
    """The versions of each package in a lock: more than one where a marker tells Pythons or systems apart."""
    versions: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            assert requirement.url is None, line
            versions.setdefault(canonicalize_name(requirement.name), set()).add(specifier.version)
    return versions


def tracked() -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_every_range_stands_in_condas_file_too() -> None:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (from_pip,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    python, *others = (text for text in dependencies if isinstance(text, str))
    theirs = {Requirement(text).name: Requirement(text) for text in others}
    theirs |= {Requirement(text).name: Requirement(text) for text in from_pip if text != "-e ."}
    theirs = {canonicalize_name(name): found for name, found in theirs.items()}
    ours = {canonicalize_name(CONDA_NAMES.get(one.name, one.name)): one for one in RANGES}

    # One version, and by a single "=": repo2docker takes its own default where it finds no such thing.
    (version,) = re.fullmatch(r"python=(3\.\d+)", python).groups()
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert "-e ." in from_pip
    assert set(theirs) - CONDA_ONLY == set(ours)
    assert {name: str(theirs[name].specifier) for name in ours} == {name: str(ours[name].specifier) for name in ours}


@pytest.mark.parametrize("requirement", RANGES, ids=lambda one: one.name)
def test_every_locked_version_is_in_its_range(requirement: Requirement) -> None:
    in_torch_lock = requirement.name in {Requirement(text).name for name in lock.OPTIONAL for text in EXTRAS[name]}
    versions = pinned(environment.TORCH_LOCK if in_torch_lock else environment.LOCK)
    for version in versions[canonicalize_name(requirement.name)]:
        assert requirement.specifier.contains(version)


def test_the_locks_do_not_overlap_and_leave_cuda_to_torch() -> None:
    base, extra = pinned(environment.LOCK), pinned(environment.TORCH_LOCK)
    assert not set(base) & set(extra)
    assert {"torch", "torchvision", "keras"} <= set(extra)
    assert not environment.cuda_packages({"install": [{"metadata": {"name": name}} for name in (*base, *extra)]})


def test_nothing_is_capped() -> None:
    assert [str(one) for one in RANGES if any(part.operator != ">=" for part in one.specifier)] == []


def test_every_import_of_the_package_is_a_declared_dependency() -> None:
    providers = importlib.metadata.packages_distributions()
    declared, optional = (
        {canonicalize_name(Requirement(text).name) for text in texts}
        for texts in (
            PROJECT["dependencies"],
            [text for name in ("torch", "instructor", "widgets", "cluster") for text in EXTRAS[name]],
        )
    )
    undeclared = set()
    for path in sorted((ROOT / "grader").rglob("*.py")):
        tree = ast.parse(path.read_text())
        # What is optional is imported where somebody calls for it, where its absence is caught, for types, or for
        # nbgrader.
        prepared = {
            child
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            or (isinstance(node, ast.Try) and any("ImportError" in ast.dump(handler) for handler in node.handlers))
            for child in ast.walk(node)
        }
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"grader"}:
                brought_by = {canonicalize_name(name) for name in providers.get(top, [top])}
                # jaxlib is jax's other half, and jax pins it exactly
                known = declared | (optional if node in prepared or path.parent.name == "lms" else set())
                if not brought_by & known and top != "jaxlib":
                    undeclared.add(f"{path.relative_to(ROOT)} imports {top}")
    assert sorted(undeclared) == []


def test_no_file_names_a_package_registrys_host() -> None:
    # written so that this file does not name one either
    hosts = ["py" + "pi", "python" + "hosted", "download." + "pytorch", "conda." + "anaconda", "registry." + "npmjs"]
    hosts += ["deb." + "debian", "proxy." + "golang", "crates"]
    named = re.compile(r"\b(" + "|".join(map(re.escape, hosts)) + r")\.(org|com|io)\b", re.IGNORECASE)
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "ignore")
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in named.finditer(text)]
    assert found == []


def test_make_alone_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    targets = re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE)
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert phony.split() == targets
    assert re.findall(r"^  ([\w-]+) +\S", shown, re.MULTILINE) == targets
    assert {"setup", "lab", "grade", "test", "prove", "build", "lint", "format", "bench", "lock", "clean"} < set(
        targets
    )


# --- which Python ----------------------------------------------------------------------------------------------------


def test_the_first_python_that_is_new_enough_is_taken() -> None:
    versions = {"python3": (3, 9), "python3.13": None, "python3.12": (3, 12), "python3.11": (3, 11)}
    assert environment.find_python(tuple(versions), versions.get) == "python3.12"
    assert environment.version_of(sys.executable) == sys.version_info[:2]
    assert environment.version_of("no-such-python") is None


def test_an_old_python_is_named_with_what_to_do() -> None:
    with pytest.raises(environment.SetupError, match=r"3\.11 or newer is required, but python3 is 3\.9") as caught:
        environment.find_python(("python3", "python3.13"), {"python3": (3, 9), "python3.13": None}.get)
    assert "make setup PYTHON=" in str(caught.value)


def test_no_python_at_all_is_said_so() -> None:
    with pytest.raises(environment.SetupError, match=r"none of python3, python3\.13 runs"):
        environment.find_python(("python3", "python3.13"), lambda _: None)


def test_the_script_can_be_read_by_the_oldest_python_it_has_to_refuse() -> None:
    """Its syntax is that of 3.6, and no annotation is evaluated where an old Python would fail at it."""
    tree = ast.parse((ROOT / "tools" / "environment.py").read_text(), feature_version=(3, 6))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    annotations = [argument.annotation for one in functions for argument in one.args.args] + [
        f.returns for f in functions
    ]
    assert [ast.unparse(note) for note in annotations if note and not isinstance(note, ast.Constant)] == []


# --- done again only when the pins change ----------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose `.venv` is finished, without torch."""
    (tmp_path / environment.LOCK).write_text("# a comment\njax==0.10.2\n")
    (tmp_path / environment.TORCH_LOCK).write_text("torch==2.13.0\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / environment.STAMP).write_text(json.dumps(environment.wanted(tmp_path, "no")))
    return tmp_path


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the set-up did; the two steps that take minutes are only written down."""
    done: list[str] = []
    monkeypatch.setattr(environment, "make_venv", lambda python, venv: done.append(f"venv {python}"))
    monkeypatch.setattr(
        environment, "install", lambda venv, torch, before, root: done.append(f"{before}->{torch}") or 0
    )
    monkeypatch.setattr(environment, "find_python", lambda commands: commands[0])
    return done


def test_nothing_is_done_while_the_pins_stay(checkout: Path, steps: list[str], capsys: pytest.CaptureFixture) -> None:
    environment.setup("", "", checkout)
    (checkout / environment.LOCK).write_text("# another comment\njax==0.10.2\n")
    environment.setup("no", "", checkout)
    (checkout / environment.TORCH_LOCK).write_text("torch==2.14.0\n")  # not what this checkout has
    environment.setup("", "", checkout)
    assert steps == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("asked", "step"), [("", "no->no"), ("no", "no->no")])
def test_a_changed_pin_is_installed_over(checkout: Path, steps: list[str], monkeypatch, asked: str, step: str) -> None:
    monkeypatch.setattr(environment, "usable", lambda *_: True)
    (checkout / environment.LOCK).write_text("jax==0.10.3\n")
    environment.setup(asked, "", checkout)
    environment.setup(asked, "", checkout)
    assert steps == [step]


def test_another_choice_of_torch_is_carried_out_and_remembered(checkout: Path, steps: list[str], monkeypatch) -> None:
    monkeypatch.setattr(environment, "usable", lambda *_: True)
    environment.setup("cpu", "", checkout)
    environment.setup("", "", checkout)
    assert steps == ["no->cpu"]
    assert environment.stamped(checkout / ".venv")["torch"] == "cpu"


def test_a_checkout_that_moved_gets_a_new_environment(checkout: Path, steps: list[str], tmp_path: Path, capsys) -> None:
    moved = tmp_path.with_name(tmp_path.name + "-moved")
    os.rename(checkout, moved)
    environment.setup("", "python3.12", moved)
    assert steps == ["venv python3.12", "no->no"]
    assert "downloads about 0.5 GB" in capsys.readouterr().out


def test_an_environment_that_is_a_link_leaves_what_it_leads_to_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "mine").touch()
    (tmp_path / ".venv").symlink_to(shared)
    environment.make_venv(sys.executable, tmp_path / ".venv")
    assert [path.name for path in shared.iterdir()] == ["mine"]
    assert (tmp_path / ".venv" / "bin" / "python").exists()


def test_an_unfinished_environment_is_finished(checkout: Path, steps: list[str]) -> None:
    (checkout / ".venv" / environment.STAMP).write_text('{"torch": "c')
    environment.setup("", "python3", checkout)
    assert steps == ["venv python3", "cpu->cpu"]


def test_a_full_disk_is_said_before_anything_is_downloaded() -> None:
    with pytest.raises(environment.SetupError, match=r"needs 2\.8 GB of disk space, but 1\.5 GB are free"):
        environment.announce("cpu", True, 1.5)


def test_a_torch_that_there_is_not() -> None:
    with pytest.raises(environment.SetupError, match=r"TORCH=gpu is not a choice\. Use TORCH=cpu, TORCH=no, "):
        environment.choose("gpu", {})


# --- CUDA that nobody asked for --------------------------------------------------------------------------------------


def report(*installs: tuple[str, str]) -> dict:
    """A pip installation report (its version 1), as far as it is read here."""
    items = [{"metadata": {"name": name, "version": version}, "requested": False} for name, version in installs]
    return {"version": "1", "install": items}


CPU = report(("torch", "2.13.0+cpu"), ("torchvision", "0.28.0"), ("sympy", "1.14.0"))
CUDA = report(("torch", "2.13.0"), ("nvidia-cublas", "13.1.1.3"), ("nvidia_nccl_cu13", "2.29.7"), ("triton", "3.7.1"))


def test_cuda_is_refused_unless_asked_for() -> None:
    with pytest.raises(environment.SetupError) as caught:
        environment.refuse_unasked_cuda(CUDA, "cpu")
    message = str(caught.value)
    assert "3 CUDA packages (nvidia-cublas, nvidia-nccl-cu13, triton, ...)" in message
    for way_out in ("PIP_EXTRA_INDEX_URL", "make setup TORCH=no", "make setup TORCH=cuda"):
        assert way_out in message
    environment.refuse_unasked_cuda(CUDA, "cuda")


def test_a_cpu_build_and_what_is_already_there_pass() -> None:
    environment.refuse_unasked_cuda(CPU, "cpu")
    environment.refuse_unasked_cuda(report(), "cpu")


def test_pip_that_fails_is_quoted_and_what_it_downloads_is_added_up(tmp_path: Path) -> None:
    def saying(lines: list[str], status: int) -> list[str]:
        return [sys.executable, "-c", f"import sys; print({chr(10).join(lines)!r}); sys.exit({status})"]

    lines = ["Collecting jax", "  Downloading jax-0.10.2-py3-none-any.whl.metadata (13 kB)"]
    lines += ["  Downloading jax-0.10.2-py3-none-any.whl (3.4 MB)", "Downloading a-1.tar.gz (600 kB)"]
    assert environment.run_pip(saying(lines, 0), tmp_path) == 4_000_000
    with pytest.raises(environment.SetupError, match="No space left on device"):
        environment.run_pip(saying([*lines, "ERROR: No space left on device"], 1), tmp_path)


def test_a_lock_is_split_where_torch_begins() -> None:
    without = "jax==0.10.2\nnumpy==2.4.6\n"
    resolved = (
        "jax==0.10.2\nnumpy==2.4.6\nnvidia-nccl-cu13==2.29.7 ; sys_platform == 'linux'\nsympy==1.14.0\ntorch==2.13.0\n"
    )
    assert lock.split(without, resolved) == (without, "sympy==1.14.0\ntorch==2.13.0\n")
