"""Read tables of any source as pandas frames indexed by string ids."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd

from xvfl.data.ids import parse_ids, require_id_column
from xvfl.data.parse import WHERE
from xvfl.errors import InputError, unknown

if TYPE_CHECKING:
    import polars

TableSource: TypeAlias = "str | Path | pd.DataFrame | polars.DataFrame"
"""A .csv or .parquet path, `sql:` and a DuckDB query, or a pandas or polars frame."""

SQL = "sql:"


def read_table(
    source: TableSource, *, id_column: str | None, party: str, min_rows: int = 1
) -> pd.DataFrame:
    """Read a party's table as a frame indexed by its ids.

    Ids become strings: 7, 7.0 and "7" are the same id.

    Parameters
    ----------
    source : str, Path, pandas.DataFrame or polars.DataFrame
        A .csv or .parquet file, ``"sql:"`` and a DuckDB query, or a frame.
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
    return features


def _load(source: Any, id_column: str | None, where: str) -> tuple[pd.DataFrame, str, bool]:
    """Return the raw frame, its name for messages, and whether its index may hold the ids."""
    if isinstance(source, pd.DataFrame):
        return source, where, True
    id_column = require_id_column(id_column, where)
    if isinstance(source, str | Path):
        where = f"{where}, {describe_source(source)}"
        if isinstance(source, str) and source.startswith(SQL):
            return _query(source.removeprefix(SQL), where), where, False
        return _read_file(Path(source), id_column, where), where, True
    kind = type(source)
    if kind.__module__.partition(".")[0] == "polars" and kind.__name__ == "DataFrame":
        return source.to_pandas(), where, False
    raise InputError(
        f"{where}: expected a .csv or .parquet path, 'sql:' and a query, or a pandas or polars "
        f"DataFrame, but got {kind.__module__}.{kind.__name__}; convert it to one of these"
    )


def describe_source(source: Any) -> str:
    """Name a file or query for messages."""
    return "SQL query" if str(source).startswith(SQL) else f"file {source}"


def _read_file(path: Path, id_column: str, where: str) -> pd.DataFrame:
    is_csv = path.suffix.lower() == ".csv"
    if not is_csv and path.suffix.lower() != ".parquet":
        raise InputError(
            f"{where}: expected a name ending in .csv or .parquet, "
            f"but got {path.suffix or 'none'!r}; convert the file"
        )
    require_file(path, where)
    with read_errors(path, where):
        return _read_csv(path, id_column, where) if is_csv else _read_parquet(path, where)


def require_file(path: Path, where: str) -> None:
    """Reject a path that is not a file."""
    if not path.is_file():
        raise InputError(f"{where}: file not found; check the path")


@contextmanager
def read_errors(path: Path, where: str) -> Iterator[None]:
    """Convert errors while reading a file to `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        kind = "CSV" if path.suffix.lower() == ".csv" else "Parquet"
        raise InputError(
            f"{where}: cannot be read as {kind} ({_reason(error)}); check the file's content"
        ) from error


def _read_csv(path: Path, id_column: str, where: str) -> pd.DataFrame:
    header = pd.read_csv(
        path, header=None, nrows=1, dtype=str, keep_default_na=False, encoding="utf-8-sig"
    )
    reject_duplicate_columns(header.iloc[0], where)
    with warnings.catch_warnings():
        # Otherwise rows longer than the header silently shift by one column.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        text = {id_column: "str"}
        return pd.read_csv(
            path, dtype=text, index_col=False, low_memory=False, encoding="utf-8-sig"
        )


def _read_parquet(path: Path, where: str) -> pd.DataFrame:
    import pyarrow.parquet

    reject_duplicate_columns(pyarrow.parquet.read_schema(path).names, where)
    return pd.read_parquet(path)


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
            raise InputError(f"{where}: failed ({_reason(error)}); correct the query") from error


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


def reject_duplicate_columns(names: Iterable[Any], where: str) -> None:
    """Reject two columns of one name."""
    columns = pd.Series([str(name) for name in names], dtype="str")
    duplicates = sorted(set(columns[columns.duplicated()]))
    if duplicates:
        raise InputError(
            f"{where}: expected each column name once, but {', '.join(map(repr, duplicates))} "
            "occurs again; rename or remove the duplicate columns"
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
