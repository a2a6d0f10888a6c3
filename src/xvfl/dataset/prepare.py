"""Prepare the parties' tables and the labels for training: match, split, fit encoders, encode.

Tables are read in chunks, and more than once; a table in memory is a single chunk. A backend
decides where ids are matched, how rows are split and where encoded rows are stored. Each party's
encoder is fitted on its own training rows only.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from xvfl.config import COORDINATOR, TableOptions, TaskKind
from xvfl.data.codecs import parse_columns
from xvfl.data.encoded import Encoded
from xvfl.data.encoder import TableEncoder
from xvfl.data.label_leaks import MAX_ROWS, find_label_leaks, spread_rows
from xvfl.data.labels import LabelValues, encode_labels, find_labels, warn_many_classes
from xvfl.data.parse import describe_table
from xvfl.data.sources import Encoder, Source, encode, fit_encoder, source_ids, take_rows
from xvfl.data.targets import (
    TargetValues,
    find_target_leaks,
    find_targets,
    moments,
    warn_few_values,
)
from xvfl.data.value_stats import FitLimits
from xvfl.dataset.overlap import Overlap, Unmatched, warn_near_misses, warn_small_overlap
from xvfl.dataset.splits import Splits
from xvfl.errors import InputError, unknown, warn
from xvfl.primitives.layout import Layout
from xvfl.primitives.masks import median_missing_share
from xvfl.primitives.rows import full_threshold_from_counts
from xvfl.primitives.task import Classification, Regression, Task

Int64Array = NDArray[np.int64]
D = TypeVar("D", covariant=True)


@dataclass(frozen=True)
class PreparationPlan:
    """How to read, split and weight the rows of a run."""

    options: Mapping[str, TableOptions]
    """How to read the columns of a party's table, by party."""
    splits: Splits
    full_threshold: float | None = None
    """Observed share from which a row is full; None chooses it for each party."""
    class_weight: str = "none"
    unlabeled: bool = False
    """Whether rows without a label are training rows; otherwise they are left out."""
    encoders: Mapping[str, Encoder] | None = None
    """Encoders to use; None fits them on the training rows."""
    task: TaskKind = "classification"
    """What the labels are: classes or numbers."""


Values = LabelValues | TargetValues
"""The values of the labels: distinct classes, or numbers."""


@dataclass(frozen=True)
class IdMatch:
    """How the ids of the parties and the labels match."""

    labeled: int
    """Labeled rows."""
    class_sizes: Mapping[int, int]
    """Of these, the rows that any party holds, by stratum: by label, or 0 for all numbers; labels
    without rows are left out."""
    overlap: Overlap
    """Rows of each party, shared and labeled."""
    unmatched: Unmatched


class Placement(Protocol):
    """Assigns each row of the parties' tables a place among the rows of the federation."""

    def places(self, party: str) -> Iterator[Int64Array]:
        """Yield the places of each chunk of a party's table, −1 for rows that are not used."""

    def is_training(self, places: Int64Array) -> NDArray[np.bool_]:
        """Tell which places are training rows."""

    def label_codes(self, places: Int64Array) -> Int64Array:
        """Return the class number, or the code of the number, at each place; −1 for none."""

    def training_codes(self) -> Iterator[Int64Array]:
        """Yield `label_codes` of all training rows, in chunks."""


StoreRows = Callable[[Int64Array, Encoded], None]
"""Stores the encoded rows of a chunk at their places."""


@dataclass(frozen=True)
class Metadata:
    """What a dataset has besides its rows."""

    task: Task
    """What the labels are: the classes, or how numbers are standardized."""
    encoders: dict[str, Encoder]
    full_threshold: dict[str, float]
    """Observed share from which a row is full, by party."""
    missing_share: dict[str, float]
    """Missing share of the median feature, in the training rows that a party holds, by party."""
    class_weight: str
    id_overlap: Overlap
    """Rows of each party, shared and labeled."""

    @property
    def classes(self) -> list[Any]:
        """The labels of classes, in the order of their numbers; empty for numbers."""
        return self.task.classes

    @property
    def layouts(self) -> dict[str, Layout]:
        """The layout of each party's encoded features."""
        return {name: encoder.layout for name, encoder in self.encoders.items()}


class Backend(Protocol[D]):
    """Matches, splits and stores rows, in memory or on disk."""

    def match(self, values: Values, unlabeled: bool) -> IdMatch:
        """Match the ids of the labels with those of the parties; optionally keep other ids."""

    def split(self, numbers: Mapping[int, int], splits: Splits) -> Placement:
        """Split the matched rows; `numbers` maps strata to class numbers."""

    def storage(self, party: str, layout: Layout) -> StoreRows:
        """Open the storage of a party's encoded rows."""

    def dataset(self, metadata: Metadata) -> D:
        """Return the dataset, once all rows are stored."""


def prepare(
    backend: Backend[D],
    tables: Mapping[str, Iterable[Source]],
    labels: Iterable[pd.Series],
    where: str,
    plan: PreparationPlan,
    limits: FitLimits | None = None,
) -> D:
    """Match the ids, split the rows, fit the encoders and encode all rows.

    `where` names the labels in messages.
    """
    check_party_names(tables)
    for name in plan.options:
        if name not in tables:
            raise InputError(f"table options: {unknown('party', name, tables)}")
    values = _find_values(labels, where, plan)
    match = backend.match(values, plan.unlabeled)
    explained = warn_near_misses(match.overlap, match.labeled, match.unmatched)
    _check_match(match, tables, labels, explained)
    placement, task = _split(backend, values, match, plan.splits)
    thresholds, missing = {}, {}
    encoders = dict(plan.encoders or _fit_encoders(tables, placement, plan.options, limits))
    for name, table in tables.items():
        encoder = encoders[name]
        _warn_label_leaks(table, placement, name, encoder, values)
        store = backend.storage(name, encoder.layout)
        rows, observed = _encode_table(table, placement, name, encoder, store)
        thresholds[name] = plan.full_threshold or full_threshold_from_counts(rows)
        missing[name] = median_missing_share(observed, int(rows.sum()))
    metadata = Metadata(task, encoders, thresholds, missing, plan.class_weight, match.overlap)
    return backend.dataset(metadata)


def _fit_encoders(
    tables: Mapping[str, Iterable[Source]],
    placement: Placement,
    options: Mapping[str, TableOptions],
    limits: FitLimits | None,
) -> dict[str, Encoder]:
    """Fit the encoder of each party on its training rows; the problems of all tables are one."""
    encoders: dict[str, Encoder] = {}
    problems: list[str] = []
    for name, table in tables.items():
        training = _training_chunks(table, placement, name)
        with InputError.collected(problems):
            own = options.get(name, TableOptions())
            encoders[name] = fit_encoder(training, own, name, limits)
    if problems:
        raise InputError(*problems)
    return encoders


def _find_values(labels: Iterable[pd.Series], where: str, plan: PreparationPlan) -> Values:
    if plan.task == "regression":
        targets = find_targets(labels, where, allow_missing=plan.unlabeled)
        warn_few_values(targets, where)
        return targets
    values = find_labels(labels, where, allow_missing=plan.unlabeled)
    warn_many_classes(values, where)
    return values


def _split(
    backend: Backend[D], values: Values, match: IdMatch, splits: Splits
) -> tuple[Placement, Task]:
    """Split the matched rows class by class, or all together for numbers."""
    if isinstance(values, TargetValues):
        placement = backend.split(dict.fromkeys(match.class_sizes, 0), splits)
        _, mean, std = moments(map(values.numbers, placement.training_codes()))
        if not std > 0:
            raise InputError("expected two different labels or more among the training rows")
        return placement, Regression(mean, std)
    classes, numbers = encode_labels(values.plain.iloc[list(match.class_sizes)])
    class_numbers = dict(zip(match.class_sizes, numbers.tolist(), strict=True))
    return backend.split(class_numbers, splits), Classification(classes)


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


def _check_match(
    match: IdMatch,
    tables: Mapping[str, Iterable[Source]],
    labels: Iterable[pd.Series],
    explained: Collection[str],
) -> None:
    for name in tables:
        if not match.overlap[name]["labeled"]:
            raise no_shared_ids(
                name,
                f" (its first id is {_first_id(tables[name])!r}, the labels' first is "
                f"{_first_id(labels)!r}); check that both use the same id column",
            )
    warn_small_overlap(match.overlap, match.labeled, explained)
    unmatched = match.labeled - sum(match.class_sizes.values())
    if unmatched:
        text = f"{unmatched} of {match.labeled} labeled ids are held by no party and were dropped"
        warn(text)


def _first_id(chunks: Iterable[Source | pd.Series]) -> str | None:
    return next((each for chunk in chunks for each in source_ids(chunk)), None)


def _training_chunks(table: Iterable[Source], placement: Placement, party: str) -> Iterator[Source]:
    for chunk, places in zip(table, placement.places(party), strict=True):
        training = placement.is_training(places)
        if training.any():
            yield take_rows(chunk, training)


def _warn_label_leaks(
    table: Iterable[Source], placement: Placement, party: str, encoder: Encoder, values: Values
) -> None:
    """Warn about columns that repeat the label in the first chunk with training rows."""
    for chunk, places in zip(table, placement.places(party), strict=True):
        training = spread_rows(np.flatnonzero(placement.is_training(places)), MAX_ROWS)
        if isinstance(chunk, pd.DataFrame) and isinstance(encoder, TableEncoder) and len(training):
            where = describe_table(chunk, party)
            rows = chunk.iloc[training]
            used = parse_columns(rows, encoder.codecs, party, encoder.missing)
            codes = placement.label_codes(places[training])
            if isinstance(values, TargetValues):
                leaks = find_target_leaks(used, values.numbers(codes))
            else:
                leaks = find_label_leaks(used, codes)
            for name, leak in leaks:
                warn(f"{where}, column {name!r}: {leak}")
            return


def _encode_table(
    table: Iterable[Source], placement: Placement, party: str, encoder: Encoder, store: StoreRows
) -> tuple[Tensor, Tensor]:
    """Encode and store a party's rows.

    Returns the number of training rows by their number of observed features, (raw + 1,), and the
    number of training rows that observe each feature, (raw,).
    """
    rows = np.zeros(encoder.layout.raw + 1, dtype=np.int64)
    features = np.zeros(encoder.layout.raw, dtype=np.int64)
    for chunk, places in zip(table, placement.places(party), strict=True):
        used = places >= 0
        if not used.any():
            continue
        encoded = encode(encoder, take_rows(chunk, used))
        store(places[used], encoded)
        observed = encoded.observed[placement.is_training(places[used])]
        rows += np.bincount(observed.sum(1), minlength=len(rows))
        features += observed.sum(0)
    return torch.from_numpy(rows), torch.from_numpy(features)
