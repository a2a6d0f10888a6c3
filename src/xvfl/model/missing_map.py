"""What is missing where: shares of observed features, by group of rows and by column.

A group has the rows that the same parties observe. Shapes: N rows, k parties.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from xvfl.model.fitting import Dataset
from xvfl.primitives.layout import Layout
from xvfl.primitives.rows import Rows, Table

MISSING = "missing.json"
MAX_ROWS = 20_000
"""Training rows that are counted; more are sampled."""
MAX_GROUPS = 8
"""Groups with a row of their own; the others are one group."""
MAX_COLUMNS = 48
"""Columns of a party that are listed."""
OTHER = "other"


def dataset_map(dataset: Dataset) -> dict[str, Any]:
    """Describe the training rows of a dataset by party and column."""
    source = dataset.training_rows(torch.device("cpu"))
    count = len(source)
    rows = source.take(torch.linspace(0, count - 1, min(count, MAX_ROWS)).long())
    tables: Mapping[str, Table] = {**dataset.tables}
    observed = {
        name: table.take(rows.handles[:, i]).observed
        for i, (name, table) in enumerate(tables.items())
    }
    data = rows_map(rows, list(tables), count)
    data["columns"] = {name: _columns(each) for name, each in dataset.layouts.items()}
    for group, places in zip(data["groups"], _group_places(rows), strict=True):
        group["observed"] = {
            name: _shares(each[places], dataset.layouts[name]) for name, each in observed.items()
        }
    return data


def rows_map(rows: Rows, parties: list[str], count: int | None = None) -> dict[str, Any]:
    """Describe rows by party, as a coordinator sees them: full, observed in part, or not at all."""
    groups = []
    for places in _group_places(rows):
        seen, full = rows.seen[places], rows.full[places]
        alike = bool((seen == seen[:1]).all())
        groups.append(
            {
                "parties": [p for p, held in zip(parties, seen[0].tolist(), strict=True) if held]
                if alike
                else [OTHER],
                "rows": len(places),
                "full": _by_party(parties, full.float().mean(0)),
                "seen": _by_party(parties, seen.float().mean(0)),
            }
        )
    return {
        "rows": len(rows) if count is None else count,
        "sampled": len(rows),
        "parties": parties,
        "groups": groups,
    }


def _group_places(rows: Rows) -> list[Tensor]:
    """Return the places of the rows of each group, the largest group first."""
    codes = (rows.seen.long() * 2 ** torch.arange(rows.seen.shape[1])).sum(1)
    order = [code for code, _ in Counter(codes.tolist()).most_common()]
    own = order if len(order) <= MAX_GROUPS else order[: MAX_GROUPS - 1]
    masks = [codes == code for code in own]
    if len(own) < len(order):
        masks.append(~torch.stack(masks).any(0))
    return [mask.nonzero().flatten() for mask in masks]


def _by_party(parties: list[str], shares: Tensor) -> Mapping[str, float]:
    return {name: round(value, 4) for name, value in zip(parties, shares.tolist(), strict=True)}


def _columns(layout: Layout) -> list[str]:
    if layout.image is not None:
        return ["pixels"]
    return [feature.name for feature in layout.features[:MAX_COLUMNS]]


def _shares(observed: Tensor, layout: Layout) -> list[float]:
    """Return the share of observed cells of each listed column."""
    shares = observed.float().mean(0)
    if layout.image is not None:
        shares = shares.mean(0, keepdim=True)
    return [round(value, 4) for value in shares[:MAX_COLUMNS].tolist()]
