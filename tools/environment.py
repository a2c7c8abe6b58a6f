"""Creates the course's environment, `.venv`, from pinned versions, with the standard library only.

    python3 tools/environment.py [--torch cpu|no|cuda] [--python python3.12]

Annotations are quoted and the syntax is old on purpose: an old Python must get as far as saying that it is too old.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11", "python3.14")
CHOICES = ("cpu", "no", "cuda")
LOCK, TORCH_LOCK = "requirements.lock", "requirements-torch.lock"
STAMP = "jaxercise.json"

# Gigabytes to download and on disk: measured on Linux x86-64 with Python 3.11; CUDA's are its wheels added up.
SIZES = {"cpu": (0.7, 2.8), "no": (0.5, 1.9), "cuda": (3.2, 8.0)}

REFUSAL = """\
Stopped before the download: with PyTorch, pip would install {count} CUDA packages ({some}, ...)
of several gigabytes. The course does not need them. Choose one:

  without PyTorch  make setup TORCH=no     (lessons 01, 11 and 27 use it, and run without it)
  the CPU build    export PIP_EXTRA_INDEX_URL=<the address after --index-url on PyTorch's
                   "Start Locally" page for Linux, Pip and CPU>, then run the command again
  the CUDA build   make setup TORCH=cuda
"""


class SetupError(Exception):
    """What stands in the way, and what to do about it."""


# --- which Python ----------------------------------------------------------------------------------------------------


def version_of(command: "str") -> "tuple | None":
    """The (major, minor) of a Python command, or None where it does not run."""
    probe = "import sys; print(sys.version_info[0], sys.version_info[1])"
    try:
        done = subprocess.run([command, "-c", probe], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return tuple(int(part) for part in done.stdout.split()) if done.returncode == 0 else None
    except OSError:
        return None


def find_python(commands: "tuple", version_of: "object" = version_of) -> "str":
    """The first command that is a Python new enough."""
    found = []
    for command in commands:
        version = version_of(command)
        if version and version >= OLDEST:
            return command
        if version:
            found.append("{} is {}.{}".format(command, *version))
    seen = "; ".join(found) or "none of {} runs".format(", ".join(commands))
    raise SetupError(
        "Python {}.{} or newer is required, but {}.\n".format(*OLDEST, seen)
        + "Install it (Debian and Ubuntu: python3 and python3-venv; macOS: from python.org or Homebrew), "
        + "or pass its path: make setup PYTHON=/path/to/python3.12"
    )


# --- what is wanted, and what is there -------------------------------------------------------------------------------


def locks(torch: "str") -> "list":
    return [LOCK] if torch == "no" else [LOCK, TORCH_LOCK]


def wanted(root: "Path", torch: "str") -> "dict":
    """What a finished environment is stamped with; it is made again only when this changes."""
    digest = hashlib.sha256()
    for name in locks(torch):
        lines = (root / name).read_text().splitlines()
        digest.update("\n".join(line for line in lines if not line.startswith("#")).encode())
    return {"torch": torch, "pins": digest.hexdigest(), "place": str(root)}


def stamped(venv: "Path") -> "dict":
    """The stamp of a finished environment, or {} where there is none."""
    try:
        return json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}


def choose(asked: "str | None", stamp: "dict") -> "str":
    """The torch that was asked for; else the one that is there; else a CPU build."""
    choice = asked or stamp.get("torch", "cpu")
    if choice not in CHOICES:
        raise SetupError("TORCH={} is not a choice. Use TORCH={}.".format(choice, ", TORCH=".join(CHOICES)))
    return choice


def pin(lock_text: "str", name: "str") -> "str":
    """The line `name==version` of a lock."""
    return next(line.split(";")[0].strip() for line in lock_text.splitlines() if line.startswith(name + "=="))


# --- torch without gigabytes of CUDA that nobody asked for ------------------------------------------------------------


def cuda_packages(report: "dict") -> "list":
    """Names in a pip installation report that belong to CUDA."""
    names = [item["metadata"]["name"].lower().replace("_", "-") for item in report.get("install", [])]
    return sorted(name for name in names if name.startswith(("nvidia-", "cuda-")) or name == "triton")


def refuse_unasked_cuda(report: "dict", torch: "str") -> "None":
    cuda = cuda_packages(report)
    if cuda and torch != "cuda":
        raise SetupError(REFUSAL.format(count=len(cuda), some=", ".join(cuda[:3])))


def torch_report(python: "str", anew: "bool", root: "Path") -> "dict":
    """What pip would install for torch, without installing it; a CPU build's `+cpu` satisfies the plain pin.

    `anew` leaves out of account what is installed: another build of the same version would satisfy the pin as well.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        # Where an index does not offer a wheel's metadata, fast-deps reads it out of the wheel without fetching it all.
        command = [python, "-m", "pip", "install", "--dry-run", "--use-feature=fast-deps", "--report", str(report)]
        run_pip([*command, *(["--ignore-installed"] if anew else []), "-c", LOCK, "-r", TORCH_LOCK], root)
        return json.loads(report.read_text())


# --- making it -------------------------------------------------------------------------------------------------------


def run_pip(command: "list", root: "Path") -> "int":
    """Runs pip, shows how far it is, and returns the bytes it downloaded."""
    lines, downloaded, packages = [], 0.0, 0
    unit = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    with subprocess.Popen(
        command, cwd=str(root), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as pip:
        for raw in pip.stdout or []:
            line = raw.decode(errors="replace").rstrip()
            lines.append(line)
            size = re.search(r"Downloading \S+(?:whl|gz|zip) \(([\d.]+) (bytes|kB|MB|GB)\)", line)
            if size:
                downloaded += float(size.group(1)) * unit[size.group(2)]
                packages += 1
                say_progress("  {} packages, {:.0f} MB".format(packages, downloaded / 1e6))
            elif line.startswith("Installing collected"):
                say_progress("  {} packages, {:.0f} MB; unpacking".format(packages, downloaded / 1e6))
    say_progress("")
    if pip.returncode != 0:
        said = "\n".join("  " + line for line in lines[-15:])
        raise SetupError("pip failed. Its last lines:\n{}\nFix the cause, then run the command again.".format(said))
    return int(downloaded)


def say_progress(text: "str") -> "None":
    """One line that rewrites itself on a terminal, and nothing in a log."""
    if sys.stdout.isatty():
        sys.stdout.write("\r\033[K" + text)
        sys.stdout.flush()


def usable(venv: "Path", stamp: "dict", root: "Path") -> "bool":
    """Whether the Python in `.venv` runs, is new enough, and was made for this place (scripts hold their path)."""
    moved = stamp.get("place", str(root)) != str(root)
    return not moved and (version_of(str(venv / "bin" / "python")) or (0,)) >= OLDEST


def make_venv(python: "str", venv: "Path") -> "None":
    if venv.is_symlink():
        venv.unlink()  # `--clear` would empty the folder that it leads to
    command = [python, "-m", "venv", "--clear", str(venv)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SetupError(
            "{} could not create an environment. On Debian and Ubuntu: apt install python3-venv.\n".format(python)
            + done.stdout.decode(errors="replace").strip()
        )


def announce(torch: "str", anew: "bool", free: "float") -> "None":
    """Says what is coming before it comes, and stops where there is no room for it."""
    download, disk = SIZES[torch]
    if not anew:
        print("Updating .venv. Only packages that changed are downloaded.", flush=True)
        return
    if free < disk:
        raise SetupError("The environment needs {} GB of disk space, but {:.1f} GB are free.".format(disk, free))
    print("Creating .venv (only once). It downloads about {} GB and uses {} GB on disk,".format(download, disk))
    print("which takes two minutes on a fast connection and ten on a slow one.", flush=True)


def setup(asked: "str | None", python: "str | None", root: "Path" = ROOT) -> "None":
    """Makes `.venv`, or does nothing where it already is what the pins say."""
    venv = root / ".venv"
    stamp = stamped(venv)
    torch = choose(asked, stamp)
    if stamp == wanted(root, torch):
        return
    started = time.time()
    anew = not usable(venv, stamp, root)
    base = find_python((python,) if python else PYTHONS) if anew else ""
    announce(torch, anew or not stamp, shutil.disk_usage(str(root)).free / 1e9)
    if anew:
        make_venv(base, venv)
    downloaded = install(venv, torch, stamp.get("torch", torch), root)
    (venv / STAMP).write_text(json.dumps(wanted(root, torch)) + "\n")
    print("Ready after {:.0f} s. It downloaded {:.0f} MB.".format(time.time() - started, downloaded / 1e6), flush=True)


def install(venv: "Path", torch: "str", torch_before: "str", root: "Path") -> "int":
    """Puts what is pinned, and the course itself, into an environment; returns the bytes downloaded."""
    python = str(venv / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--progress-bar", "off", "--no-compile"]
    run_pip([*pip, pin((root / LOCK).read_text(), "pip")], root)
    if torch != "no":
        refuse_unasked_cuda(torch_report(python, torch != torch_before, root), torch)
    if (venv / STAMP).exists():
        (venv / STAMP).unlink()  # nothing was changed until here; from here on it is unfinished
    if torch != torch_before:
        run_pip([python, "-m", "pip", "uninstall", "-y", "torch", "torchvision", "keras"], root)
    # torch and torchvision in one command, or the second would bring its own idea of the first
    requirements = [part for name in locks(torch) for part in ("-r", name)]
    downloaded = run_pip([*pip, *requirements], root)
    run_pip([*pip, "--no-deps", "--no-build-isolation", "-e", "."], root)
    compile_packages(venv)
    return downloaded


def compile_packages(venv: "Path") -> "None":
    """Compiles what was installed, on all cores, where pip would use one. It is done here because a confined process
    could not store what it compiles."""
    folders = [str(path) for path in venv.glob("lib/python*/site-packages")]
    # Quietly: packages hold files that are no Python, or that are for a later one.
    subprocess.run([str(venv / "bin" / "python"), "-m", "compileall", "-qq", "-j", "0", *folders])


def main() -> "int":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch", default="")
    parser.add_argument("--python", default="")
    given = parser.parse_args()
    try:
        setup(given.torch, given.python)
    except SetupError as error:
        sys.stderr.write("\n{}\n".format(error))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped. The same command continues from here.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
