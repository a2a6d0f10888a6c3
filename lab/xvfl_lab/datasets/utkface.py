"""UTKFace, aligned and cropped (Zhang, Song, Qi, CVPR 2017): 23,705 faces; the label is gender.

The publisher's 200 × 200 JPEG files are scaled to 64 × 64 (bilinear, antialiased) as the packs
are, then halved to 32 × 32. Rows are sorted by file name and test rows are chosen by file name, so
both sources give the same task.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from xvfl.errors import InputError
from xvfl_lab.datasets.archive import members
from xvfl_lab.datasets.image_sets import ImageSet, Pixels, from_jpeg, halve, unpack
from xvfl_lab.datasets.source import DataSet, FileFormat, fixed_fraction

NAME = re.compile(r"(?P<age>\d+)_(?P<gender>[01])_(?P<race>[0-4])_\d+ ?\.?jpg(\.chip\.jpg)?$")
"""[age]_[gender]_[race]_[date].jpg.chip.jpg; a few files lack the race and are left out.

One name of the publisher's has a blank before the first dot, one lacks that dot.
"""


def read_folder(files: Sequence[Path]) -> ImageSet:
    """Read the publisher's folder or archive of JPEG files."""
    pixels: dict[str, Pixels] = {}
    for name, data in members(files[0], lambda name: NAME.match(_file(name)) is not None):
        if _file(name) not in pixels:  # some archives hold the same faces twice
            pixels[_file(name)] = halve(from_jpeg([data], 64))
    if not pixels:
        raise InputError(
            f"{files[0]}: expected files like 25_0_2_20170116.jpg.chip.jpg, found none"
        )
    return _image_set(np.concatenate(list(pixels.values())), list(pixels))


def read_packs(files: Sequence[Path]) -> ImageSet:
    """Read the three packs of 64 × 64 pixels."""
    pixels, names = [], []
    for path in files:
        with path.open("rb") as file, np.load(file) as pack:
            pixels.append(halve(unpack(pack["d"])))
            names += pack["name"].astype(str).tolist()
    return _image_set(np.concatenate(pixels), names)


def _image_set(pixels: Pixels, names: Sequence[str]) -> ImageSet:
    order = np.argsort(np.array(names))
    ordered = [names[i] for i in order]
    y = np.array([int(name.split("_")[1]) for name in ordered], dtype=np.int64)
    test = fixed_fraction([name.split(".")[0] for name in ordered], "utkface")
    return ImageSet("utkface", pixels[order], y, test)


def _file(name: str) -> str:
    return name.rsplit("/", 1)[-1]


DATA_SET = DataSet(
    name="utkface",
    title="UTKFace, aligned and cropped: gender of a face",
    rows=23_705,
    size=106_634_631,
    license="non-commercial research only; copyright stays with the image owners",
    page="https://susanqq.github.io/UTKFace/",
    formats=(
        FileFormat(("UTKFace|UTKFace.tar.gz|UTKFace.zip",), read_folder, 23_705),
        FileFormat(tuple(f"utkface/utkface64_{i}.npz" for i in range(3)), read_packs, 23_704),
    ),
    version=2,
    instructions="the publisher hands it out through a form on its page: ask for the aligned and "
    "cropped faces, UTKFace.tar.gz",
)
