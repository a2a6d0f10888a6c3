"""Evaluation: the same lines from whole tables, from chunks, and from a federation."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tests.small_tables import is_png, make_tables
from xvfl import XVFLClassifier
from xvfl.data.sources import encode
from xvfl.model.evaluation import (
    Evaluation,
    Line,
    evaluate,
    federation_predictions,
    model_predictions,
)
from xvfl.model.model import Model
from xvfl.model.report.run_plots import comparable_groups, plot_evaluation
from xvfl.primitives.metrics import all_metrics, majority_rate

Trained = tuple[Model, dict[str, pd.DataFrame], pd.Series]


@pytest.fixture(scope="module")
def trained() -> Trained:
    bank, shop, y = make_tables()
    tables = {"bank": bank, "shop": shop}
    classifier = XVFLClassifier(epochs=2, batch_size=32, device="cpu", random_state=0)
    return classifier.fit(tables, y).model_, tables, y


def lines_of(model: Model, *chunks: tuple[dict[str, pd.DataFrame], pd.Series]) -> list[Line]:
    return evaluate(model_predictions(model, chunks), "test").lines


def test_a_line_has_the_metrics_of_its_predictions(trained: Trained) -> None:
    model, tables, y = trained
    result = evaluate(model_predictions(model, [(tables, y)]), "test")
    numbers = pd.Series(pd.Categorical(y, categories=model.classes).codes, y.index)
    assert result.majority == majority_rate(numbers.to_numpy())
    assert [line.mode for line in result.lines[::2]] == [
        "local",
        "assisted",
        "peers",
        "collaborative",
    ]
    for line in result.lines:
        party = None if line.party == "all" else line.party
        prediction = model.predict(tables, line.mode, party)  # type: ignore[arg-type]
        assert line.metrics == all_metrics(prediction.values, numbers[prediction.ids].to_numpy())
        assert line.rows == len(prediction.ids) and line.reason == ""


def test_chunks_give_the_same_lines(trained: Trained) -> None:
    model, tables, y = trained
    chunks = []
    for ids in (y.index[:50], y.index[50:]):
        part = {name: table.loc[table.index.intersection(ids)] for name, table in tables.items()}
        chunks.append((part, y[ids]))
    for whole, joined in zip(lines_of(model, (tables, y)), lines_of(model, *chunks), strict=True):
        assert joined.metrics == pytest.approx(whole.metrics, abs=1e-6)
        assert replace(joined, metrics={}) == replace(whole, metrics={})


def test_a_federation_gives_the_same_lines_without_calibration(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tables, y = trained
    monkeypatch.setattr(model, "temperatures", {})
    ids = tables["bank"].index.intersection(tables["shop"].index)
    part = {name: table.loc[ids] for name, table in tables.items()}
    encoded = {name: encode(model.encoders[name], table) for name, table in part.items()}
    rows, federation = model.rows_of(encoded, list(ids))
    rows = replace(rows, y=torch.from_numpy(np.array([model.classes.index(c) for c in y[ids]])))
    from_model = lines_of(model, (part, y[ids]))
    from_federation = evaluate(federation_predictions(model.method, federation, rows), "test").lines
    for ours, theirs in zip(from_federation, from_model, strict=True):
        assert (ours.mode, ours.party, ours.bytes_per_row) == (theirs.mode, theirs.party, None)
        if ours.rows == theirs.rows:
            assert ours.metrics == pytest.approx(theirs.metrics, abs=1e-6)
    assert any(a.rows == b.rows for a, b in zip(from_federation, from_model, strict=True))


def test_modes_are_compared_on_the_same_rows(trained: Trained) -> None:
    model, tables, y = trained
    halves = [
        ({name: t.loc[t.index.intersection(ids)] for name, t in tables.items()}, y[ids])
        for ids in (y.index[:70], y.index[70:])
    ]
    for chunks in ([(tables, y)], halves):
        result = evaluate(model_predictions(model, chunks), "test")
        assert [each.party for each in result.same_rows] == ["bank", "shop"]
        for each in result.same_rows:
            ids = tables[each.party].index
            assert each.rows == len(ids) and list(each.metrics) == [
                "local",
                "assisted",
                "collaborative",
            ]
            numbers = pd.Categorical(y[ids], categories=model.classes).codes
            for mode, metrics in each.metrics.items():
                party = None if mode == "collaborative" else each.party
                slow = model.predict(tables, mode, party, list(ids)).values  # type: ignore[arg-type]
                assert metrics == pytest.approx(all_metrics(slow, numbers), abs=1e-6)
        data = json.loads(json.dumps(result.to_dict()))
        assert Evaluation.from_dict(data).to_dict()["same_rows"] == data["same_rows"]


def test_the_chart_compares_only_lines_with_the_same_rows(trained: Trained, tmp_path: Path) -> None:
    model, tables, y = trained
    result = evaluate(model_predictions(model, [(tables, y)]), "test")
    groups = comparable_groups(result)
    assert [group.title for group in groups] == [
        "120 rows of bank",
        "100 rows of shop",
        "all 120 rows",
    ]
    assert [name for name, *_ in groups[1].bars] == ["local", "assisted", "collaborative"]
    by_line = {(line.mode, line.party): line.metrics for line in result.lines}
    assert groups[1].bars[0][1] == by_line["local", "shop"]
    # The collaborative bar beside the shop's is of the shop's rows, not of all.
    assert groups[1].bars[2][1] != by_line["collaborative", "all"]
    plot_evaluation(result, tmp_path / "chart.png")
    assert is_png(tmp_path / "chart.png")
