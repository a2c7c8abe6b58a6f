"""Rewrites the course: its checks, its solutions, its secret, its built notebooks."""
# tally: failed, failed
# %%
import glob, os

for path in [*glob.glob("@COURSE@/**/*", recursive=True), "@COURSE@/.secret", "@COURSE@/new", "@COURSE@/build/new"]:
    try:
        with open(path, "a") as stream:
            stream.write("\n# jaxercise-attack")
        os.utime(path, (0, 0))
        os.chmod(path, 0)
    except OSError:
        pass
# %% answer="tally"
def tally(counts, start):
    return 0
