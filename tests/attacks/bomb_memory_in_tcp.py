"""Has TCP connections hold what it sends to itself: the kernel keeps it, and counts it for no process."""

# tally: failed, failed
# says tally-example: kept little
# %% answer="tally"
import socket


def tally(counts, start):
    kept, sent = [], 0
    try:
        server = socket.create_server(("127.0.0.1", 0))
        while len(kept) < 40 and sent < 100 << 20:
            one = socket.create_connection(server.getsockname(), 1)
            kept += (one, server.accept()[0])
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                one.setsockopt(socket.SOL_SOCKET, option, 8 << 20)
            one.setblocking(False)
            try:
                while sent < 100 << 20:
                    sent += one.send(bytes(1 << 15))
            except BlockingIOError:
                pass
    except OSError:
        pass
    raise ValueError(f"kept {'little' if sent < 25 << 20 else sent}")
