"""CIFAR-10 (A. Krizhevsky, 2009): 60,000 color images of 32 × 32, ten classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xvfl.errors import InputError
from xvfl_lab.datasets.archive import members
from xvfl_lab.datasets.image_sets import ImageSet, unpack
from xvfl_lab.datasets.source import DataSet, Download, FileFormat

BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PACKS = (*(f"cifar10/train_{i}.npz" for i in range(5)), "cifar10/test.npz")
CLASSES = 10
RECORD = 1 + 3 * 32 * 32
"""Bytes of an image in the binary version: its class, then the red, green and blue planes."""


def read_binary(files: Sequence[Path]) -> ImageSet:
    """Read the publisher's binary version, an archive or a folder."""
    contents = dict(members(files[0], lambda name: name.endswith(BATCHES)))
    batches = {name.rsplit("/", 1)[-1]: data for name, data in contents.items()}
    records = []
    for name in BATCHES:
        data = batches.get(name, b"")
        if not data or len(data) % RECORD:
            raise InputError(
                f"{files[0]}: expected {name} of {RECORD} bytes an image, found {len(data)} bytes; "
                "get the archive again"
            )
        records.append(np.frombuffer(data, dtype=np.uint8).reshape(-1, RECORD))
    test = np.repeat([name == BATCHES[-1] for name in BATCHES], [len(each) for each in records])
    table = np.concatenate(records)
    if table[:, 0].max() >= CLASSES:
        raise InputError(
            f"{files[0]}: expected classes 0 to 9, found {table[:, 0].max()}; get the archive again"
        )
    pixels = table[:, 1:].reshape(-1, 3, 32, 32)
    return ImageSet("cifar10", pixels, table[:, 0].astype(np.int64), test)


def read_packs(files: Sequence[Path]) -> ImageSet:
    """Read the packs, five of training images and one of test images."""
    pixels, y = [], []
    for path in files:
        with path.open("rb") as file, np.load(file) as pack:
            pixels.append(unpack(pack["d"]))
            y.append(pack["y"].astype(np.int64))
    test = np.repeat([path == files[-1] for path in files], [len(each) for each in y])
    return ImageSet("cifar10", np.concatenate(pixels), np.concatenate(y), test)


DATA_SET = DataSet(
    name="cifar10",
    title="CIFAR-10: ten classes of small images",
    rows=60_000,
    size=170_052_171,
    license="none stated; free for research, cite the 2009 report",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    formats=(
        FileFormat(("cifar-10-binary.tar.gz|cifar-10-batches-bin",), read_binary, 60_000),
        FileFormat(PACKS, read_packs, 60_000),
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar10/cifar-10-binary.tar.gz",
            170_052_171,
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    unusable={
        "cifar-10-python.tar.gz|cifar-10-batches-py": "the Python version is pickled, which xvfl "
        "never loads: get the binary version"
    },
)
