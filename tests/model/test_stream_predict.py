"""Predicting in a stream gives, row for row and bit for bit, what predicting at once gives."""

from pathlib import Path

import pandas as pd
import pytest

from tests.command_line import rejected_with, run_xvfl
from tests.small_tables import make_tables, write_run_inputs
from xvfl.data import id_index, join, parquet
from xvfl.data.frames import read_table
from xvfl.data.parquet import open_parquet
from xvfl.methods import Mode
from xvfl.model.model import Model
from xvfl.model.run_dir import RunDir
from xvfl.model.stream_predict import predict_stream
from xvfl.training.predict import BLOCK

ROWS = 400
CHUNK = 32


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scoring")
    said = run_xvfl("train", write_run_inputs(folder, rows=ROWS), "--out", folder / "run")
    assert said.code == 0, said
    return folder / "run"


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Write new tables: the shop in another order, with rows the bank does not have, and odd cells.

    Chunks and batches are made small, and of one size, so that several of each are needed.
    """
    for module in (parquet, id_index, join):
        monkeypatch.setattr(module, "CHUNK_ROWS", CHUNK)
    for name in ("BATCH", "BLOCK"):
        monkeypatch.setattr(f"xvfl.training.predict.{name}", CHUNK)
    bank, shop, _ = make_tables(ROWS, seed=5)
    bank.loc[bank.index[3], "job"] = "spy"
    bank.loc[bank.index[7], ["age", "balance", "job"]] = None
    shop = shop.rename(lambda each: each.replace("c0", "d0")).sample(frac=1, random_state=2)
    paths = {"bank": tmp_path / "bank.parquet", "shop": tmp_path / "shop.parquet"}
    bank.reset_index().to_parquet(paths["bank"], index=False, row_group_size=45)
    shop.to_parquet(paths["shop"], row_group_size=30)
    return paths


WAYS: list[tuple[Mode | None, str | None, tuple[str, ...]]] = [
    ("local", "bank", ("bank",)),
    ("local", "shop", ("bank", "shop")),
    ("assisted", "bank", ("bank", "shop")),
    ("assisted", "shop", ("bank", "shop")),
    ("peers", "shop", ("bank", "shop")),
    ("collaborative", None, ("shop", "bank")),
    (None, None, ("bank", "shop")),
    (None, None, ("shop",)),
]


@pytest.mark.parametrize(("mode", "party", "given"), WAYS)
def test_a_stream_answers_as_the_whole_table(
    run: Path,
    tables: dict[str, Path],
    mode: Mode | None,
    party: str | None,
    given: tuple[str, ...],
    tmp_path: Path,
) -> None:
    model = Model.load(RunDir(run))
    sources = {name: read_table(tables[name], id_column="customer", party=name) for name in given}
    expected = model.predict(sources, mode, party).frame()
    told = []
    answered = predict_stream(
        model,
        {name: open_parquet(tables[name], "customer", f"party {name!r}") for name in given},
        mode,
        party,
        tmp_path / "out.parquet",
        lambda text, share: told.append((text, share)),
    )
    found = pd.read_parquet(tmp_path / "out.parquet").set_index("id")
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_index_type=False)
    assert told[-1] == (f"{len(expected)} of {len(expected)} rows", 1.0)
    assert answered.rows == len(expected) and len(told) > 5
    alone = expected["notes"] == "no gap: decided alone"
    assert answered.with_notes == ((expected["notes"] != "") & ~alone).sum()
    assert answered.decided_alone == alone.sum()
    assert dict(answered.modes) == expected["mode"].value_counts().to_dict()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        ["bank.parquet", "shop.parquet", "out.parquet"]
    )


def test_chunks_are_whole_blocks() -> None:
    assert parquet.CHUNK_ROWS % BLOCK == 0


def test_the_command_streams_parquet_and_writes_csv_too(
    run: Path, tables: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("a.parquet", "b.csv"):
        said = run_xvfl("predict", run, f"bank={tables['bank']}", "--out", tmp_path / name)
        assert said.code == 0 and f"wrote {ROWS} rows" in said.out, said
    first, second = pd.read_parquet(tmp_path / "a.parquet"), pd.read_csv(tmp_path / "b.csv")
    assert first["id"].tolist() == second["id"].tolist()
    assert first["proba_yes"].to_numpy() == pytest.approx(second["proba_yes"].to_numpy())


def test_no_rows_make_a_file_without_rows(
    run: Path, tables: dict[str, Path], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.parquet"
    pd.read_parquet(tables["bank"]).head(0).to_parquet(empty)
    said = run_xvfl("predict", run, f"bank={empty}", "--out", tmp_path / "out.parquet")
    assert said.code == 0, said
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert len(found) == 0 and "proba_yes" in found


def test_repeated_ids_far_apart_are_refused_and_nothing_is_written(
    run: Path, tables: dict[str, Path], tmp_path: Path
) -> None:
    bank = pd.read_parquet(tables["bank"])
    pd.concat([bank, bank.iloc[[2]]]).to_parquet(tables["bank"])
    said = rejected_with(
        "predict", run, f"bank={tables['bank']}", "--out", tmp_path / "out.parquet"
    )
    assert "1 rows repeat an earlier id, first 'c002' in data row 401" in said
    assert not (tmp_path / "out.parquet").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_file_is_named(run: Path, tables: dict[str, Path], tmp_path: Path) -> None:
    tables["bank"].write_bytes(b"PAR1 not really")
    said = rejected_with(
        "predict", run, f"bank={tables['bank']}", "--out", tmp_path / "out.parquet"
    )
    assert "cannot be read as Parquet" in said and str(tables["bank"]) in said
