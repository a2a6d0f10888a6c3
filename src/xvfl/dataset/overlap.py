"""How the rows of the parties and the labels overlap, and warnings about ids that hardly match."""

from collections.abc import Callable, Collection, Mapping
from itertools import combinations

import numpy as np
import pandas as pd

from xvfl.data.id_index import IdIndex
from xvfl.data.near_ids import SAMPLE_SIZES, IdSample, find_near_misses, is_in, sample_ids
from xvfl.data.sources import Source, source_index
from xvfl.dataset.row_numbers import MIN_ROWS, warn_row_numbers
from xvfl.errors import warn

Overlap = dict[str, dict[str, int]]
"""Counts of rows by party and for `ALL_PARTIES`: the `COLUMNS`."""
COLUMNS = {
    "rows": "rows of the table; of all parties: different ids",
    "shared": "rows that another party holds too",
    "labeled": "rows with a label",
    "full": "rows used for training, validation or test that are full; of all parties: full at "
    "every party",
}
ALL_PARTIES = "all parties"
"""A party's name has no space."""
LABELS = "labels"
MIN_SHARE = 0.01
"""A smaller share of common ids is suspicious."""
MIN_LABEL_SHARE = 0.05
"""The same for labels that measure predictions."""
Unmatched = Callable[[str, str, int], IdSample]
"""Samples the ids of one table, of at most so many, that another table does not have."""


def count_overlap(ids: Mapping[str, pd.Index], labeled: Mapping[str, int]) -> Overlap:
    """Count the rows of each table and the shared ones; `labeled` by table and for all."""
    codes, distinct = pd.factorize(np.concatenate([each.to_numpy() for each in ids.values()]))
    shared = np.bincount(codes) > 1
    by_table = np.split(codes, np.cumsum([len(each) for each in ids.values()])[:-1])
    counts = {
        name: (len(own), int(shared[own].sum())) for name, own in zip(ids, by_table, strict=True)
    }
    counts[ALL_PARTIES] = len(distinct), int(shared.sum())
    return {
        name: {"rows": rows, "shared": common, "labeled": labeled.get(name, 0)}
        for name, (rows, common) in counts.items()
    }


def add_full_rows(overlap: Overlap, full: Mapping[str, int]) -> Overlap:
    """Add the numbers of full rows, by party and for all parties."""
    return {name: {**counts, "full": full[name]} for name, counts in overlap.items()}


def warn_near_misses(overlap: Overlap, labels: int, unmatched: Unmatched) -> set[str]:
    """Warn about ids that differ only in spelling; return the tables that have some.

    `labels` is the number of labeled rows.
    """
    parties = [name for name in overlap if name != ALL_PARTIES]
    inside = any(overlap[name]["labeled"] == labels for name in parties)
    pairs = combinations(parties if inside else [LABELS, *parties], 2)
    return {each for pair in pairs if _warn_near_misses_of(*pair, unmatched) for each in pair}


def _warn_near_misses_of(first: str, second: str, unmatched: Unmatched) -> bool:
    """Warn about ids of two tables; return whether there are any."""
    left, right = (
        unmatched(*pair, size)
        for pair, size in zip(((first, second), (second, first)), SAMPLE_SIZES, strict=True)
    )
    found = find_near_misses(left, right)
    for near_miss in found:
        _warn(f"{_title(first)} and {_title(second)}: {near_miss}")
    return bool(found)


def warn_small_overlap(overlap: Overlap, labels: int, explained: Collection[str]) -> None:
    """Warn about parties that share hardly any id with the labels, or with the other parties.

    The `explained` ones have ids in another spelling.
    """
    for name in overlap:
        if name != ALL_PARTIES and name not in explained:
            rows, others = overlap[name]["rows"], _rows_of_others(overlap, name)
            _check_share(name, "labeled", overlap[name]["labeled"], rows, labels)
            _check_share(name, "held by another party", overlap[name]["shared"], rows, others)


def check_ids(ids: Mapping[str, pd.Index]) -> Overlap:
    """Count the overlap of tables without labels; warn about ids that hardly match."""
    overlap = count_overlap(ids, {})
    warn_small_overlap(overlap, 0, warn_near_misses(overlap, 0, _unmatched(ids)))
    return overlap


def check_tables(tables: Mapping[str, Source]) -> None:
    """Warn if the ids of tables that are used together hardly match.

    Rows that only one party holds are normal, so a partial overlap gives no warning.
    """
    if len(tables) > 1:
        ids = {name: source_index(table) for name, table in tables.items()}
        first, *others = ids.values()
        if not all(each.equals(first) for each in others):
            check_ids(ids)
        warn_row_numbers(tables)


def check_index(index: IdIndex, tables: Mapping[str, str]) -> None:
    """Check tables on disk as `check_tables`; `tables` has the name of each in the database."""
    if len(tables) < 2:
        return
    common = {(a, b): index.count_common(tables[a], tables[b]) for a, b in combinations(tables, 2)}
    overlap = {
        name: {
            "rows": index.count(table),
            "shared": max(n for pair, n in common.items() if name in pair),
            "labeled": 0,
        }
        for name, table in tables.items()
    }

    def unmatched(name: str, other: str, size: int) -> IdSample:
        return index.sample_unmatched(tables[name], tables[other], size)

    warn_small_overlap(overlap, 0, warn_near_misses(overlap, 0, unmatched))


def check_labels(labels: pd.Index, tables: Mapping[str, Source]) -> None:
    """Warn if labels, with which predictions are compared, hardly match the tables.

    No match at all is an error of the caller.
    """
    ids = {LABELS: labels, **{name: source_index(table) for name, table in tables.items()}}
    for name in tables:
        _warn_near_misses_of(LABELS, name, _unmatched(ids))
    held = np.logical_or.reduce([is_in(labels, ids[name]) for name in tables])
    rows = len(pd.Index(np.concatenate([ids[name].to_numpy() for name in tables])).unique())
    common, possible = int(held.sum()), min(len(labels), rows)
    if possible >= MIN_ROWS and 0 < common < MIN_LABEL_SHARE * possible:
        _warn(
            f"labels: only {common:,} of {len(labels):,} match a row of the tables (at most "
            f"{possible:,} could), so the result describes few rows; check that the index of the "
            "labels holds the same ids, written alike"
        )


def _unmatched(ids: Mapping[str, pd.Index]) -> Unmatched:
    return lambda name, other, size: sample_ids(ids[name], ids[other], size)


def _rows_of_others(overlap: Overlap, party: str) -> int:
    return max(each["rows"] for name, each in overlap.items() if name not in (party, ALL_PARTIES))


def _check_share(party: str, what: str, common: int, rows: int, others: int) -> None:
    possible = min(rows, others)
    if possible >= MIN_ROWS and common < MIN_SHARE * possible:
        _warn(
            f"party {party!r}: only {common:,} of {rows:,} rows are {what}, {possible:,} could be; "
            "check that the id columns hold the same ids, written alike"
        )


def _title(name: str) -> str:
    return LABELS if name == LABELS else f"party {name!r}"


def _warn(text: str) -> None:
    warn(text)
