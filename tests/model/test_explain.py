"""Explanations: every fast path against the slow obvious one, and what users read from them."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from tests.command_line import run_xvfl
from tests.small_tables import is_png, make_tables, train, write_run_inputs
from xvfl import Images, XVFLClassifier
from xvfl.cli.output import print_explanation
from xvfl.data.sources import encode
from xvfl.errors import DataWarning, InputError, ModeError
from xvfl.model.explain.bootstrap import METRICS, Estimate, sample_rows
from xvfl.model.explain.coalitions import coalitions
from xvfl.model.explain.explain_model import ExplainOptions, explain
from xvfl.model.explain.explanation import Explanation
from xvfl.model.explain.variants import PermutedFeatures, Variant, VariantPredictor
from xvfl.model.model import Model
from xvfl.primitives import metrics

Tables = dict[str, pd.DataFrame]
ROWS = 600


def three_tables() -> tuple[Tables, pd.Series]:
    """Make the tables of a bank, a shop and a party of pure noise."""
    bank, shop, y = make_tables(ROWS)
    rng = np.random.default_rng(1)
    noise = pd.DataFrame(rng.normal(size=(ROWS, 2)), index=bank.index, columns=["n1", "n2"])
    return {"bank": bank, "shop": shop, "noise": noise.iloc[:-40]}, y


def part(tables: Tables, ids: pd.Index) -> Tables:
    """Take some rows of every table."""
    return {name: each.loc[each.index.intersection(ids)] for name, each in tables.items()}


TABLES, Y = three_tables()
TEST = Y.index[::2]
HELD_OUT = part(TABLES, TEST)


@pytest.fixture(scope="module")
def classifier() -> XVFLClassifier:
    model = XVFLClassifier(epochs=12, batch_size=32, device="cpu", verbose=False)
    return model.fit(part(TABLES, Y.index[1::2]), Y[1::2])


@pytest.fixture(scope="module")
def explanation(classifier: XVFLClassifier) -> Explanation:
    return classifier.explain(HELD_OUT, Y)


def predictor_of(model: Model, tables: Tables, ids: pd.Index) -> VariantPredictor:
    encoded = {name: encode(model.encoders[name], table) for name, table in tables.items()}
    return VariantPredictor(model, *model.rows_of(encoded, list(ids)))


@pytest.mark.parametrize(
    "options", [{}, {"members": 2}, {"method": "laser"}, {"method": "vanilla"}, {"method": "xvfl"}]
)
def test_subsets_are_predicted_as_the_model_does(options: dict[str, object]) -> None:
    ids = Y.index[1::2]
    small = {"epochs": 2, "embedding_dim": 8, "hidden_dim": 16, "verbose": False, "device": "cpu"}
    model = XVFLClassifier(**{**small, **options}).fit(part(TABLES, ids), Y[ids]).model_  # type: ignore[arg-type]
    predictor, names = predictor_of(model, HELD_OUT, TEST), list(HELD_OUT)
    for size in (1, 2, 3):
        for subset in itertools.combinations(range(3), size):
            tables = {names[party]: HELD_OUT[names[party]] for party in subset}
            slow = model.predict(tables, "collaborative", ids=list(TEST)).values
            np.testing.assert_allclose(predictor.predict(Variant(subset)), slow, atol=1e-6)
    np.testing.assert_allclose(predictor.predict(Variant(()))[0], model.prior)


@pytest.mark.parametrize("column", ["age", "job", "balance"])
def test_permuted_features_are_those_of_a_permuted_table(
    classifier: XVFLClassifier, column: str
) -> None:
    model, bank = classifier.model_, HELD_OUT["bank"]
    predictor = predictor_of(model, HELD_OUT, TEST)
    order = np.random.default_rng(0).permutation(len(bank))
    permuted = bank.assign(**{column: bank[column].to_numpy()[order]})
    names = [feature.name for feature in model.layouts["bank"].features]
    assert list(bank.index) == list(TEST)

    fast = predictor.predict(
        Variant(
            (0, 1, 2),
            permuted=PermutedFeatures(0, (names.index(column),), torch.from_numpy(order)),
        )
    )
    slow = model.predict({**HELD_OUT, "bank": permuted}, "collaborative", ids=list(TEST)).values
    np.testing.assert_allclose(fast, slow, atol=1e-6)
    assert np.abs(fast - predictor.predict(Variant((0, 1, 2)))).max() > 1e-4


def test_metrics_of_samples_are_those_of_repeated_rows() -> None:
    rng = np.random.default_rng(0)
    for classes in (2, 4):
        proba = rng.dirichlet(np.ones(classes), 60).round(2)
        proba /= proba.sum(1, keepdims=True)
        y = rng.integers(0, classes, 60)
        counts = sample_rows(60, 5, rng)
        assert (counts[0] == 1).all() and (counts.sum(1) == 60).all()
        for name, metric in METRICS["classification"].items():
            values = metric(proba, y, counts)
            for value, count in zip(values, counts, strict=True):
                rows = np.repeat(np.arange(60), count.astype(int))
                slow = {
                    "auroc": metrics.auroc,
                    "accuracy": metrics.accuracy,
                    "log_loss": lambda p, t: -metrics.nll(p, t),
                }[name](proba[rows], y[rows])
                assert value == pytest.approx(slow)


def test_metrics_of_numbers_on_samples_are_those_of_repeated_rows() -> None:
    rng = np.random.default_rng(0)
    y = 1e6 + 3 * rng.normal(size=60)
    values = (y + rng.normal(size=60))[:, None]
    counts = sample_rows(60, 5, rng)
    for name, metric in METRICS["regression"].items():
        for value, count in zip(metric(values, y, counts), counts, strict=True):
            rows = np.repeat(np.arange(60), count.astype(int))
            slow = {
                "r2": metrics.r2,
                "squared_error": lambda p, t: -(metrics.rmse(p, t) ** 2),
                "absolute_error": lambda p, t: -metrics.mae(p, t),
            }[name](values[rows, 0], y[rows])
            assert value == pytest.approx(slow)


@pytest.mark.parametrize("columns", [1, 5, 20])
@pytest.mark.slow
def test_joint_intervals_hold_for_all_columns_at_once(columns: int) -> None:
    rng, rows, trials = np.random.default_rng(0), 200, 200
    each = all_at_once = 0
    for _ in range(trials):
        x = rng.normal(size=(rows, columns))
        samples = sample_rows(rows, 300, rng) @ x / rows
        joint = Estimate.joint(samples)
        all_at_once += all(estimate.is_zero for estimate in joint)
        each += joint[0].is_zero
        np.testing.assert_allclose([estimate.value for estimate in joint], x.mean(0), atol=1e-6)
    assert 0.9 < all_at_once / trials < 0.99, "the true means are 0"
    assert each >= all_at_once


def test_joint_intervals_of_special_samples() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(0.99, 0.01, (301, 2))
    samples[:, 1] = 1
    first, constant = Estimate.joint(samples, at_most=1.0)
    assert first.low < first.value <= first.high <= 1
    assert constant == Estimate(1, 1, 1)
    # A sample without a metric, such as the AUROC of one class, is left out.
    gaps = np.vstack([samples, [np.nan, np.nan]])
    assert Estimate.joint(gaps, at_most=1.0) == [first, constant]
    (nothing,) = Estimate.joint(samples[:1, :1])
    assert nothing.value == samples[0, 0] and math.isnan(nothing.low) and nothing.is_zero


def test_shapley_values_are_means_over_all_orders() -> None:
    rng = np.random.default_rng(0)
    subsets = coalitions(4, rng)
    values = rng.normal(size=(3, 16))
    place = {subset: at for at, subset in enumerate(subsets.subsets)}
    slow = np.zeros((3, 4))
    for order in itertools.permutations(range(4)):
        for at, party in enumerate(order):
            before, after = (tuple(sorted(order[:end])) for end in (at, at + 1))
            slow[:, party] += (values[:, place[after]] - values[:, place[before]]) / 24
    np.testing.assert_allclose(subsets.shapley(values, rng), slow)
    np.testing.assert_allclose(slow.sum(1), values[:, -1] - values[:, 0])


def test_sampled_orders_estimate_shapley_values_of_many_parties() -> None:
    rng = np.random.default_rng(0)
    subsets = coalitions(12, rng)
    assert not subsets.exact and len(subsets.subsets) < 300
    worth = rng.random(12)
    # Parties 0 and 1 hold the same: together they are worth one of them.
    total = [sum(worth[list(s)]) - 0.9 * worth[1] * {0, 1}.issubset(s) for s in subsets.subsets]
    values = np.tile(total, (200, 1))
    shapley = subsets.shapley(values, rng)
    expected = worth.copy()
    expected[:2] -= 0.45 * worth[1]
    np.testing.assert_allclose(shapley[0, 2:], expected[2:])
    for party in (0, 1):
        estimate = Estimate.of(shapley[:, party])
        assert estimate.low <= expected[party] <= estimate.high
    np.testing.assert_allclose(shapley.sum(1), values[:, -1] - values[:, 0])


def test_worth_of_parties_is_measured_on_the_same_rows(
    classifier: XVFLClassifier, explanation: Explanation
) -> None:
    frame = explanation.parties
    assert list(frame.index) == ["bank", "shop", "noise"]
    assert explanation.n_rows == len(TEST) and explanation.metric == "auroc"
    assert frame["rows"].tolist() == [len(table) for table in HELD_OUT.values()]
    proba = classifier.predict_proba(HELD_OUT, ids=list(TEST))["yes"]
    assert explanation.together.value == pytest.approx(roc_auc_score(Y[TEST] == "yes", proba))
    with pytest.warns(DataWarning, match="50 of 300 rows have an id that is in none of the tables"):
        alone = classifier.predict_proba(
            {"shop": HELD_OUT["shop"]}, mode="collaborative", ids=list(TEST)
        )["yes"]
    assert frame.loc["shop", "alone"] == pytest.approx(roc_auc_score(Y[TEST] == "yes", alone))
    assert explanation.nobody == 0.5
    assert frame["shapley"].sum() == pytest.approx(explanation.together.value - 0.5)
    assert frame["share"].sum() == pytest.approx(1)
    expected = explanation.together.value - frame["without"]
    np.testing.assert_allclose(frame["adds"], expected)
    for name in ("alone", "without", "adds", "shapley", "share"):
        assert (frame[f"{name}_low"] <= frame[name]).all()
        assert (frame[name] <= frame[f"{name}_high"]).all()


def test_noise_is_worth_nothing(explanation: Explanation) -> None:
    noise = explanation.worth[2]
    assert noise.shapley.is_zero and noise.adds.is_zero
    assert not explanation.worth[0].shapley.is_zero
    features = explanation.features
    assert set(features["feature"][:2]) <= {"age", "balance", "visits", "basket"}
    assert features["importance"].is_monotonic_decreasing
    of_noise = features[features["party"] == "noise"]
    assert (of_noise["importance"].abs() < 0.01).all()


def test_completion_of_rows_is_described_in_the_columns_own_units(
    classifier: XVFLClassifier, explanation: Explanation
) -> None:
    effect = explanation.completion
    assert effect is not None and 0 < effect.rows < len(TEST) and len(effect.examples) == 10
    changes = [abs(row.completed - row.observed) for row in effect.examples]
    assert changes == sorted(changes, reverse=True)
    proba = classifier.predict_proba(HELD_OUT)["yes"]
    completed = classifier.complete(HELD_OUT, "bank")
    for row in effect.examples:
        assert row.completed == pytest.approx(proba[row.id], abs=1e-6)
        for cell in row.cells:
            if cell.party == "bank":
                assert pd.isna(HELD_OUT["bank"].loc[row.id, cell.column])
                assert cell.value == pytest.approx(completed.loc[row.id, cell.column])
    # A row that the shop does not hold: all its cells are filled.
    absent = next(each for each in TEST if each not in HELD_OUT["shop"].index)
    asked = classifier.explain(HELD_OUT, Y, ids=[absent], n_repeats=0)
    cells = asked.completed_cells
    assert cells["id"].unique().tolist() == [absent]
    assert set(cells[cells["party"] == "shop"]["column"]) == {"visits", "basket", "club"}
    with pytest.raises(InputError, match="'nobody' is not among the 300 explained rows"):
        classifier.explain(HELD_OUT, Y, ids=["nobody"], n_repeats=0)


def test_rows_with_a_gap_that_have_one_label(
    classifier: XVFLClassifier, capsys: pytest.CaptureFixture[str]
) -> None:
    full = set.intersection(*(set(table.dropna().index) for table in HELD_OUT.values()))
    kept = [each for each in TEST if each in full or Y[each] == "yes"]
    found = classifier.explain(part(TABLES, pd.Index(kept)), Y, n_repeats=0, n_samples=20)
    assert found.completion is not None and not found.completion.is_defined
    expected = f"AUROC of the {found.completion.rows} rows with a gap is undefined, because all of "
    assert found.undefined_completion.startswith(expected)
    assert "use the metric 'accuracy'" in found.undefined_completion
    page = found.to_html()
    assert expected in page and "nan" not in page
    print_explanation("run", found)
    printed = capsys.readouterr().out
    assert expected in printed and "nan" not in printed
    restored = Explanation.from_dict(json.loads(json.dumps(found.to_dict())))
    assert restored.undefined_completion == found.undefined_completion
    other = classifier.explain(
        part(TABLES, pd.Index(kept)), Y, metric="accuracy", n_repeats=0, n_samples=20
    )
    assert other.completion is not None and other.completion.is_defined


def test_shared_rows_other_metrics_and_samples_of_rows(classifier: XVFLClassifier) -> None:
    shared = classifier.explain(HELD_OUT, Y, rows="shared", n_repeats=0, n_samples=20)
    everywhere = set.intersection(*(set(table.index) for table in HELD_OUT.values()))
    assert shared.n_rows == len(everywhere)
    assert {each.rows for each in shared.worth} == {len(everywhere)}
    loss = classifier.explain(HELD_OUT, Y, metric="log_loss", n_repeats=0, n_samples=20)
    assert loss.nobody == pytest.approx(math.log(0.5), abs=0.01)
    assert loss.together.value > loss.nobody
    few = classifier.explain(HELD_OUT, Y, max_rows=100, n_repeats=1, n_samples=20)
    assert few.n_rows == 100
    again = classifier.explain(HELD_OUT, Y, max_rows=100, n_repeats=1, n_samples=20)
    assert few.to_dict() == again.to_dict()
    parties_only = classifier.explain(
        HELD_OUT, Y, max_rows=100, n_repeats=0, n_samples=20, completion=False
    )
    assert few.completion is not None and parties_only.completion is None
    assert parties_only.worth == few.worth and parties_only.completed_cells.empty
    one = classifier.explain({"bank": HELD_OUT["bank"]}, Y, n_repeats=0, n_samples=20)
    assert one.worth[0].share == Estimate(1, 1, 1)


def test_wrong_requests(classifier: XVFLClassifier) -> None:
    with pytest.raises(InputError, match="unknown metric 'auc'.*auroc"):
        classifier.explain(HELD_OUT, Y, metric="auc")
    with pytest.raises(InputError, match="rows: unknown choice 'some'"):
        classifier.explain(HELD_OUT, Y, rows="some")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="none of the labels is a class"):
        classifier.explain(HELD_OUT, Y.map({"yes": 1, "no": 0}))
    with pytest.raises(InputError, match="share no id"):
        classifier.explain(HELD_OUT, Y.set_axis([f"x{i}" for i in range(ROWS)]))
    alone = XVFLClassifier(method="standalone", epochs=1, verbose=False, device="cpu")
    alone.fit(HELD_OUT, Y[TEST])
    with pytest.raises(ModeError, match="standalone cannot predict in mode 'collaborative'"):
        alone.explain(HELD_OUT, Y)


@pytest.mark.slow
def test_images_are_explained_by_patches() -> None:
    rng = np.random.default_rng(0)
    ids = [f"p{i}" for i in range(120)]
    pixels = rng.random((120, 8, 8))
    y = pd.Series(np.arange(120) % 3, index=ids)
    pixels[:, :2, :2] += y.to_numpy()[:, None, None]
    pixels[:, 5] = np.where(rng.random((120, 1)) < 0.3, np.nan, pixels[:, 5])
    tables = {"camera": Images(pixels, ids), "shop": pd.DataFrame({"x": rng.random(120)}, ids)}
    model = XVFLClassifier(
        epochs=15,
        learning_rate=5e-3,
        embedding_dim=16,
        net={"n_blocks": 1, "base_channels": 8},
        device="cpu",
        verbose=False,
    ).fit(tables, y)
    result = model.explain(tables, y, n_samples=60, n_repeats=2)
    assert result.metric == "accuracy" and result.nobody == pytest.approx(1 / 3, abs=0.01)
    assert result.importances[0].feature == "rows 0–1, columns 0–1"
    assert sum(each.party == "camera" for each in result.importances) == 16
    assert result.completion is not None
    assert {cell.column for row in result.completion.examples for cell in row.cells} <= {
        "of 64 pixels"
    }


def test_json_page_and_plot(explanation: Explanation, tmp_path: Path) -> None:
    data = json.loads(json.dumps(explanation.to_dict()))
    restored = Explanation.from_dict(data)
    assert restored.to_dict() == data
    assert restored.parties.equals(explanation.parties)
    explanation.plot().savefig(tmp_path / "plot.png")
    assert is_png(tmp_path / "plot.png")
    explanation.save_html(tmp_path / "page.html", "What <we> learned")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "What &lt;we&gt; learned" in text and "http" not in text and "<script" not in text
    for each in (*explanation.worth, *explanation.importances):
        assert f">{each.party}<" in text
    with pytest.raises(InputError, match="cannot be written"):
        explanation.save_html(tmp_path / "absent" / "page.html")


def test_a_loaded_model_explains_as_the_fitted_one(
    classifier: XVFLClassifier, tmp_path: Path
) -> None:
    classifier.save(tmp_path / "model")
    loaded = XVFLClassifier.load(tmp_path / "model")
    options = {"n_repeats": 1, "n_samples": 20}
    assert (
        loaded.explain(HELD_OUT, Y, **options).to_dict()  # type: ignore[arg-type]
        == classifier.explain(HELD_OUT, Y, **options).to_dict()  # type: ignore[arg-type]
    )


def test_progress_is_reported(classifier: XVFLClassifier) -> None:
    reports: list[tuple[str, float]] = []
    options = ExplainOptions(n_repeats=1, n_samples=2)
    explain(classifier.model_, HELD_OUT, Y, options, lambda *each: reports.append(each))
    shares = [share for _, share in reports]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1
    assert any(text == "bank: age" for text, _ in reports)


def test_the_command_explains_a_run(tmp_path: Path) -> None:
    config = write_run_inputs(tmp_path, rows=200)
    train(config, tmp_path / "run")
    done = run_xvfl("explain", tmp_path / "run", "--repeats", "1")
    assert done.code == 0, done.err
    assert "Shapley value" in done.out and "most important features" in done.out
    result = json.loads((tmp_path / "run" / "explanation.json").read_text())
    assert [each["party"] for each in result["worth"]] == ["bank", "shop"]
    assert is_png(tmp_path / "run" / "explanation.png")
    assert "<h1>Explanation of run</h1>" in (tmp_path / "run" / "explanation.html").read_text()
