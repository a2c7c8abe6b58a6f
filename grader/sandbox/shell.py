"""IPython shell that runs a learner's cells as a kernel does, without history file, profile, terminal or person.

It confines nothing: the sandbox does. What is displayed is thrown away, and drawn only where a cell captures it.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import getpass
import os
import re
import site
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterable
from typing import Any

from IPython.core.autocall import ZMQExitAutocall
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from IPython.paths import get_ipython_dir
from traitlets import Type, default
from traitlets.config import Config

# Magics that reach outside, wait for a person, or speak to a front end: they do nothing here.
WITHOUT_EFFECT = frozenset(
    """
    pip conda mamba micromamba uv pastebin tensorboard matplotlib gui autosave connect_info qtconsole subshell
    debug pdb edit ed load loadpy notebook less more man clear logstart
    """.split()
)
_RUN_CELL = InteractiveShell.run_cell_async  # whatever a cell puts in its place
LOOP_TURNS = 100  # that tasks get after a cell, if they are ready
# Options that stand before what is timed.
_TIMEIT_OPTIONS = re.compile(r"(?:\s*-(?:[nrp]\s*\d+|[a-z]+))*")


class _Hook(DisplayHook):
    """Keeps `_` and `Out`, and writes nothing."""

    def write_output_prompt(self) -> None: ...
    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None: ...
    def finish_displayhook(self) -> None: ...


class _Publisher(DisplayPublisher):
    def publish(self, *args: Any, **options: Any) -> None: ...
    def clear_output(self, wait: bool = False) -> None: ...


class _Formatter(DisplayFormatter):
    """Draws nothing, unless what is displayed is captured."""

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if isinstance(InteractiveShell.instance().display_pub, _Publisher):
            return ({}, {}) if self.ipython_display_formatter(obj) else ({"text/plain": ""}, {})
        return super().format(obj, include, exclude)


class NotebookShell(InteractiveShell):
    """A shell for one worker. Made in the process that workers are forked from, as that takes 20 ms; it has no thread
    and opens no file."""

    displayhook_class = Type(_Hook)
    display_pub_class = Type(_Publisher)
    keepkernel_on_exit = None

    @classmethod
    @functools.cache
    def ready(cls) -> NotebookShell:
        """The shell of this process, which is no shell that `get_ipython` finds until `begin`."""
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.IPKernelApp.parent_appname = "grader"  # by this section libraries tell a notebook from a terminal
        main = sys.modules["__main__"]
        try:
            shell = cls(config=config, user_module=types.ModuleType("__main__"))
            shell.run_cell("def first():\n    return 1\nfirst()")  # imports what every cell needs
            shell.find_line_magic("time")
        finally:
            sys.modules["__main__"] = main
            for name in ("display", "__IPYTHON__"):
                builtins.__dict__.pop(name, None)
        return shell

    def init_ipython_dir(self, ipython_dir: Any) -> None: ...
    def init_profile_dir(self, profile_dir: Any) -> None: ...

    @default("profile_dir")
    def _profile_dir(self) -> ProfileDir:
        return ProfileDir.create_profile_dir_by_name(get_ipython_dir(), "default")

    @default("exiter")
    def _exiter(self) -> ZMQExitAutocall:
        return ZMQExitAutocall(self)

    def init_display_formatter(self) -> None:
        self.display_formatter = _Formatter(parent=self)

    def init_hooks(self) -> None:
        super().init_hooks()
        self.set_hook("show_in_pager", lambda *_, **__: None, 0)

    def begin(self) -> None:
        """From now on this is the shell, and this process is a notebook's."""
        for one in type(self)._walk_mro():
            one._instance = self  # type: ignore[assignment]
        self.init_builtins()
        # What a cell sees while it runs, an answer sees while a check asks it: for a kernel that is a cell too.
        self.builtin_trap.__enter__()
        self.display_trap.__enter__()
        builtins.input = getpass.getpass = _no_input
        folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
        os.environ |= {"PATH": os.pathsep.join(folders), "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        os.environ |= {"TERM": "xterm-color", "CLICOLOR": "1", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
        os.environ |= {"PAGER": "cat", "GIT_PAGER": "cat", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
        # As in a kernel, a module beside the notebook is found after Python's own.
        places = [place for place, path in enumerate(sys.path) if path in site.getsitepackages()]
        sys.path.insert(min(places, default=len(sys.path)), "")

    def enter(self, content: dict[str, Any]) -> dict[str, Any]:
        """Begins a `__main__` of its own that holds `content`, with nothing run yet; returns its namespace."""
        module = types.ModuleType("__main__", doc="Automatically created module for IPython interactive environment")
        self.user_module, self.user_ns = self.prepare_user_module(module)
        sys.modules["__main__"] = module
        self.compile.reset_compiler_flags()
        self.execution_count = 1
        self.past.reset()
        hook: Any = self.displayhook
        hook._ = hook.__ = hook.___ = ""
        self.user_ns_hidden.clear()
        self.init_user_ns()
        self.push({"_": "", "__": "", "___": ""}, interactive=False)
        self.user_ns.update(content)
        return self.user_ns

    @property
    def past(self) -> Any:
        """The cells that ran, and what they returned."""
        return self.history_manager

    def pass_by(self, sources: Iterable[str]) -> None:
        """Counts cells that ran elsewhere."""
        for source in sources:
            if source.strip():
                self.past.store_inputs(self.execution_count, source, source)
                self.execution_count += 1

    async def run(self, source: str, counts: bool = True) -> BaseException | None:
        """Runs one cell; returns the exception that it ended with."""
        failed = None
        try:
            text = self.transform_cell(source)
        except Exception:
            text, failed = source, sys.exc_info()
        result = await _RUN_CELL(
            self, source, store_history=counts, transformed_cell=text, preprocessing_exc_tuple=failed
        )
        self.events.trigger("post_execute")
        self.events.trigger("post_run_cell", result)
        for _ in range(LOOP_TURNS):  # what a cell has started goes on behind it, as while a kernel waits for the next
            await asyncio.sleep(0)
            if len(asyncio.all_tasks()) == 1:
                break
        return result.error_before_exec or result.error_in_exec

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Any:
        if magic_name in WITHOUT_EFFECT or self.find_line_magic(magic_name) is None:
            return None  # one that only the learner's own machine has, perhaps
        # Extensions, and the settings of one, may be on the learner's own machine alone as well.
        missing = (ModuleNotFoundError, UsageError) if magic_name in ("load_ext", "config") else ()
        with contextlib.suppress(*missing):
            return super().run_line_magic(magic_name, _short(magic_name, line), _stack_depth + 1)

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        if magic_name in WITHOUT_EFFECT or self.find_cell_magic(magic_name) is None:
            return None
        if magic_name in ("time", "prun", "capture") and not cell.lstrip().startswith("%%"):
            cell = f"#\n{cell}"  # in the place of the magic's line, so that all others keep their numbers
        return super().run_cell_magic(magic_name, _short(magic_name, line), cell)

    def system(self, cmd: str) -> None:
        """Runs a command as a kernel does, whose terminal ends lines so, and which a confined process cannot open."""
        if cmd.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        with tempfile.TemporaryFile() as printed:
            code = subprocess.call(
                self.var_expand(cmd, depth=1), shell=True, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed
            )
            printed.seek(0)
            sys.stdout.write(printed.read().decode(errors="replace").replace("\n", "\r\n"))
        self.user_ns["_exit_code"] = code if code <= 128 else 128 - code

    def enable_gui(self, gui: Any = None) -> None: ...
    def enable_matplotlib(self, gui: Any = None) -> Any:
        return super().enable_matplotlib("inline")

    def ask_exit(self) -> None: ...
    def set_next_input(self, s: str, replace: bool = False) -> None: ...
    def showtraceback(self, *args: Any, **options: Any) -> None: ...
    def showsyntaxerror(self, *args: Any, **options: Any) -> None: ...
    def _format_exception_for_storage(self, *args: Any, **options: Any) -> dict[str, Any]:
        return {}


NotebookShell.__name__ = "ZMQInteractiveShell"  # by which much code tells a notebook from a terminal


def _short(magic_name: str, line: str) -> str:
    """`%timeit` decides how often it runs by the clock, for seconds: here it runs once a repeat, unless told."""
    found = _TIMEIT_OPTIONS.match(line)
    return line if magic_name != "timeit" or "-n" in (found[0] if found else "") else f"-n1 {line}"


def _no_input(*args: Any, **options: Any) -> str:
    raise StdinNotImplementedError("raw_input was called, but this frontend does not support input requests.")
