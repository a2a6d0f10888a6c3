"""Read labels; find the classes and number them. Numbers are read by `xvfl.data.targets`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.config import TaskKind
from xvfl.data.frames import TableSource, describe_source, read_frame, single_level
from xvfl.data.ids import parse_ids
from xvfl.data.sources import Source
from xvfl.data.targets import find_targets, parse_targets
from xvfl.data.text import without_categories
from xvfl.errors import InputError, unknown, warn
from xvfl_serve.encoding.cells import NA_TEXTS

MAX_CLASSES = 100_000
"""More distinct labels than this are rejected."""
MAX_FLOAT_CLASSES = 50
"""A float label with more distinct values than this may be a regression target."""
MAX_INTEGER_CLASSES = 50
"""More classes that are integers than this may be a regression target."""
REGRESSION_HINT = (
    'use XVFLRegressor (task = "regression" in a configuration file) to predict numbers, or bin '
    "them into classes"
)


def read_labels(
    source: "TableSource | pd.Series",
    *,
    id_column: str | None = None,
    column: str | None = None,
    where: str = "labels",
    min_classes: int = 2,
    allow_missing: bool = False,
    task: TaskKind = "classification",
) -> pd.Series:
    """Read labels indexed by string ids, without missing ones; the index of a Series holds ids.

    Missing labels give a warning, except with `allow_missing`. Labels of regression are numbers.
    """
    if isinstance(source, pd.Series):
        ids = parse_ids(single_level(source.index, where).to_series(), f"{where}, index")
        labels = pd.Series(source.array, index=ids, name=source.name)
    else:
        frame = read_frame(source, id_column, where)
        if not isinstance(source, pd.DataFrame):
            where = f"{where}, {describe_source(source)}, column {column!r}"
        if column is None:
            raise InputError(f"{where}: which column holds the labels? name the label column")
        labels = frame[require_label_column(column, frame.columns, where)]
    if task == "regression":
        find_targets([labels], where, min_classes, allow_missing)
        return parse_targets(labels, where).dropna()
    values = find_labels([labels], where, min_classes, allow_missing)
    return plain_type(labels[values.codes(labels) >= 0])


def labels_of_party(
    sources: Mapping[str, Source],
    party: str,
    column: str,
    min_classes: int = 2,
    allow_missing: bool = False,
    task: TaskKind = "classification",
) -> tuple[dict[str, Source], pd.Series]:
    """Split the label column off the table of the party that holds it; see `read_labels`."""
    table = sources.get(party)
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"labels: expected a table of party {party!r}, got {list(sources)}")
    where = f"labels of party {party!r}"
    cells = table[require_label_column(column, table.columns, where)]
    where += f", column {column!r}"
    labels = read_labels(
        cells, where=where, min_classes=min_classes, allow_missing=allow_missing, task=task
    )
    return {**sources, party: table.drop(columns=[column])}, labels


def require_label_column(column: str, columns: Iterable[str], where: str) -> str:
    """Reject a label column that the table does not have."""
    if column not in columns:
        raise InputError(f"{where}: {unknown('label column', column, columns)}")
    return column


@dataclass(frozen=True)
class LabelValues:
    """The distinct labels of a column, in order of appearance."""

    raw: list[Any]
    """As the table has them."""
    plain: pd.Series
    """As int, float, bool or str."""
    stratum = "code"
    """SQL expression of the stratum of a code: rows are split class by class."""

    def strata(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the codes: rows are split class by class."""
        return codes

    def codes(self, cells: pd.Series) -> NDArray[np.int64]:
        """Return the position of each cell's label, −1 where missing."""
        position = {label: code for code, label in enumerate(self.raw)}
        return without_categories(cells).map(position).fillna(-1).to_numpy(dtype=np.int64)


def find_labels(
    chunks: Iterable[pd.Series], where: str, min_classes: int = 2, allow_missing: bool = False
) -> LabelValues:
    """Find the distinct labels; warn about missing ones, reject what are not classes."""
    raw: dict[Any, None] = {}
    rows = labeled = 0
    masked: Counter[str] = Counter()
    for cells in chunks:
        present = without_categories(cells).dropna()
        if not types.is_numeric_dtype(present.dtype):
            missing = present.isin(["", *NA_TEXTS])
            masked.update(present[missing].tolist())
            present = present[~missing]
        rows, labeled = rows + len(cells), labeled + len(present)
        raw |= dict.fromkeys(present.drop_duplicates().tolist())
        if len(raw) > MAX_CLASSES:
            raise InputError(
                f"{where}: expected classes, but there are more than {MAX_CLASSES} distinct "
                f"labels; {REGRESSION_HINT}"
            )
    if masked:
        named = " and ".join(map(repr, sorted(masked)[:2]))
        text = f"{where}: {masked.total()} labels such as {named} are read as missing"
        warn(f"{text}; rename the class if it is one")
    if labeled < rows and not allow_missing:
        text = f"{where}: left out {rows - labeled} of {rows} rows without a label"
        warn(text)
    distinct = plain_type(pd.Series(list(raw)))
    if len(distinct) < min_classes:
        classes = f"only class {distinct.iloc[0]!s}" if len(distinct) else "no label at all"
        raise InputError(
            f"{where}: expected at least {min_classes} classes, but found {classes}; check the "
            "column"
        )
    is_float = types.is_float_dtype(distinct.dtype)
    if is_float and len(distinct) > max(MAX_FLOAT_CLASSES, labeled / 2):
        raise InputError(
            f"{where}: expected classes, but {len(distinct)} distinct numbers in {labeled} rows "
            f"looks like a regression target; {REGRESSION_HINT}"
        )
    return LabelValues(list(raw), distinct)


def warn_many_classes(values: LabelValues, where: str) -> None:
    """Warn if the labels are so many integers that they may be a regression target."""
    labels = values.plain
    if types.is_integer_dtype(labels.dtype) and len(labels) > MAX_INTEGER_CLASSES:
        warn(
            f"{where}: {len(labels)} classes, the integers {labels.min()} to {labels.max()}, look "
            f"like a number; {REGRESSION_HINT}, or write them as text if they are classes"
        )


def encode_labels(labels: pd.Series) -> tuple[list[Any], NDArray[np.int64]]:
    """List the classes in order, and number each row's class."""
    values = {label: _python_value(label) for label in pd.unique(labels)}
    if len({str(label) for label in values.values()}) < len(values):
        raise InputError(
            f"labels: expected texts or numbers, not both: {list(values.values())} look alike; "
            "turn all of them into texts"
        )
    order = sorted(values, key=lambda label: (str(type(label)), label))
    numbers = pd.Categorical(labels, categories=order).codes.astype(np.int64)
    return [values[label] for label in order], numbers


def plain_type(labels: pd.Series) -> pd.Series:
    """Convert nullable and object columns to plain types; integral floats become integers."""
    labels = without_categories(labels).infer_objects()
    if types.is_bool_dtype(labels.dtype):
        return labels.astype(bool)
    if types.is_integer_dtype(labels.dtype):
        return labels.astype(np.int64)
    if types.is_float_dtype(labels.dtype):
        numbers = labels.astype(np.float64)
        integral = bool((np.isfinite(numbers) & (np.trunc(numbers) == numbers)).all())
        return numbers.astype(np.int64) if integral and len(numbers) else numbers
    return labels


def _python_value(label: Any) -> str | int | float | bool:
    value = label.item() if isinstance(label, np.generic) else label
    if not isinstance(value, (str, int, float, bool)):
        raise InputError(
            f"labels: expected texts, numbers or booleans, got {type(value).__name__}; "
            "turn them into texts"
        )
    return value
