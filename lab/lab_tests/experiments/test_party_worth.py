"""Worth of parties: the comparison of both Shapley values, and the tasks it trains."""

import numpy as np
import pytest
import torch

from xvfl_lab.datasets.digits import quarters
from xvfl_lab.experiments.party_worth import (
    reduced,
    restricted,
    split_tables,
    summary,
    tables,
    trained_values,
    with_noise,
)
from xvfl_lab.experiments.plot_party_worth import plot

FIGURES = {
    "set": {
        "metric": "auroc",
        "parties": ["a", "b", "c"],
        "rows": {"train": 10, "test": 5},
        "explained": [[0.2, 0.1, 0.0], [0.22, 0.12, 0.02]],
        "retrained": [[0.3, 0.1, 0.09], [0.31, 0.11, 0.12]],
        "intervals": [],
        "noise": [
            {"value": 0.01, "low": -0.1, "high": 0.1},
            {"value": 0.15, "low": 0.1, "high": 0.2},
        ],
        "default_noise": [{"value": 0.0, "low": -0.1, "high": 0.1}],
        "seconds": {
            "training": 10.0,
            "explanation": 0.1,
            "training_rows": 100,
            "explained_rows": 50,
        },
    }
}


def test_the_summary_compares_order_shares_noise_and_cost() -> None:
    each = summary(FIGURES)["set"]
    assert (each["decided"], each["agreed"]) == (2, 2), "b and c do not differ significantly"
    assert each["noise"].endswith("0.0800 on average, and the interval contains 0 in 1 of 2 models")
    assert each["cost"] == pytest.approx(0.01)
    explained, retrained = (np.array(part) for part in each["shares"])
    assert each["share_error"] == pytest.approx(np.abs(explained - retrained).mean())
    assert any("in 2 of 2 pairs" in line for line in tables(FIGURES))
    assert plot(FIGURES, {}).axes


def test_values_of_subsets_and_of_a_party_alone() -> None:
    task = reduced(quarters())
    assert list(with_noise(task).layouts)[-1] == "noise"
    with torch.random.fork_rng(devices=[]):
        two = restricted(task, list(task.layouts)[:2])
        values = trained_values(two, [0], 1, "accuracy", True, torch.device("cpu"))
        alone = restricted(task, list(task.layouts)[:1])
        of_one = trained_values(alone, [0], 1, "accuracy", False, torch.device("cpu"))
    assert np.shape(values["values"]) == (1, 4) and len(values["intervals"][0]) == 2
    assert np.shape(of_one["values"]) == (1, 2)
    assert values["values"][0][0] == pytest.approx(of_one["values"][0][0])


def test_tables_of_training_and_test_rows() -> None:
    task = with_noise(reduced(quarters()), seed=3)
    (train, y_train), (test, y_test) = split_tables(task)
    assert list(train) == list(test) == list(task.layouts)
    assert len(y_train) + len(y_test) == len(task)
    for parts, y in ((train, y_train), (test, y_test)):
        assert all(table.index.equals(y.index) for table in parts.values())
    assert not np.array_equal(task.values["noise"], with_noise(task, seed=4).values["noise"])
