"""Shared libraries from C++ sources that a lesson ships, such as handlers for `jax.ffi`."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax

FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC")
NO_COMPILER = (
    "There is no C++ compiler (g++) on this machine, so the parts about the FFI are skipped. Install g++, restart the "
    "kernel, and run the notebook again."
)
# JAX refuses to register a target again with another address, so a cell that runs twice has to get the same library.
_loaded: dict[str, ctypes.CDLL | None] = {}


def load(source: str | Path) -> ctypes.CDLL | None:
    """Compiles a C++ file with g++ and loads it, or loads the library that `build` has left beside the file.

    Args:
        source: the C++ file. It may include the headers of `jax.ffi`.

    Returns:
        The library, or None if there is no g++. In this case, a sentence that states this is printed.

    Raises:
        RuntimeError: the file does not compile. The message contains the compiler's.
    """
    source = Path(source).resolve()
    name = _library_name(source)
    if name not in _loaded:
        _loaded[name] = _load(source)
    return _loaded[name]


def _load(source: Path) -> ctypes.CDLL | None:
    built = source.parent / _library_name(source)
    if built.is_file():
        return ctypes.CDLL(str(built))
    with tempfile.TemporaryDirectory() as folder:
        library = build(source, Path(folder))
        if library is None:
            print(NO_COMPILER)
            return None
        return ctypes.CDLL(str(library))  # stays loaded when its file is deleted


def build(source: Path, folder: Path) -> Path | None:
    """Compiles a C++ file with g++.

    Args:
        source: the C++ file.
        folder: for the library, whose name depends on the text of the file, the flags and the headers' version.

    Returns:
        The path of the library, or None if there is no g++.

    Raises:
        RuntimeError: the file does not compile. The message contains the compiler's.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    library = folder / _library_name(source)
    command = [compiler, *FLAGS, "-I", jax.ffi.include_dir(), str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile:\n{done.stderr}")
    library.chmod(0o755)  # a worker may be another user
    return library


def _library_name(source: Path) -> str:
    parts = (source.read_bytes(), " ".join(FLAGS).encode(), jax.__version__.encode())
    return f"{source.stem}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
