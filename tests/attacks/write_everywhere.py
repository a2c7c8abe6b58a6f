"""Leaves files where other processes look for temporary files, shared memory, packages and startup code."""
# tally: passed, passed
# %%
import os, site, sys, tempfile

import grader

tops = ["/tmp", "/var/tmp", "/dev/shm", "/run", "@OUTSIDE@", "@HOME@", "@SCRATCH@", tempfile.gettempdir()]
tops += [*site.getsitepackages(), os.path.dirname(grader.__file__), sys.prefix, os.path.expanduser("~")]
for top in tops:
    try:
        with open(os.path.join(top, "jaxercise-attack"), "w") as stream:
            stream.write("here")
    except OSError:
        pass
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
