"""Returns an object that runs code wherever it is unpickled or copied."""
# tally: failed, failed
# %% answer="tally"
class Payload:
    def __reduce__(self):
        return open, ("@OUTSIDE@/jaxercise-attack", "w")

    __deepcopy__ = __copy__ = lambda self, *args: open("@OUTSIDE@/jaxercise-attack", "w")


def tally(counts, start):
    return Payload()
