"""Read tables of any source as pandas frames indexed by string ids."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from xvfl.data.ids import parse_ids, require_id_column
from xvfl.data.parse import WHERE
from xvfl.data.table_files import SUFFIXES, error_reason, read_file, reject_duplicate_columns
from xvfl.errors import InputError, unknown

if TYPE_CHECKING:
    import polars
    import pyarrow

TableSource: TypeAlias = (
    "str | Path | pd.DataFrame | polars.DataFrame | polars.LazyFrame | pyarrow.Table"
)
"""A path (`SUFFIXES`), `sql:` and a DuckDB query, a pandas or polars frame, an Arrow table, or a
DuckDB relation."""

SQL = "sql:"
ROW_NUMBERS = "row numbers"
"""Key of `DataFrame.attrs`: whether the ids are row numbers, because nobody has set an index."""
HINTS = {
    "builtins.NoneType": "leave the party out",
    "numpy.ndarray": "name its columns and rows: pd.DataFrame(array, columns=names, index=ids)",
    "builtins.dict": "make a table of it: pd.DataFrame(columns, index=ids)",
    "builtins.list": "make a table of it: pd.DataFrame(rows, columns=names, index=ids)",
    "pandas.Series": "a table of one column is series.to_frame()",
    "polars.Series": "a table of one column is series.to_frame()",
}
"""What to do with objects that are not tables, by type."""


def read_table(
    source: TableSource, *, id_column: str | None, party: str, min_rows: int = 1
) -> pd.DataFrame:
    """Read a party's table as a frame indexed by its ids.

    Ids become strings: 7, 7.0 and "7" are the same id.

    Parameters
    ----------
    source : str, Path, pandas.DataFrame, polars.DataFrame, polars.LazyFrame or pyarrow.Table
        A .csv, .csv.gz, .parquet or .xlsx file, ``"sql:"`` and a DuckDB query, or a table.
    id_column : str or None
        The column with the ids. None takes them from the index of a pandas frame.
    party : str
        The party's name, for messages.
    min_rows : int, default=1
        The smallest number of rows to accept.

    Returns
    -------
    pandas.DataFrame
        The feature columns, indexed by string ids.

    Raises
    ------
    InputError
        The source cannot be read; an id is missing or occurs twice; two columns have one name; or
        there are too few rows.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"customer": [7, 8], "age": [31, 45]})
    >>> read_table(frame, id_column="customer", party="bank").index.tolist()
    ['7', '8']

    """
    return read_frame(source, id_column, f"party {party!r}", min_rows)


def read_frame(source: Any, id_column: str | None, where: str, min_rows: int = 1) -> pd.DataFrame:
    """Read a table; messages start with `where`."""
    frame, where, own_index = _load(source, id_column, where)
    indexed = index_by_id(frame, id_column, own_index, where)
    if len(frame) < min_rows:
        raise InputError(
            f"{where}: expected at least one row, but there are none; check the source"
        )
    return indexed


def read_without_ids(source: Any, where: str) -> pd.DataFrame:
    """Read a table of which no column holds ids."""
    if not isinstance(source, str | Path):
        return _to_pandas(source, where)
    where = f"{where}, {describe_source(source)}"
    if isinstance(source, str) and source.startswith(SQL):
        return _query(source.removeprefix(SQL), where)
    return read_file(Path(source), "", where)


def index_by_id(
    frame: pd.DataFrame, id_column: str | None, own_index: bool, where: str, start: int = 0
) -> pd.DataFrame:
    """Index a raw frame, the rows of a table from `start` on, by its ids as strings."""
    names = pd.Index([str(name) for name in frame.columns])
    reject_duplicate_columns(names, where)
    frame = frame.set_axis(names, axis=1)
    raw = _raw_ids(frame, id_column, own_index, where)
    place = "index" if id_column is None else f"id column {id_column!r}"
    ids = parse_ids(raw, f"{where}, {place}", start)
    features = frame.drop(columns=id_column) if id_column in frame.columns else frame
    features = features.set_axis(ids, axis=0)
    features.attrs[WHERE] = where
    features.attrs[ROW_NUMBERS] = id_column is None and isinstance(frame.index, pd.RangeIndex)
    return features


def _load(source: Any, id_column: str | None, where: str) -> tuple[pd.DataFrame, str, bool]:
    """Return the raw frame, its name for messages, and whether its index may hold the ids."""
    if isinstance(source, pd.DataFrame):
        return source, where, True
    if isinstance(source, str | Path):
        id_column = require_id_column(id_column, where)
        where = f"{where}, {describe_source(source)}"
        if isinstance(source, str) and source.startswith(SQL):
            return _query(source.removeprefix(SQL), where), where, False
        return read_file(Path(source), id_column, where), where, True
    frame = _to_pandas(source, where)
    require_id_column(id_column, where)
    return frame, where, False


def _to_pandas(source: Any, where: str) -> pd.DataFrame:
    """Convert a polars frame or an Arrow table."""
    name = type_name(source)
    if name == "polars.LazyFrame":
        source = source.collect()
    if name.endswith("duckdb.DuckDBPyRelation"):
        return _relation(source, where)
    if name in ("polars.DataFrame", "polars.LazyFrame", "pyarrow.Table", "pyarrow.RecordBatch"):
        frame: pd.DataFrame = source.to_pandas()
        return frame
    hint = HINTS.get(name, "convert it to one of these")
    raise InputError(
        f"{where}: expected a {', '.join(SUFFIXES)} path, 'sql:' and a query, a pandas or polars "
        f"frame, an Arrow table or a DuckDB relation, but got {name}; {hint}"
    )


def _relation(relation: Any, where: str) -> pd.DataFrame:
    """Execute a DuckDB relation in the connection that it belongs to."""
    import duckdb

    reject_duplicate_columns(relation.columns, where)
    try:
        frame: pd.DataFrame = relation.df()
    except duckdb.Error as error:
        raise InputError(f"{where}: failed ({error_reason(error)}); correct the query") from error
    return frame


def type_name(value: object) -> str:
    """Return the package and the name of a value's type, such as polars.DataFrame."""
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"


def describe_source(source: Any) -> str:
    """Name a file or query for messages."""
    return "SQL query" if str(source).startswith(SQL) else f"file {source}"


def _query(query: str, where: str) -> pd.DataFrame:
    try:
        import duckdb
    except ImportError as error:
        raise InputError(f"{where}: needs the package duckdb; install it") from error
    # Otherwise a query can read Python variables as tables.
    settings: dict[str, Any] = {"python_enable_replacements": "false"}
    with duckdb.connect(config=settings) as connection:
        try:
            result = connection.execute(query)
            reject_duplicate_columns([str(part[0]) for part in result.description or []], where)
            return result.df()
        except duckdb.Error as error:
            raise InputError(
                f"{where}: failed ({error_reason(error)}); correct the query"
            ) from error


def _raw_ids(frame: pd.DataFrame, id_column: str | None, own_index: bool, where: str) -> pd.Series:
    if id_column is not None and id_column in frame.columns:
        return frame[id_column]
    if own_index and (id_column is None or id_column == frame.index.name):
        return single_level(frame.index, where).to_series()
    raise InputError(f"{where}: {unknown('id column', str(id_column), frame.columns)}")


def single_level(index: pd.Index, where: str) -> pd.Index:
    """Reject a multi-index."""
    if index.nlevels > 1:
        raise InputError(
            f"{where}: expected one id per row, but the index has {index.nlevels} levels; "
            "join them into one id column and name it"
        )
    return index
