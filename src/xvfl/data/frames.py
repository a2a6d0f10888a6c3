"""Bring any table to one form: a pandas frame indexed by string ids, with string column names."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from pandas.api import types

from xvfl.data.ids import check_ids
from xvfl.data.parse import WHERE
from xvfl.errors import DataWarning, InputError, unknown

if TYPE_CHECKING:
    import polars

TableSource: TypeAlias = "str | Path | pd.DataFrame | polars.DataFrame"
"""A .csv or .parquet path, `sql:` and a DuckDB query, or a pandas or polars frame."""

SQL = "sql:"
MOST_CLASSES = 50
"""A float label with more distinct values than this may be a regression target."""


def read_table(
    source: TableSource, *, id_column: str | None, party: str, fewest: int = 1
) -> pd.DataFrame:
    """Read a party's table, indexed by its ids as strings; `fewest` rows must be there."""
    return _read(source, id_column, f"party {party!r}", fewest)


def read_labels(
    source: "TableSource | pd.Series",
    *,
    id_column: str | None,
    column: str | None,
    where: str,
    fewest: int = 2,
) -> pd.Series:
    """Read labels indexed by ids as strings; a Series is taken as it is, its index the ids.

    `fewest` classes must be there: two to train on.
    """
    if isinstance(source, pd.Series):
        ids = check_ids(_one_level(source.index, where).to_series(), f"{where}, index")
        labels = pd.Series(source.array, index=ids, name=source.name)
    else:
        frame = _read(source, id_column, where)
        if not isinstance(source, pd.DataFrame):
            where = f"{where}, {_named(source)}, column {column!r}"
        labels = _label_column(frame, column, where)
    return _usable_labels(labels, where, fewest)


def _read(source: Any, id_column: str | None, where: str, fewest: int = 1) -> pd.DataFrame:
    frame, where, own_index = _load(source, id_column, where)
    kept = indexed(frame, id_column, own_index, where)
    if len(frame) < fewest:
        raise InputError(
            f"{where}: expected at least one row, but there are none; check the source"
        )
    return kept


def indexed(
    frame: pd.DataFrame, id_column: str | None, own_index: bool, where: str, start: int = 0
) -> pd.DataFrame:
    """Index a raw frame, the rows of a table from `start` on, by its ids as strings."""
    names = pd.Index([str(name) for name in frame.columns])
    refuse_repeated(names, where)
    frame = frame.set_axis(names, axis=1)
    raw = _raw_ids(frame, id_column, own_index, where)
    at = "index" if id_column is None else f"id column {id_column!r}"
    ids = check_ids(raw, f"{where}, {at}", start)
    kept = frame.drop(columns=id_column) if id_column in frame.columns else frame
    kept = kept.set_axis(ids, axis=0)
    kept.attrs[WHERE] = where
    return kept


def _load(source: Any, id_column: str | None, where: str) -> tuple[pd.DataFrame, str, bool]:
    """Give the raw frame, how messages name it, and whether its index may hold the ids."""
    if isinstance(source, pd.DataFrame):
        return source, where, True
    if id_column is None:
        raise InputError(
            f"{where}: only a pandas frame has an index to take ids from; name the id column"
        )
    if isinstance(source, str) and source.startswith(SQL):
        where = f"{where}, SQL query"
        return _query(source.removeprefix(SQL), where), where, False
    if isinstance(source, str | Path):
        where = f"{where}, file {source}"
        return _read_file(Path(source), id_column, where), where, True
    kind = type(source)
    if kind.__module__.partition(".")[0] == "polars" and kind.__name__ == "DataFrame":
        return source.to_pandas(), where, False
    raise InputError(
        f"{where}: expected a .csv or .parquet path, 'sql:' and a query, or a pandas or polars "
        f"DataFrame, but got {kind.__module__}.{kind.__name__}; convert it to one of these"
    )


def _named(source: Any) -> str:
    is_query = isinstance(source, str) and source.startswith(SQL)
    return "SQL query" if is_query else f"file {source}"


def _read_file(path: Path, id_column: str, where: str) -> pd.DataFrame:
    readers: dict[str, Callable[[], pd.DataFrame]] = {
        ".csv": lambda: _read_csv(path, id_column, where),
        ".parquet": lambda: _read_parquet(path, where),
    }
    read = readers.get(path.suffix.lower())
    if read is None:
        raise InputError(
            f"{where}: expected a name ending in {' or '.join(readers)}, "
            f"but got {path.suffix or 'none'!r}; convert the file"
        )
    if not path.is_file():
        raise InputError(f"{where}: there is no such file; check the path")
    with reading(path, where):
        return read()


@contextmanager
def reading(path: Path, where: str) -> Iterator[None]:
    """Say which file cannot be read, and why."""
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
    refuse_repeated(header.iloc[0], where)
    with warnings.catch_warnings():
        # Rows longer than the header would otherwise shift silently by one column.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(
            path,
            dtype={id_column: "str"},
            index_col=False,
            keep_default_na=True,
            low_memory=False,
            encoding="utf-8-sig",
        )


def _read_parquet(path: Path, where: str) -> pd.DataFrame:
    import pyarrow.parquet

    refuse_repeated(pyarrow.parquet.read_schema(path).names, where)
    return pd.read_parquet(path)


def _query(query: str, where: str) -> pd.DataFrame:
    try:
        import duckdb
    except ImportError as error:
        raise InputError(f"{where}: needs the package duckdb; install it") from error
    # Without this a query could read Python variables as tables.
    settings: dict[str, Any] = {"python_enable_replacements": "false"}
    with duckdb.connect(config=settings) as connection:
        try:
            result = connection.execute(query)
            refuse_repeated([str(part[0]) for part in result.description or []], where)
            return result.df()
        except duckdb.Error as error:
            raise InputError(f"{where}: failed ({_reason(error)}); correct the query") from error


def _raw_ids(frame: pd.DataFrame, id_column: str | None, own_index: bool, where: str) -> pd.Series:
    if id_column is not None and id_column in frame.columns:
        return frame[id_column]
    if own_index and (id_column is None or id_column == frame.index.name):
        return _one_level(frame.index, where).to_series()
    raise InputError(f"{where}: {unknown('id column', str(id_column), frame.columns)}")


def _one_level(index: pd.Index, where: str) -> pd.Index:
    if index.nlevels > 1:
        raise InputError(
            f"{where}: expected one id per row, but the index has {index.nlevels} levels; "
            "join them into one id column and name it"
        )
    return index


def refuse_repeated(names: Iterable[Any], where: str) -> None:
    """Refuse two columns of one name."""
    columns = pd.Series([str(name) for name in names], dtype="str")
    repeated = sorted(set(columns[columns.duplicated()]))
    if repeated:
        raise InputError(
            f"{where}: expected each column name once, but {', '.join(map(repr, repeated))} "
            "occurs again; rename or remove the repeated columns"
        )


def _label_column(frame: pd.DataFrame, column: str | None, where: str) -> pd.Series:
    if column is None:
        raise InputError(f"{where}: which column holds the labels? name the label column")
    if column not in frame.columns:
        raise InputError(f"{where}: {unknown('label column', column, frame.columns)}")
    return frame[column]


def _usable_labels(labels: pd.Series, where: str, fewest: int) -> pd.Series:
    kept = labels.dropna()
    if len(kept) < len(labels):
        warnings.warn(
            f"{where}: left out {len(labels) - len(kept)} of {len(labels)} rows without a label",
            DataWarning,
            stacklevel=3,
        )
    kept = plain_type(kept)
    check_classes(kept.drop_duplicates(), len(kept), where, fewest)
    return kept


def check_classes(classes: pd.Series, rows: int, where: str, fewest: int) -> None:
    """Refuse too few distinct labels, and numbers that look like a regression target."""
    if len(classes) < fewest:
        found = f"only class {classes.iloc[0]!s}" if len(classes) else "no label at all"
        raise InputError(
            f"{where}: expected at least {fewest} classes, but found {found}; check the column"
        )
    if types.is_float_dtype(classes.dtype) and len(classes) > max(MOST_CLASSES, rows / 2):
        raise InputError(
            f"{where}: expected classes, but {len(classes)} distinct numbers in {rows} rows "
            "looks like a regression target; bin it into classes first"
        )


def plain_type(labels: pd.Series) -> pd.Series:
    """Undo what missing cells and nullable types do to a column; whole floats become ints."""
    if isinstance(labels.dtype, pd.CategoricalDtype):
        labels = labels.astype(labels.cat.categories.dtype)
    labels = labels.infer_objects()
    if types.is_bool_dtype(labels.dtype):
        return labels.astype(bool)
    if types.is_integer_dtype(labels.dtype):
        return labels.astype(np.int64)
    if types.is_float_dtype(labels.dtype):
        numbers = labels.astype(np.float64)
        whole = bool((np.isfinite(numbers) & (np.trunc(numbers) == numbers)).all())
        return numbers.astype(np.int64) if whole and len(numbers) else numbers
    return labels


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
