"""Prediction with what is there: absent columns and parties count as missing, with a note."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from tests.command_line import rejected_with, run_xvfl
from tests.small_tables import make_tables, write_run_inputs
from xvfl import DataWarning, XVFLClassifier
from xvfl.data.encoder import TableEncoder
from xvfl.errors import InputError
from xvfl.model.export.bundle_export import build_bundle
from xvfl_serve.bundle import unpack
from xvfl_serve.predictor import Predictor

BANK, SHOP, Y = make_tables()
NO_AGE = "bank: not given: age, counts as missing"
NO_SHOP = "shop: nothing given, counts as missing"


@pytest.fixture(scope="module")
def model() -> XVFLClassifier:
    small = {"embedding_dim": 8, "hidden_dim": 16, "epochs": 2, "verbose": False}
    return XVFLClassifier(**small).fit({"bank": BANK, "shop": SHOP}, Y)  # type: ignore[arg-type]


def test_an_absent_column_counts_as_missing(model: XVFLClassifier) -> None:
    empty = model.predict_table({"bank": BANK.assign(age=np.nan), "shop": SHOP})
    found = model.predict_table({"bank": BANK.drop(columns="age"), "shop": SHOP})
    numbers = ["proba_no", "proba_yes", "completed"]
    pd.testing.assert_frame_equal(found[numbers], empty[numbers])
    expected = [f"{NO_AGE}; {note}" if note else NO_AGE for note in empty["notes"]]
    assert found["notes"].tolist() == expected
    with pytest.raises(InputError, match="'age' not in the table"):
        model.predict({"bank": BANK.drop(columns="age"), "shop": SHOP}, strict=True)
    assert model.score({"bank": BANK.drop(columns="age"), "shop": SHOP}, Y) == np.mean(
        found["prediction"] == Y.reindex(found.index)
    )
    strict = model.predict_proba({"bank": BANK, "shop": SHOP}, strict=True)
    pd.testing.assert_frame_equal(strict, model.predict_proba({"bank": BANK, "shop": SHOP}))


def test_a_party_that_gives_nothing_counts_as_missing(model: XVFLClassifier) -> None:
    expected = model.predict_proba({"bank": BANK, "shop": SHOP.iloc[:0]})
    for nothing in (None, pd.DataFrame(), pl.DataFrame(), SHOP.iloc[:0]):
        table = model.predict_table({"bank": BANK, "shop": nothing})
        assert set(table["mode"]) == {"collaborative"} and set(table["notes"]) == {NO_SHOP}
        found = model.predict_proba({"bank": BANK, "shop": nothing})
        pd.testing.assert_frame_equal(found, expected)
        with pytest.raises(InputError, match="'shop': expected a table with rows, because of"):
            model.predict({"bank": BANK, "shop": nothing}, strict=True)
    assert model.score({"bank": BANK, "shop": None}, Y) == np.mean(
        model.predict({"bank": BANK, "shop": None}) == Y
    )
    with pytest.raises(InputError, match="expected at least one party's table"):
        model.predict({"bank": None})
    with pytest.raises(InputError, match="unknown party 'shops'"):
        model.predict({"bank": BANK, "shops": None})


def test_a_renamed_column_is_suspected(model: XVFLClassifier) -> None:
    renamed = BANK.rename(columns={"balance": "Balance_EUR", "job": "occupation"})
    with pytest.warns(DataWarning) as caught:
        table = model.predict_table({"bank": renamed, "shop": SHOP})
    (text,) = [str(each.message) for each in caught if "mean '" in str(each.message)]
    assert "'balance' (did you mean 'Balance_EUR'?)" in text and "job" not in text
    assert table["notes"].str.startswith("bank: not given: balance, job, count as missing").all()


def test_the_server_writes_the_same_notes(model: XVFLClassifier) -> None:
    encoder = model.model_.encoders["bank"]
    assert isinstance(encoder, TableEncoder)
    predictor = Predictor(unpack(build_bundle(model.model_, "bank")))
    row = BANK.dropna().drop(columns="age").iloc[:1]
    (answer,) = predictor.predict(row.to_dict("records"))
    expected = model.predict_table({"bank": row}, "local", "bank")["notes"].item()
    assert answer["notes"] == [expected] == [NO_AGE]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_command_predicts_without_a_column(kind: str, tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    assert run_xvfl("train", config, "--out", tmp_path / "run").code == 0
    table = BANK.drop(columns="age").rename(columns={"balance": "balances"}).reset_index()
    given = tmp_path / f"new.{kind}"
    table.to_csv(given, index=False) if kind == "csv" else table.to_parquet(given, index=False)
    output = tmp_path / "answers.csv"
    asked = ["predict", tmp_path / "run", f"bank={given}", "--out", output]
    said = run_xvfl(*asked)
    assert said.code == 0 and "'balance' (did you mean 'balances'?)" in said.err
    answers = pd.read_csv(output, keep_default_na=False)
    assert answers["notes"].str.startswith("bank: not given: age, balance, count as").all()
    assert "'age', 'balance' not in the table" in rejected_with(*asked, "--strict")


def test_no_note_where_everything_is_given(model: XVFLClassifier) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notes = model.predict_table({"bank": BANK, "shop": SHOP.assign(more=1)})["notes"]
    assert not notes.str.contains("not given|nothing given").any()
