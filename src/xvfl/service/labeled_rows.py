"""The coordinator's rows: labels, the parties that hold each row, and the split.

Shapes: N rows, k parties.
"""

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
class LabeledRows:
    """Labeled rows that at least one party holds, in the order of the labels."""

    classes: list[Any]
    y: Tensor
    handles: Tensor
    """(N, k) handle of each row at each party, -1 if the party does not hold it."""
    parts: Parts
    names: tuple[str, ...]
    """The parties, in the order of the columns of `handles`."""

    @classmethod
    def load(
        cls,
        labels: pd.Series,
        alignment: CoordinatorAlignment,
        names: Sequence[str],
        splits: Splits,
    ) -> "LabeledRows":
        """Select the labeled rows that at least one party holds, and split them."""
        handles = torch.stack([torch.from_numpy(alignment.matches[n].handles) for n in names], 1)
        for i, name in enumerate(names):
            if not bool((handles[:, i] >= 0).any()):
                raise no_shared_ids(name, "; check that both sides use the same ids and `rule`")
        held = (handles >= 0).any(1)
        classes, numbers = encode_labels(labels[held.numpy()])
        y = torch.from_numpy(numbers)
        return cls(classes, y, handles[held], split(y, splits), tuple(names))

    def training_handles(self) -> dict[str, Tensor]:
        """Return each party's handles of the training rows."""
        handles = self.handles[self.parts[0]].int()
        return {name: each[each >= 0] for name, each in zip(self.names, handles.T, strict=True)}

    def matched_rows(self) -> dict[str, int]:
        """Return the number of rows matched with each party."""
        counts = (self.handles >= 0).sum(0).tolist()
        return dict(zip(self.names, counts, strict=True))

    def rows(self, levels: Mapping[str, Tensor], class_weight: str) -> tuple[Rows, Parts]:
        """Combine labels and handles with the parties' observation levels of their rows."""
        rows = align_rows(self.handles, [levels[name] for name in self.names], self.y)
        return drop_unobserved(rows, self.parts, class_weight)
