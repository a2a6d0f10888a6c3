"""A table goes to numbers in [0, 1] and bucket codes, and back, without looking beyond training."""

import hashlib
import json
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xvfl.config import TableOptions
from xvfl.data.encoded import Encoded
from xvfl.data.encoder import TableEncoder, encoder_from_dict
from xvfl.errors import DataWarning, InputError

DAYS = st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)).map(
    lambda moment: moment.replace(hour=0, minute=0, second=0, microsecond=0)
)
SECONDS = st.integers(1, 90 * 86_400).map(lambda s: datetime(2024, 1, 1) + timedelta(seconds=s))
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "amount": st.floats(-1e6, 1e6),
    "count": st.integers(-1000, 1000),
    "job": st.text(max_size=3).map(lambda text: "x" + text),
    "day": DAYS,
    "moment": SECONDS,
    "flag": st.booleans(),
}


@st.composite
def tables(draw: st.DrawFn) -> pd.DataFrame:
    """Draw a table in which every column holds two values and some gaps."""
    n = draw(st.integers(2, 12))
    data = {}
    for name, cells in COLUMNS.items():
        two = draw(st.lists(cells, min_size=2, max_size=2, unique=True))
        data[name] = two + draw(st.lists(st.none() | cells, min_size=n, max_size=n))
    frame = pd.DataFrame(data, index=[f"r{i}" for i in range(n + 2)])
    return frame.astype({"flag": object})


def whole(encoder: TableEncoder, encoded: Encoded, vectors: dict[str, np.ndarray]) -> np.ndarray:
    """Put the vectors of the hashed codes beside the dense values, as the nets see them."""
    parts = [encoded.values]
    for number, feature in enumerate(encoder.layout.hashed):
        parts.append(vectors[feature.name][encoded.codes[:, number]])
    return np.concatenate(parts, axis=1)


def vectors_of(encoder: TableEncoder) -> dict[str, np.ndarray]:
    """Draw vectors as if learned."""
    rng = np.random.default_rng(0)
    return {f.name: rng.normal(size=(f.buckets, f.width)) for f in encoder.layout.hashed}


def same(left: Encoded, right: Encoded) -> bool:
    """Say whether two encodings are equal to the bit."""
    arrays = all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("values", "codes", "observed")
    )
    return arrays and left.ids == right.ids and left.notes == right.notes


def fit(frame: pd.DataFrame, **options: Any) -> TableEncoder:
    """Fit with options given by name."""
    return TableEncoder.fit(frame, TableOptions(**options), "bank")


@given(tables(), st.sampled_from(["auto", "minmax", "quantile"]))
@settings(deadline=None, max_examples=50)
def test_observed_cells_come_back(frame: pd.DataFrame, scaling: str) -> None:
    encoder = fit(frame, scaling=scaling)
    encoded = encoder.encode(frame)
    assert encoded.ids == frame.index.tolist() and set(encoded.notes) == {""}
    assert encoded.values.min() >= 0 and encoded.values.max() <= 1
    assert encoder.columns == list(COLUMNS)
    np.testing.assert_array_equal(encoded.observed, frame.notna())
    back = encoder.decode(whole(encoder, encoded, {}), {})
    assert back.columns.tolist() == list(COLUMNS)
    for name in COLUMNS:
        there = frame[name].notna().to_numpy()
        was, now = frame[name][there], back[name][there]
        if name == "amount":
            np.testing.assert_allclose(now, was, atol=1e-5 * (was.max() - was.min()))
        elif name == "moment" and scaling != "minmax":
            apart = np.abs(now.to_numpy() - was.to_numpy("datetime64[us]"))
            assert apart.max() <= np.timedelta64(60, "s")
        else:
            assert now.tolist() == was.tolist()
    assert [back[name].dtype.kind for name in ("count", "day", "moment", "flag")] == list("iMMb")


@pytest.mark.slow
@given(tables(), st.randoms())
@settings(deadline=None, max_examples=50)
def test_saving_and_the_company_of_other_rows_change_nothing(frame: pd.DataFrame, rng: Any) -> None:
    encoder = fit(frame, one_hot_max_size=2)
    saved = json.dumps(encoder.to_dict(), allow_nan=False)
    again = encoder_from_dict(json.loads(saved))
    encoded = encoder.encode(frame)
    assert same(again.encode(frame), encoded)  # type: ignore[arg-type]
    assert again.layout == encoder.layout
    order = rng.sample(range(len(frame)), len(frame) // 2)
    part = encoder.encode(frame.iloc[order])
    np.testing.assert_array_equal(part.values, encoded.values[order])
    np.testing.assert_array_equal(part.codes, encoded.codes[order])
    np.testing.assert_array_equal(part.observed, encoded.observed[order])
    assert json.dumps(encoder.to_dict()) == saved


def many(distinct: int, repeats: int = 2) -> pd.DataFrame:
    """Make a table with a column of many categories and one of numbers."""
    names = [f"city {i}" for i in range(distinct)] * repeats
    return pd.DataFrame({"city": names, "x": np.arange(len(names)) * 3}, index=range(len(names)))


def test_many_categories_are_hashed_and_come_back() -> None:
    frame = many(65)
    encoder = fit(frame, hash_embedding_dim=4)
    (feature,) = encoder.layout.hashed
    assert (feature.name, feature.width) == ("city", 4)
    assert [f.name for f in encoder.layout.features] == ["x", "city"]
    assert encoder.columns == ["city", "x"]
    encoded = encoder.encode(frame)
    buckets = [
        int.from_bytes(hashlib.blake2b(city.encode(), digest_size=8).digest(), "big") % 256
        for city in frame["city"]
    ]
    assert feature.buckets == len(set(buckets)) + 1
    assert encoded.codes[3, 0] == 1 + sorted(set(buckets)).index(buckets[3])
    vectors = vectors_of(encoder)
    back = encoder.decode(whole(encoder, encoded, vectors), vectors)
    shared = pd.Series(encoded.codes[:65, 0]).duplicated(keep=False).to_numpy()
    assert (back["city"] == frame["city"]).to_numpy()[:65][~shared].all()
    assert (~shared).sum() > 30 and back["x"].tolist() == frame["x"].tolist()
    assert encoder.encode(frame.assign(city="new")).notes[0] == "unseen category in city"
    assert encoder.encode(frame.assign(city="new")).observed.all()


@pytest.mark.parametrize(
    ("distinct", "buckets"), [(3, 128), (64, 128), (65, 256), (128, 256), (40_000, 65_536)]
)
def test_bucket_counts(distinct: int, buckets: int) -> None:
    (city,) = fit(many(distinct)[["city"]], one_hot_max_size=2).to_dict()["codecs"]
    assert city["buckets"] == buckets


@pytest.mark.parametrize(("rows", "minimum"), [(20_000, 10), (1_000, 5), (150, 1)])
def test_rare_and_unseen_values_share_an_embedding(rows: int, minimum: int) -> None:
    counts = {f"often {i}": minimum for i in range(3)} | {
        f"rare {i}": minimum - 1 for i in range(20) if minimum > 1
    }
    names = [name for name, count in counts.items() for _ in range(count)]
    names += ["most"] * (rows - len(names))
    frame = pd.DataFrame({"city": names})
    encoder = fit(frame, one_hot_max_size=2)
    codes = encoder.encode(pd.DataFrame({"city": ["most", *counts, "unseen"]})).codes[:, 0]
    assert np.unique(codes[:4]).size == 4 and (codes[:4] > 0).all()
    assert (codes[4:] == 0).all()
    assert encoder.layout.hashed[0].buckets == 5
    vectors = vectors_of(encoder)
    rare = encoder.encode(pd.DataFrame({"city": ["unseen"]}))
    back = encoder.decode(whole(encoder, rare, vectors), vectors)
    assert not back["city"].str.startswith("rare").any(), "completion names no rare value"


def test_a_long_vocabulary_keeps_the_most_frequent() -> None:
    frame = many(5000, 1)
    frame.loc[5000] = ["city 4999", 0]
    encoder = fit(frame, kinds={"city": "category"})
    vectors = vectors_of(encoder)
    row = encoder.encode(frame.loc[[5000]])
    back = encoder.decode(whole(encoder, row, vectors), vectors)
    assert back["city"].tolist() == ["city 4999"]
    assert set(encoder.encode(frame.assign(city="new")).notes) == {""}
    assert len(encoder.to_dict()["codecs"][0]["vocabulary"]) == 4096


def test_kinds_are_told_from_types_and_text() -> None:
    frame = pd.DataFrame(
        {
            "bool": [True, False, True],
            "nullable": pd.array([True, None, False], dtype="boolean"),
            "word": ["a", "b", "c"],
            "grade": pd.Categorical([1, 2, 3]),
            "int": [1, 2, 3],
            "number text": ["1", " 2.5 ", None],
            "date": pd.to_datetime(["2020-01-01", "2020-01-02", None]),
            "date text": ["2020-01-01", "2020/01/02", None],
            "day first": ["02/01/2020", "31/01/2020", "13/02/2020"],
            "moment": ["2020-01-01T10:00:00", "2020-01-02T00:00:00", None],
        }
    )
    features = {f.name: (f.kind, f.width) for f in fit(frame).layout.features}
    assert features == {
        "bool": ("category", 2),
        "nullable": ("category", 2),
        "word": ("category", 3),
        "grade": ("category", 3),
        "int": ("numeric", 1),
        "number text": ("numeric", 1),
        "date": ("numeric", 5),
        "date text": ("numeric", 5),
        "day first": ("numeric", 5),
        "moment": ("numeric", 7),
    }
    encoder = fit(frame)
    back = encoder.decode(encoder.encode(frame).values, {})
    assert back["day first"].dt.strftime("%d/%m/%Y").tolist() == frame["day first"].tolist()
    assert back["grade"].tolist() == [1, 2, 3]


def test_kinds_can_be_forced() -> None:
    frame = pd.DataFrame({"zip": [1.0, 2.0, None], "code": ["1", "2", "?"], "x": [1, 2, 3]})
    encoder = fit(frame, categorical=("zip",), numeric=("code",), na_values=("?",), drop=("x",))
    assert [f.kind for f in encoder.layout.features] == ["category", "numeric"]
    later = encoder.encode(pd.DataFrame({"zip": [2, 1], "code": [1, 2]}))
    assert later.values.tolist() == [[0, 1, 0], [1, 0, 1]]
    assert encoder.decode(later.values, {})["zip"].tolist() == [2, 1]


def test_missing_marks_count_as_missing() -> None:
    frame = pd.DataFrame(
        {"job": ["a", " unknown", "b", "-1"], "age": [-1, 5, 7, 9], "h": [-1.0, 2.5, 3.0, -1.0]}
    )
    encoder = fit(frame, na_values=("unknown", "-1"))
    encoded = encoder.encode(frame)
    assert encoded.observed.tolist() == [
        [True, False, False],
        [False, True, True],
        [True, True, True],
        [False, True, False],
    ]
    assert not encoded.values[0, 2:].any() and not encoded.values[1, :2].any()
    np.testing.assert_allclose(encoded.values[:, 2], [0, 0, 0.5, 1])


def test_scaling_is_by_range_unless_values_crowd() -> None:
    even = pd.DataFrame({"x": np.arange(1000.0) * 3})
    skewed = pd.DataFrame({"x": np.append(np.arange(999.0), 1e6)})
    np.testing.assert_allclose(fit(even).encode(even).values[250], 250 / 999, rtol=1e-5)
    assert abs(fit(skewed).encode(skewed).values[500, 0] - 0.5) < 0.01
    assert fit(skewed, scaling="minmax").encode(skewed).values[500, 0] < 0.001
    ties = pd.DataFrame({"x": [0, 1, 1, 1, 5]})
    assert fit(ties, scaling="quantile").encode(ties).values[:, 0].tolist() == [0, 0.5, 0.5, 0.5, 1]


def test_values_outside_training_are_clipped_and_noted_when_far() -> None:
    encoder = fit(pd.DataFrame({"age": [10, 20], "job": ["a", "b"]}))
    later = pd.DataFrame({"age": [0, 31, 30, -1], "job": ["a", "c", "b", None], "more": 1})
    encoded = encoder.encode(later)
    assert encoded.values[:, 0].tolist() == [0, 1, 1, 0]
    far = "age far outside the training range"
    assert encoded.notes == ["", f"{far}; unseen category in job", "", far]
    assert encoded.observed[:, 1].tolist() == [True, False, True, False]


def test_dates_know_the_calendar() -> None:
    frame = pd.DataFrame({"t": pd.date_range("2024-01-01", periods=15, freq="12h")})
    values = fit(frame).encode(frame).values
    np.testing.assert_allclose(values[0, [1, 2, 5, 6]], values[14, [1, 2, 5, 6]], atol=1e-6)
    np.testing.assert_allclose(values[0, 1:], [0.5, 1] * 3, atol=1e-6)
    np.testing.assert_allclose(values[1, 5:], [0.5, 0], atol=1e-6)
    assert values[0, 0] == 0 and values[14, 0] == 1


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC", "UTC+02:00"])
def test_time_zones_come_back(zone: str) -> None:
    frame = pd.DataFrame({"t": pd.date_range("2024-03-30", periods=50, freq="h", tz="UTC")})
    frame["t"] = frame["t"].dt.tz_convert(zone)
    encoder = fit(frame)
    again = encoder_from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again.decode(encoder.encode(frame).values, {})["t"].tolist() == frame["t"].tolist()  # type: ignore[call-overload]


def test_an_unreadable_date_is_missing_with_a_note() -> None:
    days = pd.date_range("2024-01-01", periods=30).strftime("%Y-%m-%d").tolist()
    frame = pd.DataFrame({"day": [*days, "soon"]})
    with pytest.warns(DataWarning, match="1 of 31 texts, such as 'soon', are not dates"):
        encoder = fit(frame)
    encoded = encoder.encode(frame)
    assert encoded.observed[:, 0].tolist() == [True] * 30 + [False]
    assert encoded.notes[-1] == "unreadable date in day" and not encoded.values[-1].any()


def test_columns_without_information_are_left_out() -> None:
    frame = pd.DataFrame({"one": [1, 1], "none": [None, None], "x": [1, 2], "same": ["a", None]})
    message = r"'bank': left out 'one' \(constant\), 'none' \(all values missing\), 'same'"
    with pytest.warns(DataWarning, match=message):
        encoder = fit(frame)
    assert list(encoder.left_out) == ["one", "none", "same"] and encoder.columns == ["x"]
    with pytest.raises(InputError, match="'bank': expected at least one column with two different"):
        fit(frame, drop=("x",))


def refusal(frame: pd.DataFrame, encoder: TableEncoder | None = None, **options: Any) -> str:
    """Give the one-line message with which a table is refused."""
    with pytest.raises(InputError) as caught:
        encoder.encode(frame) if encoder else fit(frame, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_tables_are_refused() -> None:
    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0], "job": ["a", "b", "a"]}, index=["r1", "r2", "r3"])
    endless = frame.assign(age=[1.0, np.inf, -np.inf])
    expected = "party 'bank', column 'age': expected finite numbers, but 2 cells are not"
    for message in (refusal(endless), refusal(endless, fit(frame))):
        assert message.startswith(expected)
        assert message.endswith("first 'inf' in row 'r2'; replace by a number or leave empty")
    assert "first '-1.7e+308' in row 'r1'" in refusal(frame.assign(age=[-1.7e308, 0, 1.7e308]))
    message = refusal(frame.assign(age=["1", "", "old"]), fit(frame))
    assert "column 'age'" in message and "1 cells are not, first 'old' in row 'r3'" in message
    assert "first 'a' in row 'r1'" in refusal(frame, numeric=("job",))
    message = refusal(frame.rename(columns={"age": "Age", "job": "work"}), fit(frame))
    assert (
        "'bank'" in message and "'age', 'job' not in the table (nearest present: 'Age')" in message
    )
    for option in ("categorical", "numeric", "drop"):
        assert "unknown column 'jobs': did you mean 'job'?" in refusal(frame, **{option: ("jobs",)})
    assert "both in `categorical`" in refusal(frame, categorical=("age",), numeric=("age",))
    with pytest.raises(InputError, match="unknown encoder type 'tabel': did you mean 'table'"):
        encoder_from_dict({"type": "tabel"})


def test_a_large_table_is_encoded() -> None:
    n = 200_000
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=n),
            "job": rng.choice(list("abcdef"), n),
            "city": rng.integers(0, 5000, n).astype(str),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
        }
    ).assign(city=lambda t: "c" + t["city"])
    encoded = fit(frame).encode(frame)
    assert encoded.observed.all() and len(encoded.ids) == n
