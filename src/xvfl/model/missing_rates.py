"""Metrics of every mode over missing rates: hide features of held-out rows at random, and predict.

Only rows that every party observes are predicted, so that all modes have the same rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from xvfl.data.encoded import Encoded
from xvfl.data.sources import Source, encode
from xvfl.methods.base import mode_key
from xvfl.model.model import Model
from xvfl.model.prediction import PredictRequest
from xvfl.primitives.layout import Layout, any_image
from xvfl.primitives.seeding import derive_seed
from xvfl.training.predict import logits, mode_party_pairs
from xvfl.training.threads import limit_threads

MISSING_RATES = "missing_rates.json"
RATES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
MIN_ROWS = 20
"""Fewest rows for which metrics are computed."""


def score_missing_rates(
    model: Model,
    sources: Mapping[str, Source],
    labels: pd.Series,
    rates: Sequence[float] = RATES,
) -> dict[str, Any]:
    """Compute the metrics of each mode with a share of the observed features hidden.

    At every party, each observed feature of a row is hidden with the probability `rate`; at least
    one stays. The features that are hidden at a rate are hidden at higher ones too.

    Returns
    -------
    dict
        `rows`, `n_classes`, `rates`, and `metrics`: by mode and party, the metrics at each rate.
        `metrics` is empty with fewer than `MIN_ROWS` rows that every party observes.
    """
    ids = list(labels.index)
    encoded = {name: encode(each, sources[name]) for name, each in model.encoders.items()}
    rows, _ = model.rows_of(encoded, ids)
    shared = rows.seen.all(1).cpu().numpy()
    ids = [each for each, kept in zip(ids, shared, strict=True) if kept]
    result: dict[str, Any] = {
        "rows": len(ids),
        "n_classes": len(model.classes),
        "rates": list(rates),
        "metrics": {},
    }
    if len(ids) < MIN_ROWS:
        return result
    y = model.task.encode(labels.loc[ids].to_numpy())
    rng = np.random.default_rng(derive_seed(model.random_state, "missing rates"))
    draws = {name: rng.random(each.observed.shape) for name, each in encoded.items()}
    for rate in rates:
        hidden = {
            name: hide(each, model.encoders[name].layout, draws[name], rate)
            for name, each in encoded.items()
        }
        for key, values in _predict(model, hidden, ids).items():
            result["metrics"].setdefault(key, []).append(model.task.metrics(values, y))
    return result


def hide(encoded: Encoded, layout: Layout, draws: NDArray[np.float64], rate: float) -> Encoded:
    """Hide observed features whose number of `draws` (n, raw) is below the rate; keep one a row."""
    candidates = np.where(encoded.observed, draws, -1.0)
    kept = encoded.observed & (draws >= rate)
    last = np.zeros_like(kept)
    last[np.arange(len(kept)), candidates.argmax(1)] = True
    observed = kept | (last & encoded.observed)
    if layout.image is not None:
        shape = (len(observed), 1, *layout.image[1:])
        return replace(encoded, observed=observed, values=encoded.values * observed.reshape(shape))
    columns = observed[:, layout.feature_of_column[: layout.dense]]
    codes = observed[:, layout.raw - len(layout.hashed) :]
    return replace(
        encoded, observed=observed, values=encoded.values * columns, codes=encoded.codes * codes
    )


def _predict(
    model: Model, encoded: Mapping[str, Encoded], ids: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    """Predict rows in every mode but `peers`, with calibrated probabilities."""
    rows, federation = model.rows_of(encoded, ids)
    result = {}
    with (
        limit_threads(any_image(model.layouts), torch.device("cpu")),
        torch.random.fork_rng(devices=[]),
    ):
        for mode, party in mode_party_pairs(model.method, federation):
            if mode == "peers":
                continue
            name = federation.names[party]
            request = PredictRequest(mode, None if mode == "collaborative" else name, party)
            out = logits(model.method, federation, rows, mode, party)
            temperature = model.temperature(request, rows)
            result[mode_key(mode, name)] = model.task.values(out.double() / temperature)
    return result
