"""Rows in files: written anywhere, read in blocks."""

from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xvfl.dataset.on_disk.block_file import BlockFile, RowWriter, read_rows
from xvfl.dataset.on_disk.disk_rows import DiskTable, WindowOrder, block_rows, row_bytes, to_bytes
from xvfl.primitives.layout import Feature, Layout
from xvfl.primitives.random import permute

LAYOUT = Layout(
    (Feature("a", "numeric", 1), Feature("b", "category", 3), Feature("c", "hashed", 4, 128))
)


def stored(path: Path, rows: int, block: int, kept: int) -> tuple[BlockFile, np.ndarray]:
    data = np.random.default_rng(0).integers(0, 255, (rows, 12)).astype(np.uint8)
    writer = RowWriter(path, rows, np.uint8, 12)
    order = np.random.default_rng(1).permutation(rows)
    for some in np.array_split(order, 5):
        writer.put(some, data[some])
    return BlockFile(path, 12, block, kept), data


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 6), st.integers(0, 1000))
def test_any_rows_are_read_as_written(
    tmp_path_factory: object, rows: int, block: int, kept: int, seed: int
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "rows.bin"  # type: ignore[attr-defined]
    file, data = stored(path, rows, block, kept)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        places = rng.integers(0, rows, rng.integers(0, 60))
        assert np.array_equal(file.take(places), data[places])
    file.close()


def test_a_file_takes_its_space_at_once(tmp_path: Path) -> None:
    """So a full disk is refused here: writing into a mapping without space would kill us."""
    RowWriter(tmp_path / "rows.bin", 1000, np.int32, 100)
    about = (tmp_path / "rows.bin").stat()
    assert about.st_size == 400_000 <= 512 * about.st_blocks
    RowWriter(tmp_path / "none.bin", 0, np.int32, 100)
    assert (tmp_path / "none.bin").stat().st_size == 0


def test_some_columns_are_written_alone(tmp_path: Path) -> None:
    writer = RowWriter(tmp_path / "x", 10, np.int32, 3)
    writer.put(np.arange(10), np.full((10, 3), -1, dtype=np.int32))
    again = RowWriter(tmp_path / "x", 10, np.int32, 3, keep=True)
    again.put(np.array([7, 2]), np.array([[70], [20]], dtype=np.int32), column=1)
    found = np.concatenate(list(read_rows(tmp_path / "x", 3, 4)))
    assert found[7].tolist() == [-1, 70, -1] and found[2].tolist() == [-1, 20, -1]
    assert (found[[0, 1, 3, 4, 5, 6, 8, 9]] == -1).all()


def test_a_stored_table_gives_the_rows_that_were_encoded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((50, 4), dtype=np.float32)
    codes = rng.integers(0, 128, (50, 1))
    observed = rng.random((50, 3)) < 0.5
    RowWriter(tmp_path / "t", 50, np.uint8, row_bytes(LAYOUT)).put(
        np.arange(50), to_bytes(values, codes, observed)
    )
    file = BlockFile(tmp_path / "t", row_bytes(LAYOUT), 8)
    handles = torch.tensor([3, -1, 49, 3])
    found = DiskTable(LAYOUT, file).take(handles)
    assert torch.equal(found.values[[0, 2, 3]], torch.from_numpy(values[[3, 49, 3]]))
    assert torch.equal(found.codes[[0, 2, 3]], torch.from_numpy(codes[[3, 49, 3]]))
    assert torch.equal(found.observed[[0, 2, 3]], torch.from_numpy(observed[[3, 49, 3]]))
    assert not found.observed[1].any()
    file.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 16), st.integers(1, 900))
def test_an_epoch_in_windows_holds_every_row_once(count: int, block: int, batch: int) -> None:
    order = WindowOrder(count, block, 3, 1)
    got = [order.rows(at, min(at + batch, count)) for at in range(0, count, batch)]
    assert torch.equal(torch.cat(got).sort().values, torch.arange(count))
    again = WindowOrder(count, block, 3, 1)
    at = (count // batch // 2) * batch
    assert torch.equal(again.rows(at, min(at + batch, count)), got[at // batch])


def test_epochs_differ_and_a_batch_comes_from_all_over_the_file() -> None:
    count = 1_000_000
    first, second = (WindowOrder(count, 256, 3, epoch).rows(0, 1024) for epoch in (0, 1))
    assert not torch.equal(first, second)
    assert len(torch.unique(first // 256)) > 200
    tenths = torch.bincount(first * 10 // count, minlength=10)
    assert tenths.min() > 40


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 5))
def test_a_shuffle_without_a_list_is_a_permutation(count: int, seed: int) -> None:
    places = permute(torch.arange(count), count, seed, "split")
    assert torch.equal(places.sort().values, torch.arange(count))
    some = torch.arange(0, count, 3)
    assert torch.equal(permute(some, count, seed, "split"), places[some])


def test_wide_rows_make_small_blocks() -> None:
    wide = Layout(tuple(Feature(f"x{i}", "numeric", 1) for i in range(1000)))
    assert block_rows([LAYOUT]) == 256
    assert block_rows([LAYOUT, wide]) == 8
