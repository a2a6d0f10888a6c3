"""A party's budgets for prediction: per row, per caller and per day, also after a restart."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from xvfl.errors import ConfigError, RunError
from xvfl.federation.prediction_ledger import (
    KEPT_DAYS,
    MAX_CALLERS,
    PredictionLedger,
    PredictionLimits,
    forget_rows,
)

DAY = date(2026, 3, 1)
ROWS = np.arange(4)


def ledger(folder: Path, day: date = DAY, **limits: int) -> PredictionLedger:
    return PredictionLedger(PredictionLimits(**limits), 4, folder, lambda: day)


def test_a_row_has_a_budget_a_day_over_restarts(tmp_path: Path) -> None:
    for _ in range(3):
        allowed, refusal = ledger(tmp_path, max_per_row=3).take(ROWS[:2], "a")
        assert allowed.all() and not refusal
    allowed, refusal = ledger(tmp_path, max_per_row=3).take(ROWS, "a")
    assert allowed.tolist() == [False, False, True, True]
    assert refusal == "max_per_row (3) is used up until 2026-03-02 00:00 UTC"
    assert ledger(tmp_path, DAY + timedelta(1), max_per_row=3).take(ROWS, "a")[0].all()


def test_a_clock_that_is_set_back_refills_nothing(tmp_path: Path) -> None:
    today = [DAY]
    one = PredictionLedger(PredictionLimits(max_per_row=1), 4, tmp_path, lambda: today[0])
    assert one.take(ROWS, "a")[0].all()
    for day in (DAY - timedelta(1), DAY, DAY - timedelta(400), DAY):
        today[0] = day
        assert not one.take(ROWS, "a")[0].any()
        again = ledger(tmp_path, day, max_per_row=1)
        assert not again.take(ROWS, "a")[0].any() and again.usage()["prediction_day"] == str(DAY)
    today[0] = DAY + timedelta(1)
    assert one.take(ROWS, "a")[0].all() and not one.take(ROWS, "a")[0].any()


@pytest.mark.parametrize(("days", "left"), [(0, 1), (1, 3)])
def test_a_file_of_requests_is_read_again(tmp_path: Path, days: int, left: int) -> None:
    (tmp_path / "requests-2026-02-01.jsonl").write_text('{"caller": "a", "rows": [0, 1]}\n')
    line = '{"caller": "%s", "rows": [0, 1, 2, 3]}\n'
    (tmp_path / f"requests-{DAY}.jsonl").write_text(line % "a" + line % "b" + '{"call')
    found = ledger(tmp_path, DAY + timedelta(days), max_per_row=3)
    assert found.usage()["prediction_requests_today"] == (0 if days else 8)
    for _ in range(left):
        assert found.take(ROWS, "a")[0].all()
    assert not found.take(ROWS, "a")[0].any()


def test_another_table_has_new_rows(tmp_path: Path) -> None:
    forget_rows(tmp_path)
    assert ledger(tmp_path, max_per_row=1, max_per_caller=6).take(ROWS, "a")[0].all()
    forget_rows(tmp_path)
    other = ledger(tmp_path, max_per_row=1, max_per_caller=6)
    assert other.take(ROWS, "a")[0].tolist() == [True, True, False, False]


def test_a_row_above_one_budget_counts_in_none(tmp_path: Path) -> None:
    one = ledger(tmp_path, max_per_row=1, max_per_day=3)
    one.take(ROWS[:1], "a")
    allowed, refusal = one.take(ROWS, "a")
    assert allowed.tolist() == [False, True, True, False]
    assert refusal.startswith("max_per_row (1) or max_per_day (3) is used up until ")
    assert one.usage()["prediction_requests_today"] == 3
    assert one.take(ROWS, "b")[0].tolist() == [False] * 4
    assert one.usage()["prediction_requests_of_a_row"] == 1


def test_invented_callers_share_one_budget(tmp_path: Path) -> None:
    one = ledger(tmp_path, max_per_row=10_000, max_per_caller=4)
    for number in range(MAX_CALLERS):
        assert one.take(ROWS[:1], f"caller {number}")[0].all()
    for number in range(4):
        assert one.take(ROWS[:1], f"invented {number}")[0].all()
    for each in (one, ledger(tmp_path, max_per_row=10_000, max_per_caller=4)):
        allowed, refusal = each.take(ROWS[:1], "another one")
        assert not allowed.any() and "max_per_caller (4)" in refusal
        assert each.take(ROWS[:1], "caller 7")[0].all()
        assert len(each.usage()["prediction_requests_by_caller"]) == MAX_CALLERS + 1  # type: ignore[arg-type]


def test_files_of_old_days_are_removed(tmp_path: Path) -> None:
    for number in range(KEPT_DAYS + 20):
        assert ledger(tmp_path, DAY + timedelta(number)).take(ROWS, "a")[0].all()
    assert len(list(tmp_path.glob("requests-*"))) == KEPT_DAYS + 1


def test_a_caller_has_a_budget_a_day_over_restarts(tmp_path: Path) -> None:
    assert ledger(tmp_path, max_per_caller=5).take(ROWS, "a")[0].all()
    again = ledger(tmp_path, max_per_caller=5)
    allowed, refusal = again.take(ROWS, "a")
    assert allowed.tolist() == [True, False, False, False]
    assert refusal == "max_per_caller (5) is used up until 2026-03-02 00:00 UTC"
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


def test_requests_that_cannot_be_counted_are_not_answered(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be counted"):
        ledger(tmp_path / "gone").take(ROWS, "a")
    with pytest.raises(ConfigError, match="prediction.limits.max_per_row: expected at least 1"):
        PredictionLimits(max_per_row=0)
