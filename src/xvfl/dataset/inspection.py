"""Describe tables before training: how each column is read, and how the tables overlap."""

import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from xvfl.config import TableOptions, TaskKind, build
from xvfl.data.code_numbers import add_code_warnings
from xvfl.data.codecs import parse_columns
from xvfl.data.encoder import collect_stats, fit_codecs, missing_cells
from xvfl.data.frames import TableSource, read_table, read_without_ids
from xvfl.data.label_leaks import MAX_ROWS, find_label_leaks, spread_rows
from xvfl.data.labels import find_labels, warn_many_classes
from xvfl.data.parquet import is_parquet, open_parquet
from xvfl.data.schema import ColumnSummary, summarize
from xvfl.data.targets import (
    find_target_leaks,
    find_targets,
    parse_targets,
    warn_few_values,
)
from xvfl.data.value_stats import STREAMING_LIMITS
from xvfl.dataset.overlap import Overlap, check_ids
from xvfl.errors import DataWarning, InputError, warn


@dataclass
class Inspection:
    """How the columns of tables are read, and how the tables overlap."""

    columns: dict[str, list[ColumnSummary]] = field(default_factory=dict)
    """By table."""
    rows: dict[str, int] = field(default_factory=dict)
    overlap: Overlap = field(default_factory=dict)
    """Rows of each table, and shared ones; empty without ids, or with one table."""
    warnings: list[str] = field(default_factory=list)
    """About ids and labels."""
    errors: list[str] = field(default_factory=list)
    """What keeps the tables from being used."""

    def frame(self) -> pd.DataFrame:
        """Return one row for each column."""
        rows = [
            {"party": name, **asdict(each), "warnings": "; ".join(each.warnings)}
            for name, columns in self.columns.items()
            for each in columns
        ]
        names = ["party", *ColumnSummary.__dataclass_fields__]
        frame = pd.DataFrame(rows, columns=names).rename(columns={"name": "column"})
        return frame.set_index(["party", "column"]).drop(columns="examples")

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form."""
        columns = {name: [asdict(each) for each in own] for name, own in self.columns.items()}
        return {
            "rows": self.rows,
            "columns": columns,
            "overlap": self.overlap,
            "warnings": self.warnings,
            "errors": self.errors,
            "problems": [vars(each) for each in self.problems()],
        }

    def problems(self) -> list["Problem"]:
        """List all problems of all tables, errors first."""
        return [
            *(Problem("error", "", "", text) for text in self.errors),
            *(
                Problem("warning", name, each.name, text)
                for name, own in self.columns.items()
                for each in own
                for text in each.warnings
            ),
            *(Problem("warning", "", "", text) for text in self.warnings),
        ]


@dataclass(frozen=True)
class Problem:
    """What is, or may be, wrong with a table, and what to do."""

    level: Literal["error", "warning"]
    table: str
    """Empty for problems of several tables, and where the text names the table."""
    column: str
    text: str

    def __str__(self) -> str:
        where = f"{self.table}, column {self.column!r}: " if self.table else ""
        return f"{where}{self.text}"


def describe(
    tables: "TableSource | Mapping[str, TableSource]",
    *,
    id_column: str | Mapping[str, str] | None = None,
    label: str | None = None,
    table_options: Mapping[str, TableOptions | Mapping[str, Any]] | None = None,
    task: TaskKind = "classification",
) -> pd.DataFrame:
    """Describe how the columns of tables are read, and what may be wrong.

    Parameters
    ----------
    tables : dict of tables, or one table
        A pandas or polars frame, an Arrow table, the name of a .csv, .csv.gz, .parquet or .xlsx
        file, or ``"sql:SELECT …"``; several by party name.
    id_column : str or dict of str, default=None
        Name of the id column, for all tables or by table. It is not described.
    label : str, default=None
        Name of the label column, to find columns that repeat it: in the table of the label, and in
        others with the same ids.
    table_options : dict of TableOptions, default=None
        How to read the columns, by table.
    task : {"classification", "regression"}, default="classification"
        What the labels are: classes or numbers.

    Returns
    -------
    DataFrame
        Indexed by party and column, with the columns `kind`, `missing` (share of missing cells),
        `distinct` (number of distinct values), `encoding` and `warnings`.

    Raises
    ------
    InputError
        If a table cannot be used; the message lists all problems of all tables.

    Warns
    -----
    DataWarning
        If ids of two tables differ only in spelling, or hardly any id occurs in both.

    Examples
    --------
    >>> import pandas as pd
    >>> from xvfl import describe
    >>> frame = pd.DataFrame({"age": [20, 41, None], "price": ["$5", "$1,200", "$30"]})
    >>> describe({"bank": frame})["kind"].to_dict()
    {('bank', 'age'): 'number', ('bank', 'price'): 'number'}
    """
    given = tables if isinstance(tables, Mapping) else {"table": tables}
    options = {
        name: each if isinstance(each, TableOptions) else build(TableOptions, each, name)
        for name, each in (table_options or {}).items()
    }
    ids = {n: id_column.get(n) if isinstance(id_column, Mapping) else id_column for n in given}
    inspection = inspect_tables(given, ids, label, options, task)
    if inspection.errors:
        raise InputError(*inspection.errors)
    for text in inspection.warnings:
        warn(text)
    return inspection.frame()


def inspect_tables(
    tables: Mapping[str, Any],
    id_columns: Mapping[str, str | None],
    label: str | None = None,
    options: Mapping[str, TableOptions] | None = None,
    task: TaskKind = "classification",
    labels: pd.Series | None = None,
    judge_labels: bool = True,
) -> Inspection:
    """Describe tables; Parquet files with an id column are read in chunks.

    The label is a column of a table, or `labels` by id. Unless `judge_labels`, it is only no
    feature.
    """
    found = Inspection()
    read: dict[str, _Table] = {}
    ids: dict[str, pd.Index] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        for name, source in tables.items():
            table = _inspect_table(found, name, source, id_columns[name], label, options or {})
            if table is None:
                continue
            read[name] = table
            if table.has_ids and (id_columns[name] is not None or isinstance(source, pd.DataFrame)):
                ids[name] = table.ids()
        known: dict[str, pd.Series] = {}
        if judge_labels and (len(read) == len(tables) or labels is not None):
            with InputError.collected(found.errors):
                known = _labels_by_table(read, ids, label, labels, task)
        for name, own_labels in known.items():
            leaks = _find_leaks(read[name].first, own_labels, task)
            found.columns[name] = [
                each.warned(leaks.get(each.name)) for each in found.columns[name]
            ]
        if len(ids) > 1:
            found.overlap = check_ids(ids)
    found.warnings = list(dict.fromkeys(str(each.message) for each in caught))
    found.errors = list(dict.fromkeys(found.errors))
    return found


def every_problem(
    error: InputError,
    tables: Mapping[str, Any],
    id_columns: Mapping[str, str | None],
    options: Mapping[str, TableOptions],
    label: str | None = None,
) -> InputError:
    """Add to an error what else keeps these tables from being used."""
    try:
        found = inspect_tables(tables, id_columns, label, options, judge_labels=False)
    except Exception:
        # Whatever else is wrong with the input, its first error is the one to show.
        return error
    known = {_without_folder(each) for each in error.problems}
    more = [each for each in found.errors if _without_folder(each) not in known]
    return InputError(*error.problems, *more) if more else error


def _without_folder(text: str) -> str:
    """Remove the folder of a file: some paths are relative to that of the configuration."""
    return re.sub(r"(?<=, file )[^,]*[/\\\\]", "", text)


def _inspect_table(
    found: Inspection,
    name: str,
    source: Any,
    id_column: str | None,
    label: str | None,
    options: Mapping[str, TableOptions],
) -> "_Table | None":
    """Describe a table, or its columns alone if its ids cannot be used; None if unreadable."""
    own = options.get(name, TableOptions())
    # A table that cannot be read at all is named once.
    for has_ids, unreadable in ((True, found.errors), (False, list[str]())):
        with InputError.collected(unreadable):
            table = _Table(_chunks(source, id_column, name, has_ids), label, has_ids)
            columns, _ = collect_stats(table, own, name, STREAMING_LIMITS, found.errors)
            codecs = fit_codecs(columns, found.errors)
            summaries = [summarize(columns[each], codecs[each]) for each in codecs]
            used = [each for each in codecs.values() if not isinstance(each, str)]
            table.first = parse_columns(table.first, used, name, missing_cells(own))
            found.columns[name] = add_code_warnings(table.first, summaries, own)
            found.rows[name] = len(table.ids())
            return table
    return None


class _Table:
    """The chunks of a table without its label column; keeps ids, labels and the first rows."""

    def __init__(self, chunks: Iterator[pd.DataFrame], label: str | None, has_ids: bool) -> None:
        self._chunks, self._label, self.has_ids = chunks, label, has_ids
        self._ids: list[pd.Index] = []
        self.first = pd.DataFrame()
        self.labels: list[pd.Series] = []

    def __iter__(self) -> Iterator[pd.DataFrame]:
        for chunk in self._chunks:
            self._ids.append(chunk.index)
            features = chunk.drop(columns=self._label, errors="ignore") if self._label else chunk
            if self._label in chunk.columns:
                self.labels.append(chunk[self._label])
            if not len(self.first):
                self.first = features.iloc[spread_rows(np.arange(len(features)), MAX_ROWS)]
            yield features

    def ids(self) -> pd.Index:
        return self._ids[0].append(self._ids[1:]) if self._ids else pd.Index([])


def _labels_by_table(
    read: Mapping[str, _Table],
    with_ids: Collection[str],
    label: str | None,
    labels: pd.Series | None,
    task: TaskKind,
) -> dict[str, pd.Series]:
    """Return the labels with which each table is compared: its own, or those with the same ids."""
    known = {
        name: _parse_labels(table.labels, f"table {name!r}, label {label!r}", task)
        for name, table in read.items()
        if table.labels
    }
    if label is not None and not known:
        raise InputError(f"label column {label!r}: in none of the tables; check the name")
    shared = [each for name, each in known.items() if name in with_ids]
    if labels is not None:
        shared = [_parse_labels([labels], f"label {labels.name!r}", task)]
    return {**dict.fromkeys(with_ids, shared[0]), **known} if shared else known


def _parse_labels(chunks: list[pd.Series], where: str, task: TaskKind) -> pd.Series:
    """Return class numbers, −1 for none, or numbers, by id; warn if labels do not fit the task."""
    cells = pd.concat(chunks)
    cells = cells[~cells.index.duplicated()]
    if task == "regression":
        warn_few_values(find_targets([cells], where, allow_missing=True), where)
        return parse_targets(cells, where)
    values = find_labels([cells], where, allow_missing=True)
    warn_many_classes(values, where)
    return pd.Series(values.codes(cells), index=cells.index)


def _find_leaks(rows: pd.DataFrame, labels: pd.Series, task: TaskKind) -> dict[str, str]:
    """Find the columns that repeat the label of the row with the same id."""
    if task == "regression":
        return dict(find_target_leaks(rows, labels.reindex(rows.index).to_numpy()))
    return dict(find_label_leaks(rows, labels.reindex(rows.index, fill_value=-1).to_numpy()))


def _chunks(source: Any, id_column: str | None, name: str, has_ids: bool) -> Iterator[pd.DataFrame]:
    if not has_ids:
        frame = (
            source
            if isinstance(source, pd.DataFrame)
            else read_without_ids(source, f"table {name!r}")
        )
        frame = frame.reset_index(drop=True).rename(columns=str)
        yield frame.drop(columns=id_column or [], errors="ignore")
    elif is_parquet(source) and id_column is not None:
        yield from open_parquet(Path(source), id_column, f"party {name!r}")
    elif id_column is None and not isinstance(source, pd.DataFrame):
        yield read_without_ids(source, f"table {name!r}")
    else:
        yield read_table(source, id_column=id_column, party=name)
