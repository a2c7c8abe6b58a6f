"""Connects to whoever listens: on this machine by number, by abstract name and by path, and out into the world."""

# tally: failed, failed
# says tally-example: reached nothing
# %% answer="tally"
import socket


def tally(counts, start):
    reached = []
    ways = [(socket.AF_INET, ("127.0.0.1", int("@PORT@"))), (socket.AF_UNIX, "\0@ABSTRACT@"),
            (socket.AF_UNIX, "@OUTSIDE@/listens"), (socket.AF_INET6, ("::1", int("@PORT@")))]  # fmt: skip
    for family, address in ways:
        try:
            with socket.socket(family) as one:
                one.settimeout(0.3)
                one.connect(address)
                one.send(b"jaxercise-attack")
                reached.append(str(address)[:9])
        except OSError:
            pass
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"jaxercise-attack", ("127.0.0.1", int("@PORT@")))
            reached.append("datagram")
    except OSError:
        pass
    raise ValueError(f"reached {reached or 'nothing'}")
