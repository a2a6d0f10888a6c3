"""Find ids of two tables that do not match but are written almost alike.

Ids are compared as text, so "0012" and "12" are different rows. A near miss is a pair of ids that
become equal if leading zeros, case, spaces or a decimal ".0" are ignored.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

SAMPLE_SIZES = 10_000, 200_000
"""Largest numbers of ids of the two tables that are compared."""
MIN_PAIRS = 2
"""Fewer pairs than this may be a coincidence."""
_DECIMALS = re.compile(r"(?<=\d)\.0+$")
_LEADING_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")


def _without_spaces(text: str) -> str:
    """Remove white space and invisible characters; unify the width of characters."""
    if text.isascii():
        return "".join(text.split())
    folded = unicodedata.normalize("NFKC", text)
    return "".join(c for c in folded if not c.isspace() and unicodedata.category(c) != "Cf")


@dataclass(frozen=True)
class SpellingRule:
    """A difference between two spellings of an id."""

    difference: str
    normalize: Callable[[str], str]
    remedy: str


RULES = (
    SpellingRule(
        "leading zeros",
        lambda text: _LEADING_ZEROS.sub("", text),
        'read the id columns as text, or remove the zeros in both: ids.str.lstrip("0")',
    ),
    SpellingRule(
        "upper and lower case", str.casefold, "use one case in both tables: ids.str.lower()"
    ),
    SpellingRule(
        "spaces",
        _without_spaces,
        'remove them in both tables: ids.str.replace(r"\\s", "", regex=True)',
    ),
    SpellingRule(
        "a decimal .0",
        lambda text: _DECIMALS.sub("", text),
        'write the ids as integers in both tables: ids.str.removesuffix(".0")',
    ),
)
SEVERAL = SpellingRule("several of: leading zeros, case, spaces, .0", str, "write them alike")


@dataclass(frozen=True)
class IdSample:
    """Ids of a table that another table does not have, of a sample of its rows."""

    ids: list[str]
    share: float = 1.0
    """Share of the table's rows that were sampled."""


@dataclass(frozen=True)
class NearMiss:
    """Ids of two tables that differ only in spelling."""

    rule: SpellingRule
    count: int
    """Number of pairs, an estimate if the tables were sampled."""
    exact: bool
    examples: tuple[tuple[str, str], ...]
    """At most two pairs."""

    def __str__(self) -> str:
        pairs = ", ".join(f"{a!r} and {b!r}" for a, b in self.examples)
        return (
            f"{'' if self.exact else 'about '}{self.count:,} ids differ only in "
            f"{self.rule.difference} ({pairs}), so they do not match; {self.rule.remedy}"
        )


def is_in(ids: pd.Index, other: pd.Index) -> NDArray[np.bool_]:
    """Return which ids another table has; for text, `Index.isin` takes twenty times as long."""
    found: NDArray[np.bool_] = other.unique().get_indexer(ids) >= 0
    return found


def sample_ids(ids: pd.Index, other: pd.Index, size: int) -> IdSample:
    """Sample the ids that another table does not have."""
    share = 1.0
    if len(ids) > size:
        share = size / len(ids)
        ids = ids[np.random.default_rng(0).choice(len(ids), size, replace=False)]
    return IdSample(ids[~is_in(ids, other)].tolist(), share)


def find_near_misses(left: IdSample, right: IdSample) -> list[NearMiss]:
    """Find pairs of ids that differ only in spelling, by kind of difference."""
    by_key = {_normalize(text): text for text in left.ids}
    pairs: dict[SpellingRule, list[tuple[str, str]]] = {}
    for text in right.ids:
        partner = by_key.get(_normalize(text))
        if partner is not None:
            pairs.setdefault(_difference(partner, text), []).append((partner, text))
    sampled = left.share * right.share
    return [
        NearMiss(rule, round(len(found) / sampled), sampled == 1.0, tuple(sorted(found)[:2]))
        for rule, found in pairs.items()
        if len(found) >= MIN_PAIRS
    ]


def _normalize(text: str) -> str:
    text = _without_spaces(text).casefold()
    return _LEADING_ZEROS.sub("", _DECIMALS.sub("", text))


def _difference(left: str, right: str) -> SpellingRule:
    equal = (rule for rule in RULES if rule.normalize(left) == rule.normalize(right))
    return next(equal, SEVERAL)
