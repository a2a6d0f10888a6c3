"""Columns that repeat the label, exactly or almost."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from xvfl.data import label_leaks
from xvfl.data.label_leaks import MAX_VALUES, NEIGHBORS, _nearest, find_label_leaks
from xvfl.data.targets import find_target_leaks

RNG = np.random.default_rng(0)
ROWS = 1000
Y = (RNG.random(ROWS) < 0.3).astype(np.int64)


def leak(values: object, y: np.ndarray = Y) -> str:
    return dict(find_label_leaks(pd.DataFrame({"x": values}), y)).get("x", "")


def one_row_differs() -> np.ndarray:
    values = Y.copy()
    values[7] = 1 - values[7]
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.where(Y, "gone", "here"), "belongs to one class in all 1,000 rows checked, so it repe"),
        (
            one_row_differs(),
            "predict the class of 99.90% of 1,000 rows (two-fold cross-validation), so",
        ),
        (np.where(Y, "a", RNG.choice(["b", "c"], ROWS)), "each value, such as "),
        (
            1.5 * Y + 1e-3 * RNG.normal(size=ROWS),
            "ranges of its values predict the class of 100.00% of",
        ),
        (
            3 - one_row_differs() + 0.1 * RNG.random(ROWS),
            "predict the class of 99.90% of 1,000 rows",
        ),
        (
            pd.Series(np.where(Y, "a", None)),
            "each gap, and each value, belongs to one class in all",
        ),
    ],
)
def test_copies_of_the_label_are_found(values: object, message: str) -> None:
    found = leak(values)
    assert message in found
    assert found.endswith('unless it is known at prediction (kind "identifier" in `kinds`)')


def test_a_column_that_equals_the_label_in_99_of_100_rows_is_found() -> None:
    wrong = np.arange(ROWS) % 100 == 0
    for values in (np.where(wrong, 1 - Y, Y), np.where(wrong, 1 - Y, Y).astype(str)):
        assert "predict the class of 99.00% of 1,000 rows (two-fold" in leak(values)
    y = np.tile(Y, 8)
    many = (y * 40 + RNG.integers(0, 40, len(y))).astype(str)
    many[::100] = "?"
    assert "(two-fold cross-validation), so it almost determines the label" in leak(many, y)
    ids = RNG.integers(0, 300, ROWS).astype(str)
    assert leak(ids, RNG.integers(0, 2, ROWS)) == "", "values seen three times tell nothing"
    target = RNG.normal(size=ROWS)
    frame = pd.DataFrame({"copy": np.where(wrong, target[::-1], target)})
    assert (
        "equals the label in 99.0% of 1,000 rows" in dict(find_target_leaks(frame, target))["copy"]
    )


def test_strong_features_and_rare_classes_are_no_leaks() -> None:
    assert leak(Y + 0.4 * RNG.normal(size=ROWS)) == ""
    assert leak(np.where(RNG.random(ROWS) < 0.03, 1 - Y, Y)) == ""
    rare = np.zeros(ROWS, dtype=np.int64)
    rare[:4] = 1
    assert leak(RNG.integers(0, 2, ROWS), rare) == "", "the more frequent class has 99.6 %"
    assert leak(RNG.integers(0, 60, ROWS), RNG.integers(0, 2, ROWS)) == ""
    assert leak(Y[:40], Y[:40]) == "", "too few to judge"
    assert leak(Y, np.full(ROWS, -1)) == "", "no labels"


def test_numbers_of_which_ranges_belong_to_classes_are_found() -> None:
    rng = np.random.default_rng(1)
    between = np.where(Y, 1 + rng.random(ROWS), np.where(rng.random(ROWS) < 0.5, 0, 2))
    between += 0.9 * (Y == 0) * rng.random(ROWS)
    assert "ranges of its values predict the class of 100.00%" in leak(between)
    y = rng.integers(0, 4, ROWS)
    assert "ranges of its values predict the class of" in leak(y + 0.9 * rng.random(ROWS), y)
    dates = pd.Series(pd.Timestamp("2021-01-01") + pd.to_timedelta(y * 9 + 1, unit="D"))
    assert "each value, such as " in leak(dates, y)
    gaps = np.where(np.arange(3 * MAX_VALUES) % 2, rng.random(3 * MAX_VALUES), np.nan)
    assert "each gap, and each value, belongs" in leak(gaps, np.arange(len(gaps)) % 2)


def test_counting_changes_of_the_class_hides_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns from ranges of classes to noise: found or not as with neighbors alone."""
    rng = np.random.default_rng(4)
    columns, y = {}, rng.choice(3, ROWS, p=[0.7, 0.2, 0.1])
    for ranges in (3, 10, 30, 60, 120):
        for noise in (0.0, 0.002, 0.01, 0.1, 1.0):
            class_of_range = rng.choice(3, ranges, p=[0.7, 0.2, 0.1])
            class_of_range[:3] = range(3)
            pool = rng.uniform(size=40_000)
            classes = class_of_range[(pool * ranges).astype(int)]
            drawn = np.array([rng.choice(pool[classes == each]) for each in y])
            columns[f"{ranges} ranges, noise {noise}"] = np.where(
                rng.random(ROWS) < noise, rng.uniform(size=ROWS), drawn
            )
    frame = pd.DataFrame(columns)
    found = list(find_label_leaks(frame, y))
    monkeypatch.setattr(label_leaks, "MAX_CHANGES", np.inf)
    assert found == list(find_label_leaks(frame, y))
    assert 3 <= len(found) < len(columns) / 2


def test_nearest_numbers_are_those_of_a_sorted_list() -> None:
    rng = np.random.default_rng(2)
    numbers, new = rng.random(50), rng.random(20)
    classes = rng.integers(0, 3, 50)
    ordered = sorted(zip(numbers, classes, strict=True))
    for value, found in zip(new, _nearest(numbers, classes, new), strict=True):
        above = sum(number < value for number in numbers)
        near = [ordered[min(max(above + i, 0), 49)] for i in range(-NEIGHBORS, NEIGHBORS)]
        near.append(min(near, key=lambda each: abs(each[0] - value)))
        votes = [each for _, each in near]
        assert found == max(range(3), key=lambda each: (votes.count(each), -each))


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits"])
def test_tables_of_scikit_learn_have_no_leaks(name: str) -> None:
    frame, y = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
    assert dict(find_label_leaks(frame, y.to_numpy(dtype=np.int64))) == {}


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("tabular/bank_full.parquet", "y"),
        ("tabular/bank_additional_full.parquet", "y"),
        ("tabular/avazu_sample.parquet", "click"),
        ("clinical/physionet2012_wide.parquet", "In-hospital_death"),
    ],
)
def test_real_tables_have_no_leaks(file: str, label: str) -> None:
    path = Path(os.environ.get("XVFL_DATA", "")) / file
    if not path.is_file():
        pytest.skip(f"XVFL_DATA has no {file}")
    frame = pd.read_parquet(path).iloc[:4000]
    y = pd.factorize(frame.pop(label))[0]
    assert dict(find_label_leaks(frame, y)) == {}


def test_numbers_that_are_almost_the_target_are_found() -> None:
    target = RNG.normal(size=ROWS)
    frame = pd.DataFrame({"copy": 3 - 2 * target, "noisy": target + 0.03 * RNG.normal(size=ROWS)})
    frame["strong"] = target + 0.1 * RNG.normal(size=ROWS)
    frame["rises"] = np.exp(3 * target)
    assert set(dict(find_target_leaks(frame, target))) == {"copy", "noisy", "rises"}


@pytest.mark.parametrize("name", ["diabetes", "linnerud"])
def test_numbers_of_scikit_learn_have_no_leaks(name: str) -> None:
    frame, y = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
    assert (
        dict(find_target_leaks(frame, np.asarray(y, dtype=float).reshape(len(y), -1)[:, 0])) == {}
    )
