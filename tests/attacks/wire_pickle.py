"""Sends a pickle that writes a file where it is read."""
# with: stream
# tally: failed, failed
# says tally-example: The reply could not be read
# %% answer="tally"
import io, pickle


class Payload:
    def __reduce__(self):
        return io.open, ("@OUTSIDE@/jaxercise-attack", "w")


def tally(counts, start):
    say(pickle.dumps(Payload()))
    os._exit(0)
