"""Tries addresses beyond the loopback by TCP: private networks, the metadata of clouds, names, and other spellings."""

# tally: failed, failed
# says tally-example: reached nothing
# %% answer="tally"
import ctypes, os, socket


def tally(counts, start):
    reached = []
    for address in ("10.0.0.1", "172.17.0.1", "192.168.0.1", "169.254.169.254", "192.0.2.1", "0.0.0.0", "127.0.0.53"):
        for port in (53, 80, int("@PORT@")):
            try:
                socket.create_connection((address, port), 0.1).send(b"jaxercise-attack")
                reached.append(address)
            except OSError:
                pass
    number = {"x86_64": 41}.get(os.uname().machine, 198)  # the kernel takes the low half of the family and the kind
    for family, kind in (((1 << 32) + 10, 1), (2, (1 << 32) + 2), ((1 << 32) + 40, 1)):
        numbers = map(ctypes.c_long, (number, family, kind, 0))
        if ctypes.CDLL(None).syscall(*numbers) >= 0:
            reached.append(f"{family:x}")
    raise ValueError(f"reached {reached or 'nothing'}")
