"""Gives a lesson handwritten digits: MNIST where it can be had, else real digits that need no download.

    found = digits.get()
    print(found.says)                                   # which it got, and how many
    MNIST(found.root, train=True)                       # torchvision.datasets.MNIST reads either
    images, labels = found.arrays(train=True)           # (n, 28, 28) uint8, (n,) int32; needs no torch

Whatever it is, it lies as IDX files under root/MNIST/raw, where torchvision looks for them.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grader.learning import mnist_download, state

# A folder that has MNIST/raw in it; or the word "embedded": use the digits that need no download, and ask nobody.
SETTING = "JAXERCISE_DIGITS"
RAW = Path("MNIST", "raw")
PARTS = {True: "train", False: "t10k"}
NAMES = tuple(f"{part}-{kind}" for part in PARTS.values() for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
SIDE = 28
MOST = 16 + 60_000 * SIDE * SIDE  # bytes of the largest file
EMBEDDED = "embedded_digits_1"  # the number changes with what is written there
TEST = 360  # of scikit-learn's 1,797 digits


class DigitsDamaged(Exception):
    """Files that say they are MNIST and are not whole; the text says which, and the way out."""

    def _render_traceback_(self) -> list[str]:  # in a notebook the sentence, and no traceback
        return [str(self)]


@dataclass(frozen=True)
class Digits:
    """What was found: `root` is what torchvision.datasets.MNIST takes, `source` is "MNIST" or "embedded"."""

    root: Path
    source: str
    says: str

    def arrays(self, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Images (n, 28, 28) uint8 and labels (n,) int32, of one half. Raises DigitsDamaged."""
        return read_half(self.root / RAW, train)


def get() -> Digits:
    """The digits: a copy of MNIST that lies here, else a download, else the 1,797 digits that scikit-learn brings.

    Looks in the folder that JAXERCISE_DIGITS names, else in work/data of the course and in the user's cache; what it
    downloads or writes lies there too. Offline it is done in a second. Raises DigitsDamaged.
    """
    asked = os.environ.get(SETTING, "").strip()
    if asked == "embedded":
        return _embedded(f"{SETTING}=embedded")
    if asked:
        return _asked_for(Path(asked).expanduser())
    for place in _places():
        if _there(place / RAW):
            return _checked(place, f"MNIST, a copy in {place}")
    place = _writable()
    why_not = mnist_download.fetch(place / RAW, _check)
    if why_not:
        return _embedded(why_not)
    return _checked(place, f"MNIST, downloaded to {place}")


def _asked_for(folder: Path) -> Digits:
    """MNIST in the folder that somebody named: the one with MNIST/ in it, or one further down."""
    for root in (folder, *folder.parents[:2]):
        if _there(root / RAW):
            return _checked(root, f"MNIST, a copy in {root}")
    raise DigitsDamaged(
        f"{SETTING} is {folder}, and there is no MNIST in it: wanted {folder / RAW / NAMES[0]} (or .gz) and its three "
        f"neighbours. Set it to a folder that has them, or to nothing."
    )


def _places() -> list[Path]:
    """Where digits may lie, best first: with the learner's work, in the user's cache, in a folder that will be gone."""
    course = state.course_above(Path.cwd())
    places = [course / "work" / "data"] if course is not None else []
    with contextlib.suppress(RuntimeError):  # nobody knows a home
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        places.append(Path(cache) / "jaxercise")
    return [*places, Path(tempfile.gettempdir()) / f"jaxercise-{os.getuid()}"]


def _writable() -> Path:
    """The first place that can be written to. Raises OSError where none can."""
    for place in _places():
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                return place
    raise OSError(f"None of {', '.join(map(str, _places()))} can be written to; digits need 1.5 MB.")


def _there(raw: Path) -> bool:
    return any((raw / f"{name}{end}").exists() for name in NAMES for end in ("", ".gz"))


def _checked(root: Path, what: str) -> Digits:
    """Both halves are whole, and unpacked."""
    raw = root / RAW
    _unpack(raw)
    _check(raw)
    train, test = (_length(raw / f"{part}-labels-idx1-ubyte") for part in PARTS.values())
    return Digits(root, "MNIST", f"{what}: {train:,} images to train on, {test:,} to test with.")


def _unpack(raw: Path) -> None:
    for name in NAMES:
        packed = raw / f"{name}.gz"
        if not (raw / name).exists() and packed.exists():
            try:
                with gzip.open(packed) as file:
                    content = file.read(MOST + 1)
                with _draft(raw) as draft:
                    (draft / name).write_bytes(content)
                    os.replace(draft / name, raw / name)
            except (EOFError, gzip.BadGzipFile, zlib.error):
                raise _damaged(packed, "it cannot be unpacked") from None
            except OSError as problem:
                raise _damaged(packed, f"it cannot be unpacked ({problem.strerror})") from None


@contextlib.contextmanager
def _draft(beside: Path) -> Iterator[Path]:
    """A folder of its own to write in, so that others see whole files only; it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="draft-", dir=beside))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(raw: Path) -> None:
    """Headers, lengths, and as many labels as images. Raises DigitsDamaged."""
    for part in PARTS.values():
        images, labels = (raw / f"{part}-{kind}" for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        if _length(images) != _length(labels):
            raise _damaged(labels, f"it has {_length(labels):,} labels for {_length(images):,} images")
        if _content(labels, 8).max(initial=0) > 9:
            raise _damaged(labels, "it has labels beyond 9")
        if not _content(images, 16)[-SIDE * SIDE :].any():  # some programs lay out the whole file before it is there
            raise _damaged(images, "its last image is blank")


def _length(path: Path) -> int:
    """How many images or labels an IDX file holds, by its header and its size."""
    images = "images" in path.name
    wanted = np.array([2051, 0, SIDE, SIDE] if images else [2049, 0], ">i4")
    try:
        with open(path, "rb") as file:
            header = np.frombuffer(file.read(wanted.nbytes).ljust(wanted.nbytes, b"\0"), ">i4")
        size = path.stat().st_size
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except OSError as problem:
        raise _damaged(path, f"it cannot be read ({problem.strerror})") from None
    count = int(header[1])
    if header[0] != wanted[0] or (header[2:] != wanted[2:]).any() or count < 1:
        raise _damaged(path, f"it does not begin as {'images' if images else 'labels'} of MNIST do")
    whole = wanted.nbytes + count * (SIDE * SIDE if images else 1)
    if size != whole:
        raise _damaged(path, f"it has {size:,} of {whole:,} bytes")
    return count


def _content(path: Path, header: int) -> np.ndarray:
    return np.fromfile(path, np.uint8, offset=header)


def read_half(raw: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) uint8 and labels (n,) int32 from IDX files in this folder. Raises DigitsDamaged."""
    images, labels = (raw / f"{PARTS[train]}-{kind}" for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    for path in (images, labels):
        _length(path)
    return _content(images, 16).reshape(-1, SIDE, SIDE), _content(labels, 8).astype(np.int32)


def _damaged(path: Path, why: str) -> DigitsDamaged:
    return DigitsDamaged(
        f"{path} is not whole: {why}. Delete the folder {path.parent} and run this again, or set {SETTING}=embedded to "
        f"go on without MNIST."
    )


def _embedded(why: str) -> Digits:
    """scikit-learn's digits as IDX files, written once; `why` says why it is they."""
    root = _writable() / EMBEDDED
    try:
        _check(root / RAW)
    except DigitsDamaged:  # not there yet, or spoiled: they are derived, so they are written anew
        shutil.rmtree(root, ignore_errors=True)
        with _draft(root.parent) as draft:
            _write(draft / RAW)
            with contextlib.suppress(OSError):  # another notebook was quicker, and wrote the same
                os.rename(draft, root)
        _check(root / RAW)
    count = _length(root / RAW / NAMES[1])
    said = f"{count:,} to train on, {TEST} to test with"
    return Digits(
        root,
        "embedded",
        f"{why}: so these are the handwritten digits that come with scikit-learn, scaled to {SIDE} × {SIDE} ({said}).",
    )


def _write(raw: Path) -> None:
    """1,437 digits to train on and 360 to test with, as four IDX files; the same ones everywhere."""
    from sklearn.datasets import load_digits

    given = load_digits()
    order = np.random.RandomState(0).permutation(len(given.target))  # NumPy promises to keep this generator's numbers
    images, labels = enlarged(given.images)[order], given.target.astype(np.uint8)[order]
    raw.mkdir(parents=True)
    for train, half in ((True, slice(TEST, None)), (False, slice(TEST))):
        for kind, magic, content in (("images-idx3", 2051, images[half]), ("labels-idx1", 2049, labels[half])):
            header = np.array([magic, *content.shape], ">i4")
            (raw / f"{PARTS[train]}-{kind}-ubyte").write_bytes(header.tobytes() + content.tobytes())


def enlarged(images: np.ndarray) -> np.ndarray:
    """8 × 8 images with values 0 to 16 as MNIST has them: (n, 28, 28) uint8, 24 × 24 by straight lines between
    pixels, and a border of 2."""
    at = np.clip((np.arange(24) + 0.5) / 3 - 0.5, 0, 7)  # where each new pixel's middle lies among the old ones
    left = np.minimum(at.astype(int), 6)
    lines = np.zeros((24, 8))
    lines[np.arange(24), left] = 1 - (at - left)
    lines[np.arange(24), left + 1] = at - left
    large = lines @ (images / 16 * 255) @ lines.T
    return np.pad(large.round().astype(np.uint8), ((0, 0), (2, 2), (2, 2)))
