"""Describe the filled cells of a table: marks, intervals, probabilities, draws.

Shapes: N rows, n filled cells of a column, V values of a category, p encoded columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from xvfl.data.codecs import DECODE_BATCH, CategoryCodec, Codec, HashedCodec, NumberCodec
from xvfl.data.encoder import TableEncoder
from xvfl.data.parse import mask_missing
from xvfl.errors import InputError, warn
from xvfl.model.cell_distributions import SHARES, CellDistributions, Floats, Ints
from xvfl.model.completion import fill_gaps, in_table_format

CUES = (*["own"] * SHARES, "full peers", "partial peers")
"""What cells are completed from, by group."""
NO_DISTRIBUTIONS = (
    "this model has no distributions of filled cells, because it was trained before version 0.3.0 "
    "or in a federation; intervals and probabilities are empty: train it again with `fit` or "
    "`xvfl train`"
)


@dataclass(frozen=True)
class Completion:
    """A completed table, and what is known about each filled cell.

    Attributes
    ----------
    table : DataFrame
        The completed table, indexed by id.
    filled : DataFrame of bool
        Which cells of the table were filled.
    cells : DataFrame
        One row for each filled cell: `id`, `column`, `value`; `low` and `high`, the interval of a
        number, date or duration; `probability`, that the value of a category is correct; and
        `cue`, what the value was completed from: the party's `"own"` features, `"full peers"`, or
        `"partial peers"`, which observe the row in part.
    probabilities : dict of DataFrame
        For each categorical column, the probability of every value in the rows that were filled.
        Columns with more values than a one-hot encoding has are left out.
    draws : list of DataFrame
        Completed tables whose filled cells are drawn from their distributions. The cells of a row
        are drawn independently of each other.
    """

    table: pd.DataFrame
    filled: pd.DataFrame
    cells: pd.DataFrame
    probabilities: dict[str, pd.DataFrame]
    draws: list[pd.DataFrame]

    def rename_ids(self, rename: Callable[[pd.Index], pd.Index]) -> "Completion":
        """Replace the ids of all tables."""

        def renamed(table: pd.DataFrame) -> pd.DataFrame:
            return table.set_axis(rename(table.index))

        return Completion(
            renamed(self.table),
            renamed(self.filled),
            self.cells.assign(id=rename(pd.Index(self.cells["id"]))),
            {name: renamed(each) for name, each in self.probabilities.items()},
            [renamed(each) for each in self.draws],
        )


@dataclass(frozen=True)
class CompletedRows:
    """Completed rows of a party, encoded."""

    encoder: TableEncoder
    vectors: Mapping[str, Floats]
    """Embeddings of the hashed columns."""
    values: Floats
    """(N, p) encoded columns: observed values, and completed ones elsewhere."""
    groups: Ints
    """(N,) group of the cells of each row, by their cue."""
    distributions: CellDistributions | None

    def take(self, rows: Ints) -> "CompletedRows":
        """Select rows."""
        return replace(self, values=self.values[rows], groups=self.groups[rows])


def check_details(level: float, n_draws: int, distributions: CellDistributions | None) -> None:
    """Reject invalid parameters; warn if the model has no distributions of filled cells."""
    if not 0 < level < 1:
        raise InputError(f"level: expected a share between 0 and 1, got {level!r}; write 0.8")
    if n_draws < 0:
        raise InputError(f"n_draws: expected 0 or more, got {n_draws}")
    if distributions is None:
        if n_draws:
            raise InputError(f"n_draws: {NO_DISTRIBUTIONS}")
        warn(NO_DISTRIBUTIONS)


def describe_filled_cells(
    rows: CompletedRows,
    source: pd.DataFrame,
    ids: Sequence[str],
    level: float,
    n_draws: int,
    rng: np.random.Generator,
) -> Completion:
    """Fill a table, describe the distribution of each filled cell, and draw from it."""
    encoder, index = rows.encoder, pd.Index(list(ids), name="id")
    given, completed = source.reindex(index), encoder.decode(rows.values, rows.vectors)
    filled = pd.DataFrame(False, index=index, columns=given.columns)
    decoded_draws = [completed.copy() for _ in range(n_draws)]
    described, probabilities = [], {}
    for column in _columns(encoder):
        name = column.codec.name
        filled[name] = mask_missing(given[name], encoder.missing).isna().to_numpy(dtype=bool)
        at = np.flatnonzero(filled[name])
        if not len(at):
            continue
        cells = _Cells(rows.take(at), column)
        value = in_table_format(encoder, completed[name].iloc[at]).astype(object).to_numpy()
        about = {"id": index[at], "column": name, "value": value, **cells.describe(level)}
        described.append(pd.DataFrame({**about, "cue": np.asarray(CUES)[rows.groups[at]]}))
        if isinstance(column.codec, CategoryCodec) and rows.distributions is not None:
            options = column.codec.options()
            probabilities[name] = pd.DataFrame(cells.probabilities(), index[at], list(options))
        for drawn in decoded_draws:
            drawn.loc[at, name] = cells.draw(rng).to_numpy()
    columns = ["id", "column", "value", "low", "high", "probability", "cue"]
    return Completion(
        fill_gaps(encoder, completed, source, ids),
        filled,
        pd.concat(described, ignore_index=True)[columns]
        if described
        else pd.DataFrame(columns=columns),
        probabilities,
        [fill_gaps(encoder, drawn, source, ids) for drawn in decoded_draws],
    )


@dataclass(frozen=True)
class _Column:
    """A column of an encoded table."""

    codec: Codec
    start: int
    """Its first encoded column."""
    number: int
    """Its place among the numeric, or among the categorical columns."""


def _columns(encoder: TableEncoder) -> list[_Column]:
    columns, at = [], 0
    counts = {True: 0, False: 0}
    for codec in encoder.codecs:
        categorical = isinstance(codec, CategoryCodec | HashedCodec)
        columns.append(_Column(codec, at, counts[categorical]))
        counts[categorical] += 1
        at += codec.feature.width
    return columns


@dataclass(frozen=True)
class _Cells:
    """The filled cells of one column."""

    rows: CompletedRows
    column: _Column

    def describe(self, level: float) -> dict[str, Any]:
        """Return the interval of each number, or the probability of each category."""
        nothing = np.full(len(self.rows.values), None, dtype=object)
        about: dict[str, Any] = {"low": nothing, "high": nothing, "probability": np.nan}
        distributions, codec = self.rows.distributions, self.column.codec
        if distributions is None:
            return about
        if isinstance(codec, CategoryCodec | HashedCodec):
            return about | {"probability": self._probability_of_values()}
        numbers = self._numbers()
        rounded = codec.rounded(numbers) if isinstance(codec, NumberCodec) else numbers
        bounds = distributions.interval(
            self.column.number, self.rows.groups, numbers, rounded, level
        )
        if np.isnan(bounds[0]).any():
            return about
        low, high = (self._decode(each).astype(object).to_numpy() for each in bounds)
        return about | {"low": low, "high": high}

    def probabilities(self) -> Floats:
        """Return the probability of each value. (n, V)"""
        distributions = self.rows.distributions
        assert distributions is not None
        return distributions.probabilities(self.column.number, self.rows.groups, self._scores())

    def draw(self, rng: np.random.Generator) -> pd.Series:
        """Draw a value for each cell. (n,)"""
        codec, distributions = self.column.codec, self.rows.distributions
        assert distributions is not None
        if not isinstance(codec, CategoryCodec | HashedCodec):
            groups, number = self.rows.groups, self.column.number
            drawn = distributions.draw(number, groups, self._numbers(), rng)
            return codec.decode(drawn[:, None], {})
        parts = [
            (cells.probabilities().cumsum(1) < rng.random((len(cells.rows.values), 1))).sum(1)
            for cells in self._batches()
        ]
        options = codec.options()
        return options.take(np.concatenate(parts).clip(max=len(options) - 1))

    def _probability_of_values(self) -> Floats:
        """Return the probability of the values that `decode` chooses. (n,)"""
        parts = []
        for cells in self._batches():
            chosen = cells._scores().argmax(1)[:, None]
            parts.append(np.take_along_axis(cells.probabilities(), chosen, 1)[:, 0])
        return np.concatenate(parts)

    def _scores(self) -> Floats:
        codec = self.column.codec
        assert isinstance(codec, CategoryCodec | HashedCodec)
        return codec.scores(self._encoded(), self.rows.vectors)

    def _batches(self) -> list["_Cells"]:
        count = len(self.rows.values)
        parts = np.split(np.arange(count), range(DECODE_BATCH, count, DECODE_BATCH))
        return [replace(self, rows=self.rows.take(part)) for part in parts]

    def _encoded(self) -> Floats:
        start = self.column.start
        return self.rows.values[:, start : start + self.column.codec.feature.width]

    def _numbers(self) -> Floats:
        return self.rows.values[:, self.column.start]

    def _decode(self, numbers: Floats) -> pd.Series:
        decoded = self.column.codec.decode(numbers[:, None], {}).rename(self.column.codec.name)
        return in_table_format(self.rows.encoder, decoded)
