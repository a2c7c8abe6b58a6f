"""Writes, deletes and moves what is not its own with magics and commands."""
# tally: passed, passed
# %%
!rm -rf @COURSE@/solutions @SUBMITTED@/aa-neighbour; echo jaxercise-attack > @OUTSIDE@/jaxercise-attack
!echo jaxercise-attack | tee @COURSE@/jaxercise-attack @HOME@/jaxercise-attack @SCRATCH@/jaxercise-attack
# %%
%%writefile @COURSE@/solutions/01_guarded.py
jaxercise-attack
# %%
%%bash
mv @COURSE@/gradebook.db @COURSE@/gone; chmod -R a-r @COURSE@; kill -9 -1; kill -STOP $PPID
# %%
%cd @COURSE@
%save -f jaxercise-attack 1
%logstart @HOME@/jaxercise-attack
%notebook @HOME@/jaxercise-attack.ipynb
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
