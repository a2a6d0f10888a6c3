"""Runs with few labels: the same rows with and without the unlabeled ones."""

from pathlib import Path

import pytest
import torch

from xvfl_lab.datasets.digits import digits
from xvfl_lab.experiments.plot_unlabeled import plot
from xvfl_lab.experiments.unlabeled import FewLabels, make, run_config, summary

CPU = torch.device("cpu")


def test_both_settings_have_the_same_labels() -> None:
    configs = [run_config("digits", seed, epochs=4) for seed in (0, 1)]
    without, with_all = (FewLabels(digits(), configs, 200, each, CPU) for each in (False, True))
    labeled, rows = without.rows("train"), with_all.rows("train")
    assert len(labeled) == 2 * 170 and len(without.rows("validation")) == 2 * 30
    some = rows.take((rows.y >= 0).nonzero().flatten())
    assert torch.equal(some.handles, labeled.handles) and torch.equal(some.y, labeled.y)
    assert torch.equal(with_all.rows("validation").y, without.rows("validation").y)
    assert without.trainer().pretraining == 0 and with_all.trainer().pretraining == 1
    assert rows.epoch_size == 4 * 170 and labeled.epoch_size == 170


def test_the_quick_figure_is_computed_and_drawn(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        record = make(tmp_path, True, CPU, lambda name, parties: digits(), lambda text: None)
    table = summary(record["figures"])
    assert table["digits collaborative"]["verdict"] == "level", "one seed decides nothing"
    assert table["digits collaborative"]["with"] > 50
    assert plot(record["figures"], {}).axes


def test_the_summary_pairs_the_seeds() -> None:
    def runs(*scores: float) -> dict[str, object]:
        modes = ("local", "assisted", "collaborative")
        return {"runs": [dict.fromkeys(modes, score) for score in scores]}

    table = summary({"set": {"labeled rows": runs(70, 60, 65), "all rows": runs(71, 61.1, 65.9)}})
    assert table["set local"]["gain"] == pytest.approx(1.0)
    assert table["set local"]["verdict"] == "ahead"
