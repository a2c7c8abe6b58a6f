"""Makes the course's environment, `.venv`, from exact pins, and renews those pins; uses nothing but Python itself.

    python3 tools/environment.py setup [--torch cpu|no|cuda] [--python python3.12]
    python3 tools/environment.py lock [--upgrade all|NAME]

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

# Measured on Linux x86-64 with Python 3.11: gigabytes to download and on disk. CUDA's own packages come on top.
SIZES = {"cpu": ("1.0", 2.7), "no": ("0.8", 1.9), "cuda": ("3 to 4", 9.0)}

REFUSAL = """\
Stopped before downloading anything: pip would bring the CUDA build of torch.
That is {count} more packages ({some}, ...), several gigabytes, and nothing asked for it. Choose one:

  a CPU build      export PIP_EXTRA_INDEX_URL=<the address that PyTorch's "Start Locally" page
                   gives after --index-url for Linux, Pip, CPU>, then run this again
  without torch    make setup TORCH=no     (only lessons 11 and 12 need it)
  with CUDA        make setup TORCH=cuda
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
        "Python {}.{} or newer is needed, and {}.\n".format(*OLDEST, seen)
        + "Install one (Debian and Ubuntu: python3 and python3-venv; macOS: from python.org or Homebrew), "
        + "or name it: make setup PYTHON=/path/to/python3.12"
    )


# --- what is wanted, and what is there -------------------------------------------------------------------------------


def locks(torch: "str") -> "list":
    return [LOCK] if torch == "no" else [LOCK, TORCH_LOCK]


def wanted(root: "Path", torch: "str") -> "dict":
    """What a finished environment is stamped with; it is made again only when this changes."""
    digest = hashlib.sha256()
    for name in locks(torch):
        digest.update((root / name).read_bytes())
    return {"torch": torch, "pins": digest.hexdigest(), "place": str(root)}


def stamped(venv: "Path") -> "dict":
    """The stamp of a finished environment, or {} where there is none."""
    try:
        return json.loads((venv / "jaxercise.json").read_text())
    except (OSError, ValueError):
        return {}


def choose(asked: "str | None", stamp: "dict") -> "str":
    """The torch that was asked for; else the one that is there; else a CPU build."""
    choice = asked or stamp.get("torch", "cpu")
    if choice not in CHOICES:
        raise SetupError("TORCH={} is not a choice: say TORCH={}.".format(choice, ", TORCH=".join(CHOICES)))
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


def torch_report(python: "str", root: "Path") -> "dict":
    """What pip would install for torch, without installing it; a CPU build's `+cpu` satisfies the plain pin."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        command = [python, "-m", "pip", "install", "-q", "--dry-run", "--report", str(report)]
        run_pip(command + ["-c", LOCK, "-r", TORCH_LOCK], root)
        return json.loads(report.read_text())


# --- making it -------------------------------------------------------------------------------------------------------


def run_pip(command: "list", root: "Path", log: "Path | None" = None) -> "int":
    """Runs pip, shows how far it is, and returns the bytes it downloaded."""
    lines, downloaded, packages = [], 0.0, 0
    unit = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    pip = subprocess.Popen(command, cwd=str(root), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
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
    if log:
        log.write_text("\n".join(lines) + "\n")
    if pip.wait() != 0:
        said = "\n".join("  " + line for line in lines[-15:])
        raise SetupError("pip could not install what is pinned. It said:\n{}\nRun the command again.".format(said))
    return int(downloaded)


def say_progress(text: "str") -> "None":
    """One line that rewrites itself on a terminal, and nothing in a log."""
    if sys.stdout.isatty():
        sys.stdout.write("\r\033[K" + text)
        sys.stdout.flush()


def make_venv(commands: "tuple", venv: "Path", stamp: "dict", root: "Path") -> "str":
    """A Python in `.venv`: the one that is there if it runs, is new enough and was made for this place."""
    inside = str(venv / "bin" / "python")
    moved = stamp.get("place", str(root)) != str(root)
    if not moved and (version_of(inside) or (0,)) >= OLDEST:
        return inside
    python = find_python(commands)
    done = subprocess.run([python, "-m", "venv", "--clear", str(venv)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SetupError(
            "{} could not make a virtual environment. On Debian and Ubuntu: apt install python3-venv.\n".format(python)
            + done.stdout.decode(errors="replace").strip()
        )
    return inside


def enough_room(torch: "str", free: "float", root: "Path") -> "None":
    if free < SIZES[torch][1]:
        raise SetupError("{} GB are needed in {}, and {:.1f} GB are free.".format(SIZES[torch][1], root, free))


def setup(asked: "str | None", python: "str | None", root: "Path" = ROOT) -> "None":
    """Makes `.venv`, or does nothing where it already is what the pins say."""
    venv = root / ".venv"
    stamp = stamped(venv)
    torch = choose(asked, stamp)
    if stamp == wanted(root, torch):
        return
    started = time.time()
    if not stamp:
        print("Making .venv, once: about {} GB to download and {} GB on disk,".format(*SIZES[torch]))
        print("in all two minutes on a fast line, ten on a slow one.", flush=True)
        enough_room(torch, shutil.disk_usage(str(root)).free / 1e9, root)
    else:
        print("The pins changed: bringing .venv up to date; only what changed is downloaded.", flush=True)
    inside = make_venv((python,) if python else PYTHONS, venv, stamp, root)
    (venv / "jaxercise.json").unlink() if stamp and (venv / "jaxercise.json").exists() else None
    install = [inside, "-m", "pip", "install", "--progress-bar", "off"]
    run_pip(install + [pin((root / LOCK).read_text(), "pip")], root)
    if stamp.get("torch", torch) != torch:
        run_pip([inside, "-m", "pip", "uninstall", "-y", "torch", "torchvision"], root)
    if torch != "no":
        refuse_unasked_cuda(torch_report(inside, root), torch)
    # torch and torchvision in one command, or the second would bring its own idea of the first
    requirements = [part for name in locks(torch) for part in ("-r", name)]
    downloaded = run_pip(install + requirements, root, log=venv / "setup.log")
    run_pip(install + ["--no-deps", "--no-build-isolation", "-e", "."], root)
    (venv / "jaxercise.json").write_text(json.dumps(wanted(root, torch)) + "\n")
    print("Ready in {:.0f} s; {:.0f} MB downloaded.".format(time.time() - started, downloaded / 1e6), flush=True)


# --- renewing the pins -----------------------------------------------------------------------------------------------


def split_locks(without_torch: "str", with_torch: "str") -> "tuple":
    """Two uv outputs as two locks: what torch alone needs stands apart, and CUDA's packages are torch's own to pin."""
    base = without_torch.splitlines()
    items = [{"metadata": {"name": line.split("==")[0]}, "line": line} for line in with_torch.splitlines()]
    cuda = set(cuda_packages({"install": items}))
    extra = [i["line"] for i in items if i["line"] not in base and i["metadata"]["name"].replace("_", "-") not in cuda]
    return "\n".join(base) + "\n", "\n".join(extra) + "\n"


def header(what: "str") -> "str":
    return (
        "# {} Linux and macOS, Python 3.11 and newer.\n".format(what)
        + "# Made by `make lock` (uv pip compile --universal) from the ranges in pyproject.toml; not edited by hand.\n"
        + "# To renew: `make lock` keeps every version that the ranges allow, `make lock UPGRADE=all` takes the newest,\n"
        + "# `make lock UPGRADE=jax` the newest of one. Then run `make test` before you commit.\n"
    )


def lock(upgrade: "str | None", root: "Path" = ROOT) -> "None":
    """Rewrites both locks; uv does the resolving, from an environment of its own under build/."""
    uv_home = root / "build" / "lock"
    subprocess.run([sys.executable, "-m", "venv", str(uv_home)], check=True)
    run_pip([str(uv_home / "bin" / "python"), "-m", "pip", "install", "-q", "uv"], root)
    kept = "".join((root / name).read_text() for name in (LOCK, TORCH_LOCK) if (root / name).exists())
    how = ["--upgrade"] if upgrade == "all" else ["--upgrade-package", upgrade] if upgrade else []
    outputs = []
    for extras in (["dev"], ["dev", "torch"]):
        out = uv_home / "+".join(extras)
        out.write_text(kept)  # uv prefers what its output file already says
        command = [str(uv_home / "bin" / "uv"), "pip", "compile", "-q", "--universal", "--python-version", "3.11"]
        # one version for every Python wherever one will do: a lesson shall not differ between two learners
        command += ["--fork-strategy", "fewest", "--no-annotate", "--no-header", "-o", str(out), "pyproject.toml", "-"]
        command += [part for extra in extras for part in ("--extra", extra)] + how
        subprocess.run(command, check=True, cwd=str(root), input=b"pip\n")
        outputs.append(out.read_text())
    base, extra = split_locks(*outputs)
    (root / LOCK).write_text(header("Everything but torch:") + base)
    (root / TORCH_LOCK).write_text(header("torch, torchvision, and what only they need:") + extra)
    print("Wrote {} and {}. Review the difference, then `make test`.".format(LOCK, TORCH_LOCK))


def main() -> "int":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=("setup", "lock"))
    parser.add_argument("--torch", default="")
    parser.add_argument("--python", default="")
    parser.add_argument("--upgrade", default="")
    given = parser.parse_args()
    try:
        if given.verb == "setup":
            setup(given.torch, given.python)
        else:
            lock(given.upgrade)
    except SetupError as error:
        sys.stderr.write("\n{}\n".format(error))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped. Run the same command again: it goes on from here.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
