"""Length-prefixed frames over a socket: nothing but bytes, with a limit on size and a deadline on waiting."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable

MAX_FRAME = 640 << 20
POLL_S = 0.1


class Fault(Exception):
    """The other side did not answer as it should; `kind` is "crashed", "timeout" or "flooded"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def send(stream: socket.socket, frame: bytes) -> None:
    """Send one frame. Raises `Fault` when the other side is gone."""
    try:
        stream.sendall(struct.pack("<Q", len(frame)) + frame)
    except OSError:
        raise Fault("crashed", "the process ended") from None


def receive(stream: socket.socket, limit: int = MAX_FRAME, expired: Callable[[], str | None] = lambda: None) -> bytes:
    """The next frame. Raises `Fault` at end of file, beyond `limit` bytes, or when `expired()` gives a reason."""
    (size,) = struct.unpack("<Q", _exactly(stream, 8, expired))
    if size > limit:
        raise Fault("flooded", f"the reply has {size:,} bytes; {limit:,} are allowed")
    return _exactly(stream, size, expired)


def _exactly(stream: socket.socket, count: int, expired: Callable[[], str | None]) -> bytes:
    data = bytearray()
    while len(data) < count:
        while not select.select([stream], [], [], POLL_S)[0]:
            reason = expired()
            if reason:
                raise Fault("timeout", reason)
        try:
            chunk = stream.recv(min(count - len(data), 1 << 20))
        except OSError:
            chunk = b""
        if not chunk:
            raise Fault("crashed", "the process ended without an answer")
        data += chunk
    return bytes(data)


def stopwatch(seconds: float) -> Callable[[], str | None]:
    """For `receive`: expires after `seconds` of wall time."""
    end = time.monotonic() + seconds
    return lambda: f"no answer within {seconds:g} s" if time.monotonic() > end else None
