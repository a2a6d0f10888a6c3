"""`complete_details` and `xvfl complete`: marks, intervals, probabilities, draws, files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.command_line import rejected_with, run_xvfl
from tests.small_tables import train, write_run_inputs
from xvfl import Images, XVFLClassifier
from xvfl.errors import InputError, ModeError
from xvfl.model.run_dir import CELLS, MANIFEST

ROWS = 1600


def sample(seed: int) -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Sample two tables that share a hidden number, without gaps."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=ROWS)
    ids = pd.Index([f"{seed}-{i}" for i in range(ROWS)])
    days = pd.to_timedelta((600 + 200 * hidden + 30 * rng.normal(size=ROWS)).round(), "D")
    bank = pd.DataFrame(
        {
            "age": np.round(45 + 10 * hidden + 4 * rng.normal(size=ROWS)).astype(int),
            "calls": rng.poisson(np.exp(0.8 * hidden - 1)),
            "since": (pd.Timestamp("2019-01-01") + days).strftime("%d/%m/%Y"),
            "job": np.where(hidden + rng.normal(size=ROWS) > 0, "nurse", "cook"),
            "city": [f"city {i}" for i in rng.integers(200, size=ROWS)],
        },
        index=ids,
    )
    shop = pd.DataFrame(
        {
            "visits": 10 + 3 * hidden + rng.normal(size=ROWS),
            "basket": 50 - 9 * hidden + 4 * rng.normal(size=ROWS),
            "club": hidden + rng.normal(size=ROWS) > 0,
        },
        index=ids,
    )
    y = pd.Series(np.where(hidden + 0.3 * rng.normal(size=ROWS) > 0, "yes", "no"), index=ids)
    return {"bank": bank, "shop": shop}, y


def hide(tables: dict[str, pd.DataFrame], rate: float, seed: int) -> dict[str, pd.DataFrame]:
    """Hide cells at random."""
    rng = np.random.default_rng(seed)
    return {n: t.astype(object).mask(rng.random(t.shape) < rate) for n, t in tables.items()}


TRAIN, Y = sample(1)
TEST, _ = sample(2)
HIDDEN = hide(TEST, 0.3, 3)


@pytest.fixture(scope="module")
def model() -> XVFLClassifier:
    """A model trained on rows without gaps."""
    options = {"bank": {"categorical": ["city"]}}
    fresh = XVFLClassifier(epochs=6, patience=0, device="cpu", verbose=False, table_options=options)
    return fresh.fit(hide(TRAIN, 0.2, 0), Y)


@pytest.mark.slow
def test_filled_cells_are_marked_and_agree_with_complete(model: XVFLClassifier) -> None:
    details = model.complete_details(HIDDEN)
    for name, given in HIDDEN.items():
        found = details[name]
        pd.testing.assert_frame_equal(found.table, model.complete(HIDDEN, name))
        assert (found.filled == given.isna()).all(axis=None)
        assert len(found.cells) == int(given.isna().sum().sum())
        values = found.table.stack(future_stack=True)
        keys = pd.MultiIndex.from_frame(found.cells[["id", "column"]])
        assert values.loc[keys].tolist() == found.cells["value"].tolist()
        assert set(found.cells["cue"]) <= {"own", "peers", "own and peers", "nothing"}
        assert found.draws == []


@pytest.mark.slow
def test_intervals_hold_the_stated_share(model: XVFLClassifier) -> None:
    # `calls` has few different values, so that its intervals hold more at a low level.
    for level, tolerance in ((0.8, 0.06), (0.5, 0.15)):
        inside, cells = [], 0
        for name, found in model.complete_details(HIDDEN, level=level).items():
            numbers = found.cells[found.cells["low"].notna() & (found.cells["column"] != "since")]
            true = [
                TEST[name].loc[i, c] for i, c in zip(numbers["id"], numbers["column"], strict=True)
            ]
            low, high = (numbers[each].astype(float) for each in ("low", "high"))
            assert (low <= numbers["value"]).all() and (numbers["value"] <= high).all()
            inside += list((low <= true) & (true <= high))
            cells += len(numbers)
        assert cells > 1500 and np.mean(inside) == pytest.approx(level, abs=tolerance)


def test_dates_have_intervals_in_their_own_format(model: XVFLClassifier) -> None:
    cells = model.complete_details(HIDDEN, "bank").cells
    dates = cells[cells["column"] == "since"]
    low, value, high = (
        pd.to_datetime(dates[each], format="%d/%m/%Y") for each in ("low", "value", "high")
    )
    true = pd.to_datetime(TEST["bank"].loc[dates["id"], "since"], format="%d/%m/%Y").to_numpy()
    assert (low <= value).all() and (value <= high).all()
    assert ((low <= true) & (true <= high)).mean() == pytest.approx(0.8, abs=0.08)


def test_categories_have_calibrated_probabilities(model: XVFLClassifier) -> None:
    found = model.complete_details(HIDDEN, "bank")
    assert list(found.probabilities) == ["job"], "`city` has too many values for a table"
    proba = found.probabilities["job"]
    assert proba.columns.tolist() == ["cook", "nurse"]
    assert proba.sum(axis=1).to_numpy() == pytest.approx(1)
    jobs = found.cells[found.cells["column"] == "job"]
    listed = [proba.loc[row, value] for row, value in zip(jobs["id"], jobs["value"], strict=True)]
    assert jobs["probability"].tolist() == pytest.approx(listed)
    true = TEST["bank"].loc[proba.index, "job"]
    assert (jobs["value"].to_numpy() == true.to_numpy()).mean() == pytest.approx(
        jobs["probability"].mean(), abs=0.1
    )
    assert proba["nurse"][true == "nurse"].mean() > proba["nurse"][true == "cook"].mean() + 0.1
    cities = found.cells[found.cells["column"] == "city"]
    assert cities["probability"].between(0, 0.2).all(), "a random city cannot be predicted"
    assert cities["low"].isna().all()


def test_draws_vary_as_the_true_values_do(model: XVFLClassifier) -> None:
    found = model.complete_details(HIDDEN, "bank", n_draws=4, random_state=1)
    gaps = found.filled["age"].to_numpy()
    ages = np.stack([draw["age"].to_numpy()[gaps].astype(int) for draw in found.draws])
    assert len(found.draws) == 4 and ages.std(0).mean() > 1
    true = TEST["bank"]["age"].to_numpy()[gaps]
    assert ages.std() == pytest.approx(true.std(), rel=0.2)
    for draw in found.draws:
        same = draw.astype(object) == HIDDEN["bank"]
        assert (same | found.filled).all(axis=None)
        assert set(draw["job"]) == {"cook", "nurse"}
        assert set(draw["city"]) <= set(TRAIN["bank"]["city"])
    again = model.complete_details(HIDDEN, "bank", n_draws=4, random_state=1).draws
    pd.testing.assert_frame_equal(again[3], found.draws[3])


def test_distributions_are_saved_with_the_model(model: XVFLClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    loaded = XVFLClassifier.load(tmp_path / "model").complete_details(HIDDEN, "shop")
    expected = model.complete_details(HIDDEN, "shop")
    pd.testing.assert_frame_equal(loaded.cells, expected.cells)


def test_a_model_of_an_earlier_version_fills_no_cells(
    model: XVFLClassifier, tmp_path: Path
) -> None:
    model.save(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    del manifest["cells"]
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    (tmp_path / CELLS).unlink()
    old = XVFLClassifier.load(tmp_path)
    with pytest.raises(ModeError, match="before version 0.4.0.*train it again"):
        old.complete(HIDDEN, "bank")


def test_wrong_parameters_are_rejected(model: XVFLClassifier) -> None:
    with pytest.raises(InputError, match="level: expected a share between 0 and 1, got 80"):
        model.complete_details(HIDDEN, "bank", level=80)
    with pytest.raises(InputError, match="n_draws: expected 0 or more"):
        model.complete_details(HIDDEN, "bank", n_draws=-1)
    with pytest.raises(ModeError, match="expected a table of 'shop'"):
        model.complete_details({"bank": HIDDEN["bank"]}, "shop")


def test_images_have_no_intervals() -> None:
    rng = np.random.default_rng(0)
    tables = {"bank": TRAIN["bank"].iloc[:120]}
    photos = Images(rng.random((120, 6, 6)), list(tables["bank"].index))
    fitted = XVFLClassifier(epochs=1, net={"n_blocks": 1}, device="cpu", verbose=False)
    fitted.fit({**tables, "photos": photos}, Y.iloc[:120])
    with pytest.raises(InputError, match="'photos' has images"):
        fitted.complete_details({**tables, "photos": photos})
    assert len(fitted.complete_details({**tables, "photos": photos}, "bank").table) == 120


def test_the_command_writes_tables_cells_and_draws(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path)
    train(config, tmp_path / "run")
    tables = [f"bank={tmp_path / 'bank.csv'}", f"shop={tmp_path / 'shop.parquet'}"]
    out = tmp_path / "completed"
    done = run_xvfl("complete", str(tmp_path / "run"), *tables, "--out", str(out), "--draws", "2")
    assert done.code == 0, done.err
    assert (
        "bank: filled" in done.out and "wrote bank.csv, bank.cells.csv, bank.draw1.csv" in done.out
    )
    given = pd.read_csv(tmp_path / "bank.csv")
    completed = pd.read_csv(out / "bank.csv")
    assert completed.notna().all(axis=None) and len(completed) == len(given)
    assert completed["customer"].tolist() == given["customer"].tolist()
    assert pd.read_csv(out / "bank.draw1.csv").columns.tolist() == completed.columns.tolist()
    cells = pd.read_csv(out / "bank.cells.csv")
    assert len(cells) == int(given[["age", "balance", "job"]].isna().sum().sum())
    assert cells.columns.tolist() == [
        "id", "column", "value", "low", "high", "probability", "cue",
    ]  # fmt: skip
    assert pd.read_csv(out / "shop.draw2.csv").notna().all(axis=None)
    command = ("complete", tmp_path / "run", *tables, "--out", out)
    assert "--party: unknown table 'gym'" in rejected_with(*command, "--party", "gym")
    assert "--format: unknown format 'xls'" in rejected_with(*command, "--format", "xls")
