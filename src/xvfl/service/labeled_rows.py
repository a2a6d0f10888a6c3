"""The coordinator's rows: labels, the parties that hold each row, and the split.

Shapes: N rows, k parties.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from torch import Tensor

from xvfl.config import TaskKind
from xvfl.data.labels import encode_labels
from xvfl.data.targets import find_targets, moments, warn_few_values
from xvfl.dataset.prepare import no_shared_ids
from xvfl.dataset.splits import Parts, Splits, drop_unobserved, split
from xvfl.matching.alignment import CoordinatorAlignment
from xvfl.primitives.rows import Rows, align_rows
from xvfl.primitives.task import Classification, Regression, Task


@dataclass(frozen=True)
class LabeledRows:
    """Labeled rows that at least one party holds, in the order of the labels."""

    task: Task
    strata: Tensor
    """(N,) class numbers, by which rows are split; 0 for numbers."""
    y: Tensor
    """(N,) class numbers, or standardized numbers."""
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
        kind: TaskKind = "classification",
        stratified: bool = True,
    ) -> "LabeledRows":
        """Select the labeled rows that at least one party holds, and split them.

        If not `stratified`, rows are drawn without looking at labels.
        """
        handles = torch.stack([torch.from_numpy(alignment.matches[n].handles) for n in names], 1)
        for i, name in enumerate(names):
            if not bool((handles[:, i] >= 0).any()):
                raise no_shared_ids(name, "; check that both sides use the same ids and `rule`")
        held = (handles >= 0).any(1)
        used = labels[held.numpy()]
        if kind == "classification":
            classes, numbers = encode_labels(used)
            y = torch.from_numpy(numbers)
            parts = split(y if stratified else torch.zeros_like(y), splits)
            return cls(Classification(classes), y, y, handles[held], parts, tuple(names))
        warn_few_values(find_targets([used], "labels"), "labels")
        strata, targets = torch.zeros(len(used), dtype=torch.long), used.to_numpy()
        parts = split(strata, splits)
        _, mean, std = moments([targets[parts[0].numpy()]])
        task = Regression(mean, std or 1.0)
        return cls(task, strata, task.standardize(targets), handles[held], parts, tuple(names))

    def training_handles(self) -> dict[str, Tensor]:
        """Return each party's handles of the training rows."""
        handles = self.handles[self.parts[0]].int()
        return {name: each[each >= 0] for name, each in zip(self.names, handles.T, strict=True)}

    def held_out_handles(self) -> dict[str, Tensor]:
        """Return each party's handles of the validation and test rows, sorted."""
        handles = self.handles[torch.cat(self.parts[1:])].int()
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
        counts = torch.bincount(self.y[training], minlength=self.task.n_outputs).double()
        shares: list[float] = (counts / counts.sum()).tolist()
        return shares
