"""A Parquet file read in chunks is the table that it is when read whole."""

from pathlib import Path

import pandas as pd
import pytest

from xvfl.data.frames import read_table
from xvfl.data.parquet import open_parquet


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(None, id="no index"),
        pytest.param([7, 5, 9], id="an index without a name"),
        pytest.param(pd.Index([7, 5, 9], name="row"), id="an index with a name"),
    ],
)
def test_an_index_that_pandas_stored_is_no_column(index: object, tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["a", "b", "c"], "x": [1.0, 2.0, None]}, index=index)
    frame.to_parquet(tmp_path / "t.parquet")
    table = open_parquet(tmp_path / "t.parquet", "id", "party 'bank'")
    assert table.columns == ["x"]
    whole = read_table(str(tmp_path / "t.parquet"), id_column="id", party="bank")
    pd.testing.assert_frame_equal(pd.concat(table.chunks()), whole, check_names=False)


def test_ids_may_be_in_the_index(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=pd.Index(["a", "b"], name="id"))
    frame.to_parquet(tmp_path / "t.parquet")
    table = open_parquet(tmp_path / "t.parquet", "id", "party 'bank'")
    assert table.columns == ["x"]
    assert [list(each.index) for each in table.chunks([])] == [["a", "b"]]
