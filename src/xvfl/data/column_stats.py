"""Statistics of a table's columns, and the codecs built from them."""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.config import TableOptions
from xvfl.data.codecs import Codec, DateCodec, DurationCodec, NumberCodec
from xvfl.data.parse import (
    DATE_LIKE,
    MIN_DATE_FRACTION,
    candidate_date_formats,
    mask_missing_numbers,
    observed_text,
    parse_date_texts,
    parse_dates,
    parse_durations,
    parse_number_texts,
    parse_numbers,
    present_cells,
)
from xvfl.data.text import as_text
from xvfl.data.value_stats import CategoryStats, DateStats, FitLimits, NumericStats
from xvfl.errors import InputError
from xvfl.primitives.layout import NumberBins
from xvfl_serve.encoding.cells import MissingCells
from xvfl_serve.encoding.dates import ISO
from xvfl_serve.encoding.number_text import COMMA, POINT, POINT_CURRENCIES, affixes
from xvfl_serve.encoding.scale import Floats

MIN_IDENTIFIER_ROWS, MIN_IDENTIFIER_SHARE = 50, 0.95
"""A text column with this share of distinct values is an identifier."""
MAX_SHOWN_WORDS = 1000
"""Distinct texts kept to describe a column."""
HEAD = 10
"""Distinct texts that are parsed first, to recognize words."""


class ColumnStats:
    """Statistics of one column for every kind it may turn out to have."""

    def __init__(
        self,
        name: str,
        options: TableOptions,
        party: str,
        limits: FitLimits,
        missing: MissingCells,
    ) -> None:
        self.name, self.options, self.party, self.limits = name, options, party, limits
        self.missing = missing
        self.kind, self.detail = options.kind_of(name)
        self.numbers: NumericStats | None = None
        self.text_numbers = {mark: NumericStats(limits.sample_size) for mark in (POINT, COMMA)}
        self.affixes: set[tuple[str, str]] = set()
        self.durations: NumericStats | None = None
        self.unreadable: list[str] = []
        """The first cells that are not durations or have no unit."""
        self.n_unreadable = 0
        self.categories = CategoryStats(limits.max_categories)
        self.dates: dict[str, DateStats] | None = None
        self.is_category = self.kind in ("category", "identifier")
        self.rows = self.observed = self.texts = self.date_like = 0
        self.all_numeric = True
        self.widths: set[int] = set()
        self.leading_zeros = False
        self.words: list[str] = []
        """The first distinct texts."""
        self._error: InputError | None = None

    def add(self, cells: pd.Series, keys: Floats) -> None:
        """Add the cells of a chunk, NA where missing, each with its sampling key."""
        self.rows += len(cells)
        self.observed += int(np.count_nonzero(present_cells(cells)))
        dtype = cells.dtype
        is_date, is_duration = (dtype.kind == kind for kind in "Mm")
        numeric = self.kind == "number" and not is_date and not is_duration
        categorical = types.is_bool_dtype(dtype) or isinstance(dtype, pd.CategoricalDtype)
        self.is_category |= categorical and not self.kind
        if self.is_category:
            self._add_categories(cells)
        elif is_duration or self.kind == "duration":
            self._add_durations(cells, keys, is_duration)
        elif types.is_numeric_dtype(dtype) and self.kind != "date":
            self._add_numbers(cells, keys)
        elif is_date:
            self._add_dates(cells, keys)
        elif numeric and categorical:
            self._add_numbers(cells, keys)
        else:
            self._add_texts(cells, keys)

    def codec(self) -> Codec | str:
        """Infer the column's kind; build its codec, or return why it is left out."""
        if self.kind == "identifier":
            return "identifier"
        if self.durations is not None:
            reason = self.durations.uninformative()
            scale = None if reason else self.durations.scale(self.options.scaling)
            return reason if scale is None else DurationCodec(self.name, scale, self.texts > 0)
        boolean = self.categories.all_boolean and not self.kind
        if not self.is_category and self.texts and not boolean:
            found = self._text_codec()
            if found is not None:
                return found
        elif not self.is_category and not self.texts:
            if self.numbers is not None:
                return self._number_codec(self.numbers)
            if self.dates:
                return self.dates[ISO].codec(self.name, self.options)
        if self.is_identifier:
            return f"identifier: {self.categories.distinct:,} different texts"
        return self.categories.codec(self.name, self.options)

    def bins(self, codec: Codec) -> NumberBins | None:
        """Fit the bins of this column's codec; None if it is not a number. Of a date: its time."""
        if not isinstance(codec, NumberCodec | DurationCodec | DateCodec):
            return None
        if isinstance(codec, NumberCodec):
            numbers = self.text_numbers[codec.decimal] if codec.decimal else self.numbers
        elif isinstance(codec, DurationCodec):
            numbers = self.durations
        else:
            numbers = self.dates[codec.format].seconds if self.dates else None
        return None if numbers is None else numbers.bins(codec.scale)

    @property
    def is_identifier(self) -> bool:
        """Whether the column is text and almost every value differs, as in an e-mail address."""
        enough = self.texts >= MIN_IDENTIFIER_ROWS and not self.is_category
        return enough and self.categories.distinct >= MIN_IDENTIFIER_SHARE * self.texts

    @property
    def has_codes(self) -> bool:
        """Whether the texts are digits of one length, some with leading zeros, as in 01234."""
        return self.all_numeric and self.leading_zeros and len(self.widths) == 1

    @property
    def date_formats(self) -> list[str]:
        """The formats in which most cells are dates, the one with most dates first."""
        least = MIN_DATE_FRACTION * self.texts
        if self.kind != "date" and self.date_like < least:
            return []
        formats = [each for each in (self.dates or {}).values() if each.parsed >= least]
        return [each.format for each in sorted(formats, key=lambda each: -each.parsed)]

    @property
    def decimal_marks(self) -> list[str]:
        """The decimal marks with which all texts are numbers, such as "$1,234" or "12,5"."""
        if len(self.affixes) != 1:
            return []
        samples = [each.sample() for each in self.text_numbers.values()]
        same = len(samples) == 2 and np.array_equal(samples[0], samples[1])
        return [POINT] if same else list(self.text_numbers)

    def _text_codec(self) -> Codec | str | None:
        """Build the codec of texts that are numbers or dates; None if they are neither."""
        forced = self.kind == "number"
        if self.all_numeric and (forced or not self.has_codes) and self.kind != "date":
            if self._error is not None:
                raise self._error
            return self._number_codec(self.numbers or NumericStats(None))
        if self.has_codes and not self.kind:
            return None
        formats = self.date_formats
        if formats and not forced and self.dates is not None:
            return self.dates[formats[0]].codec(self.name, self.options)
        marks = [self.detail] if self.detail in self.decimal_marks else self.decimal_marks
        (prefix, suffix), *_ = self.affixes or {("", "")}
        if len(marks) > 1 and (forced or prefix in set(POINT_CURRENCIES)):
            marks = [POINT]
        if len(marks) == 1 and self.kind != "date":
            codec = self._number_codec(self.text_numbers[marks[0]])
            if isinstance(codec, str):
                return codec
            return replace(codec, decimal=marks[0], prefix=prefix, suffix=suffix)
        if forced and self._error is not None:
            raise self._error
        if self.kind == "date":
            raise InputError(
                f"party {self.party!r}, column {self.name!r}: expected dates, but "
                f"{self.words[0]!r} and others are not; check the format in `kinds`"
            )
        return None

    def _number_codec(self, numbers: NumericStats) -> NumberCodec | str:
        if reason := numbers.uninformative():
            return reason
        scale = numbers.scale(self.options.scaling)
        return NumberCodec(self.name, scale, numbers.exact_integers())

    def _add_numbers(self, cells: pd.Series, keys: Floats) -> None:
        self.numbers = self.numbers or NumericStats(self.limits.sample_size)
        self.numbers.add(parse_numbers(cells, self.party, missing=self.missing), keys)

    def _add_dates(self, cells: pd.Series, keys: Floats) -> None:
        self.dates = self.dates or {ISO: DateStats(ISO, self.limits.sample_size)}
        dates = self.dates[ISO]
        dates.zone = str(cells.dt.tz) if cells.dt.tz is not None else None
        dates.unit = cells.dt.unit
        dates.add(parse_dates(cells, ISO, self.party), keys, None)

    def _add_durations(self, cells: pd.Series, keys: Floats, typed: bool) -> None:
        self.durations = self.durations or NumericStats(self.limits.sample_size)
        seconds = parse_durations(cells, self.party)
        self.durations.add(seconds, keys)
        if not typed:
            self.texts += int(cells.notna().sum())
            unreadable = cells[cells.notna().to_numpy(dtype=bool) & np.isnan(seconds)]
            self.n_unreadable += len(unreadable)
            self.unreadable = [*self.unreadable, *as_text(unreadable[:2])][:2]

    def _add_categories(
        self, cells: pd.Series
    ) -> tuple[NDArray[np.int64], pd.Index, NDArray[np.bool_]]:
        observed, texts = observed_text(cells)
        codes, distinct = pd.factorize(texts)
        counts = np.bincount(codes, minlength=len(distinct))
        self.categories.add(cells[observed], distinct, counts)
        self.words = [*self.words, *distinct[: MAX_SHOWN_WORDS - len(self.words)]]
        return codes, distinct, observed

    def _add_texts(self, cells: pd.Series, keys: Floats) -> None:
        codes, distinct, observed = self._add_categories(cells)
        if not len(distinct):
            return
        self.texts += len(codes)
        words = pd.Series(distinct, dtype="str")
        self.date_like += int(words.str.contains(DATE_LIKE).to_numpy(dtype=bool)[codes].sum())
        if self.all_numeric:
            self.all_numeric = not np.isnan(_parse_words(words, "")).any()
        if self.all_numeric:
            stripped = words.str.strip()
            self.leading_zeros |= bool(stripped.str.fullmatch(r"0\d+").any())
            self.widths.update(stripped.str.len().unique().tolist())
        if self.all_numeric or self.kind == "number":
            try:
                self._add_numbers(cells, keys)
            except InputError as error:
                self._error = self._error or error
        self._add_text_numbers(words, codes, keys[observed])
        if self.dates is None:
            first = str(distinct[codes[0]])
            formats = (
                [self.detail]
                if self.kind == "date" and self.detail
                else candidate_date_formats(first)
            )
            self.dates = {each: DateStats(each, self.limits.sample_size) for each in formats}
        for date_format, dates in self.dates.items():
            dates.add(parse_date_texts(words, date_format), keys[observed], codes)

    def _add_text_numbers(self, words: pd.Series, codes: NDArray[np.int64], keys: Floats) -> None:
        """Add texts such as "$1,234"; forget a decimal mark with which a text is no number."""
        for mark in list(self.text_numbers):
            values = _parse_words(words, mark)
            if np.isnan(values).any():
                del self.text_numbers[mark]
            else:
                self.text_numbers[mark].add(mask_missing_numbers(values, self.missing)[codes], keys)
        if self.text_numbers:
            # Few ways to write numbers, many numbers.
            forms = words.str.replace(r"[0-9.,'\s]+", "0", regex=True).unique()
            self.affixes.update(map(affixes, forms))


def _parse_words(words: pd.Series, mark: str) -> Floats:
    """Parse words as numbers; only the first of them if these are not numbers."""
    head = parse_number_texts(words[:HEAD], mark)
    return head if np.isnan(head).any() else parse_number_texts(words, mark)
