"""Length-prefixed frames over a socket: nothing but bytes, with a limit on size and a deadline on waiting."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator

from grader.core.faults import Fault

MAX_FRAME = 640 << 20
POLL_S = 0.1
Expired = Callable[[], Fault | None]


def send(stream: socket.socket, frame: bytes, expired: Expired = lambda: None) -> None:
    """Send one frame. Raises `Fault` when the other side is gone, or does not read until `expired()` gives a fault."""
    left, turns = memoryview(struct.pack("<Q", len(frame)) + frame), _turns([], [stream], expired)
    while left:
        next(turns)
        try:
            left = left[stream.send(left, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            continue
        except OSError:
            raise Fault("crashed", "the process ended") from None


def receive(stream: socket.socket, limit: int = MAX_FRAME, expired: Expired = lambda: None) -> bytes:
    """The next frame. Raises `Fault` at end of file, beyond `limit` bytes, or when `expired()` gives a fault."""
    (size,) = struct.unpack("<Q", _exactly(stream, 8, expired))
    if size > limit:
        raise Fault("flooded", f"the reply has more than {limit:,} bytes")
    return _exactly(stream, size, expired)


def silent(stream: socket.socket) -> bool:
    """Whether nothing has come that is still unread, nor the end."""
    try:
        stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _exactly(stream: socket.socket, count: int, expired: Expired) -> bytes:
    data, turns = bytearray(), _turns([stream], [], expired)
    while len(data) < count:
        next(turns)
        try:
            chunk = stream.recv(min(count - len(data), 1 << 20))
        except OSError:
            chunk = b""
        if not chunk:
            raise Fault("crashed", "the process ended without an answer")
        data += chunk
    return bytes(data)


def _turns(readable: list[socket.socket], writable: list[socket.socket], expired: Expired) -> Iterator[None]:
    """A turn each time that a stream is ready. `expired` is asked meanwhile, and while bytes only drip in or out."""
    asked = time.monotonic()
    while True:
        ready = any(select.select(readable, writable, [], POLL_S))
        if not ready or time.monotonic() - asked > POLL_S:
            fault = expired()
            if fault is not None:
                raise fault
            asked = time.monotonic()
        if ready:
            yield
