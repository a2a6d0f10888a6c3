"""Statistics of a table's columns, collected chunk by chunk, and the codecs built from them.

Types, ranges, categories and counts are exact. With limits, memory is bounded: quantiles come from
a uniform sample, and the rarest categories of a column with very many are forgotten.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.config import Scaling, TableOptions
from xvfl.data.codecs import (
    DAY,
    MAX_EXACT_INTEGER,
    CategoryCodec,
    Codec,
    DateCodec,
    HashedCodec,
    NumberCodec,
    ValueType,
    to_epoch_seconds,
    value_type,
)
from xvfl.data.parse import (
    ISO,
    MIN_DATE_FRACTION,
    candidate_date_formats,
    observed_text,
    parse_dates,
    parse_numbers,
)
from xvfl.data.scaling import Floats, Scale, fit_scale
from xvfl.errors import InputError
from xvfl.primitives.seeding import derive_seed


@dataclass(frozen=True)
class FitLimits:
    """Bounds on the memory of a fit; without limits every statistic is exact."""

    sample_size: int | None = None
    """Values of a column from which its quantiles are computed."""
    max_categories: int | None = None
    """Distinct values counted per column; beyond that, the rarer half is forgotten."""


STREAMING_LIMITS = FitLimits(sample_size=32_768, max_categories=200_000)
"""For tables larger than memory."""


def sampling_keys(rows: int, chunk: int) -> Floats:
    """Generate a random key for each row of a chunk."""
    return np.random.default_rng(derive_seed("quantiles", chunk)).random(rows)


class NumericStats:
    """Range, integrality and a uniform sample of numbers."""

    def __init__(self, sample_size: int | None) -> None:
        self.low, self.high, self.count = np.inf, -np.inf, 0
        self.integral = True
        self._sample_size = sample_size
        self._values: list[Floats] = []
        self._keys: list[Floats] = []
        self._max_key = np.inf

    def add(self, values: Floats, keys: Floats) -> None:
        """Add numbers, NaN where missing; the values with the smallest keys are the sample."""
        observed = ~np.isnan(values)
        present = values[observed]
        if not len(present):
            return
        self.count += len(present)
        self.low = min(self.low, float(present.min()))
        self.high = max(self.high, float(present.max()))
        self.integral &= bool(np.all(np.trunc(present) == present))
        if self._sample_size is None:
            self._values.append(present)
            return
        sampled = keys[observed] < self._max_key
        self._values.append(present[sampled])
        self._keys.append(keys[observed][sampled])
        if sum(map(len, self._keys)) > 2 * self._sample_size:
            self._shrink(self._sample_size)

    def _shrink(self, size: int) -> None:
        """Keep the values with the smallest keys."""
        values, keys = np.concatenate(self._values), np.concatenate(self._keys)
        if len(keys) > size:
            smallest = np.argpartition(keys, size)[:size]
            values, keys = values[smallest], keys[smallest]
            self._max_key = float(keys.max())
        self._values, self._keys = [values], [keys]

    def uninformative(self) -> str:
        """Return why the numbers carry no information, '' if they do."""
        return _uninformative(0 if not self.count else 1 if self.low == self.high else 2)

    def scale(self, scaling: Scaling) -> Scale:
        """Fit the scale on the sample, with the exact range."""
        if self._sample_size is not None:
            self._shrink(self._sample_size)
        values = np.concatenate(self._values)
        ends = [] if len(values) == self.count else [self.low, self.high]
        return fit_scale(np.concatenate([values, ends]), scaling)

    def exact_integers(self) -> bool:
        """Tell whether all are integers that a float64 represents exactly."""
        largest = max(abs(self.low), abs(self.high))
        return self.integral and bool(largest < MAX_EXACT_INTEGER)


class CategoryStats:
    """Counts of each distinct text, and the types of the values."""

    def __init__(self, max_categories: int | None) -> None:
        self.counts: Counter[str] = Counter()
        self.types: set[ValueType] = set()
        self.all_boolean = True
        self._max_categories = max_categories

    def add(self, cells: pd.Series, distinct: pd.Index, counts: NDArray[np.int64]) -> None:
        """Add non-missing cells, whose distinct texts occur so often."""
        if not len(cells):
            return
        self.all_boolean &= types.infer_dtype(cells, skipna=True) == "boolean"
        self.types.add(value_type(cells))
        self.counts.update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        limit = self._max_categories
        if limit is not None and len(self.counts) > limit:
            self.counts = Counter(dict(self.counts.most_common(limit // 2)))

    @property
    def type(self) -> ValueType:
        """The narrowest type of all values."""
        if len(self.types) == 1:
            return next(iter(self.types))
        return "float" if self.types == {"int", "float"} else "str"

    def codec(self, name: str, options: TableOptions) -> Codec | str:
        """Build the codec, or return why the column carries no information."""
        if len(self.counts) > options.one_hot_max_size:
            width = options.hash_embedding_dim
            return HashedCodec.from_counts(name, self.counts, width, self.type)
        reason = _uninformative(len(self.counts))
        return reason or CategoryCodec(name, tuple(sorted(self.counts)), self.type)


class DateStats:
    """Cells parsed as dates of one format."""

    def __init__(self, date_format: str, sample_size: int | None) -> None:
        self.format, self.parsed = date_format, 0
        self.seconds, self.has_time = NumericStats(sample_size), False
        self.zone: str | None = None
        self.unit: Any = "us"

    def add(self, dates: pd.Series, keys: Floats, codes: NDArray[np.int64] | None) -> None:
        """Add dates, or distinct dates and the position of each cell's date among them."""
        seconds = to_epoch_seconds(dates)
        self.has_time |= bool(np.any(seconds[~np.isnan(seconds)] % DAY != 0))
        cells = seconds if codes is None else seconds[codes]
        self.parsed += int((~np.isnan(cells)).sum())
        self.seconds.add(cells, keys)

    def codec(self, name: str, options: TableOptions) -> Codec | str:
        """Build the codec, or return why the column carries no information."""
        if reason := self.seconds.uninformative():
            return reason
        scale = self.seconds.scale(options.scaling)
        return DateCodec(name, scale, self.has_time, self.format, self.zone, self.unit)


class ColumnStats:
    """Statistics of one column for every type it may turn out to have."""

    def __init__(self, name: str, options: TableOptions, party: str, limits: FitLimits) -> None:
        self.name, self.options, self.party, self.limits = name, options, party, limits
        self.numbers: NumericStats | None = None
        self.categories = CategoryStats(limits.max_categories)
        self.dates: dict[str, DateStats] | None = None
        self.is_category = name in options.categorical
        self.texts = self.date_like = 0
        self.all_numeric = True
        self._error: InputError | None = None

    def add(self, cells: pd.Series, keys: Floats) -> None:
        """Add the cells of a chunk, NA where missing, each with its sampling key."""
        dtype = cells.dtype
        is_date = types.is_datetime64_any_dtype(dtype)
        numeric = self.name in self.options.numeric and not is_date
        categorical = types.is_bool_dtype(dtype) or isinstance(dtype, pd.CategoricalDtype)
        self.is_category |= categorical and not numeric
        if self.is_category:
            self._add_categories(cells)
        elif numeric or types.is_numeric_dtype(dtype):
            self._add_numbers(cells, keys)
        elif is_date:
            self._add_dates(cells, keys)
        else:
            self._add_texts(cells, keys)

    def codec(self) -> Codec | str:
        """Infer the column's type; build its codec, or return why it carries no information."""
        if not self.is_category and self.texts and not self.categories.all_boolean:
            if self.all_numeric:
                if self._error is not None:
                    raise self._error
                return self._number_codec()
            if self.date_like >= MIN_DATE_FRACTION * self.texts:
                for dates in (self.dates or {}).values():
                    if dates.parsed >= MIN_DATE_FRACTION * self.texts:
                        return dates.codec(self.name, self.options)
        elif not self.is_category and not self.texts:
            if self.numbers is not None:
                return self._number_codec()
            if self.dates:
                return self.dates[ISO].codec(self.name, self.options)
        return self.categories.codec(self.name, self.options)

    def _number_codec(self) -> Codec | str:
        numbers = self.numbers or NumericStats(None)
        if reason := numbers.uninformative():
            return reason
        scale = numbers.scale(self.options.scaling)
        return NumberCodec(self.name, scale, numbers.exact_integers())

    def _add_numbers(self, cells: pd.Series, keys: Floats) -> None:
        self.numbers = self.numbers or NumericStats(self.limits.sample_size)
        self.numbers.add(parse_numbers(cells, self.party), keys)

    def _add_dates(self, cells: pd.Series, keys: Floats) -> None:
        self.dates = self.dates or {ISO: DateStats(ISO, self.limits.sample_size)}
        dates = self.dates[ISO]
        dates.zone = str(cells.dt.tz) if cells.dt.tz is not None else None
        dates.unit = cells.dt.unit
        dates.add(parse_dates(cells, ISO), keys, None)

    def _add_categories(
        self, cells: pd.Series
    ) -> tuple[NDArray[np.int64], pd.Index, NDArray[np.bool_]]:
        observed, texts = observed_text(cells)
        codes, distinct = pd.factorize(texts)
        counts = np.bincount(codes, minlength=len(distinct))
        self.categories.add(cells[observed], distinct, counts)
        return codes, distinct, observed

    def _add_texts(self, cells: pd.Series, keys: Floats) -> None:
        codes, distinct, observed = self._add_categories(cells)
        if not len(distinct):
            return
        self.texts += len(codes)
        words = pd.Series(distinct, dtype="str")
        self.date_like += int(words.str.contains("[-/:]").to_numpy(dtype=bool)[codes].sum())
        if self.all_numeric:
            numbers = pd.to_numeric(words.str.strip(), errors="coerce")
            self.all_numeric = not bool(numbers.isna().any())
        if self.all_numeric:
            try:
                self._add_numbers(cells, keys)
            except InputError as error:
                self._error = self._error or error
        if self.dates is None:
            formats = candidate_date_formats(str(distinct[codes[0]]))
            self.dates = {each: DateStats(each, self.limits.sample_size) for each in formats}
        for date_format, dates in self.dates.items():
            dates.add(parse_dates(words, date_format), keys[observed], codes)


def _uninformative(distinct: int) -> str:
    return {0: "all values missing", 1: "constant"}.get(distinct, "")
