"""Datasets in memory: ids are matched with pandas, rows are split by a permutation."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.data.encoded import Encoded
from xvfl.data.near_ids import IdSample, is_in, sample_ids
from xvfl.data.sources import Source, source_ids
from xvfl.data.targets import TargetValues
from xvfl.dataset.overlap import ALL_PARTIES, LABELS, Overlap, add_full_rows, count_overlap
from xvfl.dataset.prepare import (
    IdMatch,
    Int64Array,
    Metadata,
    PreparationPlan,
    StoreRows,
    Values,
    prepare,
)
from xvfl.dataset.row_numbers import warn_row_numbers
from xvfl.dataset.splits import (
    Parts,
    RowCounts,
    Splits,
    count_classes,
    drop_unobserved,
    split,
)
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import PartyTable, Rows, align_rows, observation_levels
from xvfl.primitives.task import Regression


@dataclass(frozen=True)
class InMemoryDataset(Metadata):
    """Prepared rows in memory."""

    tables: dict[str, PartyTable]
    ids: list[str]
    """Labeled ids that some party holds, in the labels' order, then unlabeled ids."""
    rows: Rows
    """The same rows, as the coordinator sees them."""
    train: Tensor
    validation: Tensor
    test: Tensor
    """Row numbers of each part."""

    def prior(self) -> list[float]:
        """Return the share of each class, or the mean number, of the labeled training rows."""
        if isinstance(self.task, Regression):
            return [self.task.mean]
        counts = count_classes(self.rows.y[self.train], self.task.n_outputs)
        return [float(count) / float(counts.sum()) for count in counts]

    def row_counts(self) -> RowCounts:
        """Count the rows of each part."""
        labeled = int(self.rows.labeled[self.train].sum())
        unlabeled = len(self.train) - labeled
        return RowCounts(labeled, unlabeled, len(self.validation), len(self.test))

    def training_rows(self, device: torch.device) -> Rows:
        """Return the rows to train on."""
        return self.rows.to(device).take(self.train.to(device))

    def validation_rows(self, device: torch.device) -> Rows:
        """Return the rows to validate on."""
        return self.rows.to(device).take(self.validation.to(device))

    def overlap(self) -> Overlap:
        """Count the rows of each party: all, shared, labeled and full."""
        full = dict(zip(self.tables, self.rows.full.sum(0).tolist(), strict=True))
        every = int(self.rows.full.all(1).sum())
        return add_full_rows(self.id_overlap, {**full, ALL_PARTIES: every})

    def fingerprint(self) -> str:
        """Return a hash of the rows, their labels and their split."""
        order = [self.ids, self.train.tolist(), self.validation.tolist(), self.rows.y.tolist()]
        digest = blake2b(json.dumps(order).encode(), digest_size=16)
        for table in self.tables.values():
            for part in (table.values, table.codes, table.observed):
                digest.update(part.numpy().tobytes())
        return digest.hexdigest()


def prepare_in_memory(
    sources: Mapping[str, Source], labels: pd.Series, plan: PreparationPlan
) -> InMemoryDataset:
    """Prepare tables and labels in memory."""
    warn_row_numbers(sources)
    tables = {name: [source] for name, source in sources.items()}
    return prepare(_InMemoryBackend(sources, labels), tables, [labels], "labels", plan)


def to_party_table(layout: Layout, encoded: Encoded) -> PartyTable:
    """Convert encoded rows to tensors."""
    arrays = (encoded.values, encoded.codes, encoded.observed)
    return PartyTable(layout, *(torch.from_numpy(array) for array in arrays))


def rows_of_ids(
    ids: Sequence[str],
    encoded: Mapping[str, Encoded],
    tables: Mapping[str, PartyTable],
    full_threshold: Mapping[str, float],
) -> Rows:
    """Look up ids in the parties' encoded rows."""
    handles = [_places(ids, each.ids) for each in encoded.values()]
    levels = [observation_levels(tables[name].observed, full_threshold[name]) for name in encoded]
    return align_rows(torch.from_numpy(np.stack(handles, 1)).long(), levels)


def _places(ids: Sequence[str], own: Sequence[str]) -> Int64Array:
    """Return the row of each id in a table, −1 where the table does not have it. (n,)"""
    if ids == own:
        return np.arange(len(own))
    return pd.Index(own).get_indexer(pd.Index(ids)).astype(np.int64)


class _InMemoryBackend:
    """Matches, splits and stores rows in memory; also implements `Placement`."""

    def __init__(self, sources: Mapping[str, Source], labels: pd.Series) -> None:
        self._ids = {name: pd.Index(source_ids(source)) for name, source in sources.items()}
        self._labels = labels
        self._stored: dict[str, tuple[Int64Array, PartyTable]] = {}

    def match(self, values: Values, unlabeled: bool) -> IdMatch:
        self._values = values
        codes = values.codes(self._labels)
        index, codes = self._labels.index[codes >= 0], codes[codes >= 0]
        held = {name: is_in(index, ids) for name, ids in self._ids.items()}
        matched = np.logical_or.reduce(list(held.values()))
        self._index, self._codes = index[matched], codes[matched]
        strata, sizes = np.unique(values.strata(self._codes), return_counts=True)
        if unlabeled:
            self._add_unlabeled(index)
        class_sizes = dict(zip(strata.tolist(), sizes.tolist(), strict=True))
        named = {LABELS: index, **self._ids}

        def unmatched(name: str, other: str, size: int) -> IdSample:
            return sample_ids(named[name], named[other], size)

        labeled = {n: int(mask.sum()) for n, mask in {**held, ALL_PARTIES: matched}.items()}
        overlap = count_overlap(self._ids, labeled)
        return IdMatch(len(index), class_sizes, overlap, unmatched)

    def _add_unlabeled(self, labeled: pd.Index) -> None:
        """Append the parties' ids without label, code −1."""
        ids = pd.Index(np.concatenate([each.to_numpy() for each in self._ids.values()])).unique()
        others = ids[~is_in(ids, labeled)]
        self._index = self._index.append(others)
        self._codes = np.concatenate([self._codes, np.full(len(others), -1)])

    def split(self, numbers: Mapping[int, int], splits: Splits) -> "_InMemoryBackend":
        # Code −1, an unlabeled row, selects the last entry.
        number = np.full(max(numbers) + 2, -1, dtype=np.int64)
        number[list(numbers)] = list(numbers.values())
        self._y = torch.from_numpy(number[self._values.strata(self._codes)])
        self._parts: Parts = split(self._y, splits)
        self._training: NDArray[np.bool_] = np.zeros(len(self._y), dtype=bool)
        self._training[self._parts[0].numpy()] = True
        return self

    def places(self, party: str) -> Iterator[Int64Array]:
        yield self._index.get_indexer(self._ids[party]).astype(np.int64)

    def is_training(self, places: Int64Array) -> NDArray[np.bool_]:
        return self._training[places] & (places >= 0)

    def label_codes(self, places: Int64Array) -> Int64Array:
        numbers = isinstance(self._values, TargetValues)
        codes: Int64Array = (self._codes if numbers else self._y.numpy())[places]
        return codes

    def training_codes(self) -> Iterator[Int64Array]:
        yield self.label_codes(self._parts[0].numpy())

    def storage(self, party: str, layout: Layout) -> StoreRows:
        def store(places: Int64Array, encoded: Encoded) -> None:
            self._stored[party] = places, to_party_table(layout, encoded)

        return store

    def dataset(self, metadata: Metadata) -> InMemoryDataset:
        handles = torch.full((len(self._y), len(self._stored)), -1)
        tables, levels = {}, []
        for i, (name, (places, table)) in enumerate(self._stored.items()):
            tables[name] = table
            handles[places, i] = torch.arange(len(table))
            levels.append(observation_levels(table.observed, metadata.full_threshold[name]))
        rows = align_rows(handles, levels, self._y)
        task, class_weight = metadata.task, metadata.class_weight
        rows, (train, validation, test) = drop_unobserved(
            rows, self._parts, class_weight, task.min_classes
        )
        if isinstance(task, Regression) and isinstance(self._values, TargetValues):
            rows = replace(rows, y=task.standardize(self._values.numbers(self._codes)))
        return InMemoryDataset(
            **vars(metadata),
            tables=tables,
            ids=self._index.tolist(),
            rows=rows,
            train=train,
            validation=validation,
            test=test,
        )
