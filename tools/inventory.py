"""Inventories of the documentation of JAX, Flax and Optax, made from the list book/inventory.toml for Sphinx.

    .venv/bin/python tools/inventory.py [NAME ...]    # print the address of each name

The site is built without a network, so the inventories that these projects publish cannot be downloaded.
"""

import functools
import importlib
import inspect
import sys
import tomllib
import types
import warnings
import zlib
from pathlib import Path
from typing import Any

LIST = Path(__file__).resolve().parent.parent / "book" / "inventory.toml"

HEAD = """\
# Sphinx inventory version 2
# Project: {project}
# Version:
# The remainder of this file is compressed using zlib.
"""


class InventoryError(Exception):
    """An entry of book/inventory.toml that the installed version does not have."""


@functools.cache
def projects() -> "dict[str, dict[str, Any]]":
    """The content of book/inventory.toml."""
    return tomllib.loads(LIST.read_text())


def found(name: str) -> Any:
    """The object with a dotted name, such as `jax.numpy.where`. Raises AttributeError if it does not exist."""
    parts, depth, value = name.split("."), 1, importlib.import_module(name.split(".")[0])
    for depth in range(1, len(parts)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # a deprecated name exists
                value = getattr(value, parts[depth])
        except AttributeError:
            if not inspect.ismodule(value):
                raise
            try:
                value = importlib.import_module(".".join(parts[: depth + 1]))
            except ImportError as error:
                raise AttributeError(f"{name} does not exist") from error
    return value


def public(module: str) -> "list[str]":
    """The full names of the public functions and classes of a module."""
    values = vars(found(module)) | {name: getattr(found(module), name, None) for name in dir(found(module))}
    kept = [name for name, value in values.items() if callable(value) and not isinstance(value, types.ModuleType)]
    return [f"{module}.{name}" for name in sorted(kept) if not name.startswith("_") and not name.endswith("_p")]


@functools.cache
def entries(project: str) -> "dict[str, tuple[str, str]]":
    """The kind of each documented name of a project, and its page and anchor below the project's address."""
    names: dict[str, tuple[str, str]] = {}
    for page in projects()[project]["page"]:
        listed = [name for module in page.get("every", "").split() for name in public(module)]
        listed = [name for name in listed if name not in set(page.get("except", "").split())]
        for name in [*listed, *page.get("names", "").split()]:
            kind = "class" if inspect.isclass(checked(name)) else "function"
            names[name] = (kind, f"{page['path'].format(name=name)}#{name}")
        for name in page.get("modules", "").split():
            checked(name)
            names[name] = ("module", f"{page['path'].format(name=name)}#module-{name}")
    return names


def checked(name: str) -> Any:
    """The object with a name of the list."""
    try:
        return found(name)
    except AttributeError as error:
        version = getattr(importlib.import_module(name.split(".")[0]), "__version__", "")
        raise InventoryError(f"{LIST.name} lists {name}, which version {version} does not have. Remove it.") from error


@functools.cache
def documented() -> "dict[int, str]":
    """The documented name of each function and class, by the identity of the object."""
    return {id(found(name)): name for project in projects() for name in reversed(entries(project))}


@functools.cache
def official(name: str) -> str:
    """The name under which the documentation describes a name: `jax.P` is described as `jax.sharding.PartitionSpec`.

    Returns:
        The documented name, or an empty string if there is none.
    """
    project = name.split(".")[0]
    if project not in projects():
        return ""
    if name in entries(project):
        return name
    if name in projects()[project].get("same", {}):
        return str(projects()[project]["same"][name])
    try:
        value = found(name)
    except AttributeError:
        return ""
    return documented().get(id(value), "") if callable(value) else ""


def kind(official_name: str) -> str:
    """The kind of a documented name: function, class or module."""
    return entries(official_name.split(".")[0])[official_name][0]


@functools.cache
def exists(name: str) -> bool:
    """Whether the installed version has a function or class with this name."""
    try:
        return callable(found(name))
    except AttributeError:
        return False


def address(name: str) -> str:
    """The address of the page that describes a name, or an empty string."""
    described = official(name)
    project = described.split(".")[0]
    return projects()[project]["address"] + entries(project)[described][1] if described else ""


def write(folder: Path) -> "dict[str, tuple[str, str]]":
    """Writes an inventory for each project, in the format of Sphinx. Returns the value of intersphinx_mapping."""
    folder.mkdir(parents=True, exist_ok=True)
    for project in projects():
        lines = "".join(f"{name} py:{kind} 1 {place} -\n" for name, (kind, place) in entries(project).items())
        head = HEAD.format(project=project).encode()
        (folder / f"{project}.inv").write_bytes(head + zlib.compress(lines.encode()))
    return {project: (projects()[project]["address"], str(folder / f"{project}.inv")) for project in projects()}


if __name__ == "__main__":
    for argument in sys.argv[1:] or [name for project in projects() for name in entries(project)]:
        print(f"{argument:44} {address(argument) or 'not documented'}")
