"""The other one of two notebooks that look for each other on the loopback: it listens on every port that the first asks."""

# tally: passed, passed
# %% answer="tally"
import socket

listening = []
try:
    for port in range(20_000, 20_050):
        listening.append(socket.create_server(("127.0.0.1", port)))
except OSError:
    pass


def tally(counts, start):
    return start + sum(counts.values())
