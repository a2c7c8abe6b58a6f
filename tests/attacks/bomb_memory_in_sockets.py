"""Has sockets hold what it sends to itself: the kernel keeps it, and counts it for no process."""
# tally: failed, failed
# says tally-example: kept little | PermissionError
# %% answer="tally"
import socket


def tally(counts, start):
    kept, sent = [], 0
    while len(kept) < 100 and sent < 100 << 20:
        kept += (ends := socket.socketpair())
        ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        ends[0].setblocking(False)
        try:
            while True:
                sent += ends[0].send(bytes(1 << 15))
        except BlockingIOError:
            pass
    raise ValueError(f"kept {'little' if sent < 25 << 20 else sent}")
