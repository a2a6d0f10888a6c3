"""The coordinator's rows: its labels, who holds them, and how they are divided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from xvfl.dataset.prepare import Splits, apply_class_weights, encode_labels, split
from xvfl.errors import InputError
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.primitives.rows import Rows


@dataclass(frozen=True)
class Labelled:
    """Labelled rows that some party holds, in the labels' order."""

    ids: list[str]
    classes: list[Any]
    y: Tensor
    handles: Tensor
    """(N, k)"""
    parts: tuple[Tensor, Tensor, Tensor]
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

    def rows(
        self, holdings: Mapping[str, Tensor], class_weight: str
    ) -> tuple[Rows, tuple[Tensor, Tensor, Tensor]]:
        """Say how well each party holds each row, from what the parties said of theirs."""
        seen, full = [], []
        for i, name in enumerate(self.names):
            at = self.handles[:, i]
            how = holdings[name][at.clamp(min=0)]
            seen.append((at >= 0) & (how >= 1))
            full.append((at >= 0) & (how == 2))
        rows = Rows(
            self.handles,
            torch.stack(full, 1),
            torch.stack(seen, 1),
            self.y,
            torch.ones(len(self.y)),
        )
        return apply_class_weights(rows, self.parts, class_weight)


def labelled(
    labels: pd.Series, alignment: CoordinatorAlignment, names: Sequence[str], splits: Splits
) -> Labelled:
    """Keep the labelled rows that some party holds, and divide them."""
    every = torch.stack([torch.from_numpy(alignment.matches[name].handles) for name in names], 1)
    for i, name in enumerate(names):
        if not bool((every[:, i] >= 0).any()):
            raise InputError(
                f"party {name!r}: shares no id with the labels; check that both sides' ids are "
                "of the same kind, and `rule`"
            )
    held = (every >= 0).any(1)
    ids = [str(each) for each in labels.index[held.numpy()]]
    classes, y = encode_labels(labels[held.numpy()])
    return Labelled(ids, classes, y, every[held], split(y, splits), tuple(names))
