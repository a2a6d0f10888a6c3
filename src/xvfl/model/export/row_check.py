"""Test the bundle of a party on the party's own rows: from cells to predictions, against torch."""

import json
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from xvfl.data.images import ImageEncoder, Images
from xvfl.data.sources import Source, source_ids, take_rows
from xvfl.errors import RunError
from xvfl.model.model import Model
from xvfl_serve.encoding.encoders import IMAGE
from xvfl_serve.predictor import Predictor

TOLERANCE = 1e-5
"""Largest difference of probabilities, or of numbers relative to the largest one."""
MAX_ROWS = 1000


@dataclass(frozen=True)
class RowCheck:
    """How far the predictions of a bundle are from torch's."""

    rows: int
    difference: float

    def __str__(self) -> str:
        worst = f"largest difference {self.difference:.0e}"
        return f"tested: ONNX equals torch on {self.rows} own rows ({worst})"


def check_rows(model: Model, predictor: Predictor, party: str, source: Source) -> RowCheck:
    """Predict up to 1,000 rows of a party with both; raise if they differ."""
    count = min(MAX_ROWS, len(source_ids(source)))
    source = take_rows(source, np.arange(count))
    expected = model.predict({party: source}, "local", party).values
    answers = predictor.predict(_request_rows(model, party, source), "local", party)
    found = np.array(
        [list(each.get("probabilities", {"": each["prediction"]}).values()) for each in answers]
    ).reshape(expected.shape)
    scale = 1.0 if model.classes else max(1.0, float(np.abs(expected).max(initial=0)))
    difference = float(np.abs(found - expected).max(initial=0)) / scale
    if not difference <= TOLERANCE:
        raise RunError(
            f"party {party!r}: the bundle's predictions of its own rows differ from torch's by "
            f"{difference:.1e}, expected at most {TOLERANCE:.0e}; this is a defect of the "
            "exporter: report it with the versions of torch and onnx"
        )
    return RowCheck(count, difference)


def _request_rows(model: Model, party: str, source: Source) -> list[dict[str, Any]]:
    """Return rows as a request to the server holds them."""
    if isinstance(source, Images):
        encoder = cast(ImageEncoder, model.encoders[party])
        return [{IMAGE: pixels} for pixels in _pixels(source, encoder.axes)]
    frame = source.copy()
    for name in frame:
        column = frame[name]
        if column.dtype.kind in "mM" or isinstance(column.dtype, pd.DatetimeTZDtype):
            frame[name] = column.map(str, "ignore")
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    rows: list[dict[str, Any]] = json.loads(json.dumps(records, default=_json_value))
    return rows


def _pixels(source: Images, axes: str) -> NDArray[Any]:
    if source.observed is None:
        return source.pixels
    mask = source.observed
    if len(axes) == 3:
        mask = np.expand_dims(mask, -1 if axes == "HWC" else 1)
    return np.where(mask, source.pixels.astype(np.float64), np.nan)


def _json_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
