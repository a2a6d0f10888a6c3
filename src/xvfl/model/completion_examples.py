"""Examples of completed cells and pixels: hide observed ones of held-out rows, and complete them.

The examples are values of the tables. They are written only into the folder of a run whose owner
holds all tables, without ids.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from xvfl.data.encoder import TableEncoder
from xvfl.data.images import ImageEncoder, Images
from xvfl.data.parse import mask_missing
from xvfl.data.sources import Source, source_ids
from xvfl.data.text import as_text
from xvfl.model.model import Model
from xvfl.primitives.seeding import derive_seed

COMPLETION = "completion.json"
HIDDEN = 0.3
"""Share of the observed cells of a table that are hidden."""
MAX_ROWS = 200
"""Rows of a table that are completed."""
EXAMPLES, COLUMNS = 6, 12
"""Rows and columns of the example of a table."""
MAX_CHARACTERS = 40
"""Longest text of a cell."""
MAX_PAIRS = 100
"""Cells of a numeric column that are compared."""
MAX_IMAGES, MAX_PIXELS = 6, 64
"""Images of a party that are shown, and their largest height and width."""
BLOCK = 0.55
"""Height and width of the hidden rectangle, relative to the image's."""


def completion_examples(model: Model, sources: Mapping[str, Source]) -> dict[str, Any]:
    """Complete hidden cells of each party's table, and hidden parts of its images.

    Returns
    -------
    dict
        `tables` and `images` by party; without those that the model cannot complete.
    """
    result: dict[str, Any] = {"tables": {}, "images": {}}
    for name, encoder in model.encoders.items():
        rng = np.random.default_rng(derive_seed(model.random_state, "examples", name))
        if not source_ids(sources[name]):
            continue
        if isinstance(encoder, ImageEncoder):
            if model.completes:
                result["images"][name] = _image_examples(model, sources, name, encoder, rng)
        elif model.cells is not None:
            result["tables"][name] = _table_examples(model, sources, name, encoder, rng)
    return result


def _table_examples(
    model: Model,
    sources: Mapping[str, Source],
    party: str,
    encoder: TableEncoder,
    rng: np.random.Generator,
) -> dict[str, Any]:
    given = cast(pd.DataFrame, sources[party]).iloc[:MAX_ROWS]
    columns = list(encoder.columns)
    observed = pd.DataFrame(
        {name: mask_missing(given[name], encoder.missing).notna() for name in columns}
    )
    hidden = observed & (rng.random(observed.shape) < HIDDEN)
    masked = given.copy()
    for name in columns:
        masked[name] = given[name].astype(object).mask(hidden[name], None)
    completion = model.complete_details({**sources, party: masked}, party, list(given.index))
    cells = completion.cells.set_index(["id", "column"])
    shown = columns[:COLUMNS]
    return {
        "rows": len(given),
        "cells": int(hidden.to_numpy().sum()),
        "columns": shown,
        "more_columns": len(columns) - len(shown),
        "examples": [
            [_example(name, i, given, observed, hidden, completion.table) for name in shown]
            for i in range(min(EXAMPLES, len(given)))
        ],
        "quality": {
            name: _quality(given.loc[hidden[name], name], completion.table[name], cells, name)
            for name in shown
            if hidden[name].any()
        },
    }


def _example(
    column: str,
    row: int,
    given: pd.DataFrame,
    observed: pd.DataFrame,
    hidden: pd.DataFrame,
    completed: pd.DataFrame,
) -> dict[str, str]:
    """Describe one cell: observed, hidden (its value is known), or missing."""
    if observed[column].iloc[row] and not hidden[column].iloc[row]:
        return {"state": "observed", "value": _text(given[column].iloc[row])}
    cell = {"value": _text(completed[column].iloc[row])}
    if hidden[column].iloc[row]:
        return {"state": "hidden", **cell, "truth": _text(given[column].iloc[row])}
    return {"state": "missing", **cell}


def _quality(
    truth: pd.Series, completed: pd.Series, cells: pd.DataFrame, column: str
) -> dict[str, Any]:
    """Compare hidden cells with completed ones: pairs of numbers, or the share of correct ones."""
    values = completed.loc[truth.index]
    numbers = [pd.to_numeric(each, errors="coerce").astype(float) for each in (truth, values)]
    if not types.is_bool_dtype(truth) and all(each.notna().all() for each in numbers):
        described = pd.MultiIndex.from_product([truth.index[:MAX_PAIRS], [column]])
        bounds = cells[["low", "high"]].reindex(described)
        limits = bounds.apply(pd.to_numeric, errors="coerce").astype(float).to_numpy()
        pairs = np.column_stack([each.to_numpy()[:MAX_PAIRS] for each in numbers])
        inside = (limits[:, 0] <= pairs[:, 0]) & (pairs[:, 0] <= limits[:, 1])
        return {
            "kind": "number",
            "cells": len(truth),
            "pairs": [
                [*pair, *limit] for pair, limit in zip(pairs.tolist(), limits.tolist(), strict=True)
            ],
            "covered": float(inside.mean()) if not np.isnan(limits).any() else None,
        }
    correct = as_text(truth).to_numpy() == as_text(values).to_numpy()
    return {
        "kind": "category",
        "cells": len(truth),
        "correct": float(np.mean(correct)),
        "most_frequent": float(as_text(truth).value_counts(normalize=True).iloc[0]),
    }


def _text(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _image_examples(
    model: Model,
    sources: Mapping[str, Source],
    party: str,
    encoder: ImageEncoder,
    rng: np.random.Generator,
) -> dict[str, Any]:
    images = cast(Images, sources[party])
    encoded = encoder.encode(images.pixels, list(images.ids), images.observed)
    _, height, width = encoder.shape
    observed = encoded.observed.reshape(-1, height, width)
    chosen = np.argsort(-observed.mean((1, 2)), kind="stable")[:MAX_IMAGES]
    ids = [str(images.ids[i]) for i in chosen]
    mask = observed[chosen] & ~_rectangles(len(chosen), height, width, rng)
    masked = Images(images.pixels[chosen], ids, mask)
    completed = cast(Images, model.complete({**sources, party: masked}, party, ids))
    pixels = encoder.encode(completed.pixels, ids, None).values
    step = -(-max(height, width) // MAX_PIXELS)
    return {
        "shape": list(pixels[0, :, ::step, ::step].shape),
        "examples": [
            {
                "original": _bytes(encoded.values[row], observed[row], step),
                "masked": _bytes(encoded.values[row], mask[i], step),
                "completed": _bytes(pixels[i], np.ones_like(mask[i]), step),
            }
            for i, row in enumerate(chosen)
        ],
    }


def _rectangles(count: int, height: int, width: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw a rectangle in each image. (count, height, width)"""
    hidden = np.zeros((count, height, width), dtype=bool)
    h, w = max(1, round(BLOCK * height)), max(1, round(BLOCK * width))
    for image in hidden:
        top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
        image[top : top + h, left : left + w] = True
    return hidden


def _bytes(pixels: NDArray[np.float32], observed: NDArray[np.bool_], step: int) -> dict[str, str]:
    """Write pixels (C, H, W) in [0, 1] and which are observed as base64, one byte each."""
    scaled = np.round(255 * np.clip(pixels[:, ::step, ::step], 0, 1)).astype(np.uint8)
    flags = observed[::step, ::step].astype(np.uint8)
    return {
        "pixels": b64encode(scaled.tobytes()).decode(),
        "observed": b64encode(flags.tobytes()).decode(),
    }
