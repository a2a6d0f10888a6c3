"""Tables from any source become one form, and bad ones are refused in one clear line."""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xvfl.config import TableOptions
from xvfl.data.encoder import TableEncoder
from xvfl.data.frames import read_table
from xvfl.data.labels import read_labels
from xvfl.data.table_writer import write_table
from xvfl.errors import DataWarning, InputError

FRAME = pd.DataFrame({"key": [3, 1, 2], "age": [30.5, None, 20.0], "job": ["a", "b", None]})


def refusal(source: object, id_column: str | None = "key") -> str:
    """Give the one-line message with which a table is refused."""
    with pytest.raises(InputError) as caught:
        read_table(source, id_column=id_column, party="bank")  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message and message.startswith("party 'bank'")
    return message


KINDS = ["csv", "semicolon", "tab", "gzip", "excel", "parquet", "sql", "pandas", "polars", "lazy"]


@pytest.mark.parametrize("kind", [*KINDS, "arrow", "index"])
def test_every_source_gives_the_same_table(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("t.csv", index=False)
    FRAME.to_csv("semicolon.csv", index=False, sep=";")
    FRAME.to_csv("tab.csv", index=False, sep="\t")
    FRAME.to_csv("t.csv.gz", index=False)
    FRAME.to_excel("t.xlsx", index=False)
    FRAME.to_parquet("t.parquet")
    source = {
        "csv": tmp_path / "t.csv",
        "semicolon": "semicolon.csv",
        "tab": "tab.csv",
        "gzip": "t.csv.gz",
        "excel": tmp_path / "t.xlsx",
        "lazy": pl.from_pandas(FRAME).lazy(),
        "arrow": pa.Table.from_pandas(FRAME),
        "parquet": "t.parquet",
        "sql": "sql:select * from 't.csv'",
        "pandas": FRAME,
        "polars": pl.from_pandas(FRAME),
        "index": FRAME.set_index("key"),
    }[kind]
    table = read_table(source, id_column="key", party="bank")
    assert table.index.tolist() == ["3", "1", "2"]
    assert table.index.name == "id"
    assert table.columns.tolist() == ["age", "job"]
    assert table["age"].fillna(-1).tolist() == [30.5, -1, 20.0]
    assert table["job"].isna().tolist() == [False, False, True]
    assert "key" in FRAME.columns


def test_ids_are_compared_as_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\ufeffkey,x\n007, 1\n 08 ,2\n")
    assert read_table(path, id_column="key", party="p").index.tolist() == ["007", "08"]
    floats = pd.DataFrame({"x": [1, 2]}, index=[1.0, 2.5])
    assert read_table(floats, id_column=None, party="p").index.tolist() == ["1", "2.5"]
    mixed = pd.DataFrame({"key": [1, 2.0, " c "], 5: 0})
    table = read_table(mixed, id_column="key", party="p")
    assert table.index.tolist() == ["1", "2", "c"]
    assert table.columns.tolist() == ["5"]


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, unique=True))
def test_integer_float_and_text_ids_agree(numbers: list[int]) -> None:
    tables = [
        pd.DataFrame({"key": pd.Series(numbers, dtype=dtype), "x": 1})
        for dtype in ("int64", "float64", "Int64", "str", "object", "category")
    ]
    for table in tables:
        read = read_table(table, id_column="key", party="p")
        assert read.index.tolist() == [str(number) for number in numbers]


def test_files_are_refused_by_name(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.csv").endswith("no.csv: file not found; check the path")
    assert "ending in .csv, .csv.gz, .parquet, .xlsx, but got '.xls'" in refusal("t.xls")
    (tmp_path / "t.xlsx").write_text("nonsense")
    assert "cannot be read as Excel (" in refusal(tmp_path / "t.xlsx")
    (tmp_path / "t.csv.gz").write_text("nonsense")
    assert "cannot be read as CSV (Not a gzipped file" in refusal(tmp_path / "t.csv.gz")
    (tmp_path / "t.parquet").write_text("nonsense")
    assert "cannot be read as Parquet (" in refusal(tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("")
    assert "cannot be read as CSV (No columns" in refusal(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("key,x\n1,2\n3,4,5\n")
    assert "cannot be read as CSV (Error tokenizing" in refusal(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("key,x\n1,2,3\n4,5,6\n")
    assert "cannot be read as CSV (Length of header" in refusal(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(b"key,x\n1,\xff\xfe\n")
    assert "cannot be read as CSV ('utf-8' codec" in refusal(tmp_path / "t.csv")


def test_a_bad_query_is_refused() -> None:
    assert "SQL query: failed (Parser Error" in refusal("sql:selec 1")
    assert "SQL query: failed (Catalog Error" in refusal("sql:select * from source")
    assert "'a' occurs again" in refusal("sql:select 1 as key, 2 as a, 3 as a")


def test_a_source_without_index_needs_an_id_column() -> None:
    for source in ("t.csv", "sql:select 1", pl.DataFrame({"x": [1]})):
        assert "name the id column" in refusal(source, None)
    for source, message in [
        ({"key": [1]}, "but got builtins.dict; make a table of it: pd.DataFrame(columns"),
        (np.zeros((2, 2)), "but got numpy.ndarray; name its columns and rows: pd.DataFrame("),
        (FRAME["age"], "but got pandas.Series; a table of one column is series.to_frame()"),
        (pl.Series([1]), "but got polars.Series; a table of one column is series.to_frame()"),
        ([[1, 2]], "but got builtins.list; make a table of it"),
        (7, "but got builtins.int; convert it to one of these"),
    ]:
        assert message in refusal(source, None)
    assert "2 levels" in refusal(pd.DataFrame({"x": [1]}, index=[[1], [2]]), None)


def test_bad_ids_are_refused() -> None:
    assert "unknown id column 'kee': did you mean 'key'?" in refusal(FRAME, "kee")
    gaps = pd.DataFrame({"key": ["a", None, " "], "x": 1})
    assert "2 of 3 are missing, first in data row 2; fill them in" in refusal(gaps)
    assert "1 of 2 are missing, first in data row 2" in refusal(gaps.iloc[[0, 2]])
    twice = pd.DataFrame({"key": ["a", "b", "b", "a", "b"], "x": 1})
    message = refusal(twice)
    assert "id column 'key'" in message
    assert "3 rows repeat an earlier id, first 'b' in data row 3; keep one row per id" in message


def test_empty_and_ambiguous_tables_are_refused(tmp_path: Path) -> None:
    assert "there are none" in refusal(FRAME.iloc[:0])
    assert "'x' occurs again" in refusal(pd.DataFrame([[1, 2, 3]], columns=["key", "x", "x"]))
    (tmp_path / "t.csv").write_text("key,x,x\n1,2,3\n")
    assert "'x' occurs again" in refusal(tmp_path / "t.csv")
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["key", "x", "x"])
    pq.write_table(table, tmp_path / "t.parquet")
    assert "'x' occurs again" in refusal(tmp_path / "t.parquet")


def test_codes_with_leading_zeros_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,zip,age,share,month\n1,01234,5,0.5,01\n2,90210,37,12.25,12\n3,,9,,\n")
    table = read_table(path, id_column="key", party="p")
    assert table["zip"].tolist()[:2] == ["01234", "90210"] and table["zip"].isna().iloc[2]
    assert table["month"].tolist()[:2] == ["01", "12"]
    assert table["age"].tolist() == [5, 37, 9] and table["share"].tolist()[:2] == [0.5, 12.25]


def test_the_first_sheet_of_a_book_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    with pd.ExcelWriter(path) as book:
        FRAME.assign(key=["01", "02", "03"]).to_excel(book, sheet_name="people", index=False)
        FRAME.to_excel(book, sheet_name="more", index=False)
    with pytest.warns(DataWarning, match="file .*t.xlsx: read the first of 2 sheets, 'people'"):
        table = read_table(path, id_column="key", party="bank")
    assert table.index.tolist() == ["01", "02", "03"]


def labels_of(values: object, **options: object) -> pd.Series:
    """Read labels from a table of them."""
    frame = pd.DataFrame({"key": range(len(values)), "y": values})  # type: ignore[arg-type]
    return read_labels(frame, id_column="key", column="y", where="labels")


@pytest.mark.parametrize(
    ("given", "expected", "kind"),
    [
        ([1.0, 0.0], [1, 0], "i"),
        ([True, False], [True, False], "b"),
        (pd.array([1, 2], dtype="Int64"), [1, 2], "i"),
        (pd.array([True, False], dtype="boolean"), [True, False], "b"),
        (pd.Categorical([3, 4]), [3, 4], "i"),
        (["no", "yes"], ["no", "yes"], "O"),
        ([0.5, 1.5], [0.5, 1.5], "f"),
    ],
)
def test_labels_keep_their_type(given: object, expected: list[object], kind: str) -> None:
    labels = labels_of(given)
    assert labels.tolist() == expected
    assert labels.dtype.kind == kind
    assert labels.index.tolist() == ["0", "1"]


def test_missing_labels_are_left_out_with_a_count() -> None:
    with pytest.warns(DataWarning, match="labels: left out 1 of 3 rows without a label"):
        labels = labels_of([1.0, None, 0.0])
    assert labels.tolist() == [1, 0] and labels.index.tolist() == ["0", "2"]


def test_labels_that_read_missing_are_told(tmp_path: Path) -> None:
    y = pd.Series(["a", "N/A", "b", "", "a", "None"])
    with pytest.warns(DataWarning, match="3 labels such as '' and 'N/A' are read as missing; re"):
        labels = read_labels(y, where="y", allow_missing=True)
    assert labels.tolist() == ["a", "b", "a"]


def test_labels_may_be_a_series_or_a_file(tmp_path: Path) -> None:
    series = pd.Series(["a", "b"], index=[7, 8])
    labels = read_labels(series, id_column=None, column=None, where="labels")
    assert labels.to_dict() == {"7": "a", "8": "b"}
    path = tmp_path / "y.csv"
    path.write_text("key,y\n07,a\n08,b\n")
    labels = read_labels(path, id_column="key", column="y", where="labels")
    assert labels.to_dict() == {"07": "a", "08": "b"}


def test_unusable_labels_are_refused() -> None:
    with pytest.raises(InputError, match="labels: unknown label column 'agee': did you mean 'age'"):
        read_labels(FRAME, id_column="key", column="agee", where="labels")
    with pytest.raises(InputError, match="name the label column"):
        read_labels(FRAME, id_column="key", column=None, where="labels")
    with pytest.raises(InputError, match="at least 2 classes, but found only class yes"):
        labels_of(["yes", "yes"])
    with pytest.raises(InputError, match="looks like a regression target"):
        labels_of(np.linspace(0, 1, 60))
    with pytest.raises(InputError, match="first '7' in data row 2; keep one row per id"):
        twice = pd.Series([0, 1], index=[7, 7])
        read_labels(twice, id_column=None, column=None, where="labels")
    with (
        pytest.warns(DataWarning, match="2 of 2"),
        pytest.raises(InputError, match="no label at all"),
    ):
        labels_of([None, None])
    assert labels_of(np.arange(60.0)).dtype.kind == "i"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_written_table_reads_back(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    table = read_table(FRAME, id_column="key", party="p")
    write_table(table, path)
    write_table(table, path)
    pd.testing.assert_frame_equal(read_table(path, id_column="id", party="p"), table)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_table_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="expected a name ending in .csv or .parquet"):
        write_table(FRAME, tmp_path / "out.txt")
    with pytest.raises(InputError, match="cannot be written"):
        write_table(FRAME, tmp_path / "no" / "out.csv")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_table(FRAME, tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())


def test_text_cells_of_excel_stay_text(tmp_path: Path) -> None:
    codes = [f"{i:03d}" for i in range(40)]
    frame = pd.DataFrame({"key": codes, "code": codes[::-1], "count": range(40)})
    frame["half"] = [None, *(i / 2 for i in range(39))]
    frame["mixed"] = ["07", *range(39)]
    for name, write in (("t.xlsx", frame.to_excel), ("t.csv", frame.to_csv)):
        write(tmp_path / name, index=False)
        table = read_table(tmp_path / name, id_column="key", party="p")
        assert table.index.tolist() == codes
        assert table["code"].tolist() == codes[::-1]
        assert table["count"].dtype == "int64" and table["half"].dtype == "float64"
        assert str(table["mixed"].iloc[0]) == "07"
        assert TableEncoder.fit(table[["code"]], TableOptions(), "p").codecs[0].feature.width == 40
