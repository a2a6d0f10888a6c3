"""Gradient-boosted trees on a sample of the rows of a training: a reference within seconds."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from xvfl.dataset.in_memory import InMemoryDataset
from xvfl.dataset.on_disk.on_disk_dataset import OnDiskDataset
from xvfl.model.trees import (
    POOLED,
    FittedTrees,
    Owner,
    TreeConfig,
    TreeRows,
    TreeTable,
    fit_trees,
    require_lightgbm,
)
from xvfl.primitives.layout import any_image

MAX_ROWS, MAX_CELLS, MAX_TREES = 5_000, 150_000, 100
"""Training rows and cells of the fit of one model, and its trees over all classes."""
MIN_ROWS = 500
"""Training rows that are used in any case, if there are as many."""
MAX_COLUMNS = 300
"""Columns from which a tree of all parties chooses; those of a party in proportion."""
Party = str | None
"""A party by its name; None for all parties."""


@dataclass(frozen=True)
class QuickTrees:
    """Metrics of trees on validation rows, of each party alone and of all columns in one place."""

    metrics: dict[Party, dict[str, float]]
    rows: int
    """Training rows."""
    top_column: tuple[str, str, float]
    """The party and the column with the largest share of the gain, and this share."""


def fit_quick_trees(
    dataset: InMemoryDataset | OnDiskDataset, validation: Tensor, seed: int
) -> QuickTrees | str:
    """Fit trees to a sample of the training rows and test them; or say why there are none.

    `validation` are places among the dataset's validation rows; they also stop the fits early.
    """
    if not isinstance(dataset, InMemoryDataset):
        return "the tables are on disk"
    if any_image(dataset.layouts):
        return "a party has images"
    try:
        require_lightgbm()
    except ModuleNotFoundError:
        return "LightGBM is not installed (pip install 'xvfl[trees]')"
    rows = _sample(dataset, validation)
    every: list[Owner] = [*range(len(rows.tables)), POOLED]
    owners = [each for each in every if len(rows.observed(each, rows.train))]
    if POOLED not in owners:
        return "no labeled training row is observed"
    cells = len(rows.train) * sum(layout.raw for layout in dataset.layouts.values())
    share = min(1.0, MAX_CELLS / max(cells, 1)) / max(1, rows.n_classes - 1)
    limit = max(10, round(MAX_TREES * share))
    columns = cells // max(len(rows.train), 1)
    rows = replace(rows, column_share=min(1.0, MAX_COLUMNS / max(columns, 1)))
    config = TreeConfig(max_trees=limit, patience=10, masked_copies=0)
    fitted = fit_trees(rows, owners, config, seed)
    names: dict[Owner, Party] = {i: name for i, name in enumerate(dataset.tables)} | {POOLED: None}
    metrics = {}
    for owner in owners:
        places = rows.observed(owner, rows.validation)
        if len(places):
            values = dataset.task.values(torch.from_numpy(fitted.logits(owner, "none", places)))
            y = dataset.task.restore(torch.from_numpy(rows.y[places]))
            metrics[names[owner]] = dataset.task.metrics(values, y)
    return QuickTrees(metrics, len(rows.train), _top_column(dataset, fitted))


def tree_rows(dataset: InMemoryDataset) -> TreeRows:
    """Convert a dataset to the rows of trees; unlabeled rows do not train."""
    rows = dataset.rows
    train = dataset.train[rows.labeled[dataset.train]]
    tables = [
        TreeTable.from_party(table.take(rows.handles[:, party]))
        for party, table in enumerate(dataset.tables.values())
    ]
    weight = rows.weight.double() / rows.weight[train].double().mean()
    y, weights, at, validation = (
        each.numpy() for each in (rows.y, weight, train, dataset.validation)
    )
    return TreeRows(tables, y, weights, at, validation, dataset.task.n_outputs)


def _sample(dataset: InMemoryDataset, validation: Tensor) -> TreeRows:
    """Convert a random sample of the labeled training rows, and the given validation rows."""
    train = dataset.train[dataset.rows.labeled[dataset.train]]
    columns = sum(layout.raw for layout in dataset.layouts.values())
    limit = min(MAX_ROWS, max(MIN_ROWS, MAX_CELLS // columns))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    train = train[order[:limit].sort().values]
    places = torch.cat([train, dataset.validation[validation]])
    at = torch.arange(len(places))
    sample = replace(
        dataset,
        rows=dataset.rows.take(places),
        train=at[: len(train)],
        validation=at[len(train) :],
        test=at[:0],
    )
    return tree_rows(sample)


def _top_column(dataset: InMemoryDataset, fitted: FittedTrees) -> tuple[str, str, float]:
    """Return the party, the column and the share of the gain of the most important column."""
    gain = fitted.boosters[POOLED, "none"].feature_importance("gain")
    names = [
        (party, each.name) for party, layout in dataset.layouts.items() for each in layout.features
    ]
    by_column = [0.0] * len(names)
    for feature, each in zip(fitted.rows.table(POOLED).feature.tolist(), gain, strict=True):
        by_column[feature] += float(each)
    top = max(range(len(names)), key=by_column.__getitem__)
    return *names[top], by_column[top] / max(sum(by_column), 1e-12)
