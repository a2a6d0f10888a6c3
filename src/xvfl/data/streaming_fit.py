"""Fit a table's encoder in one pass over its pieces, in memory that does not grow with them.

Ranges, categories, counts and kinds are exact: the encoder is the one that `TableEncoder.fit` finds
on the whole table. Two things are not, on tables larger than the bounds below: quantiles are those
of a uniform sample, and of a column of very many values the vocabulary leaves out rare ones.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.config import Scaling, TableOptions
from xvfl.data.codecs import (
    DAY,
    EXACT_WHOLE,
    CategoryCodec,
    Codec,
    DateCodec,
    HashedCodec,
    NumberCodec,
    ValueType,
    seconds_of,
    value_type,
)
from xvfl.data.encoder import TableEncoder, check_options
from xvfl.data.parse import ISO, MOSTLY, as_dates, as_numbers, blank, date_guesses, known
from xvfl.data.scaling import Floats, Scale, fit_scale
from xvfl.errors import InputError
from xvfl.primitives.seeding import seed_of

SAMPLED = 32_768
"""Values of a column that its quantiles are computed from."""
COUNTED = 200_000
"""Most distinct values counted; then the rarer half is forgotten."""


def fit_streaming(
    pieces: Iterable[pd.DataFrame], options: TableOptions, party: str, where: str
) -> TableEncoder:
    """Fit on training rows that arrive in pieces, indexed by id."""
    columns: dict[str, ColumnStats] | None = None
    for number, frame in enumerate(pieces):
        if columns is None:
            check_options(frame.columns, options, party, where)
            kept = [name for name in frame.columns if name not in options.drop]
            columns = {name: ColumnStats(name, options, party) for name in kept}
        keys = np.random.default_rng(seed_of("quantiles", number)).random(len(frame))
        for name, column in columns.items():
            column.add(blank(frame[name], options.na_values), keys)
    fitted = {name: column.codec() for name, column in (columns or {}).items()}
    return TableEncoder.of_columns(party, fitted, options, where)


class NumberStats:
    """Numbers seen so far: their range, whether they are whole, and a uniform sample of them."""

    def __init__(self) -> None:
        self.low, self.high, self.count = np.inf, -np.inf, 0
        self.whole = True
        self._values: list[Floats] = []
        self._keys: list[Floats] = []
        self._below, self._waiting = np.inf, 0

    def add(self, values: Floats, keys: Floats) -> None:
        """Take in numbers, NaN where missing; those with the smallest keys make the sample."""
        there = ~np.isnan(values)
        values = values[there]
        if not len(values):
            return
        self.count += len(values)
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))
        self.whole &= bool(np.all(np.trunc(values) == values))
        chosen = keys[there] < self._below
        self._values.append(values[chosen])
        self._keys.append(keys[there][chosen])
        self._waiting += int(chosen.sum())
        if self._waiting > 2 * SAMPLED:
            self._shrink()

    def _shrink(self) -> None:
        values, keys = np.concatenate(self._values), np.concatenate(self._keys)
        if len(keys) > SAMPLED:
            kept = np.argpartition(keys, SAMPLED)[:SAMPLED]
            values, keys = values[kept], keys[kept]
            self._below = float(keys.max())
        self._values, self._keys, self._waiting = [values], [keys], len(keys)

    def distinct(self) -> str:
        """Say why the numbers tell nothing, '' where they do."""
        return "holds nothing" if not self.count else _one_value(self.low == self.high)

    def scale(self, scaling: Scaling) -> Scale:
        """Fit the scale: on all values where the sample holds them, else with the exact range."""
        self._shrink()
        values = self._values[0]
        ends = [] if len(values) == self.count else [self.low, self.high]
        return fit_scale(np.concatenate([values, ends]), scaling)

    def integers(self) -> bool:
        """Say whether all are whole and small enough to be held exactly."""
        return self.whole and bool(max(abs(self.low), abs(self.high)) < EXACT_WHOLE)


class Counts:
    """How often each text occurred so far, and of what type the values were."""

    def __init__(self) -> None:
        self.times: dict[str, int] = {}
        self.types: set[ValueType] = set()
        self.booleans = True

    def add(self, cells: pd.Series, distinct: pd.Index, times: NDArray[np.int64]) -> None:
        """Count the distinct texts of some non-missing cells."""
        if not len(cells):
            return
        self.booleans &= types.infer_dtype(cells, skipna=True) == "boolean"
        self.types.add(value_type(cells))
        for text, count in zip(distinct.tolist(), times.tolist(), strict=True):
            self.times[text] = self.times.get(text, 0) + count
        if len(self.times) > COUNTED:
            frequent = sorted(self.times, key=self.times.__getitem__, reverse=True)
            self.times = {text: self.times[text] for text in frequent[: COUNTED // 2]}

    @property
    def type(self) -> ValueType:
        """The type that holds all of them."""
        if len(self.types) == 1:
            return next(iter(self.types))
        return "float" if self.types == {"int", "float"} else "str"

    def codec(self, name: str, options: TableOptions) -> Codec | str:
        """Build the codec of a category."""
        if len(self.times) > max(options.one_hot_max_size, 1):
            found = pd.Series(self.times)
            found.index = found.index.astype("str")
            return HashedCodec.of_counts(name, found, options.hash_embedding_dim, self.type)
        if len(self.times) < 2:
            return _one_value(True) if self.times else "holds nothing"
        values = sorted(pd.Series(list(self.times), dtype="str"))
        return CategoryCodec(name, tuple(values), self.type)


class DateStats:
    """Cells read as dates in one format so far."""

    def __init__(self, form: str) -> None:
        self.format, self.read = form, 0
        self.seconds, self.timed = NumberStats(), False
        self.zone: str | None = None
        self.unit: Any = "us"

    def add(self, moments: pd.Series, keys: Floats, each: NDArray[np.int64] | None) -> None:
        """Take in dates; where they are those of distinct texts, `each` cell says which."""
        seconds = seconds_of(moments)
        self.timed |= bool(np.any(seconds[~np.isnan(seconds)] % DAY != 0))
        spread = seconds if each is None else seconds[each]
        self.read += int((~np.isnan(spread)).sum())
        self.seconds.add(spread, keys)

    def codec(self, name: str, options: TableOptions) -> Codec | str:
        """Build the codec of a date."""
        few = self.seconds.distinct()
        if few:
            return few
        scale = self.seconds.scale(options.scaling)
        return DateCodec(name, scale, self.timed, self.format, self.zone, self.unit)


class ColumnStats:
    """What a column has shown so far of each kind that it may turn out to be."""

    def __init__(self, name: str, options: TableOptions, party: str) -> None:
        """Begin with nothing seen."""
        self.name, self.options, self.party = name, options, party
        self.numbers: NumberStats | None = None
        self.counts = Counts()
        self.dates: dict[str, DateStats] | None = None
        self.category = name in options.categorical
        self.texts = self.marked = 0
        self.readable = True
        self.refused: InputError | None = None

    def add(self, cells: pd.Series, keys: Floats) -> None:
        """Take in some cells, NA where missing, each with its key to the sample."""
        dated = types.is_datetime64_any_dtype(cells.dtype)
        flags = types.is_bool_dtype(cells.dtype) or isinstance(cells.dtype, pd.CategoricalDtype)
        if self.category:
            self._count(cells)
        elif self.name in self.options.numeric and not dated:
            self._number(cells, keys)
        elif flags:
            self.category = True
            self._count(cells)
        elif types.is_numeric_dtype(cells.dtype):
            self._number(cells, keys)
        elif dated:
            self._date(cells, keys)
        else:
            self._text(cells, keys)

    def codec(self) -> Codec | str:
        """Decide what the column is, and build its codec or say why it carries no information."""
        if not self.category and self.texts and not self.counts.booleans:
            if self.readable:
                if self.refused is not None:
                    raise self.refused
                return self._number_codec()
            if self.marked >= MOSTLY * self.texts:
                for dated in (self.dates or {}).values():
                    if dated.read >= MOSTLY * self.texts:
                        return dated.codec(self.name, self.options)
        elif not self.category and not self.texts:
            if self.numbers is not None:
                return self._number_codec()
            if self.dates:
                return self.dates[ISO].codec(self.name, self.options)
        return self.counts.codec(self.name, self.options)

    def _number_codec(self) -> Codec | str:
        numbers = self.numbers or NumberStats()
        few = numbers.distinct()
        if few:
            return few
        scale = numbers.scale(self.options.scaling)
        return NumberCodec(self.name, scale, numbers.integers())

    def _number(self, cells: pd.Series, keys: Floats) -> None:
        self.numbers = self.numbers or NumberStats()
        self.numbers.add(as_numbers(cells, self.party), keys)

    def _date(self, cells: pd.Series, keys: Floats) -> None:
        self.dates = self.dates or {ISO: DateStats(ISO)}
        dated = self.dates[ISO]
        dated.zone = str(cells.dt.tz) if cells.dt.tz is not None else None
        dated.unit = cells.dt.unit
        dated.add(as_dates(cells, ISO), keys, None)

    def _count(self, cells: pd.Series) -> tuple[NDArray[np.int64], pd.Index, NDArray[np.bool_]]:
        there, texts = known(cells)
        each, distinct = pd.factorize(texts)
        self.counts.add(cells[there], distinct, np.bincount(each, minlength=len(distinct)))
        return each, distinct, there

    def _text(self, cells: pd.Series, keys: Floats) -> None:
        each, distinct, there = self._count(cells)
        if not len(distinct):
            return
        self.texts += len(each)
        words = pd.Series(distinct, dtype="str")
        marked = words.str.contains("[-/:]").to_numpy(dtype=bool)
        self.marked += int(marked[each].sum())
        if self.readable:
            parsed = pd.to_numeric(words.str.strip(), errors="coerce")
            self.readable = not bool(parsed.isna().any())
        if self.readable:
            try:
                self._number(cells, keys)
            except InputError as error:
                self.refused = self.refused or error
        if self.dates is None:
            self.dates = {form: DateStats(form) for form in date_guesses(str(distinct[each[0]]))}
        for form, dated in self.dates.items():
            dated.add(as_dates(words, form), keys[there], each)


def _one_value(one: bool) -> str:
    return "holds one value" if one else ""
