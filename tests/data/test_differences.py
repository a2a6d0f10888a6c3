"""Pairs of correlated numbers, compared with pandas on the rows that have both."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from xvfl.config import TableOptions
from xvfl.data.differences import CENTRAL, CORRELATED, MAX_NUMBERS, fit_differences
from xvfl.data.encoder import TableEncoder
from xvfl.primitives.layout import Feature, Layout


def measured(rows: int = 3000, seed: int = 0) -> pd.DataFrame:
    """Draw sizes of things: nearly equal ones, a sum, and others."""
    rng = np.random.default_rng(seed)
    length = rng.normal(10, 3, rows)
    frame = pd.DataFrame(
        {
            "length": length,
            "job": rng.choice(["cook", "nurse"], rows),
            "width": 3 - length + 0.1 * rng.normal(size=rows),
            "height": rng.normal(size=rows),
            "depth": length + 0.5 * rng.normal(size=rows),
            "length in cm": 100 * length,
        },
        index=pd.Index([f"r{i}" for i in range(rows)], name="id"),
    )
    return frame.mask(rng.random(frame.shape) < 0.2)


def fitted(frame: pd.DataFrame) -> TableEncoder:
    """Encode numbers linearly, so that correlations are those of the frame."""
    return TableEncoder.fit(frame, TableOptions(scaling="minmax"), "bank")


def test_the_most_correlated_numbers_are_paired() -> None:
    frame = measured().drop(columns="length in cm")
    encoder = fitted(frame)
    layout, encoded = encoder.layout, encoder.encode(frame)
    names = [layout.features[raw].name for raw in layout.feature_of_column]
    table = pd.DataFrame(encoded.values, columns=names)[["length", "width", "height", "depth"]]
    table = table.mask(frame[table.columns].isna().to_numpy())
    slow = table.corr().abs()
    expected = set()
    for name in table.columns:
        partner = slow[name].drop(name).idxmax()
        if slow.loc[partner, name] >= CORRELATED:
            expected.add(frozenset((name, partner)))
    assert expected == {frozenset(("length", "width")), frozenset(("length", "depth"))}
    assert {frozenset((names[d.first], names[d.second])) for d in layout.differences} == expected
    for each in layout.differences:
        pair = table[[names[each.first], names[each.second]]].dropna().astype(float)
        first, second = pair.to_numpy().T
        slope = np.polyfit(second, first, 1)[0]
        assert each.slope == pytest.approx(slope, rel=1e-5)
        ends = np.quantile(first - slope * second, CENTRAL)
        assert (each.low, each.high) == pytest.approx(ends, abs=1e-5)


def test_equal_numbers_say_nothing_more() -> None:
    frame = measured()[["length", "length in cm"]]
    assert fitted(frame).layout.differences == ()


def test_few_rows_and_many_numbers_have_none() -> None:
    assert fitted(measured(120)).layout.differences == ()
    count = MAX_NUMBERS + 1
    layout = Layout(tuple(Feature(f"x{i}", "numeric", 1) for i in range(count)))
    values = np.random.default_rng(0).random((500, 1)) * np.ones((1, count))
    values = (values + 0.01 * np.random.default_rng(1).random(values.shape)).astype(np.float32)
    observed = np.ones(values.shape, dtype=bool)
    assert fit_differences(layout, values, observed) == ()
    fewer = replace(layout, features=layout.features[:-1])
    assert len(fit_differences(fewer, values[:, :-1], observed[:, :-1])) > count // 2


def test_each_number_adds_at_most_one_pair() -> None:
    rng = np.random.default_rng(0)
    size = rng.random((500, 1)) + 0.02 * rng.random((500, 6))
    layout = Layout(tuple(Feature(f"x{i}", "numeric", 1) for i in range(6)))
    found = fit_differences(layout, size.astype(np.float32), np.ones((500, 6), dtype=bool))
    pairs = {(each.first, each.second) for each in found}
    assert pairs <= set(combinations(range(6), 2)) and 3 <= len(pairs) == len(found) <= 6


def test_saved_with_the_encoder_and_the_layout() -> None:
    encoder = fitted(measured())
    assert encoder.layout.differences
    loaded = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert loaded.layout == encoder.layout
    assert Layout.from_dict(json.loads(json.dumps(encoder.layout.to_dict()))) == encoder.layout
    without = replace(encoder.layout, differences=())
    assert "differences" not in without.to_dict()
    assert Layout.from_dict(without.to_dict()) == without
