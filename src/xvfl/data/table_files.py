"""Read table files: CSV with any common separator, gzip, Parquet and Excel."""

import gzip
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import pandas as pd
from pandas.api import types

from xvfl.errors import InputError, warn

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".xlsx")
"""How the names of files end that can be read."""
SEPARATORS = ",;\t|"
"""Separators of CSV files."""
INTEGER_WITH_LEADING_ZERO = r"\s*0\d+\s*"


def read_file(path: Path, id_column: str, where: str) -> pd.DataFrame:
    """Read a file; messages start with `where`."""
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise InputError(
            f"{where}: expected a name ending in {', '.join(SUFFIXES)}, "
            f"but got {path.suffix or 'none'!r}; convert the file"
        )
    require_file(path, where)
    with read_errors(path, where):
        if name.endswith(".parquet"):
            return _read_parquet(path, where)
        if name.endswith(".xlsx"):
            return _read_excel(path, where)
        return _read_csv(path, id_column, where)


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
    except (OSError, EOFError, ValueError, KeyError, BadZipFile, pd.errors.ParserWarning) as error:
        kind = {".parquet": "Parquet", ".xlsx": "Excel"}.get(path.suffix.lower(), "CSV")
        raise InputError(
            f"{where}: cannot be read as {kind} ({error_reason(error)}); check the file's content"
        ) from error


def _read_csv(path: Path, id_column: str, where: str) -> pd.DataFrame:
    plain: dict[str, Any] = {"encoding": "utf-8-sig", "sep": _separator(path)}
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **plain)
    reject_duplicate_columns(header.iloc[0], where)
    with warnings.catch_warnings():
        # Otherwise rows longer than the header silently shift by one column.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        text = {id_column: "str"}
        frame = pd.read_csv(path, dtype=text, index_col=False, low_memory=False, **plain)
    return _keep_leading_zeros(frame, path, plain)


def _separator(path: Path) -> str:
    """Return the separator that occurs most often in the first line; by default a comma."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        line = file.readline(1 << 16).decode("utf-8-sig", errors="replace")
    return max(SEPARATORS, key=line.count)


def _keep_leading_zeros(frame: pd.DataFrame, path: Path, plain: dict[str, Any]) -> pd.DataFrame:
    """Read integers as text in the columns where some have leading zeros, as in 01234."""
    whole = [name for name in frame.columns if _may_hide_zeros(frame[name])]
    if not whole:
        return frame
    texts = pd.read_csv(path, dtype="str", usecols=whole, index_col=False, **plain)
    for name in whole:
        if texts[name].str.fullmatch(INTEGER_WITH_LEADING_ZERO).any():
            frame[name] = texts[name]
    return frame


def _may_hide_zeros(cells: pd.Series) -> bool:
    """Tell whether a column may have leading zeros: integers of fewer digits than others."""
    if not types.is_numeric_dtype(cells.dtype) or types.is_bool_dtype(cells.dtype):
        return False
    numbers = cells.dropna()
    low, high = numbers.min(), numbers.max()
    return bool(
        low >= 0
        and high >= 10
        and (numbers % 1 == 0).all()
        and len(str(int(low))) < len(str(int(high)))
    )


def _read_excel(path: Path, where: str) -> pd.DataFrame:
    try:
        import openpyxl  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"{where}: needs the package openpyxl: pip install 'xvfl[excel]'"
        ) from error
    with pd.ExcelFile(path, engine="openpyxl") as book:
        header = pd.read_excel(book, header=None, nrows=1, dtype=str, keep_default_na=False)
        reject_duplicate_columns(header.iloc[0] if len(header) else [], where)
        if len(book.sheet_names) > 1:
            text = f"{where}: read the first of {len(book.sheet_names)} sheets"
            warn(f"{text}, {book.sheet_names[0]!r}")
        # Text cells stay text: pandas would read "007" as the number 7.
        return pd.read_excel(book, dtype=object).infer_objects()


def _read_parquet(path: Path, where: str) -> pd.DataFrame:
    import pyarrow.parquet

    reject_duplicate_columns(pyarrow.parquet.read_schema(path).names, where)
    return pd.read_parquet(path)


def reject_duplicate_columns(names: Iterable[Any], where: str) -> None:
    """Reject two columns of one name."""
    columns = pd.Series([str(name) for name in names], dtype="str")
    duplicates = sorted(set(columns[columns.duplicated()]))
    if duplicates:
        raise InputError(
            f"{where}: expected each column name once, but {', '.join(map(repr, duplicates))} "
            "occurs again; rename or remove the duplicate columns"
        )


def error_reason(error: BaseException) -> str:
    """Return the reason of an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
