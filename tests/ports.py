"""A TCP port for a server that a test starts."""

import socket


def free_port() -> int:
    """Returns the number of a port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
