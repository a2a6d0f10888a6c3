"""Budgets of rows refill by the day, once, and whatever the clock does."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from xvfl.federation.prediction_ledger import PredictionLedger, PredictionLimits

DAY = date(2026, 3, 1)
ROWS = np.arange(3)


def take(folder: Path, day: date, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> list[bool]:
    """Request rows on a day, in a process that was started on this day."""
    ledger = PredictionLedger(PredictionLimits(max_per_row=2), len(ROWS), folder, lambda: day)
    allowed: list[bool] = ledger.take(rows, "caller")[0].tolist()
    return allowed


def test_budgets_of_rows_refill_by_the_day(tmp_path: Path) -> None:
    for _ in range(2):
        assert take(tmp_path, DAY, ROWS[:1]) == [True]
    assert take(tmp_path, DAY, ROWS) == [False, True, True]
    assert take(tmp_path, DAY + timedelta(1), ROWS) == [True, True, True]


def test_a_clock_that_is_set_back_refills_no_budget(tmp_path: Path) -> None:
    for day in (DAY, DAY + timedelta(1)):
        for _ in range(2):
            assert all(take(tmp_path, day, ROWS))
    for day in (DAY + timedelta(1), DAY, DAY - timedelta(9), DAY + timedelta(1)):
        assert not any(take(tmp_path, day, ROWS))


def test_a_day_far_ahead_is_reported_with_the_file_to_remove(tmp_path: Path) -> None:
    def start(day: date) -> list[dict[str, Any]]:
        events = list[dict[str, Any]]()
        PredictionLedger(PredictionLimits(), 3, tmp_path, lambda: day, events.append)
        return events

    assert start(DAY) == start(DAY + timedelta(1)) == start(DAY) == []
    file = tmp_path / "requests-2099-01-01.jsonl"
    file.write_text('{"caller": "a", "rows": [0]}\n')
    (event,) = start(DAY + timedelta(2))
    assert event["event"] == "prediction_day_ahead" and f"remove {file} " in event["reason"]
    file.unlink()
    assert start(DAY + timedelta(2)) == []
