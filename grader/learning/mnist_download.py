"""Downloads MNIST, or says in words why it could not: bounded in seconds, and never with half a file left behind."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import queue
import shutil
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Where torchvision downloads it from, too, with the digests that it checks.
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
DIGESTS = {
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
}
ANSWER_S = 4.0  # until somebody answers; offline nobody does
WHOLE_S = 120.0  # for all of it: 12 MB in a slow café
MOST = 16 << 20  # bytes of one packed file


class DownloadFailed(Exception):
    """The text says why, in a few words that can be followed by a colon."""


def fetch(raw: Path, check: Callable[[Path], None]) -> str:
    """MNIST's four files, unpacked, in the folder `raw`, which must not be there; "" when done, else why not.

    `check` is given the folder before it is put in its place, and raises what it finds.
    """
    until = time.monotonic() + WHOLE_S
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=raw.parents[1]))
    try:
        for i, (name, digest) in enumerate(DIGESTS.items()):
            reply = _opened(f"{MIRROR}{name}.gz")
            if i == 0:
                print(f"Downloading MNIST (12 MB) to {raw.parents[1]} ...", flush=True)
            (draft / name).write_bytes(_unpacked(_read(reply, until), digest))
        check(draft)
        raw.parent.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # another notebook was quicker
            os.rename(draft, raw)
    except DownloadFailed as why:
        return str(why)
    except OSError as problem:
        return f"MNIST could not be stored in {raw} ({problem.strerror})"
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return ""


def _opened(url: str) -> Any:
    """The reply to a request. Asked in a thread: looking up a name has no limit of its own. Raises NotFetched."""
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            replies.put(urllib.request.urlopen(url, timeout=ANSWER_S))
        except Exception:  # refused, unknown, no certificate, not HTTP: for the lesson it is all the same
            replies.put(None)

    threading.Thread(target=ask, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        if (reply := replies.get(timeout=ANSWER_S)) is not None:
            return reply
    raise DownloadFailed("There is no copy of MNIST here, and no connection to download it")


def _read(reply: Any, until: float) -> bytes:
    """All bytes of a reply, in time. Raises NotFetched."""
    content = b""
    with contextlib.closing(reply):
        try:
            while piece := reply.read(1 << 16):
                content += piece
                if time.monotonic() > until or len(content) > MOST:
                    raise DownloadFailed("The download of MNIST took too long")
        except (OSError, http.client.HTTPException):
            reply.length = 1
    if reply.length:  # what was promised and did not come
        raise DownloadFailed("The download of MNIST broke off")
    return content


def _unpacked(content: bytes, digest: str) -> bytes:
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != digest:
        raise DownloadFailed("What came in place of MNIST is something else (a page to log in?)")
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        raise DownloadFailed("What came in place of MNIST cannot be unpacked") from None
