"""Handwritten digits for lessons: MNIST where it can be had, else real digits that need no download.

    source = digits.get()
    print(source.description)                           # which digits, and how many
    MNIST(source.root, train=True)                      # torchvision.datasets.MNIST reads both
    images, labels = source.arrays(train=True)          # needs no torch

They are stored as IDX files under root/MNIST/raw, where torchvision looks for them.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import shutil
import tempfile
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grader.core.layout import course_above

# A folder with MNIST/raw in it; or the word "embedded": use the digits that need no download.
SETTING = "JAXERCISE_DIGITS"
RAW = Path("MNIST", "raw")
PARTS = {True: "train", False: "t10k"}
SIDE = 28
MOST = 16 + 60_000 * SIDE * SIDE  # bytes of the largest file; a whole download, packed, has fewer
EMBEDDED = "embedded_digits_1"  # the number changes with what is written there
TEST = 360  # of scikit-learn's 1,797 digits
# torchvision downloads from here too, and checks the same MD5 digests of the packed files.
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
DIGESTS = {
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
}
NAMES = tuple(sorted(DIGESTS, reverse=True))
ANSWER_S = 4.0  # until the server answers; offline it does not
WHOLE_S = 120.0  # for the whole download of 12 MB
NO_CONNECTION = "There is no copy of MNIST here, and no network connection to download it"
TOO_LONG = "The download of MNIST took too long"


class DigitsDamaged(Exception):
    """MNIST's files are incomplete or damaged; the text names the file and what to do."""

    def _render_traceback_(self) -> list[str]:  # in a notebook the sentence, and no traceback
        return [str(self)]


@dataclass(frozen=True)
class Digits:
    """The digits that were found: `root` is the folder that torchvision.datasets.MNIST takes, `source` "MNIST" or
    "embedded", and `description` a sentence: which digits these are, why, and how many."""

    root: Path
    source: str
    description: str

    @property
    def says(self) -> str:
        """The description, under its name in lessons that were released earlier."""
        return self.description

    def arrays(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        return read_half(self.root, train)


def get() -> Digits:
    """Returns MNIST, from a copy or downloaded, or else the 1,797 digits of scikit-learn.

    Looks in the folder that JAXERCISE_DIGITS names, else in work/data of the course and in the user's cache, and
    stores downloads there. Without a connection it takes a second. Raises DigitsDamaged if a copy of MNIST is
    incomplete, or the named folder has none, and OSError if no folder can be written to.
    """
    setting = os.environ.get(SETTING, "").strip()
    if setting == "embedded":
        return _embedded(f"{SETTING}=embedded")
    folder = Path(setting).expanduser()
    for root in (folder, *folder.parents[:2]) if setting else _places():
        if any((root / RAW / f"{name}{end}").exists() for name in NAMES for end in ("", ".gz")):
            return _mnist(root, f"MNIST, a copy in {root}")
    if setting:
        wanted = f"{folder / RAW / NAMES[0]} (or .gz) and its three neighbours"
        fix = "Set it to a folder that contains them, or unset it."
        raise DigitsDamaged(f"{SETTING} is {folder}, but this folder does not contain {wanted}. {fix}")
    place = _writable()
    failure = _download(place)
    return _embedded(failure) if failure else _mnist(place, f"MNIST, downloaded to {place}")


def _places() -> list[Path]:
    """Folders for digits, best first: with the learner's work, in the user's cache, a temporary one."""
    course = course_above(Path.cwd())
    places = [course / "work" / "data"] if course is not None else []
    with contextlib.suppress(RuntimeError):  # this user has no home
        places.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxercise")
    return [*places, Path(tempfile.gettempdir()) / f"jaxercise-{os.getuid()}"]


def _writable() -> Path:
    for place in _places():
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                return place
    raise OSError(f"None of {', '.join(map(str, _places()))} is writable. The digits need 1.5 MB.")


class _Deadline:
    """A progress bar, in pooch's interface, that ends a download of too many seconds or bytes."""

    def __init__(self, place: Path) -> None:
        self.place, self.end, self.total, self.received = place, time.monotonic() + WHOLE_S, 0, 0

    def update(self, size: int) -> None:
        if self.end and not self.received:
            print(f"Downloading MNIST (12 MB) to {self.place} ...", flush=True)
        self.received += size
        if time.monotonic() > self.end or self.received > MOST:
            raise TimeoutError

    def reset(self) -> None: ...

    def close(self) -> None: ...


def _download(place: Path) -> str:
    """Puts MNIST's files into a folder, all or none; returns "" when done, else a clause that says why not."""
    try:
        import pooch
    except ImportError:
        return "There is no copy of MNIST here, and the package pooch, which downloads it, is not installed"
    pooch.get_logger().setLevel("WARNING")
    deadline, outcome = _Deadline(place), list[str]()
    downloader = pooch.HTTPDownloader(progressbar=deadline, timeout=ANSWER_S, chunk_size=1 << 16)

    def fetch() -> str:
        try:
            (raw := Path(draft, "raw")).mkdir()
            for name, digest in DIGESTS.items():
                packed = pooch.retrieve(f"{MIRROR}{name}.gz", f"md5:{digest}", name, draft, downloader=downloader)
                (raw / name).write_bytes(gzip.decompress(Path(packed).read_bytes()))
            (place / RAW).parent.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):  # another notebook was quicker
                os.rename(raw, place / RAW)
        except TimeoutError:
            return TOO_LONG
        except ValueError:  # of pooch: another digest
            return "The download is not MNIST (perhaps a login page)"
        except OSError as problem:
            if problem.errno is not None:  # of a file; those of the network, which requests raises, have no number
                return f"MNIST could not be stored in {place / RAW} ({problem.strerror})"
            return "The download of MNIST was interrupted" if deadline.received else NO_CONNECTION
        return ""

    # In a thread, since the lookup of a name has no limit of its own.
    thread = threading.Thread(target=lambda: outcome.append(fetch()), daemon=True)
    with _draft(place) as draft:
        thread.start()
        try:
            thread.join(ANSWER_S)
            if deadline.received:
                thread.join(WHOLE_S)
        finally:
            deadline.end = 0.0  # a thread that is still at it stops at its next bytes
    return outcome[0] if outcome else TOO_LONG if deadline.received else NO_CONNECTION


def _mnist(root: Path, where: str) -> Digits:
    """Unpacks and checks the files in a folder."""
    raw = root / RAW
    for name in NAMES:
        packed = raw / f"{name}.gz"
        if not (raw / name).exists() and packed.exists():
            try:
                with gzip.open(packed) as file, _draft(raw) as draft:
                    Path(draft, name).write_bytes(file.read(MOST + 1))
                    os.replace(Path(draft, name), raw / name)
            except (EOFError, OSError, zlib.error) as problem:
                reason = getattr(problem, "strerror", None)
                raise _damaged(packed, f"it cannot be unpacked{f' ({reason})' if reason else ''}") from None
    train, test = _check(raw)
    return Digits(root, "MNIST", f"{where}: {train:,} training images, {test:,} test images.")


def _draft(place: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder in `place`, so that other processes see complete files only."""
    return tempfile.TemporaryDirectory(prefix="draft-", dir=place, ignore_cleanup_errors=True)


def _check(raw: Path) -> list[int]:
    """Checks both halves; returns how many images they have. Raises DigitsDamaged."""
    counts = []
    for part in PARTS.values():
        images_path, labels_path = (raw / f"{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
        images, labels = _idx(images_path), _idx(labels_path)
        if len(images) != len(labels):
            raise _damaged(labels_path, f"it has {len(labels):,} labels for {len(images):,} images")
        if labels.max() > 9:
            raise _damaged(labels_path, "it has labels beyond 9")
        if not images[-1].any():  # some programs lay out the whole file before it is there
            raise _damaged(images_path, "its last image is blank")
        counts.append(len(images))
    return counts


def _idx(path: Path) -> np.ndarray:
    """Returns images (n, 28, 28) or labels (n,), uint8, from an IDX file. Raises DigitsDamaged."""
    kind, size = ("images", (SIDE, SIDE)) if "images" in path.name else ("labels", ())
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except OSError as problem:
        raise _damaged(path, f"it cannot be read ({problem.strerror})") from None
    shape = (int.from_bytes(content[4:8]), *size)
    header = _header(shape)
    if not shape[0] or not content.startswith(header):
        raise _damaged(path, f"it does not begin as {kind} of MNIST do")
    whole = len(header) + math.prod(shape)
    if len(content) != whole:
        raise _damaged(path, f"it has {len(content):,} of {whole:,} bytes")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()


def _header(shape: tuple[int, ...]) -> bytes:
    """The first bytes of an IDX file: the format's number for images or labels, then the shape."""
    return np.array([2051 if len(shape) == 3 else 2049, *shape], ">u4").tobytes()


def read_half(root: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 28, 28) uint8 and labels (n,) int32 from IDX files below `root`. Raises DigitsDamaged."""
    part = root / RAW / PARTS[train]
    return _idx(Path(f"{part}-images-idx3-ubyte")), _idx(Path(f"{part}-labels-idx1-ubyte")).astype(np.int32)


def _damaged(path: Path, why: str) -> DigitsDamaged:
    text = f"{path} is incomplete: {why}. Delete the folder {path.parent} and run this again"
    return DigitsDamaged(f"{text}, or set {SETTING}=embedded to continue without MNIST.")


def _embedded(why: str) -> Digits:
    """scikit-learn's digits as IDX files, written once: 1,437 to train on and 360 to test with."""
    root = _writable() / EMBEDDED
    try:
        train, test = _check(root / RAW)
    except DigitsDamaged:  # not there yet, or spoiled: they are derived, so they are written again
        shutil.rmtree(root, ignore_errors=True)
        with _draft(root.parent) as draft:
            _write(Path(draft, RAW))
            with contextlib.suppress(OSError):  # another notebook was quicker, and wrote the same
                os.rename(draft, root)
        train, test = _check(root / RAW)
    count = f"{train:,} training images, {test} test images"
    which = f"the handwritten digits that come with scikit-learn, scaled to {SIDE} × {SIDE} ({count})"
    return Digits(root, "embedded", f"{why}. These are {which} instead.")


def _write(raw: Path) -> None:
    from sklearn.datasets import load_digits

    small = load_digits()
    order = np.random.RandomState(0).permutation(len(small.target))  # NumPy promises to keep this generator's numbers
    images, labels = enlarged(small.images)[order], small.target.astype(np.uint8)[order]
    raw.mkdir(parents=True)
    for train, half in ((True, slice(TEST, None)), (False, slice(TEST))):
        for kind, content in (("images-idx3", images[half]), ("labels-idx1", labels[half])):
            (raw / f"{PARTS[train]}-{kind}-ubyte").write_bytes(_header(content.shape) + content.tobytes())


def enlarged(images: np.ndarray) -> np.ndarray:
    """Returns 8 × 8 images with values 0 to 16 in MNIST's format: (n, 28, 28) uint8, interpolated linearly to 24 × 24,
    with a border of 2."""
    centres = (np.arange(24) + 0.5) / 3 - 0.5  # of the new pixels, among the old ones
    weights = np.array([np.interp(centres, np.arange(8), unit) for unit in np.eye(8)])
    large = weights.T @ (images / 16 * 255) @ weights
    return np.pad(large.round().astype(np.uint8), ((0, 0), (2, 2), (2, 2)))
