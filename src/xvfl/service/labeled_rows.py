"""The coordinator's rows: labels, the parties that hold each row, and the split.

Shapes: N rows, k parties.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from xvfl.config import TaskKind
from xvfl.data.labels import encode_labels
from xvfl.data.targets import find_targets, moments, warn_few_values
from xvfl.dataset.prepare import no_shared_ids
from xvfl.dataset.splits import Parts, Splits, drop_unobserved, split
from xvfl.errors import InputError
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.primitives.rows import Rows, align_rows
from xvfl.primitives.task import Classification, Regression, Task


@dataclass(frozen=True)
class MatchedLabels:
    """The labels of a coordinator, and which parties hold its rows."""

    labels: pd.Series
    ids: Sequence[str]
    """Ids of the alignment; with uploads, some have no label."""
    alignment: CoordinatorAlignment


@dataclass(frozen=True)
class LabeledRows:
    """The coordinator's rows that at least one party holds, in the order of its table."""

    task: Task
    strata: Tensor
    """(N,) class numbers, or 0 for numbers; −1 without a label."""
    y: Tensor
    """(N,) class numbers, or standardized numbers; −1 or NaN without a label."""
    handles: Tensor
    """(N, k) handle of each row at each party, -1 if the party does not hold it."""
    parts: Parts
    """Rows without a label are training rows only."""
    held_out: Tensor
    """Rows that are not training rows, with or without a label."""
    names: tuple[str, ...]
    """The parties, in the order of the columns of `handles`."""

    @classmethod
    def load(
        cls,
        matched: MatchedLabels,
        names: Sequence[str],
        splits: Splits,
        kind: TaskKind = "classification",
        by_id: bool = False,
    ) -> "LabeledRows":
        """Select the rows that at least one party holds, and split them by class.

        With `by_id`, rows may have no label, and each row is held out or not by its id alone
        (`split_by_id`).
        """
        labels, matches = matched.labels, matched.alignment.matches
        handles = torch.stack([torch.from_numpy(matches[name].handles) for name in names], 1)
        for i, name in enumerate(names):
            if not bool((handles[:, i] >= 0).any()):
                raise no_shared_ids(name, "; check that both sides use the same ids and `rule`")
        held = (handles >= 0).any(1)
        ids = pd.Index(matched.ids)[held.numpy()]
        found = labels.index.get_indexer(ids)
        known = torch.from_numpy(found >= 0)
        used = labels.iloc[found[found >= 0]]
        if not len(used):
            raise InputError("labels: no party holds a row with a label; check ids and `rule`")
        strata = torch.where(known, 0, -1)
        if kind == "classification":
            classes, numbers = encode_labels(used)
            strata[known] = torch.from_numpy(numbers)
        parts = split_by_id(ids.tolist(), splits) if by_id else split(strata, splits)
        held_out = torch.cat(parts[1:])
        validation, test = (part[known[part]] for part in parts[1:])
        parts = parts[0], validation, test
        if kind == "classification":
            task: Task = Classification(classes)
            y = strata
        else:
            warn_few_values(find_targets([used], "labels"), "labels")
            targets = np.full(len(known), np.nan)
            targets[known.numpy()] = used.to_numpy()
            _, mean, std = moments([targets[parts[0].numpy()]])
            task = Regression(mean, std or 1.0)
            y = task.standardize(targets)
        return cls(task, strata, y, handles[held], parts, held_out, tuple(names))

    @property
    def known(self) -> Tensor:
        """Which rows have a label. (N,)"""
        return self.strata >= 0

    def training_handles(self) -> dict[str, Tensor]:
        """Return each party's handles of the training rows."""
        handles = self.handles[self.parts[0]].int()
        return {name: each[each >= 0] for name, each in zip(self.names, handles.T, strict=True)}

    def held_out_handles(self) -> dict[str, Tensor]:
        """Return each party's handles of the held-out rows, sorted."""
        handles = self.handles[self.held_out].int()
        held = zip(self.names, handles.T, strict=True)
        return {name: each[each >= 0].sort().values for name, each in held}

    def without(self, withdrawn: Mapping[str, Sequence[int]]) -> "LabeledRows":
        """Treat withdrawn rows, given by handle, as rows that the party does not hold."""
        gone = [torch.tensor(withdrawn[name], dtype=torch.long) for name in self.names]
        columns = zip(self.handles.T, gone, strict=True)
        kept = [torch.where(torch.isin(each, rows), -1, each) for each, rows in columns]
        return replace(self, handles=torch.stack(kept, 1))

    def matched_rows(self) -> dict[str, int]:
        """Return the number of rows matched with each party."""
        counts = (self.handles >= 0).sum(0).tolist()
        return dict(zip(self.names, counts, strict=True))

    def rows(self, levels: Mapping[str, Tensor], class_weight: str) -> tuple[Rows, Parts]:
        """Combine labels and handles with the parties' observation levels of their rows."""
        rows = align_rows(self.handles, [levels[name] for name in self.names], self.strata)
        rows, parts = drop_unobserved(rows, self.parts, class_weight, self.task.min_classes)
        return replace(rows, y=self.y), parts

    def prior(self, training: Tensor) -> list[float]:
        """Return the share of each class, or the mean number, of the training rows."""
        if isinstance(self.task, Regression):
            return [self.task.mean]
        known = self.y[training][self.y[training] >= 0]
        counts = torch.bincount(known, minlength=self.task.n_outputs).double()
        shares: list[float] = (counts / counts.sum()).tolist()
        return shares


def split_by_id(ids: Sequence[str], splits: Splits) -> Parts:
    """Split rows by a keyed hash of their ids.

    A row stays in its part whatever the labels, the parties and the other rows are.
    """
    key = splits.seed.to_bytes(64, "big")
    hashes = (blake2b(each.encode(), key=key, digest_size=8).digest() for each in ids)
    uniform = torch.tensor([int.from_bytes(each, "big") / 2**64 for each in hashes])
    test = uniform < splits.test
    validation = ~test & (uniform < splits.test + (1 - splits.test) * splits.validation)
    train, validation, test = (
        part.nonzero().flatten() for part in (~test & ~validation, validation, test)
    )
    return train, validation, test
