"""Leaves daemons behind that have left their session, their group and their parent, next to a right answer."""
# tally: passed, passed
# %% answer="tally"
import os, signal, time, warnings


def tally(counts, start):
    warnings.simplefilter("ignore")
    if start == 3 and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.closerange(0, 4_096)
            os.execv("/bin/sleep", ["sleep", "45"])
        os._exit(0)
    return start + sum(counts.values())
