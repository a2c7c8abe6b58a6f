import json


def lie(value, sizes=(), body=b"", head=None):
    """Send a payload with this head, then go."""
    head = head or json.dumps({"value": ["dict", [["status", "ok"], ["value", value]]], "sizes": list(sizes)}).encode()
    say(struct.pack("<I", len(head)) + head + body)
    os._exit(0)
