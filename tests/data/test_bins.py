"""Bins of numbers: quantiles of distinct values and frequent values, fitted without labels."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_column_stats import streamed, whole
from xvfl.config import TableOptions
from xvfl.data.encoder import TableEncoder
from xvfl.data.scaling import BIN_KNOTS, FREQUENT_ROWS, FREQUENT_SHARE, MAX_FREQUENT, fit_bins
from xvfl.data.value_stats import FitLimits
from xvfl.errors import DataWarning, InputError
from xvfl.primitives.layout import Layout, NumberBins

SAME_VALUE = 6e-7
"""As in `xvfl.nets.numbers`."""


def spiky(rows: int, seed: int = 0) -> pd.DataFrame:
    """Draw numbers as they come: zero-inflated, with a code for "unknown", and with few values."""
    rng = np.random.default_rng(seed)
    gain = np.where(rng.random(rows) < 0.9, 0, rng.integers(1, 99_999, rows))
    gain[rng.random(rows) < 0.1] = 99_999
    frame = pd.DataFrame(
        {
            "gain": gain,
            "third": np.where(rng.random(rows) < 0.3, 1 / 3, rng.normal(size=rows)),
            "few": rng.integers(0, 5, rows) / 7,
            "paid": [f"${each:,}" for each in np.where(rng.random(rows) < 0.5, 100, gain)],
            "lasts": pd.to_timedelta(np.where(rng.random(rows) < 0.5, 60, gain), unit="s"),
            "day": pd.date_range("2020-01-01", periods=rows),
            "job": rng.choice(["cook", "nurse"], rows),
        },
        index=pd.Index([f"r{i}" for i in range(rows)], name="id"),
    )
    frame.loc[rng.random(rows) < 0.1, "third"] = None
    return frame


def slow_bins(values: list[float]) -> NumberBins:
    """Fit bins by counting each value."""
    counts = Counter(float(np.round(each, 6)) for each in values)
    distinct = sorted(counts)
    if len(distinct) <= BIN_KNOTS:
        return NumberBins(tuple(distinct))
    steps = [round(i * (len(distinct) - 1) / (BIN_KNOTS - 1)) for i in range(BIN_KNOTS)]
    least = max(FREQUENT_ROWS, FREQUENT_SHARE * len(values))
    common = sorted((-count, value) for value, count in counts.items() if count >= least)
    frequent = sorted(value for _, value in common[:MAX_FREQUENT])
    return NumberBins(tuple(distinct[i] for i in steps), tuple(frequent))


@given(st.integers(2, 200), st.integers(1, 400), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_bins_equal_counting(distinct: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.random(distinct)[(distinct * rng.random(rows) ** 3).astype(int)]
    assert fit_bins(values) == slow_bins(values.tolist())


def test_knots_are_ascending_and_span_the_range() -> None:
    encoder = TableEncoder.fit(spiky(3000), TableOptions(), "bank")
    assert set(encoder.bins) == {"gain", "third", "few", "paid", "lasts", "day"}
    for bins in encoder.bins.values():
        knots = np.asarray(bins.knots, dtype=np.float32)
        assert (knots[0], knots[-1]) == (0, 1) and (np.diff(knots) > SAME_VALUE).all()


def test_frequent_values_are_flagged_in_exactly_their_rows() -> None:
    frame = spiky(3000)
    encoder = TableEncoder.fit(frame, TableOptions(), "bank")
    encoded = encoder.encode(frame)
    expected = {
        "gain": [frame["gain"] == 0, frame["gain"] == 99_999],
        "third": [frame["third"] == 1 / 3],
        "paid": [frame["paid"] == "$0", frame["paid"] == "$100", frame["paid"] == "$99,999"],
        "lasts": [frame["lasts"] == pd.Timedelta(each, "s") for each in (0, 60)],
    }
    expected["lasts"].append(frame["lasts"] == pd.Timedelta(99_999, "s"))
    for name, rows in expected.items():
        column = encoder.columns.index(name)
        assert len(encoder.bins[name].frequent) == len(rows)
        for value, flagged in zip(encoder.bins[name].frequent, rows, strict=True):
            # In single precision, as a net compares them.
            near = np.abs(encoded.values[:, column] - np.float32(value)) <= SAME_VALUE
            assert (near & encoded.observed[:, column] == flagged).all(), name


def test_a_column_with_few_values_has_a_knot_at_each_and_no_flags() -> None:
    bins = TableEncoder.fit(spiky(500), TableOptions(), "bank").bins["few"]
    assert bins == NumberBins((0.0, 0.25, 0.5, 0.75, 1.0))
    assert fit_bins(np.array([0.0, 1.0, 1.0])) == NumberBins((0.0, 1.0))


def test_values_closer_than_the_precision_share_a_knot() -> None:
    close = np.concatenate([np.linspace(0, 1e-7, 50), np.linspace(0.5, 0.5 + 1e-8, 50), [1.0]])
    assert fit_bins(close) == NumberBins((0.0, 0.5, 1.0))


def test_columns_without_information_have_no_bins() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "same": 3.0, "none": [np.nan, np.nan]})
    with pytest.warns(DataWarning, match="left out"):
        encoder = TableEncoder.fit(frame, TableOptions(), "bank")
    assert encoder.bins == {"x": NumberBins((0.0, 1.0))}
    with pytest.raises(InputError, match="inf"):
        TableEncoder.fit(pd.DataFrame({"x": [1.0, np.inf, 2.0]}), TableOptions(), "bank")


def test_only_the_time_of_a_date_has_bins() -> None:
    encoder = TableEncoder.fit(spiky(100)[["job", "day", "few"]], TableOptions(), "bank")
    day, few = encoder.bins["day"], encoder.bins["few"]
    none = NumberBins()
    assert encoder.layout.bins == (none, none, day, none, none, none, none, few)


@pytest.mark.parametrize("size", [90, 250])
def test_chunks_give_the_same_layout(size: int) -> None:
    frame, options = spiky(500), TableOptions()
    found, exact = streamed(frame, size, options), whole(frame, options)
    assert found.layout == exact.layout and found.layout.bins


def test_a_sample_finds_the_frequent_values_and_the_range() -> None:
    frame = spiky(20_000)[["gain"]]
    found = streamed(frame, 3000, TableOptions(), FitLimits(sample_size=2000)).bins["gain"]
    assert (found.knots[0], found.knots[-1], found.frequent) == (0.0, 1.0, (0.0, 1.0))


def test_saved_and_loaded_with_and_without_bins() -> None:
    encoder = TableEncoder.fit(spiky(300), TableOptions(), "bank")
    saved = json.loads(json.dumps(encoder.to_dict()))
    assert TableEncoder.from_dict(saved).layout == encoder.layout
    del saved["bins"]  # As version 0.3 wrote it.
    old = TableEncoder.from_dict(saved)
    assert old.layout == replace(encoder.layout, bins=())
    assert json.loads(json.dumps(old.to_dict())) == saved


def test_layouts_are_saved_with_and_without_bins() -> None:
    layout = TableEncoder.fit(spiky(300), TableOptions(), "bank").layout
    assert Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    plain = replace(layout, bins=())
    assert set(plain.to_dict()) == {"features", "image"}
    assert Layout.from_dict(plain.to_dict()) == plain
    with pytest.raises(ValueError, match="bins"):
        replace(layout, bins=layout.bins[1:])
