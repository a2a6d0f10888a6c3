"""Read the tables, labels and ids that users give to an estimator."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_string_dtype

from xvfl.config import TableOptions, TaskKind, build
from xvfl.data.encoder import TableEncoder
from xvfl.data.frames import read_table, type_name
from xvfl.data.ids import id_texts
from xvfl.data.images import Images
from xvfl.data.labels import labels_of_party, read_labels
from xvfl.data.party_frame import is_party_frame, labels_of_frame, split_frame
from xvfl.data.sources import Source, no_rows, source_ids
from xvfl.dataset.inspection import every_problem
from xvfl.errors import InputError, warn
from xvfl.model.model import Model

Table = Any
"""A pandas or polars DataFrame, a file name, "sql:…", or `Images`."""
Tables = Mapping[str, Table] | pd.DataFrame
"""Tables by party, or one DataFrame whose columns are (party, column) pairs."""
IdColumn = str | Mapping[str, str] | None
"""Name of the id column, for all parties or by party; None: the index."""


def read_tables(X: Tables, id_column: IdColumn, min_rows: int = 0) -> dict[str, Source]:
    """Read the table of each party."""
    if isinstance(X, pd.DataFrame) and is_party_frame(X):
        return {
            name: read_table(table, id_column=None, party=name, min_rows=min_rows)
            for name, table in split_frame(X).items()
        }
    if not isinstance(X, Mapping):
        raise _no_tables(X)
    read: dict[str, Source] = {}
    problems: list[str] = []
    for name, table in X.items():
        with InputError.collected(problems):
            column = _of_party(id_column, name)
            read[name] = (
                table
                if isinstance(table, Images)
                else read_table(table, id_column=column, party=name, min_rows=min_rows)
            )
    if problems:
        raise InputError(*problems)
    return read


def every_problem_of(
    error: InputError, X: Tables, y: Any, id_column: IdColumn, options: Mapping[str, TableOptions]
) -> InputError:
    """Add to an error of `fit` what else is wrong with the tables."""
    if not isinstance(X, Mapping):
        return error
    tables = {name: each for name, each in X.items() if not isinstance(each, Images)}
    columns = {name: _of_party(id_column, name) for name in tables}
    label = y[1] if isinstance(y, tuple) and len(y) == 2 else None
    return every_problem(error, tables, columns, options, label)


def read_given_tables(X: Tables, id_column: IdColumn, model: Model) -> dict[str, Source]:
    """Read the tables to predict; None is the table of a party that gives nothing."""
    if not isinstance(X, Mapping):
        return read_tables(X, id_column)
    model.check_parties(X)
    given = {name: each for name, each in X.items() if not _is_empty(each)}
    if not given:
        raise InputError(f"expected at least one party's table, got nothing of {', '.join(X)}")
    read = read_tables(given, id_column)
    return {name: read.get(name, no_rows(model.encoders[name])) for name in X}


def _is_empty(table: Table) -> bool:
    """Tell whether a table is None, or a frame without rows and columns."""
    return table is None or getattr(table, "shape", None) == (0, 0)


def _no_tables(X: Any) -> InputError:
    """Build the error for tables that are no dictionary; a scaler may have made them."""
    text = (
        f"expected a dictionary of parties and tables, got {type(X).__name__}; "
        'write {"bank": bank_frame, "shop": shop_frame}, or pd.concat of it with axis=1'
    )
    if isinstance(X, pd.DataFrame | np.ndarray):
        text += (
            ", whose columns are (party, column) pairs. Steps such as StandardScaler lose these "
            "pairs, and arrays the ids too: leave the step out, since xvfl scales numbers itself, "
            "or restore both: pd.DataFrame(np.asarray(scaled), X.index, X.columns)"
        )
    return InputError(text)


def labels_by_id(X: Tables, y: Any, id_column: IdColumn) -> Any:
    """Index a polars Series of labels, which has no ids, by those of the table of its length."""
    if isinstance(X, pd.DataFrame) or type_name(y) != "polars.Series":
        return y
    sources = read_tables(X, id_column)
    ids = [source_ids(table) for table in sources.values() if len(source_ids(table)) == len(y)]
    if not ids or any(each != ids[0] for each in ids):
        found = "no table has" if not ids else "tables in different orders have"
        raise InputError(
            f"y: a polars Series has no ids, and {found} its {len(y)} rows; write "
            "pd.Series(labels.to_list(), index=ids)"
        )
    return pd.Series(y.to_list(), index=ids[0], name=y.name)


def read_tables_and_labels(
    X: Tables,
    y: Any,
    id_column: IdColumn,
    task: TaskKind,
    min_classes: int = 2,
    allow_missing: bool = False,
    model: Model | None = None,
) -> tuple[dict[str, Source], pd.Series]:
    """Read the table of each party, and the labels by id; those for a model may be None."""
    if model is None:
        y = labels_by_id(X, y, id_column)
        sources = read_tables(X, id_column, min_rows=1 if min_classes > 1 else 0)
    else:
        sources = read_given_tables(X, id_column, model)
        y = labels_by_id(X if isinstance(X, pd.DataFrame) else sources, y, None)
    if isinstance(X, pd.DataFrame) and not isinstance(y, tuple):
        y = labels_of_frame(X, y)
    if isinstance(y, tuple) and len(y) == 2:
        return labels_of_party(sources, *y, min_classes, allow_missing, task)
    if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
        y = y.iloc[:, 0]
    if not isinstance(y, pd.Series):
        raise InputError(
            f"y: expected a pandas Series indexed by id, or (party, column), got "
            f"{type_name(y)}; write pd.Series(labels, index=ids)"
        )
    return sources, read_labels(
        y, where="y", min_classes=min_classes, allow_missing=allow_missing, task=task
    )


def original_ids(X: Tables, id_column: IdColumn, ids: pd.Index) -> pd.Index:
    """Return ids with the type they have in the tables: 7 instead of "7"."""
    if isinstance(X, pd.DataFrame):
        X, id_column = {"": pd.DataFrame(index=X.index)}, None
    original = ids.to_numpy(dtype=object, copy=True)
    for name, table in X.items():
        raw = _ids_not_text(table, _of_party(id_column, name))
        if raw is not None:
            at = pd.Index(id_texts(raw)).get_indexer(ids)
            original[at >= 0] = raw.to_numpy(dtype=object)[at[at >= 0]]
    index: pd.Index = pd.Index(original.tolist(), name="id")
    return index


def _of_party(id_column: IdColumn, party: str) -> str | None:
    return id_column.get(party) if isinstance(id_column, Mapping) else id_column


def ids_as_text(ids: Sequence[Any] | None) -> list[str] | None:
    """Return ids as the text that they have in tables; None stays None."""
    if ids is None:
        return None
    if isinstance(ids, str):
        raise InputError(f"ids: expected a list of ids, got the text {ids!r}; write [{ids!r}]")
    texts: list[str] = id_texts(ids).tolist()
    return texts


def warn_unknown_ids(sources: Mapping[str, Source], ids: Sequence[str]) -> None:
    """Warn about ids that are in no table."""
    unknown = set(ids).difference(*(source_ids(source) for source in sources.values()))
    if unknown:
        named = ", ".join(map(repr, sorted(unknown)[:2]))
        warn(
            f"ids: {len(unknown):,} of {len(ids):,} ids are in no given table ({named}); their "
            "values are completed without any observed feature: check the ids"
        )


def _ids_not_text(table: Table, column: str | None) -> pd.Series | None:
    """Return the ids of a frame or of images, unless they are text."""
    if isinstance(table, Images):
        raw = pd.Series(list(table.ids), dtype=object)
    elif isinstance(table, pd.DataFrame):
        raw = table[column] if column in table else table.index.to_series()
    else:
        return None
    return None if is_string_dtype(raw) else raw


def tables_of_previous_fit(
    sources: Mapping[str, Source], previous: Model, options: Mapping[str, TableOptions]
) -> dict[str, Source]:
    """Order tables as the previous fit; reject other parties and other columns."""
    if set(sources) != set(previous.encoders):
        raise InputError(
            f"warm_start: expected the parties of the previous fit, {list(previous.encoders)}, got "
            f"{list(sources)}; fit a new model"
        )
    for name, encoder in previous.encoders.items():
        table = sources[name]
        if not (isinstance(table, pd.DataFrame) and isinstance(encoder, TableEncoder)):
            continue
        dropped = options[name].drop if name in options else ()
        absent = [each for each in encoder.columns if each not in table.columns]
        known = {*encoder.columns, *encoder.left_out, *dropped}
        added = [each for each in table.columns if each not in known]
        if absent or added:
            raise InputError(
                f"warm_start: expected the columns of the previous fit at party {name!r}, "
                f"{encoder.columns}, got {list(table.columns)}; use the same columns, or fit a new "
                "model"
            )
    return {name: sources[name] for name in previous.encoders}


def table_options(party: str, given: TableOptions | Mapping[str, Any]) -> TableOptions:
    """Build the options of a party's table, unless they are built already."""
    if isinstance(given, TableOptions):
        return given
    options: TableOptions = build(TableOptions, given, f"table_options: {party}")
    return options
