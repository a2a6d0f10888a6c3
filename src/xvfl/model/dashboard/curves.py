"""Curves of a training by epoch: every loss term, and the validation loss of each mode."""

from collections.abc import Iterable, Mapping
from typing import Any

MAX_POINTS = 400
"""Largest number of points of a curve; of more epochs, evenly spaced ones and the last are kept."""
NOT_TERMS = {"kind", "epoch", "step", "best_epoch", "score", "seconds", "modes", "parties"}
"""Numbers of a record that are no loss terms."""


def curves(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of the records of epochs; of an epoch that was repeated, the last one."""
    by_epoch = {each["epoch"]: each for each in records if each.get("kind") == "epoch"}
    epochs = sorted(by_epoch)
    stride = -(-len(epochs) // MAX_POINTS) or 1
    chosen = [by_epoch[epoch] for epoch in reversed(epochs[::-1][::stride])]
    terms = dict.fromkeys(
        name
        for each in chosen
        for name, value in each.items()
        if name not in NOT_TERMS and not isinstance(value, Mapping)
    )
    modes = dict.fromkeys(name for each in chosen for name in each.get("modes", {}))
    return {
        "epoch": [each["epoch"] for each in chosen],
        "score": [each.get("score") for each in chosen],
        "seconds": [each.get("seconds") for each in chosen],
        "best_epoch": chosen[-1].get("best_epoch", 0) if chosen else 0,
        "terms": {name: [each.get(name) for each in chosen] for name in terms},
        "modes": {name: [each.get("modes", {}).get(name) for each in chosen] for name in modes},
    }
