"""XVFLRegressor on a real data set, and as scikit-learn and users expect it."""

import doctest
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.inspection import permutation_importance
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score

import xvfl.estimator.regressor
from xvfl import (
    ConfigError,
    DataWarning,
    InputError,
    ModeError,
    RunError,
    XVFLClassifier,
    XVFLRegressor,
)
from xvfl.primitives.task import Regression

SMALL: dict[str, Any] = {
    "epochs": 12,
    "members": 1,
    "embedding_dim": 16,
    "hidden_dim": 32,
    "batch_size": 32,
    "learning_rate": 0.01,
    "device": "cpu",
    "verbose": False,
}


def patients() -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Split scikit-learn's diabetes data over two parties, with gaps and without some rows."""
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    X.index = y.index = pd.Index([f"p{i:03}" for i in range(len(X))], name="patient")
    rng = np.random.default_rng(0)
    clinic, lab = X[["age", "sex", "bmi", "bp"]].copy(), X[["s1", "s3", "s5", "s6"]].copy()
    clinic.loc[rng.random(len(X)) < 0.2, "bmi"] = np.nan
    lab.loc[rng.random(len(X)) < 0.2, "s5"] = np.nan
    return {"clinic": clinic.iloc[:400], "lab": lab.iloc[30:]}, y


TABLES, Y = patients()
HELD_OUT = Y.index[::4]
Y_TRAIN = Y.drop(HELD_OUT)
TRAIN = {name: table.drop(HELD_OUT, errors="ignore") for name, table in TABLES.items()}
TEST = {name: table[table.index.isin(HELD_OUT)] for name, table in TABLES.items()}
FRAME = pd.concat(TABLES, axis=1)


@pytest.fixture(scope="module")
def model() -> XVFLRegressor:
    return XVFLRegressor(**SMALL).fit(TRAIN, Y_TRAIN)


@pytest.mark.slow
def test_example_of_the_docstring() -> None:
    results = doctest.testmod(xvfl.estimator.regressor)
    assert results.attempted > 8 and results.failed == 0


@pytest.mark.parametrize(
    ("mode", "party", "least"),
    [
        ("collaborative", None, 0.3),
        ("local", "clinic", 0.1),
        ("local", "lab", 0.1),
        ("assisted", "clinic", 0.1),
        ("assisted", "lab", 0.1),
    ],
)
def test_every_mode_explains_held_out_rows(
    model: XVFLRegressor, mode: Any, party: str | None, least: float
) -> None:
    predicted = model.predict(TEST, mode=mode, party=party)
    assert predicted.index.isin(HELD_OUT).all() and predicted.dtype == np.float64
    found = model.score(TEST, Y, mode=mode, party=party)
    rows = predicted.index.intersection(Y.index)
    assert found == pytest.approx(r2_score(Y[rows], predicted[rows])) and found > least
    weight = np.where(Y.index.isin(rows[:40]), 1.0, 0.0)
    weighted = model.score(TEST, Y, mode=mode, party=party, sample_weight=weight)
    assert weighted == pytest.approx(r2_score(Y[rows[:40]], predicted[rows[:40]]))


def test_target_statistics_are_those_of_the_training_rows(model: XVFLRegressor) -> None:
    task = model.model_.task
    assert isinstance(task, Regression) and not hasattr(model, "classes_")
    labels = Y_TRAIN
    assert abs(task.mean - labels.mean()) < 0.2 * labels.std()
    assert 0.8 < task.scale / labels.std() < 1.2
    nothing = pd.DataFrame(np.nan, ["new"], TABLES["clinic"].columns)
    with pytest.warns(DataWarning, match="their prediction is the mean label"):
        table = model.predict_table({"clinic": nothing})
    assert table["prediction"].item() == pytest.approx(task.mean)
    assert table["notes"].item() == "not observed by any party: mean label"
    assert list(table) == ["prediction", "mode", "parties", "completed", "notes"]


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "offset"), [(1e-6, 0.0), (1e6, -3e9)])
def test_units_of_the_label_do_not_matter(
    model: XVFLRegressor, factor: float, offset: float
) -> None:
    other = XVFLRegressor(**SMALL).fit(TRAIN, Y_TRAIN * factor + offset)
    expected = model.predict(TEST) * factor + offset
    np.testing.assert_allclose(other.predict(TEST), expected, rtol=0, atol=0.02 * factor * Y.std())


def test_saved_loaded_and_pickled_models_predict_the_same(
    model: XVFLRegressor, tmp_path: Path
) -> None:
    expected = model.predict_table(TEST)
    model.save(tmp_path / "model")
    loaded = XVFLRegressor.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.predict_table(TEST), expected)
    joblib.dump(model, tmp_path / "model.joblib")
    copy = joblib.load(tmp_path / "model.joblib")
    pd.testing.assert_frame_equal(copy.predict_table(TEST), expected)
    with pytest.raises(RunError, match="a model for regression; load it with XVFLRegressor"):
        XVFLClassifier.load(tmp_path / "model")


def test_completion_and_explanation(model: XVFLRegressor, tmp_path: Path) -> None:
    completed = model.complete(TEST, "clinic")
    assert not completed.isna().any().any()
    explanation = model.explain(TEST, Y, n_repeats=1, n_samples=50)
    assert explanation.metric == "r2" and abs(explanation.nobody) < 0.2
    worth = {each.party: each.shapley.value for each in explanation.worth}
    together = model.score(TEST, Y)
    assert explanation.together.value == pytest.approx(together)
    assert sum(worth.values()) == pytest.approx(together - explanation.nobody)
    assert explanation.importances[0].feature in ("bmi", "s5", "bp")
    page = explanation.to_html("Diabetes")
    assert "R²" in page and "mean label" in page and "predicted number changed" in page
    for metric in ("squared_error", "absolute_error"):
        other = model.explain(TEST, Y, metric=metric, n_repeats=0, n_samples=20)
        assert other.together.value < 0 and other.worth[0].shapley.value > 0
    with pytest.raises(InputError, match="unknown metric 'auroc'"):
        model.explain(TEST, Y, metric="auroc")


@pytest.mark.slow
def test_scikit_learn_tools_work() -> None:
    quick = XVFLRegressor(**{**SMALL, "epochs": 1, "patience": 0})
    y = Y[FRAME.index].to_numpy()
    scores = cross_val_score(quick, FRAME, y, cv=2)
    assert scores.shape == (2,) and np.isfinite(scores).all()
    search = GridSearchCV(quick, {"hidden_dim": [8, 32]}, cv=2).fit(FRAME, y)
    assert search.best_estimator_.predict(FRAME).shape == (len(FRAME),)
    fitted = clone(quick).fit(FRAME, y)
    numbers = FRAME.to_numpy()
    importances = permutation_importance(fitted, FRAME, y, n_repeats=1, random_state=0)
    assert importances.importances_mean.shape == (numbers.shape[1],)
    assert fitted.__sklearn_tags__().estimator_type == "regressor"


@pytest.mark.slow
def test_weights_warm_start_and_unlabeled_rows(model: XVFLRegressor) -> None:
    y = Y_TRAIN
    weight = pd.Series(np.where(y > y.median(), 3.0, 1.0), index=y.index)
    heavy = XVFLRegressor(**SMALL).fit(TRAIN, y, sample_weight=weight)
    assert heavy.predict(TEST).mean() > model.predict(TEST).mean()
    few = y.mask(np.arange(len(y)) % 3 == 0)
    partly = XVFLRegressor(**SMALL).fit(TRAIN, few)
    assert partly.row_counts_["unlabeled"] > 80 and partly.score(TEST, Y) > 0.2
    again = XVFLRegressor(**SMALL, warm_start=True).fit(TRAIN, y)
    first = again.history_[0]["decision"]
    again.set_params(learning_rate=0.0005).fit(TRAIN, y)
    assert again.history_[0]["decision"] < 0.8 * first


@pytest.mark.slow
@pytest.mark.parametrize("method", ["xvfl", "vanilla", "standalone", "laser", "laser+mask"])
def test_other_methods_predict_numbers(method: str) -> None:
    fitted = XVFLRegressor(**{**SMALL, "epochs": 15}, method=method).fit(TRAIN, Y_TRAIN)
    if method == "standalone":
        with pytest.raises(ModeError):
            fitted.score(TEST, Y)
    predicted = fitted.predict(TEST if method != "standalone" else {"clinic": TEST["clinic"]})
    # Vanilla chooses its epoch by local predictions too, for which it is not trained.
    least = -1 if method == "vanilla" else 0.3
    assert np.corrcoef(predicted, Y[predicted.index])[0, 1] > least
    assert predicted.between(Y.min() - Y.std(), Y.max() + Y.std()).all()


@pytest.mark.slow
@pytest.mark.parametrize("protection", ["noise", "no_gradients"])
def test_protected_labels(protection: str) -> None:
    fitted = XVFLRegressor(**SMALL, label_protection=protection, label_noise=0.5)
    assert fitted.fit(TRAIN, Y_TRAIN).score(TEST, Y) > 0.1


def test_a_method_for_classes_is_rejected(two_encoders: str) -> None:
    with pytest.raises(ConfigError, match="predicts classes only; for regression choose one of"):
        XVFLRegressor(**SMALL, method=two_encoders).fit(TRAIN, Y_TRAIN)


def test_labels_that_are_no_numbers_name_the_classifier() -> None:
    for wrong, found in (
        (Y_TRAIN.map(lambda each: "high" if each > 150 else "low"), "'high'|'low'"),
        (Y_TRAIN > 150, "a bool column"),
        (Y_TRAIN.where(Y_TRAIN < 300, np.inf), "inf"),
        ((Y_TRAIN > 150).astype("category"), "a category column"),
    ):
        message = f"expected finite numbers for regression, got ({found}).*use XVFLClassifier"
        with pytest.raises(InputError, match=message):
            XVFLRegressor(**SMALL).fit(TRAIN, wrong)
    with pytest.raises(InputError, match="at least 2 different numbers, but found only the number"):
        XVFLRegressor(**SMALL).fit(TRAIN, Y_TRAIN * 0 + 7)
    with pytest.warns(
        DataWarning, match="the only numbers are 0 and 1, which look like classes"
    ) as caught:
        XVFLRegressor(**{**SMALL, "epochs": 1}).fit(TRAIN, (Y_TRAIN > 150).astype(int))
    assert len(caught) == 1


def test_numbers_given_to_a_classifier_name_the_regressor() -> None:
    with pytest.raises(InputError, match="looks like a regression target; use XVFLRegressor"):
        XVFLClassifier(**SMALL).fit(TRAIN, Y_TRAIN + np.linspace(0, 0.5, len(Y_TRAIN)))
    with pytest.warns(DataWarning, match="look like a number; use XVFLRegressor"):
        XVFLClassifier(**{**SMALL, "epochs": 1}).fit(TRAIN, Y_TRAIN)


def test_a_column_that_repeats_the_target_is_reported() -> None:
    leaking = {**TRAIN, "lab": TRAIN["lab"].assign(euros=Y * 1.1 + 3)}
    with pytest.warns(DataWarning, match="column 'euros': its correlation with the label is 1.0"):
        XVFLRegressor(**{**SMALL, "epochs": 1}).fit(leaking, Y_TRAIN)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        XVFLRegressor(**{**SMALL, "epochs": 1}).fit(TRAIN, Y_TRAIN)


def test_both_estimators_document_shared_parameters_alike() -> None:
    regressor, classifier = (
        inspect.signature(each.__init__).parameters for each in (XVFLRegressor, XVFLClassifier)
    )
    only = {"class_weight", "threshold"}
    assert set(classifier) - set(regressor) == only
    assert [name for name in classifier if name not in only] == list(regressor)
    documented = [dict(_entries(each.__doc__ or "")) for each in (XVFLRegressor, XVFLClassifier)]
    different = {"method", "guidance", "members", "label_noise", "head", "warm_start"}
    for name in regressor.keys() - {"self"}:
        assert regressor[name] == classifier[name]
        if name not in different:
            assert documented[0][name] == documented[1][name]


def _entries(text: str) -> list[tuple[str, str]]:
    parameters = text.split("Parameters\n    ----------\n")[1].split("\n    Attributes\n")[0]
    return re.findall(r"^    (\w+) : (.*(?:\n        .*)*)", parameters, re.MULTILINE)
