"""How good a run's model is, in every way to predict."""

from typing import Any

import torch

from xvfl.errors import PartyError
from xvfl.federation.predict import answerable, logits, ways
from xvfl.methods.base import Method
from xvfl.primitives.metrics import all_metrics
from xvfl.primitives.rows import Rows
from xvfl.training.protocols import ReachableFederation

EVALUATION = "evaluation.json"


def evaluation(method: Method, federation: ReachableFederation, rows: Rows) -> list[dict[str, Any]]:
    """Measure every way to predict on rows it was not trained on."""
    lines = []
    for mode, party in ways(method, federation):
        asked = answerable(rows, mode, party).nonzero().flatten()
        name = "all" if mode == "collaborative" else federation.names[party]
        if not len(asked):
            continue
        try:
            out = logits(method, federation, rows.take(asked), mode, party)
        except PartyError as error:
            lines.append({"mode": mode, "party": name, "rows": 0, "why": str(error)})
            continue
        proba = torch.softmax(out.double(), -1).numpy()
        metrics = all_metrics(proba, rows.y[asked].numpy())
        lines.append({"mode": mode, "party": name, "rows": len(asked), **metrics})
    return lines
