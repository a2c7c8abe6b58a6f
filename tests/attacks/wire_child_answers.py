"""Forks at every question; child and parent both go on and both answer."""
# with: stream
# tally: passed, failed|crashed
# %% answer="tally"
import warnings


def tally(counts, start):
    warnings.simplefilter("ignore")
    to = stream()
    number = to.fileno()
    if os.fork() == 0:
        for frame in (turn(), encode({"status": "ok", "value": 6})):
            os.write(number, struct.pack("<Q", len(frame)) + frame)
        os._exit(0)
    os.wait()
    return 0
