"""The coordinator's rows: its labels, who holds them, and how they are divided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from xvfl.data.labels import encode_labels
from xvfl.dataset.prepare import no_shared_ids
from xvfl.dataset.splits import Parts, Splits, drop_unobserved, split
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.primitives.rows import Rows, align_rows


@dataclass(frozen=True)
class Labelled:
    """Labelled rows that some party holds, in the labels' order."""

    ids: list[str]
    classes: list[Any]
    y: Tensor
    handles: Tensor
    """(N, k)"""
    parts: Parts
    """Row numbers to train, validate and test on."""
    names: tuple[str, ...]

    def training(self) -> dict[str, Tensor]:
        """Give each party its handles of the training rows."""
        found = {}
        for i, name in enumerate(self.names):
            mine = self.handles[self.parts[0], i]
            found[name] = mine[mine >= 0].int()
        return found

    def matched(self) -> dict[str, int]:
        """Count the rows matched with each party."""
        counts = (self.handles >= 0).sum(0).tolist()
        return dict(zip(self.names, counts, strict=True))

    def rows(self, levels: Mapping[str, Tensor], class_weight: str) -> tuple[Rows, Parts]:
        """Combine the parties' observation levels of their rows."""
        rows = align_rows(self.handles, [levels[name] for name in self.names], self.y)
        return drop_unobserved(rows, self.parts, class_weight)


def labelled(
    labels: pd.Series, alignment: CoordinatorAlignment, names: Sequence[str], splits: Splits
) -> Labelled:
    """Keep the labelled rows that some party holds, and divide them."""
    every = torch.stack([torch.from_numpy(alignment.matches[name].handles) for name in names], 1)
    for i, name in enumerate(names):
        if not bool((every[:, i] >= 0).any()):
            raise no_shared_ids(name, "; check that both sides' ids are of one kind, and `rule`")
    held = (every >= 0).any(1)
    ids = [str(each) for each in labels.index[held.numpy()]]
    classes, numbers = encode_labels(labels[held.numpy()])
    y = torch.from_numpy(numbers)
    return Labelled(ids, classes, y, every[held], split(y, splits), tuple(names))
