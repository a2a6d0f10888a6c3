"""Training with labels for few of the rows: the estimator, and `xvfl train`, streamed too."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.command_line import run_xvfl
from tests.options import by_section
from tests.small_tables import CONFIG, assert_same_run, interrupt_at, make_tables, train
from xvfl import Images, XVFLClassifier
from xvfl.errors import DataWarning
from xvfl.model.run_dir import RunDir
from xvfl.model.workflow import evaluate_run

pytestmark = pytest.mark.usefixtures("limited_threads")
ROWS, LABELED = 300, 75
BANK, SHOP, Y = make_tables(ROWS)
BOTH = {"bank": BANK, "shop": SHOP}
HAS_LABEL = np.arange(ROWS) % 4 == 0
FEW = Y.where(HAS_LABEL)


def small(**changes: Any) -> XVFLClassifier:
    sizes = {"embedding_dim": 8, "hidden_dim": 16, "epochs": 6, "device": "cpu", "verbose": False}
    return XVFLClassifier(**by_section({**sizes, **changes}))


@pytest.fixture(scope="module")
def predictions() -> pd.Series:
    """Predictions of a model with NaN for missing labels."""
    return small().fit(BOTH, FEW).predict(BOTH)


@pytest.mark.parametrize(
    "labels",
    [
        FEW,
        FEW.dropna(),
        FEW.astype(object).where(HAS_LABEL, None),
        FEW.astype("string"),
        FEW.astype("category"),
    ],
    ids=["NaN", "absent ids", "None", "NA", "categorical"],
)
@pytest.mark.slow
def test_rows_without_a_label_train(labels: pd.Series, predictions: pd.Series) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        fitted = small().fit(BOTH, labels)
    assert fitted.row_counts_ == {"labeled": 64, "unlabeled": 225, "validation": 11, "test": 0}
    assert fitted.classes_.tolist() == ["no", "yes"]
    scores = [each["score"] for each in fitted.history_]
    assert [math.isnan(each) for each in scores] == [True] * 2 + [False] * 4
    pd.testing.assert_series_equal(fitted.predict(BOTH), predictions)


def test_labels_in_a_partys_table() -> None:
    fitted = small().fit({**BOTH, "bank": BANK.assign(churned=FEW)}, ("bank", "churned"))
    assert fitted.row_counts_["unlabeled"] == ROWS - LABELED
    assert fitted.feature_names_in_["bank"] == ["age", "balance", "job"]


def test_minus_one_is_a_class() -> None:
    numbers = Y.map({"no": -1, "yes": 1})
    fitted = small(epochs=2).fit(BOTH, numbers)
    assert fitted.classes_.tolist() == [-1, 1] and fitted.row_counts_["unlabeled"] == 0
    few = small(epochs=2).fit(BOTH, numbers.where(HAS_LABEL))
    assert few.classes_.tolist() == [-1, 1] and few.row_counts_["unlabeled"] == ROWS - LABELED


@pytest.mark.slow
def test_use_unlabeled_and_methods_decide() -> None:
    only = {name: table[table.index.isin(Y.index[HAS_LABEL])] for name, table in BOTH.items()}
    for changes in ({"use_unlabeled": False}, {"method": "laser"}, {"method": "xvfl"}):
        with pytest.warns(DataWarning, match="left out 225 of 300 rows without a label"):
            fitted = small(epochs=2, **changes).fit(BOTH, FEW)
        assert fitted.row_counts_["unlabeled"] == 0
        alone = small(epochs=2, **changes).fit(only, FEW.dropna())
        expected = alone.predict_proba(only)
        pd.testing.assert_frame_equal(fitted.predict_proba(only), expected)


@pytest.mark.slow
def test_images_without_a_label_are_used_without_pretraining() -> None:
    pixels = np.random.default_rng(0).random((ROWS, 4, 4))
    tables = {"bank": BANK, "camera": Images(pixels, list(BANK.index))}
    fitted = small(epochs=4, n_blocks=1).fit(tables, FEW)
    assert fitted.row_counts_["unlabeled"] == ROWS - LABELED
    assert all(math.isfinite(each["score"]) for each in fitted.history_)


def test_a_batch_of_images_has_more_rows_if_some_have_no_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xvfl.training.loop.MIN_STEPS", 1)
    pixels = np.random.default_rng(0).random((ROWS, 4, 4))
    tables = {"bank": BANK, "camera": Images(pixels, list(BANK.index))}
    options = {"epochs": 1, "n_blocks": 1, "batch_size": 0}
    assert small(**options).fit(tables, FEW).history_[0]["step"] == 1
    assert small(**options).fit(BOTH, FEW).history_[0]["step"] > 1


def test_noisy_labels_and_no_gradients_accept_unlabeled_rows() -> None:
    for protection in ("noise", "no_gradients"):
        fitted = small(epochs=3, label_protection=protection).fit(BOTH, FEW)
        assert np.isfinite(fitted.predict_proba(BOTH).to_numpy()).all()


@pytest.mark.slow
def test_without_reconstruction_all_epochs_are_scored() -> None:
    fitted = small(epochs=3, reconstruction=0.0).fit(BOTH, FEW)
    assert all(math.isfinite(each["score"]) for each in fitted.history_)
    page = small(epochs=3, optimizer="page", learning_rate=0.01).fit(BOTH, FEW)
    assert np.isfinite(page.predict_proba(BOTH).to_numpy()).all()


def write(folder: Path, streamed: bool) -> Path:
    """Write tables with few labels, and a configuration that streams them or not."""
    bank = BANK.assign(churned=FEW).reset_index()
    bank.to_parquet(folder / "bank.parquet", row_group_size=70)
    SHOP.reset_index().to_parquet(folder / "shop.parquet", row_group_size=50)
    text = CONFIG.replace("bank.csv", "bank.parquet").replace("epochs = 3", "epochs = 6")
    (folder / "run.toml").write_text(f"out_of_core = {str(streamed).lower()}\n{text}")
    return folder / "run.toml"


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_xvfl_train_reports_the_rows_and_evaluates_labeled_ones(
    tmp_path: Path, streamed: bool
) -> None:
    said = run_xvfl("train", write(tmp_path, streamed), "--out", tmp_path / "run")
    assert said.code == 0, said
    assert "trained 6 epochs, best " in said.out
    assert "51 labeled and 225 unlabeled rows" in said.out
    assert "without a label" not in said.err
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["rows"] == {"labeled": 51, "unlabeled": 225, "validation": 9, "test": 15}
    evaluation = evaluate_run(RunDir(tmp_path / "run"))
    assert max(line.rows for line in evaluation.lines) == 15


@pytest.mark.slow
@pytest.mark.parametrize(("streamed", "step"), [(False, 3), (True, 20)])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    tmp_path: Path, streamed: bool, step: int
) -> None:
    config = write(tmp_path, streamed)
    train(config, tmp_path / "whole")
    assert train(config, tmp_path / "parts", show=interrupt_at(step)).interrupted
    train(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
