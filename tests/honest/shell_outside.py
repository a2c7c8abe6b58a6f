"""Installs, opens servers and asks things of a person, in lines that a notebook is left with."""
# %%
%pip install --quiet einops
%load_ext tensorboard
%tensorboard --logdir logs
%autosave 60
!pip install --quiet nothing-of-that-name-0 2> /dev/null
!nvidia-smi
%env MINE=3
%set_env OTHER 1
%store -z
%alias greet echo hello
%greet
%rehashx
%gui
%killbgscripts
# %%
%connect_info
# %% answer="affine"
import os

slope, offset = int(os.environ["MINE"]), int(os.environ["OTHER"])
kept = %env MINE


def affine(x):
    return slope * x + offset + int(kept) - 3
# %% answer="tally"
try:
    name = input("Your name: ")
except NotImplementedError as problem:
    name = str(problem)[:9]
try:
    from getpass import getpass

    getpass()
except RuntimeError:
    pass


def tally(counts, start):
    assert name == "raw_input"
    return start + sum(counts.values())
