"""Rows prepared on disk are those prepared in memory, and train as they do."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.command_line import rejected_with, run_xvfl
from tests.small_tables import interrupt_at, make_tables, train
from xvfl.config import TableOptions
from xvfl.data import id_index
from xvfl.data.encoder import TableEncoder
from xvfl.data.labels import find_labels
from xvfl.dataset.in_memory import rows_of_ids, to_party_table
from xvfl.dataset.on_disk import placement
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.dataset.on_disk.parquet_tables import open_tables
from xvfl.dataset.on_disk.prepare_on_disk import prepare_on_disk
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits, drop_unobserved
from xvfl.errors import DataWarning, InputError
from xvfl.model.run_dir import CHECKPOINT, MODEL, RunDir
from xvfl.model.workflow import evaluate_run
from xvfl.primitives.random import permute
from xvfl.primitives.rows import choose_full_threshold

CONFIG = """
out_of_core = true

[labels]
party = "bank"
column = "churned"

[parties.bank]
table = "bank.parquet"
id_column = "customer"

[parties.shop]
table = "shop.parquet"
id_column = "customer"

[net]
embedding_dim = 8
hidden_dim = 16

[train]
epochs = 3
batch_size = 32
device = "cpu"
"""
SPLITS = Splits(0.2, 0.15, 0)
ROWS = 300


def write_parquet(folder: Path, config: str = CONFIG, rows: int = ROWS) -> Path:
    """Write both tables, the shop's in another order and in small row groups."""
    bank, shop, y = make_tables(rows)
    bank.assign(churned=y).reset_index().to_parquet(folder / "bank.parquet", row_group_size=70)
    shop.sample(frac=1, random_state=1).to_parquet(folder / "shop.parquet", row_group_size=50)
    (folder / "run.toml").write_text(config)
    return folder / "run.toml"


def prepared(folder: Path, **changes: object) -> OnDiskDataset:
    write_parquet(folder)
    return prepared_from(folder, **changes)


def prepared_from(folder: Path, **changes: object) -> OnDiskDataset:
    tables = open_tables(
        {"bank": ("bank.parquet", "customer"), "shop": ("shop.parquet", "customer")},
        "bank",
        "churned",
        folder,
    )
    options: dict[str, TableOptions] = {"bank": TableOptions(na_values=("cook",))}
    plan = PreparationPlan(options, SPLITS, **changes)  # type: ignore[arg-type]
    return prepare_on_disk(tables, plan, folder / "cache")


def parts_of(y: np.ndarray) -> np.ndarray:
    """Divide rows as the stream does, one by one: 0 trains, 1 validates, 2 tests."""
    part = np.zeros(len(y), dtype=np.int64)
    for label in np.unique(y):
        mine = np.flatnonzero(y == label)
        test = round(SPLITS.test * len(mine))
        validation = round(SPLITS.validation * (len(mine) - test))
        for turn, row in enumerate(mine):
            at = int(permute(torch.tensor([turn]), len(mine), SPLITS.seed, "split", int(label)))
            part[row] = 2 if at < test else 1 if at < test + validation else 0
    return part


@pytest.mark.parametrize("class_weight", ["none", "balanced"])
def test_rows_on_disk_are_those_in_memory(tmp_path: Path, class_weight: str) -> None:
    found = prepared(tmp_path, class_weight=class_weight)
    bank, shop, labels = make_tables(ROWS)
    tables = {"bank": bank, "shop": shop.sample(frac=1, random_state=1)}
    y = (labels == "yes").to_numpy().astype(np.int64)
    part = parts_of(y)
    order = np.concatenate([np.flatnonzero(part == which) for which in range(3)])
    ids, training = labels.index[order].tolist(), set(labels.index[part == 0])
    encoders, encoded, own_tables, shares, missing = {}, {}, {}, {}, {}
    for name, table in tables.items():
        options = TableOptions(na_values=("cook",) if name == "bank" else ())
        mine = table[[each in training for each in table.index]]
        encoders[name] = TableEncoder.fit(mine, options, name)
        encoded[name] = encoders[name].encode(
            table.loc[[each for each in ids if each in table.index]]
        )
        own_tables[name] = to_party_table(encoders[name].layout, encoded[name])
        own = torch.tensor([each in training for each in encoded[name].ids])
        shares[name] = choose_full_threshold(own_tables[name].observed[own])
        missing[name] = 1 - np.median(encoded[name].observed[own.numpy()].mean(0))
    rows = rows_of_ids(ids, encoded, own_tables, shares)
    rows = replace(rows, y=torch.from_numpy(y[order]))
    counts = [int((part == which).sum()) for which in range(3)]
    chunks = torch.split(torch.arange(len(ids)), counts)
    rows, (train_rows, validation, _) = drop_unobserved(rows, chunks, class_weight)  # type: ignore[arg-type]

    assert found.classes == ["no", "yes"]
    assert found.full_threshold == pytest.approx(shares)
    assert found.missing_share == pytest.approx(missing)
    assert {n: e.to_dict() for n, e in found.encoders.items()} == {
        n: e.to_dict() for n, e in encoders.items()
    }
    cpu = torch.device("cpu")
    every = found.training_rows(cpu).take(torch.arange(counts[0]), 5)
    assert every.step == 5
    for got, wanted in (
        (every, rows.take(train_rows)),
        (found.validation_rows(cpu), rows.take(validation)),
    ):
        assert torch.equal(got.full, wanted.full) and torch.equal(got.seen, wanted.seen)
        assert torch.equal(got.y, wanted.y) and torch.allclose(got.weight, wanted.weight)
        for i, (name, table) in enumerate(own_tables.items()):
            mine, twin = (
                found.tables[name].take(got.handles[:, i]),
                table.take(wanted.handles[:, i]),
            )
            held = wanted.handles[:, i] >= 0
            assert torch.equal(mine.observed, twin.observed)
            assert torch.equal(mine.values[held], twin.values[held])
            assert torch.equal(mine.codes[held], twin.codes[held])
    held_out = pd.read_parquet(tmp_path / "cache" / "held_out.parquet")["id"]
    assert held_out.tolist() == ids[-counts[2] :]
    found.close()


def test_rows_that_nobody_saw_weigh_nothing(tmp_path: Path) -> None:
    write_parquet(tmp_path)
    y = (make_tables(ROWS)[2] == "yes").to_numpy().astype(np.int64)
    part = parts_of(y)
    trains, validates = (np.flatnonzero((part == which) & (y == 1))[0] for which in (0, 1))
    ids = make_tables(ROWS)[2].index[[trains, validates]]
    for name in ("bank.parquet", "shop.parquet"):
        table = pd.read_parquet(tmp_path / name)
        table = table if "customer" in table else table.reset_index()
        features = table.columns.difference(["customer", "churned"])
        table[features] = table[features].mask(table["customer"].isin(ids))
        table.to_parquet(tmp_path / name)
    with pytest.warns(DataWarning, match="2 rows have no observed feature"):
        found = prepared_from(tmp_path, class_weight="balanced")
    parts = found.sizes
    assert found.counts.tolist() == [int(((part == 0) & (y == c)).sum()) - c for c in (0, 1)]
    every = found.training_rows(torch.device("cpu")).take(torch.arange(parts.train), 0)
    at = int((part[:trains] == 0).sum())
    assert not every.seen[at].any() and every.weight[at] == 0 and (every.weight > 0).sum() > 100
    assert len(found.validation_rows(torch.device("cpu"))) == parts.validation - 1
    found.close()


def test_a_run_streams_from_one_command_to_predictions(tmp_path: Path) -> None:
    config = write_parquet(tmp_path)
    run = tmp_path / "run"
    said = run_xvfl("train", config, "--out", run)
    assert said.code == 0, said
    assert not (run / "cache").exists()
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["held_out"] == "held_out.parquet"
    assert len(pd.read_parquet(run / "held_out.parquet")) == pytest.approx(0.2 * ROWS, abs=2)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_its_cache_to_the_same_weights(tmp_path: Path) -> None:
    config = write_parquet(tmp_path)
    train(config, tmp_path / "straight")
    cut = train(config, tmp_path / "cut", show=interrupt_at(8))
    assert cut.interrupted and (tmp_path / "cut" / "cache" / "metadata.json").exists()
    made = (tmp_path / "cut" / "cache" / "metadata.json").stat().st_mtime_ns
    seen = []

    def show(update: object) -> None:
        seen.append((tmp_path / "cut" / "cache" / "metadata.json").stat().st_mtime_ns)

    train(config, tmp_path / "cut", resume=True, show=show)
    assert set(seen) == {made}
    first, second = (RunDir(tmp_path / name).load_tensors(MODEL)[0] for name in ("straight", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_changed_tables_are_prepared_again_and_refused(tmp_path: Path) -> None:
    config = write_parquet(tmp_path)
    train(config, tmp_path / "run", show=interrupt_at(8))
    bank = pd.read_parquet(tmp_path / "bank.parquet")
    bank.assign(age=bank["age"] + 1).to_parquet(tmp_path / "bank.parquet")
    assert "changed since this run started" in rejected_with(
        "train", config, "--out", tmp_path / "run", "--resume"
    )
    assert RunDir(tmp_path / "run").has(CHECKPOINT)


def test_changed_labels_are_noticed(tmp_path: Path) -> None:
    config = write_parquet(tmp_path)
    train(config, tmp_path / "run", show=interrupt_at(8))
    bank = pd.read_parquet(tmp_path / "bank.parquet")
    yes, no = (np.flatnonzero(bank["churned"] == said)[:4] for said in ("yes", "no"))
    bank.loc[yes, "churned"], bank.loc[no, "churned"] = "no", "yes"
    bank.to_parquet(tmp_path / "bank.parquet", row_group_size=70)
    assert "changed since this run started" in rejected_with(
        "train", config, "--out", tmp_path / "run", "--resume"
    )


@pytest.mark.parametrize("streamed", [True, False])
def test_a_folder_of_somebody_else_stays(tmp_path: Path, streamed: bool) -> None:
    config = write_parquet(tmp_path, CONFIG if streamed else CONFIG.replace("true", "false", 1))
    mine = tmp_path / "cache" / "precious.txt"
    mine.parent.mkdir()
    mine.touch()
    if streamed:
        assert "it holds other files" in rejected_with("train", config, "--out", tmp_path)
    else:
        assert run_xvfl("train", config, "--out", tmp_path).code == 0
    assert mine.exists()


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_cache_that_cannot_be_read_is_made_again(tmp_path: Path, harm: str) -> None:
    config = write_parquet(tmp_path)
    train(config, tmp_path / "straight")
    train(config, tmp_path / "cut", show=interrupt_at(8))
    cache = tmp_path / "cut" / "cache"
    if harm == "cut":
        (cache / "metadata.json").write_text((cache / "metadata.json").read_text()[:100])
    else:
        (cache / "table-bank.bin").unlink()
    train(config, tmp_path / "cut", resume=True)
    first, second = (RunDir(tmp_path / name).load_tensors(MODEL)[0] for name in ("straight", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_many_parties_are_matched_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_index, "MEMORY_LIMIT", "24MB")
    rows, parties = 40_000, 16
    ids = [f"{row:036d}" for row in range(rows)]
    frame = pd.DataFrame({"id": ids, "x": np.arange(rows) % 7, "y": np.arange(rows) % 2})
    frame.to_parquet(tmp_path / "t.parquet")
    named = {f"p{i}": ("t.parquet", "id") for i in range(parties)}
    tables = open_tables(named, "p0", "y", tmp_path)
    folder = tmp_path / "places"
    folder.mkdir()
    found = placement.DiskPlacement(tables, folder)
    match = found.match(find_labels(tables.labels, tables.labels.where), False)
    found.split({code: code for code in match.class_sizes}, SPLITS)
    assert found.sizes.total == rows
    places = [list(id_index.read_places(folder / f"places-p{i}.bin")) for i in (0, parties - 1)]
    assert all(np.array_equal(a, b) for a, b in zip(*places, strict=True))


def test_what_the_database_refuses_is_said_in_our_words(tmp_path: Path) -> None:
    ids = id_index.IdIndex(tmp_path)
    with pytest.raises(InputError, match="ids could not be matched .*free disk space"):
        ids.run("SELECT nothing")
    ids.close()


def test_validation_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MAX_VALIDATION", 20)
    found = prepared(tmp_path)
    assert found.sizes == replace(found.sizes, validation=19, test=60)
    assert found.sizes.total == ROWS
    found.close()


@pytest.mark.slow
def test_labels_in_a_table_of_their_own(tmp_path: Path) -> None:
    text = "use_unlabeled = false\n" + CONFIG.replace(
        'party = "bank"\n', 'table = "labels.parquet"\nid_column = "customer"\n'
    )
    config = write_parquet(tmp_path, text)
    bank, _, y = make_tables(ROWS)
    bank.reset_index().to_parquet(tmp_path / "bank.parquet")
    stray = pd.Series({"nobody": "yes", "neither": "maybe"}, name="churned")
    table = pd.concat([y, stray, pd.Series({"c001 ": None}, name="churned").rename({"c001 ": "z"})])
    table.rename_axis("customer").rename("churned").reset_index().to_parquet(
        tmp_path / "labels.parquet"
    )
    said = run_xvfl("train", config, "--out", tmp_path / "run")
    assert said.code == 0, said
    assert "left out 1 of 303 rows without a label" in said.err
    assert "2 of 302 labeled ids are held by no party" in said.err
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["classes"] == ["no", "yes"]


def test_what_is_wrong_with_the_tables_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    config = write_parquet(tmp_path)
    bank = pd.read_parquet(tmp_path / "bank.parquet")
    run = tmp_path / "run"

    def fails(frame: pd.DataFrame) -> str:
        frame.to_parquet(tmp_path / "bank.parquet")
        said = rejected_with("train", config, "--out", run)
        assert not run.exists()
        return said

    twice = fails(pd.concat([bank, bank.iloc[[4, 4]]]))
    assert "2 rows repeat an earlier id, first 'c004' in data row 301" in twice
    assert "party 'bank', file" in twice
    missing = bank.assign(customer=bank["customer"].mask(bank.index == 120))
    assert "1 of 300 are missing, first in data row 121" in fails(missing)
    assert "shares no id with the labels" in fails(bank.assign(customer="x" + bank["customer"]))
    assert "found only class yes" in fails(bank.assign(churned="yes"))
    assert "unknown label column 'churned'" in fails(bank.drop(columns="churned"))
    assert "unknown id column 'customer'" in fails(bank.rename(columns={"customer": "who"}))


def test_only_parquet_streams(tmp_path: Path) -> None:
    config = write_parquet(tmp_path, CONFIG.replace("shop.parquet", "shop.csv"))
    said = rejected_with("train", config, "--out", tmp_path / "run")
    assert "out_of_core: expected every table in a .parquet file, got 'shop.csv'" in said


@pytest.mark.slow
def test_large_tables_stream_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import xvfl.dataset.on_disk.parquet_tables

    config = write_parquet(tmp_path, CONFIG.replace("out_of_core = true", ""))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        warnings.filterwarnings("ignore", r"all \d+ validation rows", DataWarning)
        train(config, tmp_path / "memory")
    monkeypatch.setattr(xvfl.dataset.on_disk.parquet_tables, "MAX_CELLS_IN_MEMORY", 100)
    train(config, tmp_path / "stream")
    held = [
        json.loads((tmp_path / n / "manifest.json").read_text())["held_out"]
        for n in ("memory", "stream")
    ]
    assert isinstance(held[0], list) and held[1] == "held_out.parquet"


@pytest.mark.slow
def test_evaluation_in_chunks_is_that_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xvfl.data import id_index, join, parquet

    config = write_parquet(tmp_path)
    run = tmp_path / "run"
    train(config, run)
    whole = evaluate_run(RunDir(run))
    for module in (parquet, id_index, join):
        monkeypatch.setattr(module, "CHUNK_ROWS", 16)
    chunks = evaluate_run(RunDir(run))
    manifest = json.loads((run / "manifest.json").read_text())
    held = pd.read_parquet(run / "held_out.parquet")["id"].tolist()
    (run / "manifest.json").write_text(json.dumps({**manifest, "held_out": held}))
    memory = evaluate_run(RunDir(run))
    assert len(memory.lines) == 7 and memory.split == "test"
    for other in (whole, chunks):
        assert other.majority == memory.majority
        for first, second in zip(other.lines, memory.lines, strict=True):
            assert (first.mode, first.party, first.rows) == (second.mode, second.party, second.rows)
            assert first.bytes_per_row == second.bytes_per_row
            assert first.metrics == pytest.approx(second.metrics, abs=1e-6)
