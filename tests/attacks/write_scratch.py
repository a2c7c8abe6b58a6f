"""Fills its own scratch folder with files and folders that are hard to remove."""
# tally: passed, passed
# %%
import os

for i in range(40):
    os.mkdir("deep")
    os.chdir("deep")
    open("file", "w").close()
    os.chmod("file", 0)
for name in ("a\nb", " ", "-rf", "\udcff", "x" * 255):
    os.mkdir(name)
    os.chmod(name, 0)
os.mkfifo("pipe")
os.symlink("@COURSE@", "course")
os.chmod(".", 0)
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
