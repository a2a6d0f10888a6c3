"""How a column is read: its kind, its encoding, and warnings where the kind is ambiguous.

Everything comes from the statistics with which the encoder is fitted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from xvfl.data.ambiguous_text import find_ambiguities, quote, say_codes
from xvfl.data.codecs import (
    CategoryCodec,
    Codec,
    DateCodec,
    DurationCodec,
    HashedCodec,
    NumberCodec,
)
from xvfl.data.column_stats import ColumnStats
from xvfl.data.missing_codes import missing_numbers
from xvfl.data.parse import parse_date_texts
from xvfl.data.value_stats import NumericStats
from xvfl_serve.encoding.dates import ISO
from xvfl_serve.encoding.number_text import COMMA, POINT
from xvfl_serve.encoding.scale import Floats

CODE_NAMES = re.compile(
    r"(^|[^a-z])(zip|zip_?code|postal|post_?code|plz|phone|ssn|sku|code|id)($|[^a-z])"
)
"""Names of columns whose integers are codes, in lower case, with words separated by _."""
SET_CATEGORY = '; in `kinds`, set its kind to "category", or to "identifier" to ignore it'
COMPACT_DATE = "%Y%m%d"
EARLIEST_DAY, LATEST_DAY = 19_000_101, 21_001_231
YEARS = 1500, 2100
"""Different integers in this range are years, not row numbers."""
MIN_ROWS = 50
"""Columns with fewer values are not judged by their distribution."""
MIN_CODES = 20
HASH_RANGE = 2.0**30
"""Integers spread evenly over a larger range are hashes."""
MAX_OFF_CENTER = 0.1
"""Evenly spread values have their median in the middle, up to this share of their range."""
MIN_DENSITY = 0.5
"""Smallest number of different integers per unit of their range in a column of row numbers."""


@dataclass(frozen=True)
class ColumnSummary:
    """How a column is read."""

    name: str
    kind: str
    """number, date, duration, category, identifier, empty or constant."""
    missing: float
    """Share of missing cells."""
    distinct: int
    """Number of distinct values; in large tables of numbers, of a sample."""
    encoding: str
    examples: tuple[str, ...]
    """At most two values."""
    warnings: tuple[str, ...]
    """What may be wrong, and what to do."""

    def warned(self, text: str | None) -> "ColumnSummary":
        """Return it with another warning, if there is any."""
        return self if text is None else replace(self, warnings=(*self.warnings, text))


def summarize(column: ColumnStats, codec: Codec | str) -> ColumnSummary:
    """Describe a column by its statistics and its codec, or the reason why it has none."""
    kind, encoding = _kind(codec)
    missing = 1 - column.observed / max(column.rows, 1)
    numbers = column.numbers or column.durations
    distinct = column.categories.distinct
    if not distinct and numbers is not None:
        distinct = len(np.unique(numbers.sample()))
    elif not distinct and column.dates:
        distinct = len(np.unique(column.dates[ISO].seconds.sample()))
    examples = tuple(_examples(column))
    texts = tuple(_duration_warnings(column) if column.kind else _warnings(column, codec))
    return ColumnSummary(column.name, kind, missing, distinct, encoding, examples, texts)


def _kind(codec: Codec | str) -> tuple[str, str]:
    if isinstance(codec, str):
        kind = {"all values missing": "empty"}.get(codec, codec.partition(":")[0])
        return kind, "not used"
    if isinstance(codec, CategoryCodec):
        return "category", f"one-hot, {len(codec.values)} columns"
    if isinstance(codec, HashedCodec):
        return "category", f"hashed, {len(codec.frequent) + 1:,} embeddings"
    scaling = "quantiles" if len(codec.scale.knots) > 2 else "min-max"
    if isinstance(codec, DateCodec):
        form = "" if codec.format == ISO else f", format {codec.format}"
        return "date", f"time and calendar, {codec.feature.width} columns{form}"
    if isinstance(codec, DurationCodec):
        return "duration", f"seconds, {scaling}"
    mark = {POINT: ", from text", COMMA: ", from text with decimal comma"}
    return "number", f"{scaling}{mark.get(codec.decimal, '')}"


def _examples(column: ColumnStats) -> Iterator[str]:
    yield from (column.words[:2])
    if not column.words and column.numbers is not None:
        digits = 15 if column.numbers.integral else 6
        yield from (f"{each:.{digits}g}" for each in column.numbers.sample()[:2])


def _warnings(column: ColumnStats, codec: Codec | str) -> Iterator[str]:
    """Find what may be wrong with the kind of a column."""
    if isinstance(codec, NumberCodec):
        yield from _missing_code_warnings(column, codec)
    plain = isinstance(codec, NumberCodec) and not codec.decimal
    if plain and column.numbers is not None and column.numbers.integral:
        yield from _code_warnings(column, column.numbers)
    if column.texts and isinstance(codec, CategoryCodec | HashedCodec):
        yield from find_ambiguities(column, "are read as categories")
    elif column.texts and isinstance(codec, str) and column.is_identifier:
        yield from find_ambiguities(column, "are left out as an identifier")
    if isinstance(codec, DateCodec) and column.texts:
        yield from _date_warnings(column, codec.format)


def _missing_code_warnings(column: ColumnStats, codec: NumberCodec) -> Iterator[str]:
    numbers = column.text_numbers[codec.decimal] if codec.decimal else column.numbers
    if numbers is None or numbers.count < MIN_ROWS:
        return
    found = dict(missing_numbers(numbers.sample()))
    if found:
        share = sum(found.values()) * numbers.count / column.rows
        yield say_codes([repr(f"{each:.10g}") for each in found], share)


def _code_warnings(column: ColumnStats, numbers: NumericStats) -> Iterator[str]:
    values = numbers.sample()
    shown = quote([f"{each:.0f}" for each in values[:2]])
    distinct = np.unique(values)
    if len(distinct) < MIN_CODES or numbers.count < MIN_ROWS:
        return
    spread = numbers.high - numbers.low
    off_center = abs(float(np.median(distinct)) - (numbers.low + numbers.high) / 2)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.name).lower()
    if numbers.low >= EARLIEST_DAY and numbers.high <= LATEST_DAY and _are_days(distinct):
        yield (
            f"integers such as {shown} are dates, but are read as a number; set the kind to "
            f'"date:{COMPACT_DATE}" in `kinds`'
        )
    elif CODE_NAMES.search(name):
        text = f"integers such as {shown} are read as a number, but the name says codes"
        yield text + SET_CATEGORY
    elif spread >= HASH_RANGE and off_center < MAX_OFF_CENTER * spread:
        yield f"integers such as {shown} look like hashes, but are read as a number{SET_CATEGORY}"
    elif (
        len(distinct) == len(values)
        and numbers.count >= MIN_DENSITY * (spread + 1)
        and not YEARS[0] <= numbers.low <= numbers.high <= YEARS[1]
    ):
        yield f"integers such as {shown} all differ, as row numbers or ids do{SET_CATEGORY}"


def _are_days(integers: Floats) -> bool:
    """Tell whether integers such as 20210615 are all dates."""
    texts = pd.Series([f"{each:.0f}" for each in integers], dtype="str")
    return not np.isnan(parse_date_texts(texts, COMPACT_DATE)).any()


def _duration_warnings(column: ColumnStats) -> Iterator[str]:
    if column.n_unreadable:
        yield (
            f"{column.n_unreadable:,} of {column.texts:,} cells, such as "
            f"{quote(column.unreadable)}, are not durations or have no unit, and count as missing; "
            "write a unit, as in '90 min', or a clock time, as in '1:30:00'"
        )


def _date_warnings(column: ColumnStats, chosen: str) -> Iterator[str]:
    if column.dates is None:
        return
    if lost := column.texts - column.dates[chosen].parsed:
        words = pd.Series(column.words, dtype="str")
        wrong = words[np.isnan(parse_date_texts(words, chosen))].tolist()
        shown = f", such as {quote(wrong)}," if wrong else ""
        yield (
            f"{lost:,} of {column.texts:,} texts{shown} are not dates in the format {chosen}, and "
            "count as missing; write all dates in the same format, or add other texts to "
            "`na_values`"
        )
    others = [each for each in column.date_formats if each not in (ISO, chosen)]
    if chosen == ISO or not others:
        return
    if column.dates[others[0]].parsed == column.dates[chosen].parsed:
        yield (
            f"dates such as {quote(column.words)} "
            f"are read as {chosen}, but {others[0]} fits as well; "
            f'set the kind to "date:{chosen}" or "date:{others[0]}" in `kinds`'
        )
