"""Describe the filled cells of a table: marks, intervals, probabilities, draws.

Shapes: N rows, n filled cells of a column, V values of a category.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from xvfl.data.codecs import DECODE_BATCH, CategoryCodec, Codec, HashedCodec, NumberCodec
from xvfl.data.encoder import TableEncoder
from xvfl.data.parse import mask_missing
from xvfl.errors import InputError
from xvfl.model.cell_distributions import CellDistributions, Floats, Ints
from xvfl.model.completion import fill_gaps, in_table_format
from xvfl_serve.cell_model import Predicted, Target

CUES = ("nothing", "own", "peers", "own and peers")
"""Which features of the row are observed: none, the party's own, those of others."""
MIN_SCORE = -50.0
"""Smallest log-probability of an option."""


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
        number, date or duration; `probability`, that the value is correct, of categories, and of
        numbers without an interval, since every one around the value holds more than `level`; and
        `cue`, what the value was filled from: the party's `"own"` features, `"peers"`, `"own and
        peers"`, or `"nothing"`.
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
    """Rows of a party with a prediction of every cell."""

    encoder: TableEncoder
    targets: Mapping[int, Target]
    """By feature."""
    found: Mapping[int, Predicted]
    """By feature."""
    cues: Ints
    """(N,) place of what the cells of each row are filled from, in `CUES`."""
    distributions: CellDistributions

    def take(self, rows: Ints) -> "CompletedRows":
        """Select rows."""
        found = {feature: each.take(rows) for feature, each in self.found.items()}
        return replace(self, found=found, cues=self.cues[rows])

    def decode(self) -> pd.DataFrame:
        """Return the predicted cells, in the table's columns and units."""
        columns = {each.codec.name: _Cells(self, each).decode() for each in _columns(self.encoder)}
        return pd.DataFrame({name: columns[name] for name in self.encoder.columns})


def option_scores(codec: HashedCodec, target: Target, found: Floats) -> Floats:
    """Return the log-probability of each option of a hashed column. (n, V)"""
    with np.errstate(divide="ignore"):
        scores: Floats = found[:, -1:] + np.log(target.shares)
    scores[:, codec.options_of(target.codes)] = found[:, :-1]
    return np.maximum(scores, MIN_SCORE)


def check_details(level: float, n_draws: int) -> None:
    """Reject invalid parameters."""
    if not 0 < level < 1:
        raise InputError(f"level: expected a share between 0 and 1, got {level!r}; write 0.8")
    if n_draws < 0:
        raise InputError(f"n_draws: expected 0 or more, got {n_draws}")


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
    given, completed = source.reindex(index), rows.decode()
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
        described.append(pd.DataFrame({**about, "cue": np.asarray(CUES)[rows.cues[at]]}))
        if isinstance(column.codec, CategoryCodec):
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
    feature: int
    number: int
    """Its place among the numeric, or among the categorical columns."""


def _columns(encoder: TableEncoder) -> list[_Column]:
    columns, counts = [], {True: 0, False: 0}
    for feature, codec in enumerate(encoder.codecs):
        categorical = isinstance(codec, CategoryCodec | HashedCodec)
        columns.append(_Column(codec, feature, counts[categorical]))
        counts[categorical] += 1
    return columns


@dataclass(frozen=True)
class _Cells:
    """The filled cells of one column."""

    rows: CompletedRows
    column: _Column

    def describe(self, level: float) -> dict[str, Any]:
        """Return the interval of each number, or the probability of each category."""
        nothing = np.full(len(self.rows.cues), None, dtype=object)
        about: dict[str, Any] = {"low": nothing, "high": nothing.copy(), "probability": np.nan}
        codec = self.column.codec
        if isinstance(codec, CategoryCodec | HashedCodec):
            return about | {"probability": self._probability_of_values()}
        numbers = self._numbers()
        rounded = codec.rounded(numbers) if isinstance(codec, NumberCodec) else numbers
        place = self.column.number, self._found.groups, numbers
        bounds = self.rows.distributions.interval(*place, rounded, level)
        none = np.isnan(bounds[0])
        low, high = (self._decode(each[~none]).astype(object).to_numpy() for each in bounds)
        about["low"][~none], about["high"][~none] = low, high
        exact = self.rows.distributions.probability_exact(*place)
        return about | {"probability": np.where(none, exact, np.nan)}

    def decode(self) -> pd.Series:
        """Return the value of each cell. (n,)"""
        codec = self.column.codec
        if not isinstance(codec, CategoryCodec | HashedCodec):
            return codec.decode(self._numbers()[:, None], {})
        return codec.options().take(self._chosen()).reset_index(drop=True)

    def probabilities(self) -> Floats:
        """Return the probability of each value. (n, V)"""
        number, groups = self.column.number, self._found.groups
        return self.rows.distributions.probabilities(number, groups, self._scores())

    def draw(self, rng: np.random.Generator) -> pd.Series:
        """Draw a value for each cell. (n,)"""
        codec, groups = self.column.codec, self._found.groups
        if not isinstance(codec, CategoryCodec | HashedCodec):
            number = self.column.number
            drawn = self.rows.distributions.draw(number, groups, self._numbers(), rng)
            return codec.decode(drawn[:, None], {})
        parts = [
            (cells.probabilities().cumsum(1) < rng.random((len(cells.rows.cues), 1))).sum(1)
            for cells in self._batches()
        ]
        options = codec.options()
        return options.take(np.concatenate(parts).clip(max=len(options) - 1))

    def _probability_of_values(self) -> Floats:
        """Return the probability of the values that `decode` chooses. (n,)"""
        parts = [
            np.take_along_axis(cells.probabilities(), cells._chosen()[:, None], 1)[:, 0]
            for cells in self._batches()
        ]
        return np.concatenate(parts)

    def _chosen(self) -> Ints:
        """Return the place of the value of each cell among the options. (n,)"""
        codec = self.column.codec
        if not isinstance(codec, HashedCodec):
            chosen: Ints = self._found.scores.argmax(1)
            return chosen
        classes = codec.options_of(self.rows.targets[self.column.feature].codes)
        place: Ints = self._found.scores[:, :-1].argmax(1)
        return classes[place]

    def _scores(self) -> Floats:
        codec = self.column.codec
        if not isinstance(codec, HashedCodec):
            return self._found.scores
        target = self.rows.targets[self.column.feature]
        return option_scores(codec, target, self._found.scores)

    def _batches(self) -> list["_Cells"]:
        count = len(self.rows.cues)
        parts = np.split(np.arange(count), range(DECODE_BATCH, count, DECODE_BATCH))
        return [replace(self, rows=self.rows.take(part)) for part in parts]

    def _numbers(self) -> Floats:
        return self.rows.targets[self.column.feature].fill(self._found)

    @property
    def _found(self) -> Predicted:
        return self.rows.found[self.column.feature]

    def _decode(self, numbers: Floats) -> pd.Series:
        decoded = self.column.codec.decode(numbers[:, None], {}).rename(self.column.codec.name)
        return in_table_format(self.rows.encoder, decoded)
