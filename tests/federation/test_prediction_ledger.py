"""A party's budgets for prediction: per row, per caller and per day, also after a restart."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from xvfl.errors import ConfigError, RunError
from xvfl.federation.prediction_ledger import COUNTS, PredictionLedger, PredictionLimits

DAY = date(2026, 3, 1)
ROWS = np.arange(4)


def ledger(folder: Path, day: date = DAY, **limits: int) -> PredictionLedger:
    return PredictionLedger(PredictionLimits(**limits), 4, folder, lambda: day)


def test_a_row_has_a_budget_over_restarts_and_days(tmp_path: Path) -> None:
    for number in range(3):
        allowed, refusal = ledger(tmp_path, DAY + timedelta(number), max_per_row=3).take(
            ROWS[:2], "a"
        )
        assert allowed.all() and not refusal
    allowed, refusal = ledger(tmp_path, DAY + timedelta(9), max_per_row=3).take(ROWS, "a")
    assert allowed.tolist() == [False, False, True, True]
    assert refusal == "max_per_row (3) is used up"


def test_a_caller_has_a_budget_a_day_over_restarts(tmp_path: Path) -> None:
    assert ledger(tmp_path, max_per_caller=5).take(ROWS, "a")[0].all()
    again = ledger(tmp_path, max_per_caller=5)
    allowed, refusal = again.take(ROWS, "a")
    assert allowed.tolist() == [True, False, False, False]
    assert refusal == "max_per_caller (5) is used up until midnight UTC"
    assert again.take(ROWS, "b")[0].all()
    tomorrow = ledger(tmp_path, DAY + timedelta(1), max_per_caller=5)
    assert tomorrow.take(ROWS, "a")[0].all()


def test_all_callers_together_have_a_budget_a_day(tmp_path: Path) -> None:
    one = ledger(tmp_path, max_per_day=6)
    assert one.take(ROWS, "a")[0].all()
    allowed, refusal = one.take(ROWS, "b")
    assert allowed.sum() == 2 and "max_per_day (6)" in refusal
    assert one.usage()["prediction_requests_today"] == 6
    assert one.usage()["prediction_requests_by_caller"] == {"a": 4, "b": 2}


def test_midnight_resets_a_running_process(tmp_path: Path) -> None:
    today = [DAY]
    one = PredictionLedger(PredictionLimits(max_per_day=4), 4, tmp_path, lambda: today[0])
    assert one.take(ROWS, "a")[0].all() and not one.take(ROWS, "a")[0].any()
    today[0] += timedelta(1)
    assert one.take(ROWS, "a")[0].all()


def test_without_counts_nothing_is_answered(tmp_path: Path) -> None:
    (tmp_path / COUNTS).write_bytes(b"broken")
    with pytest.raises(RunError, match="request counts cannot be used"):
        ledger(tmp_path)
    with pytest.raises(ConfigError, match="prediction.limits.max_per_row: expected at least 1"):
        PredictionLimits(max_per_row=0)
