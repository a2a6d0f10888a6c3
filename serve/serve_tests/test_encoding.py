"""Rows of a request are encoded as whole tables are, on every kind of column and real data."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.data.test_column_stats import OPTIONS, wide
from xvfl.config import TableOptions
from xvfl.data.encoder import TableEncoder
from xvfl.data.images import ImageEncoder
from xvfl.errors import DataWarning
from xvfl_serve.encoding.encoders import ImageRows, TableRows, write_notes
from xvfl_serve.errors import RequestError

ROWS = 1000


def json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as they arrive in a request."""
    texts = frame.copy()
    for name in texts:
        if texts[name].dtype.kind in "mM" or isinstance(texts[name].dtype, pd.DatetimeTZDtype):
            texts[name] = texts[name].map(str, "ignore")
        elif isinstance(texts[name].dtype, pd.CategoricalDtype):
            texts[name] = texts[name].astype(object)
    rows = texts.astype(object).where(texts.notna(), None).to_dict("records")
    found: list[dict[str, Any]] = json.loads(json.dumps(rows, default=lambda each: each.item()))
    return found


def assert_same(frame: pd.DataFrame, options: TableOptions, new: pd.DataFrame) -> None:
    """Fit on a table, and compare the encodings of new rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        encoder = TableEncoder.fit(frame, options, "bank")
    expected = encoder.encode(new)
    rows = TableRows(json.loads(json.dumps(encoder.to_dict())))
    found = rows.encode(json_rows(new))
    np.testing.assert_array_equal(found.observed, expected.observed)
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.values, expected.values)
    assert [write_notes(each) for each in found.notes] == expected.notes
    assert rows.features == [feature.name for feature in encoder.layout.features]


@pytest.mark.parametrize("scaling", ["minmax", "quantile"])
def test_every_kind_of_column(scaling: Any) -> None:
    options = TableOptions(("branch",), na_values=("pilot", "7"), scaling=scaling)
    frame = wide(400)
    frame["price"] = [f"${1000 + i:,}.50" for i in range(400)]
    frame["length"] = [f"{i % 9}:{i % 60:02d}:00" for i in range(400)]
    frame["delay"] = pd.to_timedelta(np.arange(400) * 90, unit="s")
    assert_same(frame, options, frame)


def test_unusual_cells_get_the_same_notes() -> None:
    frame = wide(400)
    new = wide(60, seed=3)
    new.loc[new.index[:9], "number"] = 1e6
    new.loc[new.index[5:20], "job"] = "astronaut"
    new.loc[new.index[15:30], "iso"] = "not a date"
    new.loc[new.index[25:40], "street"] = "nowhere"
    assert_same(frame, OPTIONS, new)


@pytest.mark.parametrize(
    "file",
    [
        "tabular/bank_full.parquet",
        "tabular/bank_additional_full.parquet",
        "tabular/avazu_sample.parquet",
        "clinical/physionet2012_wide.parquet",
    ],
)
def test_real_tables(file: str) -> None:
    path = Path(os.environ.get("XVFL_DATA", "")) / file
    if not path.is_file():
        pytest.skip(f"XVFL_DATA has no {file}")
    frame = pd.read_parquet(path).iloc[: 4 * ROWS]
    assert_same(frame.iloc[ROWS:], TableOptions(), frame.iloc[:ROWS])


def test_images() -> None:
    rng = np.random.default_rng(0)
    for shape, high in (((6, 8, 4), 255), ((6, 3, 8, 4), 1), ((6, 8, 4, 3), 9)):
        pixels = rng.random(shape) * high
        pixels[rng.random(shape) < 0.2] = np.nan
        encoder = ImageEncoder.fit(pixels, "clinic")
        pixels[0] *= 9
        expected = encoder.encode(pixels, list("abcdef"))
        rows = ImageRows(json.loads(json.dumps(encoder.to_dict())))
        found = rows.encode([{"image": each.tolist()} for each in pixels])
        np.testing.assert_array_equal(found.observed, expected.observed)
        np.testing.assert_array_equal(found.values, expected.values)
        assert [write_notes(each) for each in found.notes] == expected.notes


def test_types_of_categories() -> None:
    frame = pd.DataFrame({"zip": [1, 2, 3] * 20, "club": [True, False, None] * 20})
    encoder = TableEncoder.fit(frame, TableOptions(categorical=("zip",)), "shop")
    rows = TableRows(encoder.to_dict())
    same = [{"zip": 2, "club": True}, {"zip": "2", "club": "true"}, {"zip": 2.0, "club": "True"}]
    found = rows.encode([*same, {"zip": "2.0", "club": " TRUE"}])
    assert (found.values == found.values[0]).all() and found.notes == [[]] * 4


@pytest.mark.parametrize("cell", [[1], {"a": 1}, "twelve", "1_000", "inf", 10**400, "1e999"])
def test_what_is_no_number(cell: Any) -> None:
    encoder = TableEncoder.fit(pd.DataFrame({"x": [1.0, 2.0]}), TableOptions(), "shop")
    with pytest.raises(RequestError, match="row 0, column 'x': expected a .*number") as error:
        TableRows(encoder.to_dict()).encode([{"x": cell}])
    assert error.value.field == "x" and error.value.row == 0
