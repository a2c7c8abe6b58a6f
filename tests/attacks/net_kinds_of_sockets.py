"""Opens every kind of socket there is beside those that processes of one worker use among themselves: raw ones,
packets, datagrams, virtual machines, kernel crypto."""

# tally: failed, failed
# says tally-example: opened nothing
# %% answer="tally"
import socket


def tally(counts, start):
    opened = []
    allowed = {(socket.AF_INET, socket.SOCK_STREAM), (16, socket.SOCK_DGRAM), (16, socket.SOCK_RAW)}  # 16: netlink
    for family in set(range(1, 46)) - {int(socket.AF_UNIX)}:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            if (family, kind) in allowed:
                continue
            try:
                socket.socket(family, kind).close()
                opened.append(family)
            except OSError:
                pass
    raise ValueError(f"opened {sorted(set(opened)) or 'nothing'}")
