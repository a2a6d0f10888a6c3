"""`xvfl inspect` and `describe` show how tables are read, and what may be wrong."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from tests.command_line import rejected_with, run_xvfl
from tests.small_tables import CONFIG, write_run_inputs
from xvfl import DataWarning, TableOptions, describe
from xvfl.config import parse_config
from xvfl.dataset.in_memory import prepare_in_memory
from xvfl.dataset.prepare import PreparationPlan
from xvfl.dataset.splits import Splits
from xvfl.model.workflow import read_run_tables

ROWS = 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two messy tables: codes, currency, day-first dates, e-mail addresses, a repeated label."""
    rng = np.random.default_rng(0)
    churned = rng.integers(0, 2, ROWS)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, ROWS), unit="D")
    bank = pd.DataFrame(
        {
            "customer": [f"{i:04d}" for i in range(ROWS)],
            "churned": churned,
            "left": np.where(churned, "gone", "here"),
            "zip": rng.choice(rng.integers(1000, 99_999, 90), ROWS).astype(str),
            "income": [f"${each:,}" for each in rng.integers(100, 90_000, ROWS)],
            "since": days.strftime("%d.%m.%Y"),
            "mail": [f"p{i}@example.org" for i in range(ROWS)],
            "age": rng.integers(18, 90, ROWS),
        }
    )
    bank["zip"] = bank["zip"].str.zfill(5)
    bank.loc[::10, "age"] = np.nan
    bank.to_csv(tmp_path / "bank.csv", index=False, sep=";")
    shop = pd.DataFrame({"customer": range(ROWS), "visits": rng.poisson(5, ROWS)})
    shop.to_parquet(tmp_path / "shop.parquet", index=False)
    return tmp_path


def test_tables_are_described(folder: Path) -> None:
    arguments = (folder / "bank.csv", folder / "shop.parquet", "--id", "customer")
    said = run_xvfl("inspect", *arguments, "--label", "churned")
    assert said.code == 0 and said.err == ""
    assert "bank: 200 rows" in said.out and "shop: 200 rows" in said.out
    assert "warning: bank, column 'left': each value, such as " in said.out
    assert "so it repeats the label; ignore it unless" in said.out
    assert "200 ids differ only in leading zeros ('0000' and '0', " in said.out
    assert "rows by table" in said.out
    told = json.loads(run_xvfl("inspect", *arguments, "--label", "churned", "--json").out)
    kinds = {each["name"]: each["kind"] for each in told["columns"]["bank"]}
    assert kinds == {
        "left": "category",
        "zip": "category",
        "income": "number",
        "since": "date",
        "mail": "identifier",
        "age": "number",
    }
    assert told["rows"] == {"bank": 200, "shop": 200}
    assert told["overlap"]["all parties"] == {"rows": 400, "shared": 0, "labeled": 0}
    assert [round(each["missing"], 6) for each in told["columns"]["bank"]] == [0, 0, 0, 0, 0, 0.1]


def test_kinds_can_be_tried(folder: Path) -> None:
    said = run_xvfl("inspect", folder / "bank.csv", "--kind", "mail=category", "--json")
    told = {each["name"]: each for each in json.loads(said.out)["columns"]["bank"]}
    assert told["mail"]["kind"] == "category" and told["mail"]["encoding"].startswith("hashed")
    assert "customer" in told, "without --id every column is described"
    both = (f"a={folder / 'bank.csv'}", f"b={folder / 'shop.parquet'}")
    said = run_xvfl("inspect", *both, "--id", "customer", "--kind", "b.visits=category", "--json")
    assert json.loads(said.out)["columns"]["b"][0]["kind"] == "category"
    assert "unknown table 'c'" in rejected_with("inspect", *both, "--kind", "c.visits=number")
    assert "expected COLUMN=KIND" in rejected_with("inspect", *both, "--kind", "visits")
    assert "unknown kind 'nmber'" in rejected_with("inspect", *both, "--kind", "b.visits=nmber")
    said = run_xvfl("inspect", folder / "bank.csv", "--label", "nothing")
    assert said.code == 2 and "bank: 200 rows" in said.out
    message = said.err
    assert "label column 'nothing': in none of the tables" in message


def test_a_configuration_is_described(tmp_path: Path) -> None:
    path = write_run_inputs(tmp_path)
    said = run_xvfl("inspect", path)
    assert said.code == 0 and "bank: 120 rows" in said.out and "warning" not in said.out
    kinds = CONFIG.replace(
        "[parties.shop]", '[parties.bank.options.kinds]\nage = "category"\n\n[parties.shop]'
    )
    path.write_text(kinds)
    told = json.loads(run_xvfl("inspect", path, "--json").out)
    assert told["columns"]["bank"][0]["kind"] == "category"
    assert parse_config(kinds, "run.toml").parties["bank"].options.kinds == {"age": "category"}
    assert run_xvfl("train", path, "--out", tmp_path / "run").code == 0
    saved = json.loads((tmp_path / "run" / "encoders" / "bank.json").read_text())
    assert saved["codecs"][0]["codec"] == "category"


def test_describe_returns_a_frame(folder: Path) -> None:
    bank = pd.read_csv(folder / "bank.csv", sep=";", dtype={"customer": str, "zip": str})
    shop = pl.read_parquet(folder / "shop.parquet")
    with pytest.warns(DataWarning, match="200 ids differ only in leading zeros") as caught:
        found = describe({"bank": bank, "shop": shop}, id_column="customer", label="churned")
    assert len(caught) == 1, "not also that no ids match"
    assert found.index[0] == ("bank", "left")
    assert found.columns.tolist() == ["kind", "missing", "distinct", "encoding", "warnings"]
    assert found.loc[("bank", "zip"), "kind"] == "category"
    assert "repeats the label" in found.loc[("bank", "left"), "warnings"]
    options = {"table": TableOptions(kinds={"age": "category"})}
    alone = describe(bank, id_column="customer", table_options=options)
    assert alone.loc[("table", "age"), "kind"] == "category"


def test_many_integer_classes_are_told(folder: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(700) / 7, "y": np.arange(700) % 70})
    with pytest.warns(DataWarning, match="70 classes, the integers 0 to 69, look like a number"):
        describe(frame, label="y")


@pytest.mark.parametrize("out_of_core", ["false", "true"])
@pytest.mark.slow
def test_train_tells_what_inspect_tells(tmp_path: Path, folder: Path, out_of_core: str) -> None:
    bank = pd.read_csv(folder / "bank.csv", sep=";", dtype={"customer": str, "zip": str})
    bank.to_parquet(folder / "bank.parquet", index=False)
    shop = pd.read_parquet(folder / "shop.parquet")
    shop["customer"] = bank["customer"]
    shop.to_parquet(folder / "shop.parquet", index=False)
    path = folder / "run.toml"
    config = CONFIG.replace("bank.csv", "bank.parquet")
    path.write_text(f"out_of_core = {out_of_core}\n{config}")
    said = run_xvfl("train", path, "--out", folder / "run")
    assert said.code == 0
    assert "left out 'mail' (identifier: " in said.err
    assert "column 'left': each value, such as " in said.err
    saved = json.loads((folder / "run" / "encoders" / "bank.json").read_text())
    kinds = {each["name"]: each["codec"] for each in saved["codecs"]}
    assert kinds == {
        "left": "category",
        "zip": "hashed",
        "income": "number",
        "since": "date",
        "age": "number",
    }


def test_columns_that_determine_the_label_by_their_gaps_are_told(tmp_path: Path) -> None:
    path = write_run_inputs(tmp_path)
    bank = pd.read_csv(tmp_path / "bank.csv")
    reasons = pd.Series(["price", "service"] * 60)
    bank["reason"] = reasons.where(bank["churned"] == "yes")
    bank.to_csv(tmp_path / "bank.csv", index=False)
    config = parse_config(path.read_text(), "run.toml")
    plan = PreparationPlan({}, Splits(0.2, 0.2, 0))
    with pytest.warns(DataWarning, match="'bank'.*column 'reason': each gap, and each value, b"):
        prepare_in_memory(*read_run_tables(config, tmp_path), plan)


@pytest.mark.parametrize("order", [1, -1])
def test_copies_of_the_label_in_other_tables_are_told(folder: Path, order: int) -> None:
    bank = pd.read_csv(folder / "bank.csv", sep=";", dtype={"customer": str})
    shop = bank[["customer", "left"]].sample(frac=1, random_state=0)
    shop["paid"] = 2.5 * shop["left"].eq("gone") + np.linspace(0, 1, ROWS)
    shop.to_parquet(folder / "shop.parquet", index=False)
    tables = [folder / "bank.csv", folder / "shop.parquet"][::order]
    said = run_xvfl("inspect", *tables, "--id", "customer", "--label", "churned")
    assert "warning: shop, column 'left': each value, such as " in said.out
    assert "warning: shop, column 'paid': ranges of its values predict " in said.out
    frames = {"shop": shop, "bank": bank}
    found = describe(frames, id_column="customer", label="churned", task="classification")
    assert "repeats the label" in found.loc[("shop", "left"), "warnings"]
    shop["amount"] = bank["age"] * 3
    found = describe(frames, id_column="customer", label="age", task="regression")
    assert "its correlation with the label is 1.0" in found.loc[("shop", "amount"), "warnings"]


def test_labels_of_a_separate_table_are_compared(folder: Path) -> None:
    bank = pd.read_csv(folder / "bank.csv", sep=";", dtype={"customer": str})
    bank[["customer", "churned"]].to_csv(folder / "labels.csv", index=False)
    bank.drop(columns="churned").to_csv(folder / "bank.csv", index=False)
    own = 'table = "labels.csv"\nid_column = "customer"'
    (folder / "run.toml").write_text(CONFIG.replace('party = "bank"', own))
    said = run_xvfl("inspect", folder / "run.toml")
    assert "warning: bank, column 'left': each value, such as " in said.out
