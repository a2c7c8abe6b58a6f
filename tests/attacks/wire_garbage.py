"""Sends bytes that are no reply at all."""
# with: stream
# tally: failed, failed
# says tally-example: The reply could not be read
# %% answer="tally"
def tally(counts, start):
    say(os.urandom(4_000))
    os._exit(0)
