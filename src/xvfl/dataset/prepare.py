"""From the parties' own tables and the labels to rows that train.

Each party's encoder is fitted on its own training rows and sees nothing else; the coordinator
learns who holds which labelled row how well.
"""

import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from xvfl.config import COORDINATOR, TableOptions
from xvfl.data.encoder import Encoded
from xvfl.data.sources import Encoder, Source, encode, fit_encoder, source_ids, take
from xvfl.errors import DataWarning, InputError, unknown
from xvfl.primitives.layout import Layout
from xvfl.primitives.random import stream
from xvfl.primitives.rows import PartyTable, Rows, full_share, is_full


@dataclass(frozen=True)
class InMemoryDataset:
    """Everything training needs, party by party."""

    encoders: dict[str, Encoder]
    tables: dict[str, PartyTable]
    full_threshold: dict[str, float]
    classes: list[Any]
    ids: list[str]
    """Labelled ids that some party holds, in the labels' order."""
    rows: Rows
    """The same rows as the coordinator knows them."""
    train: Tensor
    validation: Tensor
    test: Tensor
    """Row numbers of each part."""

    @property
    def layouts(self) -> dict[str, Layout]:
        """What each party's encoded features look like."""
        return {name: encoder.layout for name, encoder in self.encoders.items()}

    def prior(self) -> list[float]:
        """Share of each class among the training rows."""
        counts = torch.bincount(self.rows.y[self.train], minlength=len(self.classes))
        return [float(count) / len(self.train) for count in counts]

    def training(self, device: torch.device) -> Rows:
        """Give the rows to train on."""
        return self.rows.to(device).take(self.train.to(device))

    def validating(self, device: torch.device) -> Rows:
        """Give the rows to validate on."""
        return self.rows.to(device).take(self.validation.to(device))

    def identity(self) -> str:
        """Tell these rows from any others."""
        said = [self.ids, self.train.tolist(), self.validation.tolist(), self.rows.y.tolist()]
        digest = blake2b(json.dumps(said).encode(), digest_size=16)
        for table in self.tables.values():
            for part in (table.values, table.codes, table.observed):
                digest.update(part.numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Splits:
    """How labelled rows are divided."""

    test: float
    validation: float
    seed: int


def prepare(
    sources: Mapping[str, Source],
    labels: pd.Series,
    options: Mapping[str, TableOptions],
    splits: Splits,
    full_threshold: float | None,
    class_weight: str,
) -> InMemoryDataset:
    """Match the ids, split the rows, fit the encoders, encode."""
    check_names(sources)
    for name in options:
        if name not in sources:
            raise InputError(f"table options: {unknown('party', name, sources)}")
    held = {name: pd.Index(source_ids(source)) for name, source in sources.items()}
    ids = _matched(held, labels)
    classes, y = encode_labels(labels.loc[ids])
    train, validation, test = split(y, splits)
    training = set(np.asarray(ids, dtype=object)[train.numpy()])
    encoders = {
        name: _fit(source, training, options.get(name, TableOptions()), name)
        for name, source in sources.items()
    }
    encoded = {name: encode(encoders[name], take(sources[name], ids)) for name in sources}
    tables = {name: as_table(encoders[name].layout, each) for name, each in encoded.items()}
    shares = {}
    for name, each in encoded.items():
        own = torch.tensor([row in training for row in each.ids])
        shares[name] = full_threshold or full_share(tables[name].observed[own])
    rows = place(ids, encoded, tables, shares, y)
    rows, (train, validation, test) = apply_class_weights(
        rows, (train, validation, test), class_weight
    )
    return InMemoryDataset(
        encoders,
        tables,
        shares,
        classes,
        ids,
        rows,
        train,
        validation,
        test,
    )


def encode_labels(labels: pd.Series) -> tuple[list[Any], Tensor]:
    """List the classes, and give each row's class its number."""
    found = {label: _plain(label) for label in pd.unique(labels)}
    if len({str(label) for label in found.values()}) < len(found):
        raise InputError(
            f"labels: expected texts or numbers, not both: {list(found.values())} look alike; "
            "turn all of them into texts"
        )
    order = sorted(found, key=lambda label: (str(type(label)), label))
    y = torch.from_numpy(pd.Categorical(labels, categories=order).codes.astype(np.int64))
    return [found[label] for label in order], y


def check_names(sources: Collection[str]) -> None:
    """Refuse fewer than two parties, and names that cannot be file names."""
    if len(sources) < 2:
        raise InputError(f"expected two parties or more, got {list(sources)}")
    for name in sources:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name == COORDINATOR:
            raise InputError(
                f"party name {name!r}: expected letters, digits, '_', '-' or '.', and not "
                f"{COORDINATOR!r}; rename the party"
            )


def as_table(layout: Layout, encoded: Encoded) -> PartyTable:
    """Hand encoded rows to torch."""
    return PartyTable(
        layout,
        torch.from_numpy(encoded.values),
        torch.from_numpy(encoded.codes),
        torch.from_numpy(encoded.observed),
    )


def place(
    ids: Sequence[str],
    encoded: Mapping[str, Encoded],
    tables: Mapping[str, PartyTable],
    full_threshold: Mapping[str, float],
    y: Tensor | None = None,
) -> Rows:
    """Say for each id which row of which party it is, and how well the party holds it."""
    handles, full, seen = [], [], []
    for name, each in encoded.items():
        at = torch.from_numpy(pd.Index(each.ids).get_indexer(pd.Index(ids))).long()
        mine = tables[name].take(at).observed
        handles.append(at)
        seen.append(mine.any(1))
        full.append(is_full(mine, full_threshold[name]))
    labels = torch.full((len(ids),), -1) if y is None else y
    return Rows(
        torch.stack(handles, 1),
        torch.stack(full, 1),
        torch.stack(seen, 1),
        labels,
        torch.ones(len(ids)),
    )


def split(y: Tensor, splits: Splits) -> tuple[Tensor, Tensor, Tensor]:
    """Divide rows into training, validation and test, class by class."""
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for label in range(int(y.max()) + 1):
        rows = (y == label).nonzero().flatten()
        rng = stream("cpu", splits.seed, "split", label)
        rows = rows[torch.randperm(len(rows), generator=rng)]
        test = round(splits.test * len(rows))
        validation = round(splits.validation * (len(rows) - test))
        pieces = torch.split(rows, [len(rows) - test - validation, validation, test])
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    train, validation_rows, test_rows = (torch.cat(part).sort().values for part in parts)
    return train, validation_rows, test_rows


def _matched(held: Mapping[str, pd.Index], labels: pd.Series) -> list[str]:
    anywhere = np.zeros(len(labels), dtype=bool)
    for name, ids in held.items():
        mine = labels.index.isin(ids)
        if not mine.any():
            raise InputError(
                f"party {name!r}: shares no id with the labels (its first id is {ids[0]!r}, the "
                f"labels' first is {labels.index[0]!r}); check that both use the same id column"
            )
        anywhere |= mine
    lost = int((~anywhere).sum())
    if lost:
        warnings.warn(
            f"{lost} of {len(labels)} labelled ids are held by no party and were dropped",
            DataWarning,
            stacklevel=4,
        )
    return list(labels.index[anywhere])


def _fit(source: Source, training: set[str], options: TableOptions, name: str) -> Encoder:
    own = take(source, [each for each in source_ids(source) if each in training])
    if not source_ids(own):
        raise InputError(f"party {name!r}: holds no training row; add rows or change the seed")
    return fit_encoder(own, options, name)


def apply_class_weights(
    rows: Rows, parts: tuple[Tensor, Tensor, Tensor], class_weight: str
) -> tuple[Rows, tuple[Tensor, Tensor, Tensor]]:
    """Leave out rows that nobody saw anything of, and weigh the others by class."""
    known = rows.seen.any(1)
    lost = int((~known).sum())
    if lost:
        warnings.warn(
            f"{lost} rows hold no observed feature at any party and were left out of training",
            DataWarning,
            stacklevel=4,
        )
    train, validation, test = (part[known[part]] for part in parts)
    counts = torch.bincount(rows.y[train])
    if int((counts > 0).sum()) < 2:
        raise InputError("expected two classes or more among the training rows; add rows")
    if not len(validation):
        raise InputError(
            f"expected rows to validate on, but all {len(train)} are needed to train; add rows "
            "or raise `validation`"
        )
    if class_weight == "balanced":
        each = len(train) / (counts.clamp(min=1) * int((counts > 0).sum()))
        weight = torch.nn.functional.pad(each, (0, int(rows.y.max()) + 1 - len(each)), value=1.0)
        rows = Rows(rows.handles, rows.full, rows.seen, rows.y, weight[rows.y].float())
    return rows, (train, validation, test)


def _plain(label: Any) -> str | int | float | bool:
    plain = label.item() if isinstance(label, np.generic) else label
    if not isinstance(plain, (str, int, float, bool)):
        raise InputError(
            f"labels: expected texts, numbers or booleans, got {type(plain).__name__}; "
            "turn them into texts"
        )
    return plain
