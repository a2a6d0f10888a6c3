"""The encoder fitted in one pass over chunks is the one fitted on the whole table."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xvfl.config import TableOptions
from xvfl.data.encoder import TableEncoder
from xvfl.data.value_stats import STREAMING_LIMITS, FitLimits
from xvfl.errors import DataWarning, InputError


def wide(rows: int, seed: int = 0) -> pd.DataFrame:
    """Draw a table with a column of every kind and with gaps."""
    rng = np.random.default_rng(seed)
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), unit="D")
    frame = pd.DataFrame(
        {
            "number": rng.normal(size=rows),
            "whole": rng.integers(0, 50, rows).astype(float),
            "crowded": np.exp(3 * rng.normal(size=rows)),
            "text number": rng.integers(0, 90, rows).astype(str),
            "job": rng.choice(["cook", "nurse", "pilot"], rows),
            "street": [f"s{i}" for i in rng.integers(0, 300, rows) // 3],
            "day": days,
            "moment": days.tz_localize("Europe/Berlin") + pd.to_timedelta(3, unit="h"),
            "written day": days.strftime("%d/%m/%Y"),
            "iso": days.strftime("%Y-%m-%d"),
            "club": rng.choice([True, False], rows),
            "kind": pd.Categorical(rng.choice(["a", "b"], rows)),
            "constant": 1.0,
            "empty": None,
            "branch": rng.integers(100, 104, rows),
        },
        index=pd.Index([f"r{i}" for i in range(rows)], name="id"),
    )
    for name in ("number", "whole", "job", "street", "day", "iso"):
        frame.loc[rng.random(rows) < 0.2, name] = None
    return frame


OPTIONS = TableOptions(categorical=("branch",), na_values=("pilot", "7"))


def chunks(frame: pd.DataFrame, size: int) -> list[pd.DataFrame]:
    return [frame.iloc[at : at + size] for at in range(0, len(frame), size)]


def streamed(
    frame: pd.DataFrame,
    size: int,
    options: TableOptions = OPTIONS,
    limits: FitLimits = STREAMING_LIMITS,
) -> TableEncoder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return TableEncoder.fit_chunks(chunks(frame, size), options, "bank", limits)


def whole(frame: pd.DataFrame, options: TableOptions = OPTIONS) -> TableEncoder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return TableEncoder.fit(frame, options, "bank")


@pytest.mark.parametrize(
    ("size", "scaling"),
    [(7, "auto"), (100, "minmax"), (100, "quantile"), (1000, "auto"), (1000, "quantile")],
)
@pytest.mark.slow
def test_every_kind_of_column_is_fitted_as_in_memory(size: int, scaling: str) -> None:
    frame = wide(400)
    options = TableOptions(("branch",), na_values=("pilot", "7"), scaling=scaling)  # type: ignore[arg-type]
    assert streamed(frame, size, options).to_dict() == whole(frame, options).to_dict()


cells = st.one_of(
    st.none(),
    st.sampled_from(["1", "2.5", "x", "2020-01-02", "03/04/2021", "True", "", " 8 ", "1e400"]),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(cells, min_size=3, max_size=40), st.integers(1, 9))
def test_texts_are_told_apart_as_in_memory(texts: list[str | None], size: int) -> None:
    column = pd.Series(texts, dtype="str")
    frame = pd.DataFrame({"x": column, "y": np.arange(len(texts))})
    options = TableOptions()
    try:
        expected = whole(frame, options).to_dict()
    except InputError:
        with pytest.raises(InputError, match="finite numbers"):
            streamed(frame, size, options)
        return
    assert streamed(frame, size, options).to_dict() == expected


def test_booleans_with_gaps_in_some_chunks_stay_booleans() -> None:
    frame = pd.DataFrame({"club": [True, False, None, True]}, index=list("abcd"))
    parts = [frame.iloc[:2].astype(bool), frame.iloc[2:]]
    found = TableEncoder.fit_chunks(parts, TableOptions(), "bank", STREAMING_LIMITS)
    assert found.to_dict() == whole(frame, TableOptions()).to_dict()
    assert found.to_dict()["codecs"][0]["type"] == "bool"


def test_what_carries_no_information_is_left_out_with_the_same_words() -> None:
    with pytest.warns(DataWarning, match=r"left out 'constant' \(constant\), 'empty'"):
        TableEncoder.fit_chunks(chunks(wide(50), 9), OPTIONS, "bank", STREAMING_LIMITS)


def test_quantiles_of_many_rows_are_those_of_a_sample() -> None:
    limits = FitLimits(sample_size=4000)
    values = np.exp(2 * np.random.default_rng(3).normal(size=60_000))
    frame = pd.DataFrame({"x": values})
    exact, found = (
        fit(frame).to_dict()["codecs"][0]["scale"]
        for fit in (
            lambda f: whole(f, TableOptions()),
            lambda f: streamed(f, 5000, TableOptions(), limits),
        )
    )
    assert len(found["knots"]) == len(exact["knots"]) == 129
    assert (found["knots"][0], found["knots"][-1]) == (values.min(), values.max())
    ranks = np.searchsorted(np.sort(values), found["knots"]) / len(values)
    assert np.abs(ranks - np.asarray(found["scaled_knots"])).max() < 0.03


def test_a_column_of_very_many_values_is_hashed_alike() -> None:
    limits = FitLimits(max_categories=70_000)
    rng = np.random.default_rng(0)
    often = [f"often{i}" for i in rng.integers(0, 20, 30_000)]
    frame = pd.DataFrame({"x": [*often, *(f"v{i}" for i in range(90_000))]})
    frame = frame.sample(frac=1, random_state=0)
    exact, found = (
        each.to_dict()["codecs"][0]
        for each in (whole(frame, TableOptions()), streamed(frame, 9000, TableOptions(), limits))
    )
    assert {**found, "vocabulary": ()} == {**exact, "vocabulary": ()}
    assert found["vocabulary"][:20] == exact["vocabulary"][:20]
