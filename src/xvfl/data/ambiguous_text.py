"""Texts that are read as categories or left out as identifiers, but look like another kind."""

import re
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from xvfl.data.column_stats import ColumnStats
from xvfl.data.missing_codes import missing_words
from xvfl.data.parse import DATE_LIKE, candidate_date_formats, parse_date_texts
from xvfl_serve.encoding.number_text import (
    COMMA,
    POINT,
    affixes,
    looks_like_duration,
    parse_number,
)

MIN_WORDS, MIN_SURE_WORDS = 10, 2
"""A column with fewer distinct texts than the first is not judged by most of them but by all, with
fewer than the second not at all."""
MIN_SHARE = 0.9
"""Share of the distinct texts that must be of one kind; those for missing values do not count."""
UNIT = re.compile(r"[-+]?\d[\d.,]*\s*(°?[^\W\d_]+(?:/[^\W\d_]+)?|°)")
"""A number with a unit."""
CLEAR_UNIT = re.compile(r"[-+]?\d[\d.,]*(?:\s+|(?=°|[^\W\d_]{2}))(°?[^\W\d_]+(?:/[^\W\d_]+)?|°)")
"""A number with a unit that is not a letter after the number, as in the house number 12a."""
ORDINALS = frozenset({"st", "nd", "rd", "th"})
"""No units: 1st, 2nd."""
MAX_UNITS, MAX_FORMATS = 3, 3
"""With more units or formats of dates, texts are words."""
LETTERED = re.compile(r"([a-z])\d+|\d+([a-z])", re.IGNORECASE)
"""A number with a letter, as in the house number 12a."""
CHECKED_WORDS = 40
"""Number of random texts in which formats of dates are searched."""
MAX_FAILURES = 3
"""Texts without a format after which the search ends."""
NA_REMEDY = "correct these cells, or add them to `na_values`"
Matches = Callable[[list[str]], list[bool]]
"""Tells which texts are of a kind."""


def find_ambiguities(column: ColumnStats, use: str) -> Iterator[str]:
    """Yield what the texts of a column look like, and what to do; `use` is how they are used."""
    if column.has_codes:
        return
    codes = missing_words(column.words)
    words = [each for each in column.words if each not in set(codes)]
    shown = quote(words)
    if len(column.decimal_marks) > 1:
        marked = [each for each in column.words if POINT in each or COMMA in each]
        yield (
            f"texts such as {quote(marked or column.words)} are numbers with thousands separators "
            f'or with a decimal comma, but {use}; set the kind to "number:." or "number:," in '
            "`kinds`"
        )
    elif words and not codes and looks_like_duration(words):
        yield (
            f"texts such as {shown} are durations or times of day, but {use}; "
            'set the kind to "duration" in `kinds`'
        )
    elif len(words) >= MIN_SURE_WORDS:
        needed = len(words) * (MIN_SHARE if len(words) >= MIN_WORDS else 1)
        for kind, matches, remedy in _kinds(words):
            if sum(matches(words)) >= needed:
                yield from _describe(column, kind, matches, remedy, use)
                return
    if codes:
        yield describe_codes(column, codes)


def describe_codes(column: ColumnStats, codes: list[str], beside: str = "") -> str:
    """Describe texts that probably stand for a missing value."""
    share = sum(column.categories.counts[each] for each in codes) / max(column.rows, 1)
    return say_codes([repr(each) for each in codes], share, beside)


def say_codes(shown: list[str], share: float, beside: str = "") -> str:
    """Say that values are probably missing ones, with their share of the cells."""
    named = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    shown_share = f"{share:.{1 if share >= 0.001 else 3}%}"
    return (
        f"{named} in {shown_share} of the cells{beside}: probably missing values; if so, add "
        f"{named} to `na_values` of the table; if they are values, set the column's kind in `kinds`"
    )


def quote(words: list[str]) -> str:
    """Show the first two texts."""
    return " and ".join(map(repr, words[:2]))


def _kinds(words: list[str]) -> Iterator[tuple[str, Matches, str]]:
    """Yield the kinds that texts may have, and what to do where some have none."""
    yield "numbers", _numbers, NA_REMEDY
    remedy = 'set the kind to "duration" in `kinds`; these cells then count as missing'
    yield "durations or times of day", _durations, remedy
    pattern = UNIT if len(words) >= 2 * MIN_WORDS else CLEAR_UNIT
    found = (match[1] for match in map(pattern.fullmatch, map(str.strip, words)) if match)
    units = Counter(each for each in found if each.casefold() not in ORDINALS)
    different = _different_units(words)
    if len(different) > 1:
        named = " and ".join(map(repr, different))
        remedy = "convert all cells to one unit, and remove it from the cells"
        yield f"numbers with the units {named}", _with_unit(*different), remedy
    elif units:
        unit = units.most_common(1)[0][0]
        remedy = "remove the unit from all cells"
        yield f"numbers with the unit {unit!r}", _with_unit(unit), remedy
        if len(unit) > 1:
            yield f"numbers, some with the unit {unit!r}", _with_unit(unit, bare=True), remedy
    formats = _different_date_formats(words)
    for each in formats:
        yield "dates", _dates(each), NA_REMEDY
    if len(formats) > 1:
        remedy = "write all dates in the same format, such as 2021-06-15"
        yield f"dates in the formats {' and '.join(formats)}", _dates(*formats), remedy


def _describe(
    column: ColumnStats, kind: str, matches: Matches, remedy: str, use: str
) -> Iterator[str]:
    """Yield that most texts are of a kind, or that all are numbers, written differently."""
    counts = column.categories.counts
    texts = list(counts)
    alike = [text for text, match in zip(texts, matches(texts), strict=True) if match]
    codes = missing_words(counts)
    others = sorted(counts.keys() - {*alike, *codes})
    if codes:
        beside = f", beside {kind} such as {quote(alike)} which {use}"
        yield describe_codes(column, codes, "" if others else beside)
    if others and not _are_lettered(others):
        share = 1 - sum(counts[each] for each in others) / column.texts
        yield (
            f"most texts ({share:.1%} of the cells) are {kind} such as {quote(alike)}, but not "
            f"{quote(others)}, so they {use}; {remedy}"
        )
    elif kind != "numbers" and not codes:
        bare = [each for each in alike if each[-1:].isdigit()]
        alike = [*bare[:1], *(each for each in alike if each not in bare)] if bare else alike
        yield f"texts such as {quote(alike)} are {kind}, but {use}; {remedy}"
    elif not codes and len(unlike := _written_differently(alike)) > 1:
        yield (
            f"texts such as {quote(unlike)} are numbers with different currency or percent signs, "
            f"or with different decimal marks, but {use}; write all cells in the same way, "
            "in one currency or unit"
        )


def _are_lettered(texts: list[str]) -> bool:
    """Tell whether all are ids such as 12a and 12b; a single letter behind numbers is a unit."""
    found = [match for match in map(LETTERED.fullmatch, texts) if match]
    letters = {(match[1], match[2]) for match in found}
    return len(found) == len(texts) > 1 and (len(letters) > 1 or bool(found[0][1]))


def _numbers(texts: list[str]) -> list[bool]:
    return [any(_has_mark(each, mark) for mark in (POINT, COMMA)) for each in texts]


def _has_mark(text: str, mark: str) -> bool:
    return parse_number(text, mark) is not None


def _durations(texts: list[str]) -> list[bool]:
    return [looks_like_duration([each]) for each in texts]


def _with_unit(*units: str, bare: bool = False) -> Matches:
    """Match numbers with one of these units; optionally also those without any."""
    names = set(map(_unit_name, units))

    def matches(texts: list[str]) -> list[bool]:
        found = (UNIT.fullmatch(each.strip()) for each in texts)
        units = [each is not None and _unit_name(each[1]) in names for each in found]
        return [a or b for a, b in zip(units, _numbers(texts), strict=True)] if bare else units

    return matches


def _different_units(words: list[str]) -> list[str]:
    """List the units of numbers; none if there are many, as in street addresses."""
    found = (CLEAR_UNIT.fullmatch(each.strip()) for each in words)
    by_name = {_unit_name(each[1]): each[1] for each in found if each}
    if by_name.keys() & ORDINALS:
        return []
    return sorted(by_name.values()) if len(by_name) <= MAX_UNITS else []


def _unit_name(unit: str) -> str:
    """Return a unit without case and plural: "Kgs" and "kg" are the same."""
    return unit.casefold().removesuffix("s")


def _dates(*formats: str) -> Matches:
    def matches(texts: list[str]) -> list[bool]:
        cells = pd.Series(texts, dtype="str")
        parsed = [~np.isnan(parse_date_texts(cells, each)) for each in formats]
        dates: list[bool] = (np.logical_or.reduce(parsed) & cells.str.contains(DATE_LIKE)).tolist()
        return dates

    return matches


def _different_date_formats(words: list[str]) -> list[str]:
    """List formats of dates: the first one, and others that read what those before it cannot."""
    # Words of several chunks may repeat.
    distinct = sorted(set(words))
    chosen = np.random.default_rng(0).permutation(len(distinct))[:CHECKED_WORDS]
    rest = [distinct[i] for i in chosen if re.search(DATE_LIKE, distinct[i])]
    formats: list[str] = []
    failures = 0
    while rest and failures < MAX_FAILURES and len(formats) <= MAX_FORMATS:
        found = {each: _dates(each)(rest) for each in candidate_date_formats(rest[0])}
        fitting = [each for each, dates in found.items() if dates[0]]
        if fitting:
            best = max(fitting, key=lambda each: sum(found[each]))
            formats.append(best)
            rest = [each for each, date in zip(rest, found[best], strict=True) if not date]
        else:
            rest, failures = rest[1:], failures + 1
    return formats if len(formats) <= MAX_FORMATS else []


def _written_differently(texts: list[str]) -> list[str]:
    """Return two numbers with different signs, or with different decimal marks."""
    by_sign = {affixes(each): each for each in reversed(texts)}
    if len(by_sign) > 1:
        return list(by_sign.values())[::-1]
    by_mark = [
        next((each for each in texts if not _has_mark(each, mark)), None) for mark in (COMMA, POINT)
    ]
    return [each for each in by_mark if each is not None]
