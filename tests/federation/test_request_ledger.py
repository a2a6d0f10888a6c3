"""A party's limits on requests: counted by row, over runs and restarts, and kept on disk."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.options import resolved
from xvfl.config import NO_PROTECTION, PrivacyConfig, TrainConfig
from xvfl.errors import ConfigError, RunError, WireError
from xvfl.federation.request_ledger import RequestLedger, RequestLimits
from xvfl.federation.run_settings import RunSettings
from xvfl.federation.settings_limits import BOUNDS, setting_values

PROTECTED = PrivacyConfig("no_gradients")
SMALL = RequestLimits(max_epochs=2, max_runs=1, max_views=3, min_rows=2)
ROWS = np.array([0, 3, 4])
TRAINING = torch.arange(5)


def settings(epochs: int, privacy: PrivacyConfig = PROTECTED) -> RunSettings:
    options = resolved(train=TrainConfig(epochs=epochs), privacy=privacy)
    return RunSettings("xvfl+", options.net, options.train, 0.3, privacy=privacy)


def test_a_row_has_a_budget_for_training_and_one_for_evaluation() -> None:
    ledger = RequestLedger(SMALL, 5)
    for _ in range(SMALL.budget("training")):
        ledger.count_embed(ROWS, ["plain"], training=True)
    with pytest.raises(WireError, match=r"3 rows have used their 4 requests for training"):
        ledger.count_embed(ROWS, ["plain"], training=True)
    ledger.count_embed(np.array([1, 2]), ["plain"], training=True)
    ledger.count_complete(ROWS, training=True)
    ledger.count_embed(ROWS, ["plain"], training=False)
    usage = ledger.usage()
    assert (usage["training_requests_used"], usage["evaluation_requests_used"]) == (4, 1)
    assert usage["training_requests_allowed"] == SMALL.budget("training")


def test_a_rejected_request_is_not_counted() -> None:
    ledger = RequestLedger(SMALL, 5)
    for _ in range(SMALL.budget("training")):
        ledger.count_embed(np.array([0, 1]), ["plain"], training=True)
    with pytest.raises(WireError, match="1 rows"):
        ledger.count_embed(np.array([1, 2]), ["plain"], training=True)
    for _ in range(SMALL.budget("training")):
        ledger.count_embed(np.array([2, 3]), ["plain"], training=True)


@pytest.mark.parametrize(
    ("rows", "views", "message"),
    [
        ([1], ["plain"], "2 rows or more, got 1"),
        ([1, 1], ["plain"], "each row at most once"),
        ([1, 2], ["plain"] * 4, "allows 3 views, got 4"),
    ],
)
def test_single_rows_repeated_rows_and_many_views_are_rejected(
    rows: list[int], views: list[str], message: str
) -> None:
    with pytest.raises(WireError, match=message):
        RequestLedger(SMALL, 5).count_embed(np.array(rows), views, training=True)


def test_no_row_and_single_rows_in_evaluation_are_allowed() -> None:
    ledger = RequestLedger(SMALL, 5)
    ledger.count_embed(np.array([], dtype=np.int64), ["plain"], training=True)
    ledger.count_embed(np.array([1]), ["plain"], training=False)


def test_counts_and_runs_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "requests.npy"
    first = RequestLedger(SMALL, 5, path)
    first.begin("a", settings(2), TRAINING)
    for _ in range(SMALL.budget("training")):
        first.count_embed(ROWS, ["plain"], training=True)
    again = RequestLedger(SMALL, 5, path)
    again.begin("a", settings(2), TRAINING)
    with pytest.raises(WireError, match="1 runs with one alignment"):
        again.begin("b", settings(2), TRAINING)
    with pytest.raises(WireError, match="have used"):
        again.count_embed(ROWS, ["plain"], training=True)
    assert again.usage()["runs_used"] == 1


def test_a_run_with_more_epochs_or_with_gradients_is_rejected() -> None:
    ledger = RequestLedger(SMALL, 5)
    with pytest.raises(WireError, match="allows 2 epochs, the run has 3"):
        ledger.begin("a", settings(3), TRAINING)
    with pytest.raises(WireError, match="accepts no gradients"):
        ledger.begin("a", settings(2, NO_PROTECTION), TRAINING)
    assert ledger.usage()["runs_used"] == 0


@pytest.mark.parametrize("content", [b"", b"not an array"])
def test_a_damaged_file_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "requests.npy"
    path.write_bytes(content)
    with pytest.raises(RunError, match="restore the file"):
        RequestLedger(SMALL, 5, path)


def test_counts_of_another_number_of_rows_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "requests.npy"
    RequestLedger(SMALL, 5, path)
    with pytest.raises(RunError, match="expected counts"):
        RequestLedger(SMALL, 6, path)


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"limits\.max_runs: expected at least 1, got 0"):
        RequestLimits(max_runs=0)


def test_the_list_of_runs_of_version_0_3_0_is_read(tmp_path: Path) -> None:
    path = tmp_path / "requests.npy"
    RequestLedger(SMALL, 5, path)
    path.with_suffix(".json").write_text('{"runs": {"a": null}}')
    RequestLedger(SMALL, 5, path).begin("a", settings(2), TRAINING)
    with pytest.raises(WireError, match="settings or training rows of run 'a' changed"):
        RequestLedger(SMALL, 5, path).begin("a", settings(1), TRAINING)


def test_every_setting_has_a_bound() -> None:
    assert {name for name, _ in setting_values(settings(2))} == set(BOUNDS)
