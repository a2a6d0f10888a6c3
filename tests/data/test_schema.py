"""Columns that are plausibly read the wrong way: what is found, what is said, what to do."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from xvfl.config import TableOptions, build
from xvfl.data.codecs import DurationCodec, NumberCodec
from xvfl.data.encoder import TableEncoder, collect_stats, encoder_from_dict
from xvfl.data.frames import read_table
from xvfl.data.schema import ColumnSummary, summarize
from xvfl.data.value_stats import STREAMING_LIMITS
from xvfl.errors import ConfigError, DataWarning, InputError
from xvfl_serve.encoding.number_text import parse_number

ROWS = 300
RNG = np.random.default_rng(0)
DAYS = pd.Timestamp("2020-01-01") + pd.to_timedelta(RNG.integers(0, 300, ROWS), unit="D")


def cycle(values: list[Any]) -> list[Any]:
    return [values[i % len(values)] for i in range(ROWS)]


def describe(values: Any, name: str = "x", size: int = ROWS, **options: Any) -> ColumnSummary:
    """Summarize a column; in chunks of `size` rows the summary is the same."""
    frame = pd.DataFrame({name: values})
    given = TableOptions(**options)
    summaries = []
    for step, limits in ((len(frame), None), (size, STREAMING_LIMITS)):
        chunks = [frame.iloc[at : at + step] for at in range(0, len(frame), step)]
        columns, _ = collect_stats(chunks, given, "bank", limits, problems := [])
        if problems:
            raise InputError(*problems)
        summaries.append(summarize(columns[name], columns[name].codec()))
    assert summaries[0] == summaries[1]
    return summaries[0]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("zip", RNG.integers(10_000, 99_999, ROWS), "the name says codes"),
        ("zipCode", RNG.integers(10_000, 99_999, ROWS).astype(float), "the name says codes"),
        ("customer_id", RNG.integers(0, 500, ROWS), "the name says codes"),
        ("x", RNG.integers(0, 2**32, ROWS), "look like hashes"),
        ("x", RNG.integers(-(2**63), 2**63 - 1, ROWS), "look like hashes"),
        ("x", RNG.permutation(ROWS), "all differ, as row numbers or ids do"),
    ],
)
def test_numbers_that_are_codes(name: str, values: Any, message: str) -> None:
    found = describe(values, name)
    assert found.kind == "number"
    (text,) = found.warnings
    assert message in text and text.startswith("integers such as '")
    assert text.endswith(
        '; in `kinds`, set its kind to "category", or to "identifier" to ignore it'
    )
    for kind in ("category", "identifier", "number"):
        assert describe(values, name, kinds={name: kind}).kind == kind
        assert describe(values, name, kinds={name: kind}).warnings == ()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("age", RNG.integers(18, 90, ROWS)),
        ("balance", (1e6 * RNG.lognormal(size=ROWS)).round()),
        ("time", 1_600_000_000 + RNG.integers(0, 10_000_000, ROWS)),
        ("income", RNG.integers(0, 100_000, ROWS)),
        ("idle", RNG.integers(0, 100_000, ROWS)),
        ("x", RNG.normal(size=ROWS)),
        ("zip", cycle([1, 2, 3])),
        ("x", np.arange(ROWS) * 7),
        ("job", cycle(["cook", "nurse"])),
        ("product", cycle([f"A-{i}" for i in range(90)])),
        ("day", DAYS),
        ("day", DAYS.strftime("%Y-%m-%d")),
    ],
)
def test_no_false_alarms(name: str, values: Any) -> None:
    assert describe(values, name).warnings == ()


def test_texts_of_one_length_with_leading_zeros_are_categories() -> None:
    codes = [f"{i:05d}" for i in RNG.integers(0, 99_999, 90)]
    assert describe(cycle(codes)).kind == "category"
    assert describe(cycle(codes), kinds={"x": "number"}).kind == "number"
    assert describe(cycle(["07", "8", "12"])).kind == "number"
    assert describe(cycle(["10", "20"])).kind == "number"


@pytest.mark.parametrize(
    ("texts", "decimal", "expected"),
    [
        (["$1,234", "$999", "-$5"], ".", [1234, 999, -5]),
        (["1,234.50", "12.25", "1,000,000"], ".", [1234.5, 12.25, 1e6]),
        (["12,5", "3,25", "1000"], ",", [12.5, 3.25, 1000]),
        (["1.234,50 \u20ac", "12,5\u20ac"], ",", [1234.5, 12.5]),
        (["3%", "4.5 %", "100%"], ".", [3, 4.5, 100]),
        (["1 234 567", "12 000", "5"], ".", [1234567, 12000, 5]),
        (["1'234.50", "7"], ".", [1234.5, 7]),
        (["(31)", "7", "(1,250.5)"], ".", [-31, 7, -1250.5]),
        (["$5", "($3.50)", "$2.00"], ".", [5, -3.5, 2]),
    ],
)
def test_texts_that_are_numbers_are_read(
    texts: list[str], decimal: str, expected: list[float]
) -> None:
    frame = pd.DataFrame({"x": texts * 30, "y": cycle(["a", "b"])[: 30 * len(texts)]})
    encoder = TableEncoder.fit(frame, TableOptions(), "bank")
    codec = encoder.codecs[0]
    assert isinstance(codec, NumberCodec) and codec.decimal == decimal
    again = encoder_from_dict(json.loads(json.dumps(encoder.to_dict())))
    encoded = again.encode(frame)  # type: ignore[arg-type]
    assert encoded.observed.all()
    numbers = codec.scale.invert(encoded.values[: len(texts), 0].astype(float))
    span = max(expected) - min(expected)
    np.testing.assert_allclose(numbers, expected, atol=1e-6 * span)
    assert describe(frame["x"]).kind == "number" and describe(frame["x"]).warnings == ()
    back = again.decode(encoded.values, {})["x"]
    read = [parse_number(text, decimal) for text in back[: len(texts)]]
    np.testing.assert_allclose(read, expected, atol=1e-4 * span)  # type: ignore[arg-type]
    assert back[0][0] == texts[0][0] or not codec.prefix


def test_ambiguous_separators_are_told() -> None:
    texts = cycle([f"{i},{i + 100:03d}" for i in range(1, 80)])
    found = describe(texts)
    assert found.kind == "category"
    assert found.warnings == (
        "texts such as '1,101' and '2,102' are numbers with thousands separators or with a decimal "
        'comma, but are read as categories; set the kind to "number:." or "number:," in `kinds`',
    )
    for kind, low in (("number:.", 1101), ("number:,", 1.101), ("number", 1101)):
        encoder = TableEncoder.fit(
            pd.DataFrame({"x": texts}), TableOptions(kinds={"x": kind}), "bank"
        )
        assert encoder.to_dict()["codecs"][0]["scale"]["knots"][0] == low


def test_mixed_currencies_and_words_among_numbers_are_told() -> None:
    found = describe(cycle([f"${i}" for i in range(50)] + [f"\u20ac{i}" for i in range(50)]))
    assert found.kind == "category"
    assert found.warnings == (
        "texts such as '$0' and '\u20ac0' are numbers with different currency or percent signs, "
        "or with different decimal marks, but are read as categories; write all cells in the "
        "same way, in one currency or unit",
    )
    found = describe(cycle([*(f"{i}.5" for i in range(30)), *(f"{i},5" for i in range(30))]))
    assert found.warnings[0].startswith("texts such as '0.5' and '0,5' are numbers with different")
    found = describe(cycle([str(i) for i in range(90)] + ["few", "many"]))
    assert found.kind == "category"
    assert "numbers such as '0' and '1', but not 'few' and 'many'" in found.warnings[0]
    assert "add them to `na_values`" in found.warnings[0]
    assert describe(cycle([*map(str, range(90)), "few"]), na_values=("few",)).kind == "number"


UNIQUE_TEXTS = {
    "income": (
        [f"{i + 10},{i + 100}" for i in range(ROWS)],
        'the kind to "number:." or "number:,"',
    ),
    "debt": (
        [str(i) for i in range(2, ROWS)] + ["(1,000)", "(1,001)"],
        "such as '(1,000)' and '(1,001)' are numbers with thousands separators",
    ),
    "unknown": (
        [*(f"{i + 0.125}" for i in range(ROWS - 5)), *["unknown"] * 5],
        "'unknown' in 1.7% of the cells, beside numbers such as '0.125' and '1.125' which are left "
        "out as an identifier: probably missing values; if so, add 'unknown' to `na_values`",
    ),
    "length": ([f"{i // 60}:{i % 60:02d}:33" for i in range(ROWS)], 'the kind to "duration"'),
    "lengths": (
        [*(f"{i // 60}:{i % 60:02d}:33" for i in range(ROWS - 2)), "soon", "late"],
        "but not 'late' and 'soon', so they are left out as an identifier; set the kind to "
        '"duration" in `kinds`; these cells then count as missing',
    ),
    "price": (
        [("$", "\u20ac")[i % 2] + f"{i}.50" for i in range(ROWS)],
        "'$0.50' and '\u20ac1.50' are numbers with different currency or percent signs",
    ),
    "way": (
        [f"{i}.34 km" for i in range(ROWS)],
        "'0.34 km' and '1.34 km' are numbers with the unit 'km', but are left out as an "
        "identifier; remove the unit from all cells",
    ),
    "day": (
        [*pd.date_range("2020-01-01", periods=ROWS - 16).strftime("%d.%m.%Y"), *["soon"] * 16],
        "(94.7% of the cells) are dates such as '01.01.2020' and '02.01.2020', but not 'soon'",
    ),
}


@pytest.mark.parametrize("name", UNIQUE_TEXTS)
def test_distinct_texts_of_another_kind_are_no_identifiers(name: str) -> None:
    texts, message = UNIQUE_TEXTS[name]
    found = describe(texts, name, size=70)
    assert found.kind in ("identifier", "category")
    (text,) = found.warnings
    assert message in text
    frame = pd.DataFrame({name: texts, "age": RNG.integers(0, 90, ROWS)})
    with pytest.warns(DataWarning) as caught:
        TableEncoder.fit(frame, TableOptions(), "bank")
    assert [str(each.message) for each in caught] == [f"party 'bank', column {name!r}: {text}"]


def test_a_word_after_many_numbers_is_told() -> None:
    texts = [*(f"{i}.25" for i in range(2000)), "unknown"]
    assert describe(texts, size=500).warnings[0].startswith("'unknown' in 0.050% of the cells, bes")
    assert describe(texts, na_values=("unknown",)).kind == "number"


def test_units_are_told() -> None:
    found = describe(cycle([f"{i} kg" for i in range(40, 90)] + ["heavy"]))
    assert found.kind == "category"
    assert "numbers with the unit 'kg' such as '40 kg' and '41 kg', but not 'heavy'" in str(found)
    houses = cycle([f"{i}{letter}" for i in range(20) for letter in "abc"])
    assert describe(houses).warnings == ()


def test_different_units_are_told() -> None:
    for space in (" ", ""):
        found = describe(cycle([f"{i}{space}{'lb' if i % 2 else 'kg'}" for i in range(40, 90)]))
        assert found.kind == "category"
        assert found.warnings == (
            f"texts such as '40{space}kg' and '41{space}lb' are numbers with the units 'kg' and "
            "'lb', but are read as categories; convert all cells to one unit, and remove it from "
            "the cells",
        )
    few = describe(cycle(["700 lb", "heavy", *(f"{i} kg" for i in range(40, 90))]))
    assert "with the units 'kg' and 'lb' such as '700 lb' and '40 kg', but not 'heavy'" in str(few)
    spellings = describe(cycle([f"{i} {'Kgs' if i % 2 else 'kg'}" for i in range(40, 90)]))
    assert "are numbers with the unit 'kg', but" in spellings.warnings[0]
    streets = cycle([f"{i} {['Main', 'Oak', 'Elm', 'High', 'Park'][i % 5]}" for i in range(50)])
    assert describe(streets).warnings == ()


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%d.%m.%Y", "%m/%d/%Y"])
def test_different_date_formats_are_told(form: str) -> None:
    both = ("%Y-%m-%d", form)
    found = describe([day.strftime(both[i % 2]) for i, day in enumerate(DAYS)], size=70)
    assert found.kind in ("category", "identifier")
    (text,) = found.warnings
    assert "are dates in the formats " in text and form in text and "ISO8601" in text
    assert text.endswith("write all dates in the same format, such as 2021-06-15")
    for period, count in ((2, 100), (4, 160), (5, 200)):
        days = pd.date_range("2020-01-01", periods=count)
        texts = [day.strftime(both[i % period == 0]) for i, day in enumerate(days)]
        assert "are dates in the formats " in describe(texts, size=70).warnings[0]


def test_dates_in_another_format_among_many_are_told() -> None:
    texts = [day.strftime("%d/%m/%Y" if i % 30 == 0 else "%Y-%m-%d") for i, day in enumerate(DAYS)]
    found = describe(texts, size=70)
    assert found.kind == "date"
    assert found.warnings == (
        f"{len(DAYS) // 30} of {len(DAYS)} texts, such as {texts[0]!r} and {texts[30]!r}, are not "
        "dates in the format ISO8601, and count as missing; write all dates in the same format, or "
        "add other texts to `na_values`",
    )


@pytest.mark.parametrize(
    "texts",
    [
        [f"http://x.org/{i}/a-b" for i in range(300)],
        [f"555-{i:04d}" for i in range(300)],
        [f"{i % 17}/{i % 19}" for i in range(300)],
        [f"{i % 5}.{i % 7}-{i % 11}" for i in range(300)],
        [f"2021-{i % 12 + 1:02d}-01 10:{i % 60:02d}" for i in range(300)],
    ],
)
def test_texts_with_hyphens_slashes_and_colons_are_no_different_dates(texts: list[str]) -> None:
    assert describe(texts, size=70).warnings == ()


def test_dates_among_words_are_told() -> None:
    few = pd.date_range("2020-01-01", periods=9).strftime("%d/%m/%Y")
    assert describe(cycle(["soon", "late", *few])).warnings == (), "too few to judge"
    assert "are dates such as '01/01/2020'" in describe(cycle(["soon", *few])).warnings[0]
    days = [*["soon"] * 60, *sorted(DAYS.strftime("%d/%m/%Y"))[:240]]
    found = describe(days, size=70)
    assert found.kind == "category"
    assert "most texts (80.0% of the cells) are dates such as '01/01/2020'" in found.warnings[0]
    assert found.warnings[0].endswith("correct these cells, or add them to `na_values`")
    assert describe(days, na_values=("soon",)).kind == "date"


def test_dates_that_may_be_day_first_are_told() -> None:
    early = cycle([f"{day:02d}/{month:02d}/2020" for day in range(1, 13) for month in range(1, 9)])
    found = describe(early)
    assert found.kind == "date" and found.encoding.endswith("format %m/%d/%Y")
    assert found.warnings == (
        "dates such as '01/01/2020' and '01/02/2020' are read as %m/%d/%Y, but %d/%m/%Y fits as "
        'well; set the kind to "date:%m/%d/%Y" or "date:%d/%m/%Y" in `kinds`',
    )
    chosen = describe(early, kinds={"x": "date:%d/%m/%Y"})
    assert chosen.encoding.endswith("format %d/%m/%Y") and chosen.warnings == ()


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y"])
def test_day_first_dates_are_recognized(form: str) -> None:
    found = describe(sorted(DAYS.strftime(form)), size=70)
    assert found.kind == "date" and found.encoding.endswith(f"format {form}")
    assert found.warnings == ()


def test_the_format_with_most_dates_is_chosen() -> None:
    texts = ["01/02/2020"] * 290 + ["13/02/2020"] * 10
    assert describe(texts).encoding.endswith("format %d/%m/%Y")


def test_compact_dates_can_be_set() -> None:
    numbers = DAYS.strftime("%Y%m%d").astype(int)
    for given in (numbers, numbers.astype(float), numbers.astype(str)):
        found = describe(given)
        assert found.kind == "number"
        (text,) = found.warnings
        assert text.endswith(
            'are dates, but are read as a number; set the kind to "date:%Y%m%d" in `kinds`'
        )
        assert describe(given, kinds={"x": "date:%Y%m%d"}).kind == "date"
    assert describe(RNG.integers(20_200_000, 20_300_000, ROWS)).warnings == ()
    with pytest.raises(InputError, match="column 'x': expected dates, but 'a' and others are not"):
        describe(cycle(["a", "b"]), kinds={"x": "date"})


@pytest.mark.parametrize(
    ("texts", "seconds"),
    [
        (["1:30:00", "26:00:10"], [5400, 93_610]),
        (["1:30", "0:05"], [5400, 300]),
        (["90 min", "2 hours", "1 day"], [5400, 7200, 86_400]),
    ],
)
def test_durations_are_told_and_read_on_request(texts: list[str], seconds: list[float]) -> None:
    found = describe(cycle(texts))
    assert found.warnings == (
        f"texts such as {texts[0]!r} and {texts[1]!r} are durations or times of day, but are read "
        'as categories; set the kind to "duration" in `kinds`',
    )
    assert describe(cycle(texts), kinds={"x": "duration"}).kind == "duration"
    frame = pd.DataFrame({"x": [*texts, None, "soon"]})
    encoder = TableEncoder.fit(frame.iloc[:-1], TableOptions(kinds={"x": "duration"}), "bank")
    (codec,) = encoder.codecs
    assert isinstance(codec, DurationCodec)
    again = encoder_from_dict(encoder.to_dict())
    encoded = again.encode(frame)  # type: ignore[arg-type]
    assert encoded.observed[:, 0].tolist() == [True] * len(texts) + [False, False]
    assert encoded.notes[-1] == "duration without a unit, or unreadable, in x"
    numbers = codec.scale.invert(encoded.values[: len(texts), 0].astype(float))
    np.testing.assert_allclose(numbers, seconds, atol=0.1)


def test_time_differences_are_durations() -> None:
    found = pd.Series(pd.to_timedelta(RNG.integers(0, 9000, ROWS), unit="s"))
    assert describe(found).kind == "duration"
    encoder = TableEncoder.fit(found.to_frame("x"), TableOptions(), "bank")
    back = encoder.decode(encoder.encode(found.to_frame("x")).values, {})["x"]
    assert (abs(back - found) <= pd.Timedelta(1, "s")).all()


def test_unique_text_is_no_feature() -> None:
    mails = [f"person{i}@example.org" for i in range(ROWS)]
    found = describe(mails)
    assert (found.kind, found.encoding, found.distinct) == ("identifier", "not used", ROWS)
    frame = pd.DataFrame({"mail": mails, "age": RNG.integers(0, 90, ROWS)})
    with pytest.warns(
        DataWarning, match=r"left out 'mail' \(identifier: 300 different texts\); to"
    ):
        encoder = TableEncoder.fit(frame, TableOptions(), "bank")
    assert encoder.columns == ["age"]
    used = TableEncoder.fit(frame, TableOptions(kinds={"mail": "category"}), "bank")
    assert used.columns == ["mail", "age"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ignored = TableEncoder.fit(frame, TableOptions(kinds={"mail": "identifier"}), "bank")
    assert ignored.left_out == {"mail": "identifier"}
    assert describe(mails[:40]).kind == "category", "too few to judge"


def test_distinct_texts_of_large_tables_are_estimated() -> None:
    from xvfl.data.value_stats import FitLimits

    many = pd.DataFrame({"x": [f"v{i // 2}" for i in range(60_000)]})
    limits = FitLimits(max_categories=5_000)
    parts = [many.iloc[at : at + 3_000] for at in range(0, len(many), 3_000)]
    columns, _ = collect_stats(parts, TableOptions(), "bank", limits, [])
    assert 0.95 * 30_000 < columns["x"].categories.distinct < 1.05 * 30_000
    assert not columns["x"].is_identifier


def test_missing_values_read_alike_from_every_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    marks = ["N/A", "", "null", "NaN", "NA", "None", "n/a", "<NA>"]
    frame = pd.DataFrame({"id": range(100), "job": (["cook", *marks, "nurse"] * 10)})
    frame["age"] = [mark if mark in marks else str(i) for i, mark in enumerate(frame["job"])]
    frame.to_csv("t.csv", index=False)
    frame.to_excel("t.xlsx", index=False)
    frame.to_parquet("t.parquet")
    sources = ["t.csv", "t.xlsx", "t.parquet", "sql:SELECT * FROM 't.csv'", frame]
    fitted = []
    for source in sources:
        table = read_table(source, id_column="id", party="bank")
        encoder = TableEncoder.fit(table, TableOptions(), "bank")
        assert encoder.encode(table).observed.mean() == 0.2
        fitted.append(encoder.to_dict()["codecs"])
    assert all(each == fitted[0] for each in fitted)


def test_encoders_of_earlier_versions_keep_their_reading() -> None:
    frame = pd.DataFrame({"x": ["None", "a"] * 5, "n": range(10)})
    saved = TableEncoder.fit(frame.replace("None", "No"), TableOptions(), "bank").to_dict()
    saved["na_values"] = []
    number = saved["codecs"][1]
    saved["codecs"][0]["values"] = ["None", "a"]
    for key in ("decimal", "prefix", "suffix"):
        number.pop(key)
    encoded = encoder_from_dict(saved).encode(frame)  # type: ignore[arg-type]
    assert encoded.observed.all() and encoded.values[0].tolist() == [1, 0, 0]


def test_kinds_are_checked() -> None:
    with pytest.raises(ConfigError, match="kinds: column 'x': unknown kind 'numbr': did you mean"):
        build(TableOptions, {"kinds": {"x": "numbr"}}, "bank")
    with pytest.raises(ConfigError, match="expected number:. or number:, got 'number:;'"):
        TableOptions(kinds={"x": "number:;"})
    frame = pd.DataFrame({"x": [1, 2]})
    with pytest.raises(InputError, match="unknown column 'y'"):
        TableEncoder.fit(frame, TableOptions(kinds={"y": "number"}), "bank")
    with pytest.raises(InputError, match="both in `numeric` and in `kinds`"):
        TableEncoder.fit(frame, TableOptions(numeric=("x",), kinds={"x": "date"}), "bank")
    with pytest.raises(
        InputError, match="expected finite numbers, but 2 cells are not, first '1,5'"
    ):
        TableEncoder.fit(
            pd.DataFrame({"x": ["1,5", "a"]}), TableOptions(kinds={"x": "number"}), "bank"
        )
