"""Ignores every signal that can be ignored, then never ends."""
# tally: timeout, timeout
# %% answer="tally"
import signal


def tally(counts, start):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    while True:
        pass
