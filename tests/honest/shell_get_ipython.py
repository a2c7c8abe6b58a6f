"""Asks the shell itself: its magics, its namespace, its configuration, a magic and an event of its own."""
# %% before="affine"
from IPython import get_ipython as shell_of
from IPython.core.magic import register_cell_magic, register_line_magic

shell = get_ipython()
assert shell is shell_of() and shell.__class__.__name__ == "ZMQInteractiveShell"
assert "IPKernelApp" in shell.config
shell.user_ns["SLOPE"] = 3
shell.push({"OFFSET": 1})
shell.run_line_magic("matplotlib", "inline")
shell.run_line_magic("config", "InlineBackend.figure_format = 'retina'")
timed = shell.run_line_magic("timeit", "-o -q -n 1 -r 1 1 + 1")
shell.run_cell("inner = 5")
shell.ex("second = inner + 1")
assert shell.ev("second") == 6 and shell.getoutput("echo 8") == ["8"]
seen = []
shell.events.register("post_run_cell", lambda result: seen.append(result.success))


@register_line_magic
def twice(line):
    return eval(line, get_ipython().user_ns) * 2


@register_cell_magic
def define(line, cell):
    exec(cell, get_ipython().user_ns)
# %% before="affine"
%%define
def scaled(x):
    return SLOPE * x
# %% answer="affine"
assert seen == [True, True]
half = %twice 0.5


def affine(x):
    return scaled(x) + OFFSET * half
# %% answer="tally"
def tally(counts, start):
    return get_ipython().user_ns["np"].sum(list(counts.values())).item() + start + inner - 5
