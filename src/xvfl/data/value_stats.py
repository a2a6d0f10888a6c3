"""Statistics of numbers, categories and dates, collected chunk by chunk.

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
    MAX_EXACT_INTEGER,
    CategoryCodec,
    Codec,
    DateCodec,
    HashedCodec,
    value_type,
)
from xvfl.data.scaling import fit_bins, fit_scale
from xvfl.primitives.layout import NumberBins
from xvfl.primitives.seeding import derive_seed
from xvfl_serve.encoding.columns import DAY, ValueType
from xvfl_serve.encoding.scale import Floats, Scale


@dataclass(frozen=True)
class FitLimits:
    """Bounds on the memory of a fit; without limits every statistic is exact."""

    sample_size: int | None = None
    """Values of a column from which its quantiles are computed."""
    max_categories: int | None = None
    """Distinct values counted per column; beyond that, the rarer half is forgotten."""


STREAMING_LIMITS = FitLimits(sample_size=32_768, max_categories=200_000)
"""For tables larger than memory."""


SKETCH_SIZE = 4096
"""Hashes from which the number of distinct texts is estimated, with an error of about 2 %."""


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

    def sample(self) -> Floats:
        """Return the sample, or all numbers without a limit."""
        if self._sample_size is not None and self._values:
            self._shrink(self._sample_size)
        return np.concatenate(self._values) if self._values else np.empty(0)

    def uninformative(self) -> str:
        """Return why the numbers carry no information, '' if they do."""
        return uninformative_reason(0 if not self.count else 1 if self.low == self.high else 2)

    def scale(self, scaling: Scaling) -> Scale:
        """Fit the scale on the sample, with the exact range."""
        return fit_scale(self._sample_and_range(), scaling)

    def bins(self, scale: Scale) -> NumberBins:
        """Fit the bins of the scaled numbers on the sample, with the exact range."""
        return fit_bins(scale.apply(self._sample_and_range()))

    def _sample_and_range(self) -> Floats:
        values = self.sample()
        ends = [] if len(values) == self.count else [self.low, self.high]
        return np.concatenate([values, ends])

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
        self._pruned = False
        self._hashes: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def add(self, cells: pd.Series, distinct: pd.Index, counts: NDArray[np.int64]) -> None:
        """Add non-missing cells, whose distinct texts occur so often."""
        if not len(cells):
            return
        self.all_boolean &= types.infer_dtype(cells, skipna=True) == "boolean"
        self.types.add(value_type(cells))
        self.counts.update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        limit = self._max_categories
        if limit is None:
            return
        hashes = np.append(self._hashes, pd.util.hash_array(distinct.to_numpy(dtype=object)))
        self._hashes = np.unique(hashes)[:SKETCH_SIZE]
        if len(self.counts) > limit:
            self.counts = Counter(dict(self.counts.most_common(limit // 2)))
            self._pruned = True

    @property
    def distinct(self) -> int:
        """The number of distinct texts; an estimate if rare ones were forgotten."""
        if not self._pruned:
            return len(self.counts)
        # The smallest hashes of n distinct texts are about 2^64 / n apart.
        return round((SKETCH_SIZE - 1) / (float(self._hashes[-1]) / 2.0**64))

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
        reason = uninformative_reason(len(self.counts))
        return reason or CategoryCodec(name, tuple(sorted(self.counts)), self.type)


class DateStats:
    """Cells parsed as dates of one format."""

    def __init__(self, date_format: str, sample_size: int | None) -> None:
        self.format, self.parsed = date_format, 0
        self.seconds, self.has_time = NumericStats(sample_size), False
        self.zone: str | None = None
        self.unit: Any = "us"

    def add(self, seconds: Floats, keys: Floats, codes: NDArray[np.int64] | None) -> None:
        """Add dates, or distinct dates and the position of each cell's date among them."""
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


def uninformative_reason(distinct: int) -> str:
    """Return why so few distinct values carry no information, '' if they do."""
    return {0: "all values missing", 1: "constant"}.get(distinct, "")
