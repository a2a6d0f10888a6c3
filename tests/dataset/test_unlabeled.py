"""Rows without a label: which rows train, in memory and from disk."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.small_tables import make_tables
from xvfl.data.labels import labels_of_party, read_labels
from xvfl.dataset.in_memory import InMemoryDataset, prepare_in_memory
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.dataset.on_disk.parquet_tables import open_tables
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import RowCounts, Splits
from xvfl.errors import DataWarning
from xvfl.primitives.rows import RowSource

ROWS, LABELED, TRAIN = 300, 60, 40
SPLITS = Splits(0.2, 0.15, 0)
CPU = torch.device("cpu")
BANK, SHOP, Y = make_tables(ROWS)
FEW = Y.where(np.arange(ROWS) % 5 == 0)
"""A label for every fifth row."""


def in_memory(party: bool, unlabeled: bool = True) -> InMemoryDataset:
    plan = PreparationPlan({}, SPLITS, unlabeled=unlabeled)
    if not party:
        labels = read_labels(FEW.dropna(), allow_missing=unlabeled)
        return prepare_in_memory({"bank": BANK, "shop": SHOP}, labels, plan)
    sources = {"bank": BANK.assign(churned=FEW), "shop": SHOP}
    return prepare_in_memory(
        *labels_of_party(sources, "bank", "churned", allow_missing=unlabeled), plan
    )


def on_disk(folder: Path, party: bool, unlabeled: bool = True) -> OnDiskDataset:
    bank = BANK.assign(churned=FEW) if party else BANK
    for name, table in {"bank": bank, "shop": SHOP, "labels": FEW.dropna().to_frame()}.items():
        table.reset_index().to_parquet(folder / f"{name}.parquet", row_group_size=70)
    files = {name: (f"{name}.parquet", "customer") for name in ("bank", "shop")}
    labels = "bank" if party else ("labels.parquet", "customer")
    tables = open_tables(files, labels, "churned", folder)
    return prepare_on_disk(tables, PreparationPlan({}, SPLITS, unlabeled=unlabeled), folder / "c")


@pytest.mark.parametrize("party", [False, True])
def test_unlabeled_rows_train_and_only_labeled_ones_validate_and_test(
    tmp_path: Path, party: bool
) -> None:
    memory, disk = in_memory(party), on_disk(tmp_path, party)
    for each in (memory, disk):
        counts = each.row_counts()
        assert counts.unlabeled == ROWS - LABELED
        assert counts.labeled + counts.validation + counts.test == LABELED
        assert bool((each.validation_rows(CPU).y >= 0).all())
        assert sum(each.prior()) == pytest.approx(1)
    assert str(memory.row_counts()) == "40 labeled and 240 unlabeled rows"
    assert bool((memory.rows.y[memory.test] >= 0).all())
    assert disk.row_counts() == memory.row_counts()
    assert disk.prior() == pytest.approx(memory.prior())
    rows = disk.training_rows(CPU)
    rows_in_memory = memory.training_rows(CPU)
    assert rows.epoch_size == rows_in_memory.epoch_size == 4 * TRAIN
    taken = rows.take(torch.arange(len(rows)))
    assert taken.weight[:TRAIN].tolist() == [4.0] * TRAIN
    assert taken.y.tolist()[TRAIN:] == [-1] * 240 == rows_in_memory.y.tolist()[TRAIN:]
    assert torch.equal(taken.weight.sort().values, rows_in_memory.weight.sort().values)
    disk.close()


@pytest.mark.parametrize("party", [False, True])
def test_unlabeled_rows_have_their_own_features(tmp_path: Path, party: bool) -> None:
    """The features of unlabeled rows on disk are those of the parties' tables."""
    disk = on_disk(tmp_path, party)
    rows = disk.training_rows(CPU).take(torch.arange(TRAIN, TRAIN + 240))
    for i, (name, table) in enumerate({"bank": BANK, "shop": SHOP}.items()):
        own = table[table.index.isin(FEW.index[FEW.isna()])]
        encoded = disk.encoders[name].encode(own)  # type: ignore[arg-type]
        held = rows.handles[:, i] >= 0
        assert int(held.sum()) == len(own)
        stored = disk.tables[name].take(rows.handles[held, i]).values.numpy()
        as_sets = [sorted(map(tuple, each.tolist())) for each in (stored, encoded.values)]
        assert as_sets[0] == as_sets[1]
        seen = disk.tables[name].take(rows.handles[:, i]).observed.any(1)
        assert torch.equal(seen, rows.seen[:, i])
    bank_and_shop = (rows.handles >= 0).all(1)
    assert int(bank_and_shop.sum()) == len(SHOP.index.intersection(FEW.index[FEW.isna()]))
    disk.close()


def epochs_of(rows: RowSource, epochs: int) -> list[torch.Tensor]:
    return [rows.order([0], epoch)(0, rows.epoch_size) for epoch in range(epochs)]


def test_every_unlabeled_row_is_used_and_labeled_rows_once_an_epoch(tmp_path: Path) -> None:
    disk = on_disk(tmp_path, True)
    for rows in (in_memory(True).training_rows(CPU), disk.training_rows(CPU)):
        epochs = epochs_of(rows, 30)
        for order in epochs:
            assert (order < TRAIN).sum() == TRAIN and len(order.unique()) == len(order) == 4 * TRAIN
        assert len(torch.cat(epochs).unique()) == TRAIN + 240
    disk.close()


@pytest.mark.parametrize("party", [False, True])
def test_without_unlabeled_rows_nothing_changes(tmp_path: Path, party: bool) -> None:
    labeled = FEW.dropna()
    if party:
        with pytest.warns(DataWarning, match="left out 240 of 300 rows without a label"):
            memory = in_memory(party, unlabeled=False)
        with pytest.warns(DataWarning, match="left out 240 of 300 rows without a label"):
            disk = on_disk(tmp_path, party, unlabeled=False)
    else:
        memory, disk = in_memory(party, unlabeled=False), on_disk(tmp_path, party, unlabeled=False)
    assert memory.ids == labeled.index.tolist()
    assert memory.row_counts() == disk.row_counts() == RowCounts(TRAIN, 0, 8, 12)
    assert memory.training_rows(CPU).weight.unique().tolist() == [1.0]
    disk.close()


def test_labels_for_all_rows_give_the_dataset_without_unlabeled_rows() -> None:
    sources, labels = {"bank": BANK, "shop": SHOP}, read_labels(Y)
    plain, with_rest = (
        prepare_in_memory(sources, labels, PreparationPlan({}, SPLITS, unlabeled=unlabeled))
        for unlabeled in (False, True)
    )
    assert plain.fingerprint() == with_rest.fingerprint()
    assert torch.equal(plain.rows.weight, with_rest.rows.weight)


def test_an_id_without_label_that_no_party_holds_is_ignored() -> None:
    more = pd.concat([FEW.dropna(), pd.Series({"nobody": None})])
    dataset = prepare_in_memory(
        {"bank": BANK, "shop": SHOP},
        read_labels(more, allow_missing=True),
        PreparationPlan({}, SPLITS, unlabeled=True),
    )
    assert "nobody" not in dataset.ids and len(dataset.ids) == ROWS
