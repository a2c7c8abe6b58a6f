"""Moves, sets variables, lists names and asks for help."""
# %%
%env MY_VARIABLE=3
%cd /tmp
%pwd
%who
%whos
np.sum?
%pinfo np.mean
%pip install nothing-at-all
%reset_selective -f nothing
%precision 3
%xmode Minimal
%config InlineBackend.figure_format = "retina"
