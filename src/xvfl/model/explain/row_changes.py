"""What completion changed for single rows: the filled cells, and the move of the prediction.

Shapes: n rows, k parties, C outputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.data.encoded import Encoded
from xvfl.data.sources import Source, take_ids
from xvfl.model.explain.explanation import FilledCell, RowChange
from xvfl.model.model import Model

Floats = NDArray[np.float64]
SMALLEST_CHANGE = 1e-6
"""Rows whose probabilities, or numbers, changed less count as unchanged."""


def largest_changes(
    observed: Floats, completed: Floats, gaps: NDArray[np.bool_], count: int
) -> list[int]:
    """Return the rows with a gap whose prediction changed most, the largest change first."""
    change = np.where(gaps, np.abs(completed - observed).sum(1), -1.0)
    order = np.argsort(-change, kind="stable")[:count]
    return [int(row) for row in order if change[row] > SMALLEST_CHANGE]


def row_changes(
    model: Model,
    sources: Mapping[str, Source],
    encoded: Mapping[str, Encoded],
    labels: pd.Series,
    places: Sequence[int],
    full: NDArray[np.bool_],
    observed: Floats,
    completed: Floats,
) -> list[RowChange]:
    """Describe the rows at some places of `labels`; `full` is (n, k), predictions (n, C)."""
    ids = [labels.index[place] for place in places]
    gaps = [name for at, name in enumerate(encoded) if not full[list(places), at].all()]
    tables = [name for name in gaps if model.layouts[name].image is None]
    rows = {name: take_ids(source, ids) for name, source in sources.items()}
    completed_tables = model.complete_parties(rows, tables, ids)
    filled = {
        name: _filled_cells(model, completed_tables.get(name), encoded[name], name, ids)
        for name in gaps
    }
    changes = []
    for number, place in enumerate(places):
        names = [name for at, name in enumerate(encoded) if not full[place, at]]
        best = 1 if len(model.classes) == 2 else int(completed[place].argmax())
        before, after = (_label(model, values[place]) for values in (observed, completed))
        changes.append(
            RowChange(
                ids[number],
                plain_value(labels.iloc[place]),
                model.classes[best] if model.classes else None,
                float(observed[place, best]),
                float(completed[place, best]),
                before,
                after,
                [cell for name in names for cell in filled[name][number]],
            )
        )
    return changes


def _label(model: Model, values: Floats) -> Any:
    """Return the most probable class, or the number. `values` is (C,)."""
    return model.classes[int(values.argmax())] if model.classes else float(values[0])


def _filled_cells(
    model: Model, completed: Source | None, encoded: Encoded, party: str, ids: Sequence[str]
) -> list[list[FilledCell]]:
    """List the cells of a party that completion fills, by row; for images, their number."""
    layout = model.layouts[party]
    # Place −1, a row that the party does not hold, selects the last entry: nothing is observed.
    place = pd.Index(encoded.ids).get_indexer(pd.Index(list(ids)))
    missing = ~np.append(encoded.observed, np.zeros((1, layout.raw), dtype=bool), 0)[place]
    if not isinstance(completed, pd.DataFrame):
        text = f"of {layout.raw} pixels"
        return [[FilledCell(party, text, int(row.sum()))] for row in missing]
    names = [feature.name for feature in layout.features]
    return [
        [
            FilledCell(party, name, plain_value(cells[name]))
            for name, gap in zip(names, of_row, strict=True)
            if gap
        ]
        for cells, of_row in zip(completed.to_dict("records"), missing, strict=True)
    ]


def plain_value(value: Any) -> Any:
    """Convert a cell to a value that JSON has: numbers and booleans stay, others become text."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool | int | str) or value is None:
        return value
    return round(value, 6) if isinstance(value, float) else str(value)
