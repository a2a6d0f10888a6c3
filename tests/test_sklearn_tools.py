"""scikit-learn's tools with one frame of (party, column) columns, weights and thresholds."""

import io
import pickle
from pathlib import Path

import duckdb
import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import permutation_importance
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.small_tables import make_tables
from xvfl import DataWarning, XVFLClassifier, describe, scorer
from xvfl.errors import ConfigError, InputError, ModeError
from xvfl.model.decision_rule import class_factors, predicted_classes

BANK, SHOP, Y = make_tables(200)
BOTH = {"bank": BANK, "shop": SHOP}
FRAME = pd.concat(BOTH, axis=1)


def small(**more: object) -> XVFLClassifier:
    """Make a small model."""
    options: dict[str, object] = {
        "embedding_dim": 8,
        "hidden_dim": 16,
        "members": 1,
        "batch_size": 32,
        "epochs": 8,
        "learning_rate": 1e-2,
        "device": "cpu",
        "verbose": False,
    }
    return XVFLClassifier(**{**options, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> XVFLClassifier:
    return small(epochs=20).fit(FRAME, Y)


@pytest.mark.slow
def test_five_tools_work_on_one_frame() -> None:
    train, test, y_train, y_test = train_test_split(FRAME, Y, stratify=Y, random_state=0)
    assert train.columns.equals(FRAME.columns) and len(train) == 150
    scores = cross_val_score(small(epochs=20), train, y_train, cv=3, scoring="roc_auc")
    assert scores.shape == (3,) and scores.mean() > 0.8
    search = GridSearchCV(small(epochs=20), {"learning_rate": [1e-4, 1e-2]}, cv=2).fit(
        train, y_train
    )
    assert search.best_params_ == {"learning_rate": 1e-2}
    assert search.score(test, y_test) > 0.75
    assert set(search.predict(test)) <= {"no", "yes"}
    calibrated = CalibratedClassifierCV(small(epochs=20), cv=2).fit(train, y_train)
    proba = calibrated.predict_proba(test)
    assert proba.shape == (50, 2) and np.allclose(proba.sum(1), 1)
    assert (calibrated.classes_[proba.argmax(1)] == y_test).mean() > 0.75
    importance = permutation_importance(
        search.best_estimator_, test, y_test, n_repeats=2, random_state=0
    )
    assert importance.importances_mean.shape == (6,)
    by_column = dict(zip(FRAME.columns, importance.importances_mean, strict=True))
    assert max(by_column, key=lambda each: by_column[each]) in {
        ("bank", "balance"),
        ("bank", "age"),
        ("shop", "visits"),
        ("shop", "basket"),
    }


@pytest.mark.slow
def test_a_frame_gives_the_model_and_the_answers_of_tables(model: XVFLClassifier) -> None:
    same = small(epochs=20).fit(BOTH, Y)
    by_id = same.predict_proba(BOTH)
    order = FRAME.index[::-1]
    array = model.predict_proba(FRAME.loc[order])
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, by_id.loc[order].to_numpy(), atol=1e-6)
    assert (model.predict(FRAME.loc[order]) == same.predict(BOTH).loc[order]).all()
    np.testing.assert_allclose(model.predict_log_proba(FRAME), np.log(model.predict_proba(FRAME)))
    log = same.predict_log_proba(BOTH)
    assert log.index.equals(by_id.index) and log.columns.tolist() == ["no", "yes"]
    assert model.score(FRAME, Y) == model.score(FRAME, Y.to_numpy()) == same.score(BOTH, Y)
    table = model.predict_table(FRAME.iloc[:30], mode="assisted", party="bank")
    assert table.index.tolist() == FRAME.index[:30].tolist()
    assert model.complete(FRAME, "bank").isna().sum().sum() == 0
    assert model.explain(FRAME, Y, n_repeats=0, n_samples=5).worth[1].rows == len(SHOP)


def test_arrays_of_labels_have_the_order_of_the_rows() -> None:
    shuffled = FRAME.sample(frac=1, random_state=0)
    by_position = small(epochs=2).fit(shuffled, Y[shuffled.index].to_numpy())
    by_id = small(epochs=2).fit(shuffled, Y[shuffled.index])
    np.testing.assert_array_equal(
        by_position.predict_proba(shuffled), by_id.predict_proba(shuffled)
    )
    numbered = FRAME.reset_index(drop=True)
    assert small(epochs=1).fit(numbered, Y.to_numpy()).predict(numbered).shape == (200,)


def test_wrong_frames() -> None:
    with pytest.raises(InputError, match="one label for each of the 200 rows of X"):
        small().fit(FRAME, Y.to_numpy()[:10])
    with pytest.raises(InputError, match=r"expected the ids of X as its index.*y\.to_numpy"):
        small().fit(FRAME, Y.reset_index(drop=True))
    with pytest.raises(InputError, match="expected each id once"):
        small().fit(pd.concat([FRAME, FRAME]), np.tile(Y, 2))
    with pytest.raises(InputError, match="expected a dictionary of parties and tables, got Data"):
        small().fit(BANK, Y)
    with pytest.raises(InputError, match="expected two parties or more"):
        small().fit(FRAME[["bank"]], Y)


def test_a_scorer_for_each_mode(model: XVFLClassifier) -> None:
    """`local` at a party is scored on the rows that it holds."""
    proba = model.predict_proba({"shop": SHOP}, mode="local", party="shop")
    alone = scorer("roc_auc", mode="local", party="shop")
    assert len(SHOP) < len(FRAME)
    expected = roc_auc_score(Y[SHOP.index] == "yes", proba["yes"])
    assert alone(model, FRAME, Y) == pytest.approx(expected)
    assert alone(model, FRAME, Y.to_numpy()) == pytest.approx(expected)
    for mode in ("local", "assisted", "peers"):
        score = scorer(mode=mode, party="bank")(model, FRAME, Y)
        assert score == pytest.approx(model.score(BOTH, Y, mode, "bank")), mode
    assert scorer()(model, FRAME, Y) == model.score(BOTH, Y)
    loss = scorer("neg_log_loss", mode="collaborative")(model, FRAME, Y)
    assert loss == pytest.approx(-log_loss(Y, model.predict_proba(FRAME)))
    weight = (Y == "yes").astype(float)
    recall = scorer(mode="local", party="shop")(model, FRAME, Y, sample_weight=weight)
    yes = Y[SHOP.index] == "yes"
    assert recall == pytest.approx((proba["yes"][yes] > 0.5).mean())
    assert pickle.loads(pickle.dumps(alone))(model, FRAME, Y) == pytest.approx(expected)
    scores = cross_val_score(small(epochs=3), FRAME, Y, cv=2, scoring=alone, error_score="raise")
    assert scores.shape == (2,) and np.isfinite(scores).all()
    search = GridSearchCV(
        small(epochs=1), {"epochs": [1]}, cv=2, scoring={"shop": alone}, refit="shop"
    )
    assert "mean_test_shop" in search.fit(FRAME, Y).cv_results_


def test_scorers_of_wrong_modes_and_parties(model: XVFLClassifier) -> None:
    with pytest.raises(ModeError, match="mode 'local' needs the predicting party; write party="):
        scorer(mode="local")
    with pytest.raises(ModeError, match="unknown mode 'lcal': did you mean 'local'"):
        scorer(mode="lcal", party="bank")  # type: ignore[arg-type]
    with pytest.raises(ModeError, match="unknown party 'bnak': did you mean 'bank'"):
        scorer(mode="local", party="bnak")(model, FRAME, Y)
    with pytest.raises(InputError, match="expected XVFLClassifier .* got XVFLClassifier and dict"):
        scorer()(model, BOTH, Y)


def test_the_sign_of_the_decision_function_is_the_prediction(model: XVFLClassifier) -> None:
    values = model.decision_function(BOTH)
    assert isinstance(values, pd.Series) and values.index.equals(model.predict(BOTH).index)
    assert ((values > 0) == (model.predict(BOTH) == "yes")).all()
    proba = model.predict_proba(BOTH)
    np.testing.assert_allclose(values, np.log(proba["yes"] / proba["no"]))
    np.testing.assert_allclose(model.decision_function(FRAME), values.loc[FRAME.index], atol=1e-5)
    fixed = small(epochs=2, threshold=0.2).fit(BOTH, Y)
    assert ((fixed.decision_function(BOTH) > 0) == (fixed.predict(BOTH) == "yes")).all()
    classes = Y.where(BANK["balance"] < 60, "often")
    several = small(epochs=2).fit(BOTH, classes)
    values = several.decision_function(BOTH)
    assert values.columns.tolist() == ["no", "often", "yes"]
    assert (values.idxmax(axis=1) == several.predict(BOTH)).all()
    assert several.decision_function(FRAME).shape == (200, 3)


@pytest.mark.parametrize("output", ["default", "pandas"])
def test_columns_that_a_scaler_made_flat_are_explained(output: str) -> None:
    """An array, or a frame with columns x0, x1, …, has lost the parties."""
    numbers = FRAME.drop(columns=[("bank", "job"), ("shop", "club")])
    scaler = StandardScaler().set_output(transform=output)
    with pytest.raises(InputError, match="Steps such as StandardScaler lose these pairs"):
        make_pipeline(scaler, small(epochs=1)).fit(numbers, Y)
    restored = pd.DataFrame(
        np.asarray(scaler.fit_transform(numbers)), numbers.index, numbers.columns
    )
    assert small(epochs=1).fit(restored, Y).predict(restored).shape == (200,)


def test_polars_series_and_duckdb_relations() -> None:
    """A series has no ids, so it takes those of the table of its length."""
    bank, shop = BANK.reset_index(), SHOP.reset_index()
    keyed = small(epochs=2, id_column="customer")
    expected = keyed.fit({"bank": bank, "shop": shop}, Y).predict_proba({"bank": bank})
    with duckdb.connect() as connection:
        relations = {
            "bank": connection.from_df(bank),
            "shop": connection.from_df(shop).order("visits"),
        }
        labels = pl.Series("churned", Y.to_list())
        keyed.fit(relations, labels, sample_weight=np.ones(len(Y)))
        answers = keyed.predict_proba({"bank": connection.from_df(bank)})
        assert describe({"bank": relations["bank"]}, id_column="customer").shape[0] == 3
    np.testing.assert_allclose(answers.loc[expected.index], expected, atol=1e-6)
    frame = small(epochs=2).fit(FRAME, labels).score(FRAME, labels)
    assert frame == keyed.score({"bank": bank, "shop": shop}, labels)
    with pytest.raises(InputError, match="a polars Series has no ids, and no table has its 3 rows"):
        keyed.fit({"bank": bank, "shop": shop}, labels.head(3))
    turned = {"bank": bank, "shop": bank[::-1]}
    with pytest.raises(InputError, match="and tables in different orders have its 200 rows"):
        keyed.fit(turned, labels)


def test_a_missing_party_says_what_to_write(model: XVFLClassifier) -> None:
    with pytest.raises(ModeError, match="one of bank, shop: party='bank', or give its table alone"):
        model.predict(BOTH, mode="local", party=None)
    only = model.predict({"shop": SHOP}, mode="local", party=None)
    assert only.equals(model.predict({"shop": SHOP}, mode="local", party="shop"))


def test_rows_without_any_value_get_the_class_prior(model: XVFLClassifier) -> None:
    empty = FRAME.iloc[:3].copy()
    empty.iloc[1] = np.nan
    with pytest.warns(DataWarning, match="1 of 3 rows have no observed feature"):
        proba = model.predict_proba(empty)
    np.testing.assert_allclose(proba[1], model.model_.prior)


def test_joblib_round_trip(model: XVFLClassifier) -> None:
    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    buffer.seek(0)
    again = joblib.load(buffer)
    np.testing.assert_array_equal(again.predict_proba(FRAME), model.predict_proba(FRAME))
    assert again.get_params() == model.get_params()


def weights_of(model: XVFLClassifier) -> np.ndarray:
    return np.concatenate(
        [
            p.detach().numpy().ravel()
            for net in model.model_.modules.values()
            for p in net.parameters()
        ]
    )


@pytest.mark.slow
def test_sample_weights() -> None:
    plain = weights_of(small(epochs=2).fit(BOTH, Y))
    twos = np.full(len(Y), 2.0)
    np.testing.assert_allclose(weights_of(small(epochs=2).fit(BOTH, Y, twos)), plain, atol=1e-6)
    weight = np.where(Y == "yes", 3.0, 1.0)
    weighted = weights_of(small(epochs=2).fit(BOTH, Y, weight))
    assert np.abs(weighted - plain).max() > 1e-3
    by_id = pd.Series(weight, index=Y.index).sample(frac=1, random_state=0)
    for given, X, y in (
        (by_id, BOTH, Y),
        (weight, FRAME, Y.to_numpy()),
        (weight, {**BOTH, "bank": BANK.assign(churned=Y)}, ("bank", "churned")),
    ):
        np.testing.assert_array_equal(weights_of(small(epochs=2).fit(X, y, given)), weighted)
    classes = weights_of(small(epochs=2, class_weight={"yes": 3}).fit(BOTH, Y))
    np.testing.assert_array_equal(classes, weighted)
    for wrong, message in (
        (np.ones(3), "one weight for each of the 200 labels"),
        (np.full(200, -1.0), "at least 0"),
        (np.zeros(200), "every weight is zero"),
    ):
        with pytest.raises(InputError, match=message):
            small().fit(BOTH, Y, wrong)
    with pytest.raises(InputError, match="class_weight: unknown class 'maybe'"):
        small(class_weight={"maybe": 2}).fit(BOTH, Y)
    with pytest.raises(InputError, match="expected classes of type int.*got '1' of type str; wri"):
        small(class_weight={"1": 2}).fit(BOTH, Y.map({"yes": 1, "no": 0}))


@pytest.mark.slow
def test_a_class_of_weight_zero_is_not_learned() -> None:
    with pytest.warns(DataWarning, match="validation rows are predicted as 'no'"):
        model = small(epochs=12, class_weight={"yes": 0}).fit(BOTH, Y)
    assert (model.predict(BOTH) == "no").mean() > 0.95


@pytest.mark.slow
def test_random_state_none_draws_a_seed() -> None:
    first, second = (weights_of(small(epochs=1, random_state=None).fit(BOTH, Y)) for _ in range(2))
    assert not np.array_equal(first, second)
    state = [small(epochs=1, random_state=np.random.RandomState(3)) for _ in range(2)]
    np.testing.assert_array_equal(*(weights_of(each.fit(BOTH, Y)) for each in state))


@pytest.mark.slow
def test_warm_start_continues() -> None:
    model = small(epochs=3, warm_start=True, learning_rate=1e-3).fit(BOTH, Y)
    first, start = model.history_[-1]["score"], weights_of(model)
    model.set_params(learning_rate=1e-9, epochs=1).fit(BOTH, Y)
    np.testing.assert_allclose(weights_of(model), start, atol=1e-5)
    model.set_params(learning_rate=1e-2, epochs=5).fit(BOTH, Y)
    assert model.history_[-1]["score"] > first
    # New rows are encoded as before, also if their range differs.
    encoder = model.model_.encoders["bank"]
    model.fit({"bank": BANK.iloc[:150], "shop": SHOP}, Y.iloc[:150])
    assert model.model_.encoders["bank"] is encoder
    with pytest.raises(InputError, match="warm_start: expected the classes of the previous fit"):
        model.fit(BOTH, Y.map({"yes": 1, "no": 0}))
    with pytest.raises(InputError, match=r"parties of the previous fit, \['bank', 'shop'\], got"):
        model.fit({**BOTH, "club": SHOP}, Y)
    columns = r"columns of the previous fit at party 'bank', \['age', 'balance', 'job'\], got \["
    for bank in (BANK.drop(columns="age"), BANK.assign(more=1.0)):
        with pytest.raises(InputError, match=columns):
            model.fit({"bank": bank, "shop": SHOP}, Y)
    with pytest.raises(ConfigError, match="warm_start: expected nets of the same parties"):
        model.set_params(hidden_dim=32).fit(BOTH, Y)


def test_warm_start_with_columns_that_are_left_out() -> None:
    bank = BANK.assign(constant=1, unused=range(len(BANK)))
    options = {"bank": {"drop": ["unused"]}}
    model = small(epochs=1, warm_start=True, table_options=options)
    with pytest.warns(DataWarning, match="'constant'"):
        model.fit({"bank": bank, "shop": SHOP}, Y)
    model.fit({"shop": SHOP, "bank": bank}, Y)
    assert model.parties_ == ["bank", "shop"]


def rare() -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Make tables in which 8 % of the rows are of the class `yes`."""
    bank, shop, _ = make_tables(800, seed=1)
    rng = np.random.default_rng(0)
    score = bank["balance"] + 80 * rng.normal(size=len(bank))
    return {"bank": bank, "shop": shop}, pd.Series(
        np.where(score > score.quantile(0.92), "yes", "no"), index=bank.index
    )


@pytest.mark.slow
def test_a_threshold_chosen_by_validation_finds_a_rare_class(tmp_path: Path) -> None:
    tables, y = rare()
    plain = small(epochs=10, batch_size=128).fit(tables, y)
    chosen = small(epochs=10, batch_size=128, threshold="balanced_accuracy").fit(tables, y)
    pd.testing.assert_frame_equal(chosen.predict_proba(tables), plain.predict_proba(tables))
    answers = [each.predict(tables)[y.index] for each in (plain, chosen)]
    assert balanced_accuracy_score(y, answers[1]) > balanced_accuracy_score(y, answers[0]) + 0.1
    chosen.save(tmp_path / "model")
    loaded = XVFLClassifier.load(tmp_path / "model")
    pd.testing.assert_series_equal(loaded.predict(tables), chosen.predict(tables))
    fixed = small(epochs=1, threshold=0.2).fit(tables, y)
    expected = np.where(fixed.predict_proba(tables)["yes"] > 0.2, "yes", "no")
    assert (fixed.predict(tables) == expected).all()


def test_thresholds_are_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(300) < 0.15).astype(int)
    score = np.clip(0.2 * y + rng.random(300) * 0.5, 0, 1).round(2)
    proba = np.stack([1 - score, score], 1)
    criteria = {"balanced_accuracy": balanced_accuracy_score, "f1": f1_score}
    for name, metric in criteria.items():
        factors = class_factors(name, proba, y, [0.85, 0.15])
        assert factors is not None
        best = max(metric(y, score > t) for t in np.linspace(0, 1, 201) + 0.0025)
        assert metric(y, predicted_classes(proba, factors)) == pytest.approx(best)
    several = rng.dirichlet([8, 1, 1], 500)
    classes = np.array([rng.choice(3, p=each) for each in several])
    factors = class_factors("balanced_accuracy", several, classes, [0.8, 0.1, 0.1])
    assert balanced_accuracy_score(classes, predicted_classes(several, factors)) > (
        balanced_accuracy_score(classes, several.argmax(1))
    )
    with pytest.raises(ConfigError, match="for 3 classes, got 'f1'"):
        class_factors("f1", several, classes, [0.8, 0.1, 0.1])


@pytest.mark.parametrize("wrong", ["recall", 0, 1.5, True, [0.5]])
def test_wrong_thresholds(wrong: object) -> None:
    with pytest.raises(ConfigError, match="threshold: "):
        small(threshold=wrong).fit(BOTH, Y)
