"""A bundle predicts what torch does: every method and mode, real rows with gaps."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from serve_tests.models import ROWS, SIDES, Trained, digits_with_gaps, train
from xvfl import XVFLRegressor
from xvfl.config import LossConfig, NetConfig, PrivacyConfig
from xvfl.data.images import Images
from xvfl.errors import DataWarning, ModeError
from xvfl.model.export.bundle_export import build_bundle
from xvfl_serve.bundle import unpack
from xvfl_serve.predictor import Options, Predictor

SMALL = NetConfig(embedding_dim=16, hidden_dim=32)
NO_GRADIENTS = PrivacyConfig(label_protection="no_gradients")
CASES: dict[str, dict[str, Any]] = {
    "default, four members": {"rows": ROWS},
    "one member": {"net": NetConfig(16, 32, members=1)},
    "numbers embedded": {"net": NetConfig(16, 32, members=1, number_embedding_dim=4)},
    "completers see features": {"net": NetConfig(16, 32, members=1, seeing_completers=True)},
    "no gradients": {"net": SMALL, "privacy": NO_GRADIENTS},
    "no cross completion": {"net": SMALL, "loss": LossConfig(cross_completion=False)},
    "concatenation": {"net": SMALL, "loss": LossConfig(aggregation="concat")},
    **{
        method: {"net": SMALL, "loss": LossConfig(method=method)}
        for method in ("xvfl", "standalone", "vanilla", "iavfl", "fedcvt", "laser", "laser+mask")
    },
    "images": {"net": NetConfig(16, 32, n_blocks=2, base_channels=8), "images": True, "epochs": 1},
    "images, completers see features": {
        "net": NetConfig(16, 32, 2, 8, seeing_completers=True),
        "images": True,
        "epochs": 1,
    },
}


def assert_same(
    trained: Trained, predictor: Predictor, mode: str, party: str | None, name: str
) -> None:
    """Compare all rows with those of torch."""
    if mode == "local":
        held = trained.request_rows(str(party))
        ids = [each for each, row in zip(trained.ids, held, strict=True) if row is not None]
        rows = [row for row in held if row is not None]
    else:
        ids, rows = trained.ids, trained.joint_rows()
    expected = trained.model.predict(trained.sources, mode, party, ids)  # type: ignore[arg-type]
    answers = predictor.predict(rows, mode, party)
    found = np.array([_values(each) for each in answers])
    worst = float(np.abs(found - expected.values).max())
    print(f"{name}, {mode} {party or ''}: {len(rows)} rows, largest difference {worst:.1e}")
    assert worst < 1e-5
    frame = expected.frame()
    assert [each["mode"] for each in answers] == frame["mode"].tolist()
    assert ["+".join(each["parties"]) for each in answers] == frame["parties"].tolist()
    assert ["; ".join(each["notes"]) for each in answers] == frame["notes"].tolist()
    completed = [each["completed"] for each in answers]
    np.testing.assert_allclose(completed, frame["completed"], atol=1e-12)
    if predictor.task.classes:
        sure = np.abs(np.diff(np.sort(expected.values)[:, -2:])).ravel() > 1e-4
        labels = np.array([each["prediction"] for each in answers])
        assert (labels == frame["prediction"].to_numpy())[sure].all()


def _values(answer: dict[str, Any]) -> list[float]:
    return list(answer.get("probabilities", {"": answer["prediction"]}).values())


@pytest.mark.parametrize("name", CASES)
def test_every_method_and_mode(name: str) -> None:
    trained = train(**{"rows": 300, **CASES[name]})
    predictor = Predictor(unpack(build_bundle(trained.model)))
    modes = trained.model.method.modes - {"peers"}
    assert {mode for mode, _ in predictor.outputs} == modes
    for mode, party in predictor.outputs:
        assert_same(trained, predictor, mode, party or None, name)


def test_regression() -> None:
    sources, y = digits_with_gaps()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        fitted = XVFLRegressor(epochs=2, embedding_dim=16).fit(sources, y + 0.5)
    trained = Trained(fitted.model_, sources)
    predictor = Predictor(unpack(build_bundle(trained.model)))
    for mode, party in predictor.outputs:
        assert_same(trained, predictor, mode, party or None, "regression")
    (answer,) = predictor.predict([{}], options=Options(completed=True, importance=True))
    assert answer["notes"] == ["not observed by any party: mean label"]
    assert answer["prediction"] == pytest.approx(trained.model.prior[0])


@pytest.fixture(scope="module")
def digits() -> Trained:
    return train(NetConfig(16, 32))


def test_one_row_as_many(digits: Trained) -> None:
    predictor = Predictor(unpack(build_bundle(digits.model)))
    rows = digits.joint_rows()[:40]
    for mode, party in predictor.outputs:
        given = rows if mode != "local" else [row[party] for row in rows]
        many = predictor.predict(given, mode, party or None)
        for row, expected in zip(given, many, strict=True):
            (answer,) = predictor.predict([row], mode, party or None)
            proba, other = answer.pop("probabilities"), expected.pop("probabilities")
            np.testing.assert_allclose(list(proba.values()), list(other.values()), atol=1e-6)
            assert answer == expected


def test_decision_weights_and_calibration_are_exported(digits: Trained) -> None:
    manifest = digits.model.manifest()
    assert any(weights[0] for weights in manifest["decision_weights"].values())
    predictor = Predictor(unpack(build_bundle(digits.model)))
    output = predictor.outputs["local", "left"]
    assert output.temperature == manifest["temperatures"]["local/left"] != 1


def test_one_party_alone(digits: Trained) -> None:
    predictor = Predictor(unpack(build_bundle(digits.model, "right")))
    assert list(predictor.outputs) == [("local", "right")]
    assert_same(digits, predictor, "local", "right", "one party")


def test_threshold_decides_the_class(digits: Trained) -> None:
    factors = [1.0] * 10
    factors[3] = 1000.0
    digits.model.class_factors = factors
    predictor = Predictor(unpack(build_bundle(digits.model)))
    digits.model.class_factors = None
    answers = predictor.predict(digits.joint_rows()[:50])
    assert sum(each["prediction"] == 3 for each in answers) > 25


@pytest.mark.parametrize("images", [False, True])
def test_completed_features(images: bool) -> None:
    trained = train(NetConfig(16, 32, 2, 8), images=images, epochs=1)
    predictor = Predictor(unpack(build_bundle(trained.model)))
    rows = trained.joint_rows()[:200]
    answers = predictor.predict(rows, options=Options(completed=True))
    ids = trained.ids[:200]
    for party in SIDES:
        expected = trained.model.complete(trained.sources, party, ids)
        for number, answer in enumerate(answers):
            completed = answer["completed_features"][party]
            if isinstance(expected, Images):
                if completed:
                    given = expected.pixels[number]
                    np.testing.assert_allclose(completed["image"], given, atol=1e-4)
                continue
            assert isinstance(expected, pd.DataFrame)
            row, known = expected.iloc[number], rows[number][party] or {}
            used = predictor.encoders[party].names
            assert set(completed) == {name for name in used if known.get(name) is None}
            for feature, value in completed.items():
                if isinstance(value, float):
                    assert value == pytest.approx(row[feature], abs=1e-4)
                else:
                    assert value == row[feature]


def test_importance_is_what_a_feature_adds(digits: Trained) -> None:
    predictor = Predictor(unpack(build_bundle(digits.model)))
    names = predictor.encoders["left"].names
    row = {key: each for key, each in digits.request_rows("left")[3].items() if key in names}
    row = {key: each for key, each in row.items() if each is not None}
    (answer,) = predictor.predict([row], "local", "left", Options(importance=True))
    label = str(answer["prediction"])
    assert set(answer["importance"]["left"]) == set(row)
    for name in list(row)[:5]:
        rest = {key: each for key, each in row.items() if key != name}
        (without,) = predictor.predict([rest], "local", "left")
        expected = answer["probabilities"][label] - without["probabilities"][label]
        assert answer["importance"]["left"][name] == pytest.approx(expected, abs=1e-6)


def test_equal_models_give_equal_bundles_without_ids(digits: Trained) -> None:
    data = build_bundle(digits.model)
    assert data == build_bundle(digits.model)
    bundle = unpack(data)
    contents = b"".join(bundle.files.values()) + repr(bundle.manifest).encode()
    assert not any(each.encode() in contents for each in digits.ids)
    assert b".py" not in contents


def test_noise_cannot_be_exported() -> None:
    private = PrivacyConfig(label_protection="no_gradients", epsilon=8.0)
    trained = train(SMALL, LossConfig(method="laser"), privacy=private, epochs=1)
    with pytest.raises(ModeError, match="adds noise"):
        build_bundle(trained.model)
    trained.model.adds_noise = False
    predictor = Predictor(unpack(build_bundle(trained.model, "left")))
    assert_same(trained, predictor, "local", "left", "differential privacy")
