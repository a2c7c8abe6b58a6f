"""torchvision's MNIST and torch's DataLoader, or without torch stand-ins with the same interface.

    from grader.learning.loaders import DataLoader, MNIST

`WITH_TORCH` states which they are, `DESCRIPTION` is a sentence about them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grader.learning import digits

# Compiled operators of torchvision, which one that was built for another torch cannot load; it then does not import,
# though nothing that reads or changes images needs them.
OPERATORS = tuple(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms"))


class StandInMNIST:
    """torchvision.datasets.MNIST as far as lessons use it: (image, label) pairs from existing files. Before
    `transform`, images are NumPy arrays (28, 28) uint8, as np.asarray makes of torchvision's."""

    def __init__(self, root: str | Path, train: bool = True, transform: Callable[[Any], Any] | None = None) -> None:
        self.root, self.transform = Path(root), transform
        self.data, self.targets = digits.read_half(self.root, train)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = self.data[index]
        return image if self.transform is None else self.transform(image), int(self.targets[index])


class StandInDataLoader:
    """torch.utils.data.DataLoader as far as lessons use it; options of worker processes have no effect."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        **of_workers: Any,
    ) -> None:
        self.dataset, self.batch_size, self.shuffle, self.sampler = dataset, batch_size, shuffle, sampler
        self.collate_fn, self.drop_last = collate_fn or numpy_collate, drop_last

    def __len__(self) -> int:
        count = len(self.dataset) if self.sampler is None else len(list(self.sampler))
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = list(range(len(self.dataset)) if self.sampler is None else self.sampler)
        if self.shuffle:
            order = list(_order.permutation(order))
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield self.collate_fn([self.dataset[int(i)] for i in order[start : start + self.batch_size]])


def numpy_collate(examples: list[Any]) -> Any:
    """Returns a list of examples as a batch of NumPy arrays: pairs become a pair of stacks."""
    if isinstance(examples[0], tuple | list):
        return tuple(numpy_collate(list(column)) for column in zip(*examples, strict=True))
    return np.stack([np.asarray(example) for example in examples])


def seed(number: int) -> None:
    """Seeds the order in which loaders shuffle from here on."""
    global _order
    _order = np.random.default_rng(number)
    if WITH_TORCH:
        import torch

        torch.manual_seed(number)


def _torchvision() -> Any:
    """Imports torchvision.datasets, with operators declared that it cannot load. Raises ImportError, OSError or
    RuntimeError."""
    import torch

    try:
        import torchvision.datasets
    except RuntimeError as problem:
        if "torchvision::" not in str(problem):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in OPERATORS:
            library.define(schema)
        _kept.append(library)  # with it the declarations would go
        import torchvision.datasets
    return torchvision.datasets


_kept: list[Any] = []
_order = np.random.default_rng(0)
MNIST: Any
try:
    MNIST = _torchvision().MNIST
    from torch.utils.data import DataLoader

    WITH_TORCH = True
    DESCRIPTION = f"torch {sys.modules['torch'].__version__} and torchvision {sys.modules['torchvision'].__version__}"
except (ImportError, OSError, RuntimeError) as _why:
    MNIST, DataLoader, WITH_TORCH = StandInMNIST, StandInDataLoader, False
    DESCRIPTION = f"torch cannot be used here ({type(_why).__name__})"
    DESCRIPTION = "torch is not installed" if isinstance(_why, ModuleNotFoundError) else DESCRIPTION
    DESCRIPTION += (
        ": MNIST and DataLoader are stand-ins of this course, with the same interface and without worker processes"
    )
SAYS = DESCRIPTION  # its name in lessons that were released earlier
