"""Image data sets in their publishers' formats, made here small, and the packs."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from lab_tests.datasets.packs import needs_packs
from xvfl.errors import InputError
from xvfl_lab.datasets import cifar10, data_set, prepare
from xvfl_lab.datasets.image_sets import halve, unpack
from xvfl_lab.task import Task

RNG = np.random.default_rng(0)


def joined(task: Task) -> NDArray[np.uint8]:
    return np.concatenate([task.values[party] for party in task.layouts], axis=3)


def jpeg(color: tuple[int, int, int], side: int, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), color).convert(mode).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.mark.parametrize("archive", [True, False])
def test_cifar10_binary_version(tmp_path: Path, archive: bool) -> None:
    pixels = RNG.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    classes = np.arange(12, dtype=np.uint8) % 10
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for i, name in enumerate(names):
        rows = range(2 * i, 2 * i + 2)
        (folder / name).write_bytes(
            b"".join(bytes([classes[r]]) + pixels[r].tobytes() for r in rows)
        )
    if archive:
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as file:
            file.add(folder, "cifar-10-batches-bin")
    task = prepare("cifar10", 4, tmp_path)
    assert list(task.layouts) == ["strip1", "strip2", "strip3", "strip4"]
    assert {layout.image for layout in task.layouts.values()} == {(3, 32, 8)}
    assert np.array_equal(joined(task), pixels)
    assert task.y.tolist() == classes.tolist()
    assert task.test is not None and task.test.tolist() == [False] * 10 + [True] * 2


def test_cifar10_in_pickles_is_refused_with_what_to_get(tmp_path: Path) -> None:
    (tmp_path / "cifar10" / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(
        InputError, match="pickled.*get the binary version.*xvfl-lab data get cifar10"
    ):
        prepare("cifar10", 2, tmp_path)


def test_cifar10_cut_short(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(InputError, match="expected data_batch_1.bin of 3073 bytes an image"):
        prepare("cifar10", 2, tmp_path)
    for name in cifar10.BATCHES:
        (folder / name).write_bytes(b"\xff" * 3073)
    with pytest.raises(InputError, match="expected classes 0 to 9, found 255"):
        prepare("cifar10", 2, tmp_path)


def tiny_folders(root: Path) -> None:
    """Write seven classes, of which the first five count; one image is gray.

    As some editors leave texts: with a mark at their start and an empty line at their end.
    """
    wnids = [f"n0000000{i}" for i in (5, 3, 1, 7, 2, 4, 6)]
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n\n", "utf-8-sig")
    lines = []
    for i, wnid in enumerate(wnids):
        images = root / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in range(2):
            mode = "L" if (i, number) == (0, 1) else "RGB"
            (images / f"{wnid}_{number}.JPEG").write_bytes(jpeg((30 * i, 30 * i, 30 * i), 64, mode))
        (root / "val" / "images" / f"val_{i}.JPEG").write_bytes(jpeg((30 * i, 200, 0), 64))
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n\n", "utf-8-sig")


@pytest.mark.parametrize("archive", [True, False])
def test_tinyimagenet_folders(tmp_path: Path, archive: bool) -> None:
    root = tmp_path / "made" / "tiny-imagenet-200"
    tiny_folders(root)
    if archive:
        with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as file:
            for each in root.rglob("*"):
                file.write(each, each.relative_to(root.parent))
    task = prepare("tinyimagenet5", 2, tmp_path if archive else root.parent)
    assert task.test is not None
    assert np.bincount(task.y[~task.test]).tolist() == [2] * 5
    assert sorted(task.y[task.test].tolist()) == [0, 1, 2, 3, 4]
    red = joined(task)[:, 0].mean((1, 2))
    assert np.abs(red - 30 * task.y).max() < 3, "each image has its own class"
    assert task.values["left"].shape == (15, 3, 32, 16)


@pytest.mark.parametrize("form", ["folder", "UTKFace.tar.gz"])
def test_utkface_names(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "made" / "UTKFace"
    folder.mkdir(parents=True)
    for age in range(20):
        gender = age % 2
        name = f"{age}_{gender}_{age % 5}_2017011617470{age:04}.jpg.chip.jpg"
        (folder / name).write_bytes(jpeg((10 * age, 100 * gender, 0), 200))
    (folder / "39_1_20170116174525125.jpg.chip.jpg").write_bytes(jpeg((0, 0, 0), 200))
    (folder / "again").mkdir()
    (folder / "again" / name).write_bytes(jpeg((0, 0, 0), 200))
    if form != "folder":
        with tarfile.open(tmp_path / form, "w:gz") as file:
            file.add(folder, "UTKFace")
    task = prepare("utkface", 2, tmp_path if form != "folder" else folder.parent)
    assert len(task) == 20 and task.test is not None and task.test.sum() == 4
    assert np.abs(joined(task)[:, 1].mean((1, 2)) - 100 * task.y).max() < 4
    ages = np.rint(joined(task)[:, 0].mean((1, 2)) / 10)
    assert ages.tolist() == sorted(range(20), key=lambda age: f"{age}_"), "in the order of names"


def test_two_odd_names_of_utkface_are_faces_too(tmp_path: Path) -> None:
    (tmp_path / "UTKFace").mkdir()
    for name in (
        "24_0_1_20170116220224657 .jpg.chip.jpg",
        "55_1_0_20170116232725357jpg.chip.jpg",
        "61_1_20170109142408075.jpg.chip.jpg",
    ):
        (tmp_path / "UTKFace" / name).write_bytes(jpeg((0, 0, 0), 200))
    assert prepare("utkface", 2, tmp_path).y.tolist() == [0, 1]


def test_utkface_without_faces(tmp_path: Path) -> None:
    (tmp_path / "UTKFace").mkdir()
    with pytest.raises(InputError, match="expected files like 25_0_2"):
        prepare("utkface", 2, tmp_path)


def test_packs_are_undone_exactly() -> None:
    pixels = RNG.integers(0, 256, (5, 3, 6, 4), dtype=np.uint8)
    red, green, blue = pixels.swapaxes(0, 1)
    planes = np.stack([red - green, green, blue - green])
    packed = np.diff(np.diff(planes, axis=2, prepend=0), axis=3, prepend=0).astype(np.uint8)
    assert np.array_equal(unpack(packed), pixels)


def test_halving_is_the_rounded_mean() -> None:
    pixels = np.array([[[[0, 1, 255, 255], [0, 1, 255, 254]]]], dtype=np.uint8)
    assert halve(pixels).tolist() == [[[[1, 255]]]]


@needs_packs
@pytest.mark.parametrize("parties", [2, 4])
def test_the_pack_of_tinyimagenet(parties: int) -> None:
    task = prepare("tinyimagenet5", parties)
    assert task.test is not None and len(task.layouts) == parties
    assert np.bincount(task.y[~task.test]).tolist() == [500] * 5
    assert np.bincount(task.y[task.test]).tolist() == [50] * 5
    lemons = joined(task)[task.y == 4].mean((0, 2, 3))
    assert lemons[0] - lemons[2] > 50, "lemons are yellow"


def test_images_are_split_over_two_or_four() -> None:
    with pytest.raises(InputError, match="expected 2 or 4 parties, got 3"):
        prepare("cifar10", 3)
    assert data_set("cifar10").splits == (2, 4)
