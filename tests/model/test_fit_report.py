"""What `fit` says at its end: rows, scores beside trees, use of completion, what to try next."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.command_line import run_xvfl
from tests.small_tables import make_tables, write_run_inputs
from xvfl import XVFLClassifier, XVFLRegressor
from xvfl.data.sources import encode
from xvfl.model import build_report, quick_trees
from xvfl.model.build_report import _completion_uses, _still_improves
from xvfl.model.fit_report import REPORT, FitReport, read_report
from xvfl.model.run_dir import RunDir

BANK, SHOP, Y = make_tables(400)
BOTH = {"bank": BANK, "shop": SHOP}
SIZES = {"embedding_dim": 8, "hidden_dim": 16, "members": 1, "learning_rate": 1e-2}


def new(**more: object) -> XVFLClassifier:
    """Make a small model."""
    return XVFLClassifier(**{**SIZES, "epochs": 20, "verbose": False, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> XVFLClassifier:
    return new().fit(BOTH, Y)


def test_rows_columns_and_scores_of_every_mode_beside_the_majority_and_trees(
    model: XVFLClassifier, capfd: pytest.CaptureFixture[str]
) -> None:
    report = new().fit(BOTH, Y).report_
    assert capfd.readouterr() == ("", ""), "verbose=False"
    assert report == model.report_
    assert report.rows == model.row_counts_ and report.columns == {"bank": 3, "shop": 3}
    assert [(each.mode, each.party) for each in report.scores] == [
        ("collaborative", "all"),
        ("assisted", "bank"),
        ("assisted", "shop"),
        ("local", "bank"),
        ("local", "shop"),
    ]
    assert report.baseline["auroc"] == 0.5 and report.baseline["accuracy"] < 0.6
    for each in report.scores:
        assert each.metrics["auroc"] > 0.8 and 40 < each.rows <= 60
        assert each.trees.get("auroc", 1) > 0.9 and bool(each.trees) == (each.mode != "assisted")
    assert report.scores[0].trees != report.scores[3].trees != report.scores[4].trees
    text = str(report)
    assert "trained xvfl+ on 340 labeled rows\ncolumns: bank 3 (" in text
    assert "majority class" in text and "AUROC of trees" in text


def test_trees_leave_out_a_party_without_labeled_rows() -> None:
    few = SHOP.index[:60]
    report = new(epochs=1).fit({"bank": BANK, "shop": SHOP.loc[few]}, Y.drop(few[1:])).report_
    assert report.rows["unlabeled"] == len(few) - 1
    assert any(each.trees for each in report.scores if each.party == "bank")


def test_a_dominant_column_is_named_beside_a_hashed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_report, "LEAK_GAIN", 0.5)
    note = [f"note {i}" for i in range(len(BANK))]
    leak = np.where(Y.iloc[0] == Y, 1.0, 0.0) + np.random.default_rng(99).normal(0, 0.3, len(Y))
    bank = BANK.assign(leak=leak)
    bank.insert(0, "note", [*note[:200], *note[:200]])
    report = new(epochs=1).fit({"bank": bank, "shop": SHOP}, Y).report_
    assert any("'leak'" in each for each in report.hints)


def test_it_is_printed_where_progress_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    fitted = new(epochs=1, verbose=True).fit(BOTH, Y)
    assert str(fitted.report_) in capfd.readouterr().err


def test_completion_that_validation_switched_off_is_named(model: XVFLClassifier) -> None:
    encoded = {name: encode(model.model_.encoders[name], table) for name, table in BOTH.items()}
    rows, federation = model.model_.rows_of(encoded, list(SHOP.index))
    method, task = model.model_.method, model.model_.task
    before = dict(method.decision_weights)  # type: ignore[attr-defined]
    try:
        method.decision_weights.clear()  # type: ignore[attr-defined]
        weights = {"collaborative": [1.0, 0.0, 0.0], "local/bank": [0.5, 0.5]}
        method.decision_weights |= weights  # type: ignore[attr-defined]
        losses = {"collaborative": (0.41, 0.45)}
        uses = {
            (each.mode, each.party): each
            for each in _completion_uses(method, federation, rows, task, losses)
        }
    finally:
        method.decision_weights.clear()  # type: ignore[attr-defined]
        method.decision_weights |= before  # type: ignore[attr-defined]
    off = uses["collaborative", "all"]
    assert off.share == 0
    assert off.reason == "validation log-loss 0.4100 without it, 0.4500 with it"
    assert uses["local", "bank"].share == 0.5 and uses["local", "bank"].reason == ""
    report = replace(model.report_, completion=list(uses.values()))
    assert "completion is not used in collaborative: validation log-loss 0.4100" in str(report)
    assert "completion is used in local at bank (weight 0.5)" in str(report)
    same = [
        replace(off, mode=mode, party="bank", reason="no gap") for mode in ("local", "assisted")
    ]
    shown = replace(model.report_, completion=[*same, uses["local", "bank"]])
    assert "completion is not used in local at bank, assisted at bank: no gap" in str(shown)
    assert "completion is not used: no gap\n" in str(replace(shown, completion=same)) + "\n"


def test_the_reasons_are_those_of_the_calibration(model: XVFLClassifier) -> None:
    for each in model.report_.completion:
        if each.reason.startswith("validation"):
            without, completed = (float(word) for word in each.reason.split() if word[0].isdigit())
            assert each.share == 0 and without < completed
    vanilla = new(method="vanilla", epochs=1).fit(BOTH, Y).report_
    assert {each.reason for each in vanilla.completion} == {"the method completes nothing"}
    whole = {"bank": BANK.fillna({"age": 1, "job": "x"}), "shop": SHOP.fillna(0)}
    full = new(epochs=1).fit(whole, Y).report_.completion
    assert full[0].reason == "no validation row has a gap"


def test_without_lightgbm_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("lightgbm")

    monkeypatch.setattr(quick_trees, "require_lightgbm", missing)
    report = new(epochs=1).fit(BOTH, Y).report_
    assert not any(each.trees for each in report.scores)
    assert str(report).count("LightGBM is not installed (pip install 'xvfl[trees]')") == 1


def test_hints_name_what_was_seen() -> None:
    rng = np.random.default_rng(0)
    told = Y.where(rng.random(len(Y)) > 0.01, "no")
    noise = pd.DataFrame(rng.normal(size=(400, 2)), BANK.index, columns=["a", "b"])
    leaky = {"bank": noise.assign(state=told.map({"yes": 2.5, "no": 1.5})), "shop": noise}
    with pytest.warns(match="state"):
        hints = new(epochs=1).fit(leaky, Y).report_.hints
    assert any("check that column 'state' of bank is known at prediction" in h for h in hints)
    chance = pd.Series(rng.choice(["yes", "no"], 400), index=BANK.index)
    hints = new(epochs=2).fit({"bank": noise, "shop": noise}, chance).report_.hints
    assert "no mode is better than" in hints[0] and len(hints) <= 2
    assert "cross_val_score, or more labels: scores of 60 validation rows" in hints[1]
    assert _still_improves([{"score": -0.9}, {"score": -0.5}], 2)
    assert not _still_improves([{"score": -0.9}, {"score": -0.5}], 3), "stopped early"
    assert not _still_improves([{"score": -0.9}, {"score": -0.899}], 2)


@pytest.mark.slow
def test_reports_of_numbers() -> None:
    y = pd.Series(BANK["balance"] + SHOP["visits"].reindex(BANK.index).fillna(0) * 9, BANK.index)
    report = XVFLRegressor(**SIZES, epochs=30, verbose=False).fit(BOTH, y).report_  # type: ignore[arg-type]
    assert report.task == "regression" and abs(report.baseline["r2"]) < 0.2
    assert report.scores[0].metrics["r2"] > 0.3 and report.scores[0].trees["r2"] > 0.3
    assert "mean label" in str(report) and "R² of trees" in str(report)


def test_a_report_is_stored_with_the_model(model: XVFLClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    again = XVFLClassifier.load(tmp_path / "model")
    assert again.report_ == model.report_ == read_report(RunDir(tmp_path / "model"))
    assert FitReport.from_dict(model.report_.to_dict()) == model.report_
    hostile = replace(model.report_, hints=["<b>\x1b[2J"])
    assert "&lt;b&gt;" in hostile._repr_html_() and "<table" in hostile._repr_html_()
    assert "\x1b" not in str(hostile)
    (tmp_path / "model" / REPORT).unlink()
    assert XVFLClassifier.load(tmp_path / "model").report_ is None


@pytest.mark.slow
def test_the_commands_show_it(tmp_path: Path) -> None:
    config, run = write_run_inputs(tmp_path), tmp_path / "run"
    trained = run_xvfl("train", config, "--out", run)
    report = read_report(RunDir(run))
    assert report is not None and str(report) in trained.out
    shown = run_xvfl("evaluate", run).out
    assert report.lines and all(line in shown for line in report.lines)
