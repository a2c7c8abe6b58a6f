"""Digits for lessons: MNIST from a copy or a download, else those that need neither, all read in the same way."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from ports import free_port

from grader.learning import digits

TRAIN, TEST = 30, 12


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's folder: a course with work/, a home of its own, and nobody who answers."""
    (tmp_path / "course" / "work").mkdir(parents=True)
    (tmp_path / "course" / "course.toml").touch()
    monkeypatch.chdir(tmp_path / "course" / "work")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(digits.SETTING, raising=False)
    monkeypatch.setattr(digits, "MIRROR", f"http://127.0.0.1:{free_port()}/")
    return tmp_path


def small_mnist() -> dict[str, bytes]:
    """Four files as MNIST's are, with fewer images."""
    files, rng = {}, np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        images = np.array([2051, count, 28, 28], ">i4").tobytes() + rng.bytes(count * 784)
        files[f"{part}-images-idx3-ubyte"] = images
        files[f"{part}-labels-idx1-ubyte"] = np.array([2049, count], ">i4").tobytes() + bytes(
            i % 10 for i in range(count)
        )
    return files


def lay(raw: Path, packed: bool = False) -> Path:
    raw.mkdir(parents=True)
    for name, content in small_mnist().items():
        (raw / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return raw


class Mirror(ThreadingHTTPServer):
    """Serves MNIST's files, each changed by `spoil` on its way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reply)
        self.files = {f"/{name}.gz": gzip.compress(content) for name, content in small_mnist().items()}
        self.promised = {path: len(content) for path, content in self.files.items()}
        self.silent = threading.Event()


class Reply(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        if not self.server.silent.is_set():
            self.send_response(200)
            self.send_header("Content-Length", str(self.server.promised[self.path]))
            self.end_headers()
            self.wfile.write(self.server.files[self.path])
        else:
            threading.Event().wait(2)

    def log_message(self, *about: object) -> None:
        pass


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    with Mirror() as server:
        monkeypatch.setattr(digits, "MIRROR", f"http://127.0.0.1:{server.server_port}/")
        of = {path: hashlib.md5(content).hexdigest() for path, content in server.files.items()}
        monkeypatch.setattr(digits, "DIGESTS", {name: of[f"/{name}.gz"] for name in digits.DIGESTS})
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def left_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# Without MNIST.


def test_offline_real_digits_take_its_place(away: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = digits.get()
    assert found.source == "embedded"
    assert found.description == (
        "There is no copy of MNIST here, and no network connection to download it. These are the handwritten digits "
        "that come with scikit-learn, scaled to 28 × 28 (1,437 training images, 360 test images) instead."
    )
    assert capfd.readouterr() == ("", ""), "quietly"
    assert found.root == away / "course" / "work" / "data" / digits.EMBEDDED
    for train, count in ((True, 1437), (False, 360)):
        images, labels = found.arrays(train)
        assert (images.shape, images.dtype, labels.shape) == ((count, 28, 28), np.uint8, (count,))
        assert set(labels) == set(range(10))
        assert not images[:, :2].any()
        assert images.max() == 255
    assert left_in(away / "course" / "work") == {f"data/{digits.EMBEDDED}/MNIST/raw/{name}" for name in digits.NAMES}


def test_an_image_is_the_one_it_was() -> None:
    from sklearn.datasets import load_digits

    small = load_digits().images[:50]
    large = digits.enlarged(small)[:, 2:-2, 2:-2].astype(float)
    assert np.abs(large[:, 1::3, 1::3] - small / 16 * 255).max() <= 0.5, "the middle of nine new pixels is the old one"
    assert np.abs(large[:, 2::3][:, :-1] - (2 * large[:, 1::3][:, :-1] + large[:, 4::3]) / 3).max() <= 1


def test_who_wants_only_those_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_download", lambda *_: pytest.fail("asked"))
    lay(Path("data") / digits.RAW)
    monkeypatch.setenv(digits.SETTING, "embedded")
    assert digits.get().source == "embedded"


def test_spoiled_ones_are_written_anew() -> None:
    raw = digits.get().root / digits.RAW
    (raw / digits.NAMES[0]).write_bytes(b"half")
    (raw / digits.NAMES[1]).unlink()
    assert len(digits.get().arrays(train=True)[0]) == 1437


def test_a_server_that_says_nothing_holds_nobody_up(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.silent.set()
    monkeypatch.setattr(digits, "ANSWER_S", 0.3)
    assert digits.get().description.startswith(
        "There is no copy of MNIST here, and no network connection to download it. These"
    )


def test_where_work_cannot_be_written_it_is_the_cache_and_then_a_temporary_folder(
    away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("data").write_text("a file, so that no folder can be made")
    assert digits.get().root.parent == away / "cache" / "jaxercise"
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("data").resolve()))
    monkeypatch.setattr(digits.tempfile, "gettempdir", lambda: str(away / "temporary"))
    assert digits.get().root.parent.parent == away / "temporary"


def test_in_this_repository_they_lie_where_git_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "notebooks")
    assert digits._places()[0] == ROOT / "work" / "data"
    ignored = subprocess.run(["git", "check-ignore", "work/data"], cwd=ROOT, check=False, capture_output=True)
    assert ignored.returncode == 0


# MNIST.


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", ["work/data", "cache/jaxercise", "mine", "mine/MNIST", "mine/MNIST/raw"])
def test_a_copy_that_lies_here_is_read(away: Path, monkeypatch: pytest.MonkeyPatch, below: str, packed: bool) -> None:
    root = away / {"work/data": "course/work/data", "cache/jaxercise": below}.get(below, "mine")
    lay(root / digits.RAW, packed)
    if below.startswith("mine"):
        monkeypatch.setenv(digits.SETTING, str(away / below))
    found = digits.get()
    assert (found.root, found.source) == (root, "MNIST")
    assert found.description == f"MNIST, a copy in {root}: 30 training images, 12 test images."
    assert found.arrays(train=True)[0].tobytes() == small_mnist()["train-images-idx3-ubyte"][16:]
    assert list(found.arrays(train=False)[1]) == [i % 10 for i in range(12)]


def test_it_is_downloaded_once(away: Path, mirror: Mirror, capsys: pytest.CaptureFixture[str]) -> None:
    data = away / "course" / "work" / "data"
    assert digits.get().description == f"MNIST, downloaded to {data}: 30 training images, 12 test images."
    assert capsys.readouterr().out == f"Downloading MNIST (12 MB) to {data} ...\n"
    mirror.shutdown()
    assert digits.get().description == f"MNIST, a copy in {data}: 30 training images, 12 test images."
    assert left_in(away / "course" / "work") == {f"data/MNIST/raw/{name}" for name in digits.NAMES}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda content: b"<html>Please log in</html>",
            "The download is not MNIST (perhaps a login page)",
        ),
        (lambda content: content[:200], "The download of MNIST was interrupted"),
    ],
)
def test_a_download_that_is_not_mnist_leaves_nothing(away: Path, mirror: Mirror, spoil, said: str) -> None:
    last = "/train-images-idx3-ubyte.gz"
    mirror.files[last] = spoil(mirror.files[last])
    if said.startswith("The download is not"):
        mirror.promised[last] = len(mirror.files[last])
    found = digits.get()
    assert found.source == "embedded"
    assert found.description.startswith(f"{said}. These are")
    assert {path.split("/")[1] for path in left_in(away / "course" / "work")} == {digits.EMBEDDED}


def test_a_download_that_takes_too_long_leaves_nothing(
    away: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "WHOLE_S", 0.0)
    assert digits.get().description.startswith("The download of MNIST took too long. These are")
    assert {path.split("/")[1] for path in left_in(away / "course" / "work")} == {digits.EMBEDDED}


def test_without_the_package_that_downloads_it_says_so(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert digits.get().description.startswith(
        "There is no copy of MNIST here, and the package pooch, which downloads it, is not installed. These"
    )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


DAMAGES = {
    "it has 1,000 of 23,536 bytes": ("train-images-idx3-ubyte", cut),
    "it is missing": ("t10k-labels-idx1-ubyte", Path.unlink),
    "it does not begin as images of MNIST do": ("t10k-images-idx3-ubyte", lambda path: path.write_bytes(b"<html>")),
    "it has 12 labels for 30 images": (
        "train-labels-idx1-ubyte",
        lambda path: path.write_bytes(small_mnist()["t10k-labels-idx1-ubyte"]),
    ),
    "it has labels beyond 9": (
        "t10k-labels-idx1-ubyte",
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x0a"),
    ),
    "its last image is blank": (
        "train-images-idx3-ubyte",
        lambda path: path.write_bytes(path.read_bytes()[:-2000] + bytes(2000)),
    ),
}


@pytest.mark.parametrize("why", DAMAGES)
def test_damaged_files_are_named_with_the_way_out(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = lay(Path("data").resolve() / digits.RAW)
    name, damage = DAMAGES[why]
    damage(raw / name)
    with pytest.raises(digits.DigitsDamaged) as problem:
        digits.get()
    assert str(problem.value) == (
        f"{raw / name} is incomplete: {why}. Delete the folder {raw} and run this again, or set "
        "JAXERCISE_DIGITS=embedded to continue without MNIST."
    )
    assert problem.value._render_traceback_() == [str(problem.value)]
    monkeypatch.setenv(digits.SETTING, "embedded")
    assert digits.get().source == "embedded"


@pytest.mark.parametrize("spoil", [lambda content: content[:-20], lambda content: b"<html>"])
def test_a_packed_file_that_broke_off_is_named_too(spoil) -> None:
    path = lay(Path("data").resolve() / digits.RAW, packed=True) / "train-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(digits.DigitsDamaged, match=r"train-images-idx3-ubyte.gz is incomplete: it cannot be unpacked"):
        digits.get()


def test_a_folder_without_mnist_is_refused(away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(digits.SETTING, str(away / "elsewhere"))
    with pytest.raises(
        digits.DigitsDamaged, match=r"^JAXERCISE_DIGITS is .*elsewhere, but this folder does not contain"
    ):
        digits.get()


# Readers: torch's own, or their stand-ins.

READ = """
import json, sys
{before}
import numpy as np
from grader.learning import digits, loaders

found = digits.get()
told = {{"text": loaders.DESCRIPTION,
        "torch": loaders.WITH_TORCH, "kept": len(loaders._kept), "is": str(loaders.MNIST)}}
for train in (True, False):
    whole = loaders.MNIST(found.root, train=train, transform=np.asarray)
    images, labels = found.arrays(train)
    assert len(whole) == len(images)
    image, label = whole[3]
    assert (image == images[3]).all() and label == labels[3] and isinstance(label, int)
    assert np.asarray(loaders.MNIST(found.root, train=train)[3][0]).shape == (28, 28), "an image without a transform"
    options = dict(batch_size=100, collate_fn=loaders.numpy_collate, num_workers=0)
    for drop_last in (True, False):
        batches = loaders.DataLoader(whole, drop_last=drop_last, **options)
        seen = [(xs.shape, ys.shape, str(xs.dtype)) for xs, ys in batches]
        assert len(seen) == len(batches)
        told[f"{{train}} {{drop_last}}"] = [len(seen), *seen[-1]]
    assert all((xs == images[100 * i : 100 * i + 100]).all() for i, (xs, ys) in enumerate(batches)), "in order"
    own = np.arange(len(whole))[::-1]
    xs, ys = next(iter(loaders.DataLoader(whole, sampler=own, **options)))
    assert (ys == labels[::-1][:100]).all()
    orders = []
    for number in (1, 1, 2):
        loaders.seed(number)
        orders.append([int(y) for _, ys in loaders.DataLoader(whole, shuffle=True, **options) for y in ys])
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(labels.tolist())
print(json.dumps(told))
"""
WITHOUT = """
class NoTorch:
    def find_spec(self, name, *where):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
"""
DECLARED = """
import torch
library = torch.library.Library("torchvision", "FRAGMENT")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def read(before: str) -> dict[str, object]:
    command = [sys.executable, "-W", "error", "-c", READ.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


def shapes(train: int, test: int) -> dict[str, object]:
    batch = [[100, 28, 28], [100], "uint8"]
    return {
        "True True": [train // 100, *batch],
        "True False": [train // 100 + 1, [train % 100, 28, 28], [train % 100], "uint8"],
        "False True": [test // 100, *batch],
        "False False": [test // 100 + 1, [test % 100, 28, 28], [test % 100], "uint8"],
    }


def test_without_torch_stand_ins_read_the_same_files() -> None:
    told = read(WITHOUT)
    assert told["torch"] is False
    assert str(told["text"]).startswith("torch is not installed: MNIST and DataLoader are stand-ins of this course")
    assert {key: told[key] for key in shapes(1437, 360)} == shapes(1437, 360)


def test_torchvision_reads_them_whether_or_not_its_operators_are_there() -> None:
    pytest.importorskip("torch", reason="set up without torch: its own readers are not there to test")
    missing, there = read(""), read(DECLARED)
    for told in (missing, there):
        assert told["torch"] is True
        assert told["is"] == "<class 'torchvision.datasets.mnist.MNIST'>"
        assert {key: told[key] for key in shapes(1437, 360)} == shapes(1437, 360)
    assert there["kept"] == 0, "declared only where missing"
