"""Has a thread answer whatever is asked from now on, in the place of the process itself."""
# with: stream
# tally: crashed, crashed
# %% answer="tally"
import threading, time


def forever():
    while True:
        say(encode({"status": "ok", "value": 6}), os.urandom(16))
        time.sleep(0.001)


def tally(counts, start):
    return 0


threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
