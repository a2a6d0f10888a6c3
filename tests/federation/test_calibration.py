"""Calibration: weights of decisions are chosen only where validation rows support them (D9)."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from tests.methods.test_members import NET, federation_of
from xvfl import XVFLClassifier
from xvfl.config import LossConfig
from xvfl.data.sources import encode
from xvfl.methods.pooling import decision_weights
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, LOG_SCALE_PRECISION
from xvfl.training.calibration import (
    MIN_ROWS_TO_POOL,
    calibrate,
    candidate_weights,
    choose_weights,
    fit_decision_weights,
)
from xvfl.training.predict import logits, some_rows


def log_loss(out: Tensor, y: int, scale: float) -> float:
    return math.log(sum(math.exp(scale * (float(each) - float(out[y]))) for each in out))


def penalized_loss(rows: list[Tensor], y: Tensor, scale: float) -> float:
    """Sum the log-loss; add minus the logarithm of the prior of the scale."""
    total = sum(log_loss(row, int(c), scale) for row, c in zip(rows, y, strict=True))
    return total + LOG_SCALE_PRECISION * math.log(scale) ** 2 / 2


def slow_choice(decisions: Tensor, y: Tensor, candidates: Tensor) -> list[float]:
    """Choose weights for the rows (N, n, C) of one run, scales by a search in small steps."""

    def losses(weights: list[float]) -> list[float]:
        rows = [(torch.tensor(weights).unsqueeze(1) * row).sum(0) for row in decisions]
        scales = [1.05**step for step in range(-60, 41)]
        scale = min(scales, key=lambda each: penalized_loss(rows, y, each))
        return [log_loss(row, int(c), scale) for row, c in zip(rows, y, strict=True)]

    default = losses(candidates[0].tolist())
    best, chosen = min(((losses(each), each) for each in candidates.tolist()), key=_total)
    gains = [a - b for a, b in zip(default, best, strict=True)]
    mean = sum(gains) / len(gains)
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gains) / (len(gains) - 1))
    return chosen if mean > deviation / math.sqrt(len(gains)) else candidates[0].tolist()


def _total(pair: tuple[list[float], list[float]]) -> float:
    return sum(pair[0])


def sample_decisions(rows: int, signal: list[float], seed: int) -> tuple[Tensor, Tensor]:
    """Sample decisions that differ in how much they know of the label."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (rows,), generator=rng)
    noise = torch.randn(rows, len(signal), 3, generator=rng, dtype=torch.float64)
    known = nn.functional.one_hot(y, 3).unsqueeze(1) * torch.tensor(signal).view(1, -1, 1)
    return (noise + known).log_softmax(-1), y


@pytest.mark.parametrize("signal", [[2.5, 0.0, 0.5], [1.0, 1.0, 1.5]])
def test_D9_the_choice_equals_the_slow_one(signal: list[float]) -> None:
    candidates = torch.tensor([[0.0, 1, 0], [0.5, 0.5, 0], [1, 0, 0], [0.0, 1, 1], [0.5, 0.5, 2]])
    runs = [sample_decisions(60, signal, seed) for seed in range(2)]
    decisions, y = (torch.stack(each) for each in zip(*runs, strict=True))
    counted = torch.ones(2, 60, dtype=torch.bool)
    counted[1, 55:] = False
    found = choose_weights(decisions, y, counted, candidates)
    for run, of_run in enumerate(found.tolist()):
        some = counted[run]
        assert of_run == slow_choice(decisions[run, some], y[run, some], candidates)


def test_the_scale_minimizes_the_penalized_log_loss_of_each_run() -> None:
    decisions, y = sample_decisions(80, [1.0, 3.0], 0)
    out = torch.stack([decisions[:, 0] * 3, decisions[:, 1] / 2])
    both, weight = torch.stack([y, y]), torch.ones(2, 80, dtype=torch.float64)
    for run, scale in enumerate(CLASSIFICATION.fit_scale(out, both, weight).tolist()):
        at = [penalized_loss(list(out[run]), y, s) for s in (scale * 0.99, scale, scale * 1.01)]
        assert at[1] <= min(at[0], at[2])


def test_few_rows_that_are_all_predicted_right_give_no_extreme_temperature() -> None:
    y = torch.arange(60) % 2
    out = nn.functional.one_hot(y, 2).double() * 4
    scales = []
    for rows in (20, 60):
        weight = (torch.arange(60) < rows).double()
        scales.append(CLASSIFICATION.fit_scale(out[None], y[None], weight[None]).item())
    assert 1 < scales[0] < scales[1] < 1.5


def test_many_rows_outweigh_the_prior_of_the_temperature() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 3, generator=rng, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1), 1, generator=rng).flatten()
    weight = torch.ones(1, 20_000, dtype=torch.float64)
    scale = CLASSIFICATION.fit_scale(logits[None] / 5, y[None], weight)
    assert scale.item() == pytest.approx(5, rel=0.05)


def test_D9_few_rows_or_no_clear_gain_keep_the_default() -> None:
    candidates = candidate_weights("local")
    assert candidates[0].tolist() == [0.0, 1.0]
    assert candidate_weights("collaborative")[0].tolist() == [0.0, 1.0, 0.0]
    decisions, y = sample_decisions(200, [4.0, 0.0], 1)
    few = torch.arange(200) < MIN_ROWS_TO_POOL - 1
    for counted, expected in ((few, [0.0, 1.0]), (few.logical_not(), [1.0, 0.0])):
        assert (
            choose_weights(decisions[None], y[None], counted[None], candidates)[0].tolist()
            == expected
        )
    kept = 0
    for seed in range(20):
        same, y = sample_decisions(60, [1.0, 1.0], seed)
        counted = torch.ones(1, 60, dtype=torch.bool)
        same[:, 0] = same[:, 1] + 0.01 * torch.randn(60, 3, dtype=torch.float64)
        kept += choose_weights(same[None], y[None], counted, candidates)[0].tolist() == [0.0, 1.0]
    assert kept >= 10


class Garbage(nn.Module):
    """A completer whose output does not depend on its input."""

    def __init__(self, completer: nn.Module) -> None:
        super().__init__()
        self.completer = completer

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self.completer(*inputs)
        noise = torch.rand(out.shape, generator=torch.Generator().manual_seed(len(out)))
        return (noise > 0.5).to(out.dtype)


@pytest.fixture(scope="module")
def tables() -> tuple[dict[str, pd.DataFrame], pd.Series]:
    """Two parties whose columns all depend on the class, with half of the cells missing."""
    rng = np.random.default_rng(0)
    index = pd.Index([f"r{i}" for i in range(900)], name="id")
    y = pd.Series(rng.integers(0, 2, 900), index)
    both = {}
    for party in ("bank", "shop"):
        x = rng.normal(size=(900, 6)) + 1.2 * y.to_numpy()[:, None]
        x[:, 1:][rng.random((900, 5)) < 0.6] = np.nan
        both[party] = pd.DataFrame(x, index, columns=[f"{party}{i}" for i in range(6)])
    return both, y


def fit(tables: dict[str, pd.DataFrame], y: pd.Series, **options: Any) -> XVFLClassifier:
    settings: dict[str, Any] = {
        "epochs": 25,
        "embedding_dim": 16,
        "hidden_dim": 32,
        "learning_rate": 5e-3,
        "full_threshold": 1.0,
    }
    model = XVFLClassifier(**{**settings, **options})
    return model.fit(tables, y)


def validation(model: XVFLClassifier, tables: dict[str, pd.DataFrame], y: pd.Series) -> Any:
    encoded = {name: encode(model.model_.encoders[name], each) for name, each in tables.items()}
    rows, federation = model.model_.rows_of(encoded, list(y.index))
    return replace(rows, y=torch.tensor(y.to_numpy())), federation


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_D9_a_completer_that_outputs_garbage_cannot_hurt(
    tables: tuple[dict[str, pd.DataFrame], pd.Series], members: int
) -> None:
    both, y = tables
    model = fit({k: v[:500] for k, v in both.items()}, y[:500], members=members)
    for net in model.model_.parties.values():
        net.completer = Garbage(net.completer)

    def part(start: int, stop: int) -> Any:
        some = {name: table[start:stop] for name, table in both.items()}
        return validation(model, some, y[start:stop])

    rows, federation = part(500, 700)
    test_rows, test_federation = part(700, 900)
    method = model.model_.method
    decision_weights(method).clear()

    def losses() -> dict[str, float]:
        out = {}
        for mode, party in (("local", 0), ("local", 1), ("assisted", 0), ("collaborative", 0)):
            found = logits(method, test_federation, test_rows, mode, party)  # type: ignore[arg-type]
            out[f"{mode}{party}"] = nn.functional.cross_entropy(found, test_rows.y).item()
        return out

    completed = losses()
    fit_decision_weights(method, federation, rows)
    chosen = decision_weights(method)
    assert chosen["local/bank"][1] <= 0.5 and chosen["local/shop"][1] <= 0.5
    assert chosen["collaborative"][1] <= 0.25 and chosen["assisted/bank"][1] <= 0.25
    pooled = losses()
    assert all(pooled[key] < completed[key] for key in completed)


@pytest.fixture(scope="module")
def fitted(tables: tuple[dict[str, pd.DataFrame], pd.Series]) -> XVFLClassifier:
    both, y = tables
    return fit({k: v[:300] for k, v in both.items()}, y[:300], epochs=2)


@pytest.fixture
def calibrated(fitted: XVFLClassifier) -> XVFLClassifier:
    model = deepcopy(fitted)
    decision_weights(model.model_.method).update(
        {"local/bank": [0.75, 0.25], "assisted/shop": [0.5, 0.5], "collaborative": [0.5, 0.5, 1.0]}
    )
    return model


def test_D9_weights_are_saved_and_loaded(
    calibrated: XVFLClassifier,
    tables: tuple[dict[str, pd.DataFrame], pd.Series],
    tmp_path: Path,
) -> None:
    calibrated.save(tmp_path)
    loaded = XVFLClassifier.load(tmp_path)
    weights = decision_weights(calibrated.model_.method)
    assert decision_weights(loaded.model_.method) == weights and weights
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["decision_weights"] == weights
    both = tables[0]
    for mode, party in (("local", "bank"), ("assisted", "shop"), ("collaborative", None)):
        pair = [each.predict_proba(both, mode=mode, party=party) for each in (calibrated, loaded)]
        np.testing.assert_array_equal(*pair)


def test_other_methods_get_temperatures_alone() -> None:
    method, federation, rows = federation_of(LossConfig(method="laser"), NET, [5])
    many: Rows = rows.take(torch.arange(len(rows)).repeat(5), rows.step)
    temperatures = calibrate(method, federation, many)
    assert set(temperatures) >= {"local/p0", "local/p1", "collaborative"}
    assert decision_weights(method) == {}


def test_D9_a_row_predicted_as_observed_counts_no_completed_features(
    calibrated: XVFLClassifier, tables: tuple[dict[str, pd.DataFrame], pd.Series]
) -> None:
    both, method = tables[0], calibrated.model_.method
    shares = {}
    for weights in ([1.0, 0.0], [0.75, 0.25]):
        decision_weights(method)["local/bank"] = weights
        table = calibrated.predict_table(both, mode="local", party="bank")
        shares[weights[1]] = table["completed"].to_numpy()
    missing = both["bank"].isna().to_numpy().mean(1)
    np.testing.assert_allclose(shares[0.25], missing)
    assert (shares[0.0] == 0).all()


def test_scores_use_evenly_spaced_rows_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.arange(14)
    full = torch.ones(14, 1, dtype=torch.bool)
    rows = Rows(y.unsqueeze(1), full, full, y, torch.ones(14), runs=2)
    assert some_rows(rows) is rows
    monkeypatch.setattr("xvfl.training.predict.MAX_ROWS", 3)
    some = some_rows(rows)
    assert some.y.tolist() == [0, 3, 6, 7, 10, 13] and some.runs == 2
