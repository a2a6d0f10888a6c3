"""TinyImageNet-5: the first five classes of Tiny ImageNet-200 (Stanford CS231n).

The paper does not name its five classes; these are the first five of the publisher's wnids.txt.
Images of 64 × 64 are halved to 32 × 32.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xvfl.errors import InputError
from xvfl_lab.datasets.archive import members
from xvfl_lab.datasets.image_sets import ImageSet, from_jpeg, halve
from xvfl_lab.datasets.source import DataSet, Download, FileFormat

CLASSES = 5


def read_folders(files: Sequence[Path]) -> ImageSet:
    """Read the publisher's folders or .zip: wnids.txt, train/, val/."""
    texts = dict(members(files[0], lambda n: n.endswith(("/wnids.txt", "/val_annotations.txt"))))
    by_name = {name.rsplit("/", 1)[-1]: data.decode("utf-8-sig") for name, data in texts.items()}
    if len(by_name) < 2:
        raise InputError(f"{files[0]}: expected wnids.txt and val/val_annotations.txt; get it anew")
    class_of = {wnid: i for i, wnid in enumerate(by_name["wnids.txt"].split()[:CLASSES])}
    validation = {}
    for line in filter(str.strip, by_name["val_annotations.txt"].splitlines()):
        file, wnid = line.split("\t")[:2]
        if wnid in class_of:
            validation[file] = class_of[wnid]

    def label(name: str) -> int | None:
        file = name.rsplit("/", 1)[-1]
        if "/val/" in name:
            return validation.get(file)
        return class_of.get(file.split("_")[0]) if "/train/" in name else None

    def wanted(name: str) -> bool:
        return name.endswith(".JPEG") and label(name) is not None

    images = sorted(members(files[0], wanted), key=lambda each: ("/val/" in each[0], each[0]))
    y = np.array([label(name) for name, _ in images], dtype=np.int64)
    test = np.array(["/val/" in name for name, _ in images], dtype=bool)
    return _image_set([data for _, data in images], y, test)


def read_pack(files: Sequence[Path]) -> ImageSet:
    """Read the pack of original JPEG files."""
    with files[0].open("rb") as file, np.load(file) as pack:
        blob, ends = pack["blob"].tobytes(), pack["off"]
        y, test = pack["y"].astype(np.int64), pack["val"].astype(bool)
        names = pack["name"].astype(str)
    order = sorted(range(len(y)), key=lambda i: (test[i], names[i]))
    jpegs = [blob[ends[i] : ends[i + 1]] for i in order]
    return _image_set(jpegs, y[order], test[order])


def _image_set(jpegs: Sequence[bytes], y: NDArray[np.int64], test: NDArray[np.bool_]) -> ImageSet:
    return ImageSet("tinyimagenet5", halve(from_jpeg(jpegs, 64)), y, test)


DATA_SET = DataSet(
    name="tinyimagenet5",
    title="TinyImageNet-5: five classes of Tiny ImageNet-200",
    rows=2_750,
    size=248_100_043,
    license="ImageNet terms: non-commercial research and education",
    page="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    formats=(
        FileFormat(("tiny-imagenet-200|tiny-imagenet-200.zip",), read_folders, 2_750),
        FileFormat(("tinyimagenet/tin5_wnids_order_jpeg.npz",), read_pack, 2_750),
    ),
    downloads=(
        Download(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tinyimagenet5/tiny-imagenet-200.zip",
            248_100_043,
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
        ),
    ),
)
