"""Prepare the parties' tables and the labels for training: match, split, fit encoders, encode.

Tables are read in chunks; a table in memory is a single chunk. A backend decides where ids are
matched, how rows are split and where encoded rows are stored. Each party's encoder is fitted on its
own training rows only.
"""

import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from xvfl.config import COORDINATOR, TableOptions
from xvfl.data.column_stats import FitLimits
from xvfl.data.encoded import Encoded
from xvfl.data.labels import LabelValues, encode_labels, find_labels
from xvfl.data.sources import Encoder, Source, encode, fit_encoder, take_rows
from xvfl.dataset.splits import Splits
from xvfl.errors import DataWarning, InputError, unknown
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import full_threshold_from_counts

Int64Array = NDArray[np.int64]
D = TypeVar("D", covariant=True)


class ChunkedTable(Protocol):
    """A party's rows, read in chunks."""

    def chunks(self) -> Iterator[Source]:
        """Read the rows in order; each call starts again."""

    def first_id(self) -> str | None:
        """Return the first row's id, for messages."""


class LabelColumn(Protocol):
    """The labels, read in chunks."""

    @property
    def where(self) -> str:
        """The column's name for messages."""

    def chunks(self) -> Iterator[pd.Series]:
        """Read the labels in order, indexed by id."""

    def first_id(self) -> str | None:
        """Return the first row's id, for messages."""


@dataclass(frozen=True)
class IdMatch:
    """How many labeled rows the parties hold."""

    labeled: int
    """Labeled rows."""
    shared: Mapping[str, int]
    """Of these, the rows that each party holds."""
    class_sizes: Mapping[int, int]
    """Of these, the rows that any party holds, by label; labels without rows are left out."""


class Placement(Protocol):
    """Assigns each row of the parties' tables a place among the labeled rows."""

    def places(self, party: str) -> Iterator[Int64Array]:
        """Yield the places of each chunk of a party's table, −1 for rows that are not used."""

    def is_training(self, places: Int64Array) -> NDArray[np.bool_]:
        """Tell which places are training rows."""


class RowStorage(Protocol):
    """Stores a party's encoded rows."""

    def put(self, places: Int64Array, encoded: Encoded) -> None:
        """Store the rows of a chunk at their places."""


@dataclass(frozen=True)
class Metadata:
    """What a dataset has besides its rows."""

    classes: list[Any]
    encoders: dict[str, Encoder]
    full_threshold: dict[str, float]
    class_weight: str


class Backend(Protocol[D]):
    """Matches, splits and stores rows, in memory or on disk."""

    def match(self, values: LabelValues) -> IdMatch:
        """Match the ids of the labels with those of the parties."""

    def split(self, numbers: Mapping[int, int], splits: Splits) -> Placement:
        """Split the matched rows; `numbers` maps labels to class numbers."""

    def storage(self, party: str, layout: Layout) -> RowStorage:
        """Open the storage of a party's encoded rows."""

    def dataset(self, metadata: Metadata) -> D:
        """Return the dataset, once all rows are stored."""


def prepare(
    backend: Backend[D],
    tables: Mapping[str, ChunkedTable],
    labels: LabelColumn,
    options: Mapping[str, TableOptions],
    splits: Splits,
    full_threshold: float | None,
    class_weight: str,
    limits: FitLimits | None = None,
) -> D:
    """Match the ids, split the rows, fit the encoders and encode all rows."""
    check_party_names(tables)
    for name in options:
        if name not in tables:
            raise InputError(f"table options: {unknown('party', name, tables)}")
    values = find_labels(labels.chunks(), labels.where)
    match = backend.match(values)
    _check_match(match, tables, labels)
    classes, numbers = encode_labels(values.plain.iloc[list(match.class_sizes)])
    placement = backend.split(dict(zip(match.class_sizes, numbers.tolist(), strict=True)), splits)
    encoders, thresholds = {}, {}
    for name, table in tables.items():
        training = _training_chunks(table, placement, name)
        encoder = fit_encoder(training, options.get(name, TableOptions()), name, limits)
        storage = backend.storage(name, encoder.layout)
        rows = _encode_table(table, placement, name, encoder, storage)
        encoders[name] = encoder
        thresholds[name] = full_threshold or full_threshold_from_counts(torch.from_numpy(rows))
    return backend.dataset(Metadata(classes, encoders, thresholds, class_weight))


def check_party_names(names: Collection[str]) -> None:
    """Reject fewer than two parties, and names that cannot be file names."""
    if len(names) < 2:
        raise InputError(f"expected two parties or more, got {list(names)}")
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name == COORDINATOR:
            raise InputError(
                f"party name {name!r}: expected letters, digits, '_', '-' or '.', and not "
                f"{COORDINATOR!r}; rename the party"
            )


def no_shared_ids(party: str, details: str) -> InputError:
    """Build the error for a party that holds none of the labeled rows."""
    return InputError(f"party {party!r}: shares no id with the labels{details}")


def _check_match(match: IdMatch, tables: Mapping[str, ChunkedTable], labels: LabelColumn) -> None:
    for name, shared in match.shared.items():
        if not shared:
            raise no_shared_ids(
                name,
                f" (its first id is {tables[name].first_id()!r}, the labels' first is "
                f"{labels.first_id()!r}); check that both use the same id column",
            )
    unmatched = match.labeled - sum(match.class_sizes.values())
    if unmatched:
        warnings.warn(
            f"{unmatched} of {match.labeled} labeled ids are held by no party and were dropped",
            DataWarning,
            stacklevel=4,
        )


def _training_chunks(table: ChunkedTable, placement: Placement, party: str) -> Iterator[Source]:
    for chunk, places in zip(table.chunks(), placement.places(party), strict=True):
        training = placement.is_training(places)
        if training.any():
            yield take_rows(chunk, training)


def _encode_table(
    table: ChunkedTable, placement: Placement, party: str, encoder: Encoder, storage: RowStorage
) -> Int64Array:
    """Encode and store a party's rows; count training rows by the number of observed features."""
    rows = np.zeros(encoder.layout.raw + 1, dtype=np.int64)
    for chunk, places in zip(table.chunks(), placement.places(party), strict=True):
        used = places >= 0
        if not used.any():
            continue
        encoded = encode(encoder, take_rows(chunk, used))
        storage.put(places[used], encoded)
        observed = encoded.observed[placement.is_training(places[used])].sum(1)
        rows += np.bincount(observed, minlength=len(rows))
    return rows
