"""The board's listening socket, which limits the open connections of an address, and waits if no file can be opened."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tornado.ioloop import IOLoop
from tornado.tcpserver import TCPServer

ACCEPT_PAUSE_S = 1.0  # without new connections, after one for which the process could open no file
LOG_S = 60.0  # between two lines in the log about it
log = logging.getLogger(__name__)


class Connection(socket.socket):
    """An accepted connection. `on_close` is called once, when it is closed."""

    def __init__(self, accepted: socket.socket, on_close: Callable[[], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._on_close: Callable[[], None] | None = on_close

    def close(self) -> None:
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class ListeningSocket(socket.socket):
    """A socket of a server, from which tornado accepts connections: of each address, at most so many at a time."""

    def __init__(self, bound: socket.socket, server: TCPServer, per_address: int) -> None:
        super().__init__(bound.family, bound.type, bound.proto, bound.detach())
        self.setblocking(False)
        self.server, self.per_address = server, per_address
        self._open: Counter[str] = Counter()  # connections by address
        self._logged = -LOG_S

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns a connection and its address. Raises, as tornado expects, BlockingIOError if there is none to accept
        now, and ConnectionAbortedError if there may be another one."""
        try:
            accepted, address = super().accept()
        except OSError as problem:
            if problem.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._pause()
            raise BlockingIOError from None
        ip = address[0]
        if self._open[ip] >= self.per_address:
            accepted.close()
            raise ConnectionAbortedError
        self._open[ip] += 1
        return Connection(accepted, lambda: self._forget(ip)), address

    def _forget(self, ip: str) -> None:
        self._open[ip] -= 1
        if not self._open[ip]:
            del self._open[ip]

    def _pause(self) -> None:
        """Accepts nothing for a while: the waiting connection would wake up the event loop again at once."""
        IOLoop.current().remove_handler(self)
        asyncio.get_running_loop().call_later(ACCEPT_PAUSE_S, self._resume)
        if time.monotonic() - self._logged >= LOG_S:
            self._logged = time.monotonic()
            log.warning("The board has too many open files to accept a connection. It tries again every second.")

    def _resume(self) -> None:
        if self.fileno() >= 0:  # else the server has stopped
            self.server.add_socket(self)
