"""The model that fills cells: near copies, trees in numpy, peers, saving."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from xvfl.config import TableOptions
from xvfl.data.encoder import TableEncoder
from xvfl.dataset.in_memory import to_party_table
from xvfl.model import cell_filler, cell_fit
from xvfl.model.cell_filler import CellFiller, load_own_cells, sample_cells, save_own_cells
from xvfl.model.run_dir import RunDir
from xvfl.primitives.rows import align_rows, observation_levels
from xvfl_serve.cell_model import CellModel, read_cells, write_arrays
from xvfl_serve.errors import BundleError

ROWS = 1500


def sample() -> dict[str, pd.DataFrame]:
    """Sample x1 = exp(z) beside x2 = z + noise, and a peer that knows nothing of z."""
    rng = np.random.default_rng(0)
    z, index = rng.normal(size=ROWS), pd.Index([f"r{i}" for i in range(ROWS)])
    kind = np.where(np.abs(z) > 1, "far", "near")
    bank = pd.DataFrame({"x1": np.exp(z), "x2": z + 0.05 * rng.normal(size=ROWS), "kind": kind})
    city = [f"city {i}" for i in rng.integers(90, size=ROWS)]
    shop = pd.DataFrame({"u": rng.normal(size=ROWS), "v": rng.exponential(size=ROWS), "city": city})
    return {"bank": bank.set_axis(index), "shop": shop.set_axis(index)}


TABLES = sample()
ENCODERS = {name: TableEncoder.fit(table, TableOptions(), name) for name, table in TABLES.items()}


@pytest.fixture(scope="module")
def filler() -> CellFiller:
    tables = {
        name: to_party_table(each.layout, each.encode(TABLES[name]))
        for name, each in ENCODERS.items()
    }
    levels = [observation_levels(each.observed, 1.0) for each in tables.values()]
    rows = align_rows(torch.arange(ROWS).unsqueeze(1).expand(-1, 2), levels)
    at = torch.arange(ROWS)
    parts = rows.take(at[:1200]), rows.take(at[1200:])
    found = sample_cells(ENCODERS, tables, *parts, seed=0)()
    assert found is not None
    return found


def fill(filler: CellFiller, hidden: str, parties: list[str]) -> pd.DataFrame:
    """Fill a hidden column of the bank's held-out rows."""
    tables = {name: TABLES[name].iloc[1200:] for name in parties}
    tables["bank"] = tables["bank"].assign(**{hidden: np.nan})
    encoded = {name: ENCODERS[name].encode(each) for name, each in tables.items()}
    ids = list(tables["bank"].index)
    return filler.complete(ENCODERS, encoded, "bank", ids).decode().set_axis(ids)


@pytest.mark.parametrize("parties", [["bank"], ["bank", "shop"]])
def test_a_skewed_number_is_filled_from_its_near_copy(
    filler: CellFiller, parties: list[str]
) -> None:
    """The noise of the copy alone gives an error of 0.05 standard deviations."""
    found = np.log(fill(filler, "x1", parties)["x1"])
    error = found - np.log(TABLES["bank"]["x1"].iloc[1200:])
    assert np.sqrt((error**2).mean()) < 0.15


def test_a_category_follows_from_a_number(filler: CellFiller) -> None:
    found = fill(filler, "kind", ["bank"])["kind"]
    assert (found == TABLES["bank"]["kind"].iloc[1200:]).mean() > 0.9


def test_a_party_alone_fills_from_its_own_columns(tmp_path: Path) -> None:
    encoder = ENCODERS["bank"]
    table = to_party_table(encoder.layout, encoder.encode(TABLES["bank"].iloc[:1200]))
    folder = RunDir(tmp_path)
    save_own_cells(folder, "bank", encoder, table, 1)
    own = load_own_cells(folder)
    assert own is not None and own.parties == ("bank",)
    found = np.log(fill(own, "x1", ["bank"])["x1"])
    error = found - np.log(TABLES["bank"]["x1"].iloc[1200:])
    assert np.sqrt((error**2).mean()) < 0.15


def test_factors_predict_the_conditional_mean(filler: CellFiller) -> None:
    """Compare with the definition, score by score, for seen and missing cells."""
    model = filler.model
    rng = np.random.default_rng(1)
    p = len(model.party)
    scores, seen = rng.normal(size=(6, p)), rng.random((6, p)) < 0.6
    scores = np.where(seen, scores, 0)
    covariance = model.loadings @ model.loadings.T + np.diag(model.noise)
    found, remaining = model.factor_predictions(scores.astype(np.float32), seen, np.arange(p))
    for row in range(6):
        for column in range(p):
            others = np.flatnonzero(seen[row] & (np.arange(p) != column))
            weights = np.linalg.solve(
                covariance[np.ix_(others, others)], covariance[others, column]
            )
            assert found[row, column] == pytest.approx(weights @ scores[row, others], abs=2e-3)
            left = covariance[column, column] - weights @ covariance[others, column]
            assert remaining[row, column] == pytest.approx(
                left / covariance[column, column], abs=2e-3
            )


def test_no_prediction_depends_on_its_own_observed_score(filler: CellFiller) -> None:
    """With nothing else observed, all predictions are equal, to the last digit."""
    scores = np.random.default_rng(3).normal(size=(200, len(filler.model.party)))
    for column in range(scores.shape[1]):
        seen = np.zeros(scores.shape, dtype=bool)
        seen[:, column] = True
        found, _ = filler.model.factor_predictions(
            scores.astype(np.float32), seen, np.arange(scores.shape[1])
        )
        assert not found[:, column].any()


def test_trees_equal_those_of_scikit_learn() -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    from xvfl.model.cell_trees import copy_trees

    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.3] = np.nan
    y = np.nansum(x[:, :2], 1).round().clip(-1, 1)
    booster = HistGradientBoostingClassifier(max_iter=5, random_state=0).fit(x, y)
    trees = copy_trees(booster, np.zeros(3))
    expected = booster._raw_predict(x) - booster._baseline_prediction
    np.testing.assert_allclose(trees.predict(x, 3), expected, atol=1e-5)


def test_arrays_hold_the_whole_model(filler: CellFiller) -> None:
    data = write_arrays(filler.model.to_arrays())
    assert data == write_arrays(filler.model.to_arrays())
    loaded = CellFiller(filler.parties, read_cells(data), filler.distributions)
    expected = fill(filler, "x2", ["bank", "shop"])
    pd.testing.assert_frame_equal(fill(loaded, "x2", ["bank", "shop"]), expected)


def test_one_partys_model_knows_no_scores_of_others(filler: CellFiller) -> None:
    own = filler.model.select([0])
    assert set(own.party) == {0} and {each.party for each in own.targets} == {0}
    alone = CellFiller(("bank",), own, filler.distributions)
    for column in ("x1", "kind"):
        found = fill(alone, column, ["bank"])[column]
        pd.testing.assert_series_equal(found, fill(filler, column, ["bank"])[column])
    assert isinstance(CellModel.from_arrays(own.to_arrays()), CellModel)


def test_rows_in_batches_equal_all_at_once(
    filler: CellFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(filler, "x1", ["bank", "shop"])
    monkeypatch.setattr(cell_filler, "SCORES", 100 * len(filler.model.party))
    pd.testing.assert_frame_equal(fill(filler, "x1", ["bank", "shop"]), expected)


def test_components_of_many_scores_equal_those_of_their_covariances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    scores = (rng.normal(size=(300, 12)) @ rng.normal(size=(12, 12))).astype(np.float32)
    seen = np.ones(scores.shape, dtype=bool)
    total, variances, vectors = cell_fit._principal_components(scores, seen)
    monkeypatch.setattr(cell_fit, "MAX_COVARIANCE", 5)
    fast_total, fast_variances, fast_vectors = cell_fit._principal_components(scores, seen)
    np.testing.assert_allclose(fast_total, total, rtol=1e-4)
    largest, fast_largest = variances.argmax(), fast_variances.argmax()
    assert fast_variances[fast_largest] == pytest.approx(variances[largest], rel=1e-4)
    cosine = vectors[:, largest] @ fast_vectors[:, fast_largest]
    assert abs(cosine) == pytest.approx(1, abs=1e-4)


Arrays = dict[str, Any]
HOSTILE: dict[str, Callable[[Arrays], object]] = {
    "depth": lambda a: a["targets"].__setitem__((slice(None), 2), 2**40),
    "input": lambda a: a["tree.feature"].__setitem__(0, 10_000),
    "node": lambda a: a["tree.left"].__setitem__(0, -2),
    "score": lambda a: a["target.near"].__setitem__(0, 10_000),
    "class factors": lambda a: a.update({"target.filled": a["target.filled"][:-1]}),
    "noise": lambda a: a["noise"].__setitem__(0, 0.0),
    "factors": lambda a: a.update(loadings=np.zeros((len(a["party"]), 3000))),
    "sizes": lambda a: a.update(place=a["place"][:-1]),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_invalid_arrays_are_rejected(
    filler: CellFiller, change: Callable[[Arrays], object]
) -> None:
    arrays = {name: each.copy() for name, each in filler.model.to_arrays().items()}
    change(arrays)
    with pytest.raises(BundleError, match="model of cells"):
        read_cells(write_arrays(arrays))


def test_compressed_arrays_are_rejected(filler: CellFiller) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **filler.model.to_arrays(), more=np.zeros(10**7))
    with pytest.raises(BundleError, match="not compressed"):
        read_cells(buffer.getvalue())
