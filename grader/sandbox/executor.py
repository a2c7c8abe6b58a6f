"""The process that loads and runs exported programs: it has none of the learner's Python, and holds no secret."""

from __future__ import annotations

import socket

from grader.core.faults import Fault
from grader.program.codec import decode, encode
from grader.program.endpoints import ProgramEndpoint, begin
from grader.sandbox import wire


def serve(stream: socket.socket) -> None:
    """Load and run programs on request until the stream closes."""
    side = ProgramEndpoint()
    while True:
        try:
            turn, what = wire.receive(stream), decode(wire.receive(stream))
            payload = b"" if what["do"] == "begin" else wire.receive(stream)
        except Fault:
            return
        if what["do"] == "begin":
            begin(what["devices"], what["compiled"], what["write"], what["accelerator"])
            reply = encode({"status": "ok"})
        else:
            reply = side.load(payload) if what["do"] == "load" else side.run(what["program"], payload)
        wire.send(stream, turn)
        wire.send(stream, reply)
