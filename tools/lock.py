"""Writes requirements.lock and requirements-torch.lock anew from the ranges in pyproject.toml; uv does the resolving.

    python3 tools/lock.py [--upgrade all|NAME]

uv stands in an environment of its own under build/, and reads UV_INDEX and its like where pip reads PIP_INDEX_URL.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from environment import LOCK, ROOT, TORCH_LOCK, SetupError, cuda_packages, run_pip

HEADER = """\
# {what} For Linux and macOS, Python 3.11 and newer.
# Made by `make lock` (uv pip compile --universal) from the ranges in pyproject.toml; not edited by hand.
# To renew: `make lock` keeps every version that the ranges still allow, `make lock UPGRADE=all` takes the newest,
# `make lock UPGRADE=jax` the newest of one. Then run `make test` before you commit.
"""

EXTRAS = ("widgets", "instructor", "cluster", "postgresql", "book", "dev")
OPTIONAL = ("torch", "keras")  # `make setup TORCH=no` leaves both out


def split(without: str, with_optional: str) -> tuple[str, str]:
    """Two resolutions as two locks: what only torch and Keras need is apart; CUDA's packages are torch's own to pin."""
    base = without.splitlines()
    names = {line: line.split("==")[0] for line in with_optional.splitlines()}
    cuda = cuda_packages({"install": [{"metadata": {"name": name}} for name in names.values()]})
    extra = [line for line, name in names.items() if line not in base and name not in cuda]
    return "\n".join(base) + "\n", "\n".join(extra) + "\n"


def resolve(uv: Path, extras: tuple[str, ...], upgrade: str, root: Path) -> str:
    """What the ranges of pyproject.toml, with these extras and pip itself, come to: lines `name==version ; marker`."""
    out = uv.parent.parent / "-".join(extras)
    out.write_text("".join((root / name).read_text() for name in (LOCK, TORCH_LOCK)))  # uv keeps what stands there
    command = [str(uv), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    # one version for every Python wherever one will do: a lesson shall not differ between two learners
    command += ["--fork-strategy", "fewest", "--no-annotate", "--no-header", "-o", str(out), "pyproject.toml", "-"]
    command += [part for extra in extras for part in ("--extra", extra)]
    command += ["--upgrade"] if upgrade == "all" else ["--upgrade-package", upgrade] if upgrade else []
    if subprocess.run(command, cwd=root, input=b"pip\n").returncode != 0:
        raise SetupError("uv found no set of versions that fits every range in pyproject.toml; it says above why.")
    return out.read_text()


def lock(upgrade: str, root: Path) -> None:
    home = root / "build" / "lock"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    run_pip([str(home / "bin" / "python"), "-m", "pip", "install", "uv"], root)
    uv = home / "bin" / "uv"
    base, extra = split(resolve(uv, EXTRAS, upgrade, root), resolve(uv, (*EXTRAS, *OPTIONAL), upgrade, root))
    (root / LOCK).write_text(HEADER.format(what="Everything but torch and Keras.") + base)
    (root / TORCH_LOCK).write_text(HEADER.format(what="torch, torchvision, Keras and what only they need.") + extra)
    print(f"Wrote {LOCK} and {TORCH_LOCK}. Review the difference, then run make test.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upgrade", default="", help="all, or one package")
    try:
        lock(parser.parse_args().upgrade, ROOT)
    except SetupError as error:
        sys.exit(str(error))
