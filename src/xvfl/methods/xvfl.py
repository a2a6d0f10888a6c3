"""X-VFL: cross completion, decision subspace alignment, and self completion.

The paper's loss is `maths.overall`; self completion is ours, with a weight, 0 = the paper.
Shapes: B rows, k parties, d embedding width, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.data.rows import Rows
from xvfl.methods.base import Federation, Mode, View


@dataclass(frozen=True)
class Weights:
    """Weights and switches of the loss."""

    lambda1: float
    lambda2: float
    self_completion: float = 0.0
    stop_gradient: bool = False
    detach_cue: bool = False


ALL_MODES = frozenset[Mode](("local", "assisted", "collaborative", "peers"))
UNCOMPLETED = frozenset[Mode](("local", "collaborative"))


class XVFL:
    """Train and predict as the paper says, plus self completion."""

    def __init__(self, heads: nn.Module, weights: Weights, completing: bool = True) -> None:
        """Take the head h; without `completing`, prediction leaves gaps neutral-filled."""
        self.heads = heads
        self.weights = weights
        self.completing = completing
        self.modes: frozenset[Mode] = ALL_MODES if completing else UNCOMPLETED

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Name the terms: decision, dsalign1, dsalign2 and, where it weighs anything, self."""
        w = self.weights
        views: list[View] = ["plain", "masked", "self"] if w.self_completion else ["plain"]
        made = federation.embed(rows, views)
        E = made[:, :, 0]
        cue, has_cue = maths.cues(
            E.detach() if w.detach_cue else E, maths.sources(rows.full, rows.seen)
        )
        E_ = federation.complete(cue, rows.full.all(1))
        out = maths.decide(self.heads, E, E_, rows.full, has_cue)
        per_row = maths.overall(
            out, rows.full, rows.y, w.lambda1, w.lambda2, stop_gradient=w.stop_gradient
        )
        if w.self_completion:
            views_out = self.heads(made[:, :, 1:].flatten(1, 2))
            per_row["self"] = w.self_completion * maths.self_completion(
                views_out, rows.seen, rows.y
            )
        return {name: (term * rows.weight).mean() for name, term in per_row.items()}

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Decide a batch: alone, assisted, by all, or by the full peers of `party`. (B, C)"""
        E, own = federation.embed(rows, ["plain", "self"]).unbind(2)
        if not self.completing:
            own = E
        best = torch.where(rows.full.unsqueeze(-1), E, own)
        if mode == "local":
            return self._decide(best[:, party])
        if mode == "peers":
            return self._decide(maths.mean_over(E, maths.others(rows.full, party)))
        if not self.completing:
            return self._decide(maths.mean_over(E, rows.seen))
        cue, has_cue = maths.cues(E, maths.sources(rows.full, rows.seen))
        E_ = federation.complete(cue, torch.zeros_like(rows.full[:, 0]))
        if mode == "assisted":
            alone = rows.full | ~maths.cues(E, rows.full)[1]
            return self._decide(torch.where(alone.unsqueeze(-1), best, E_)[:, party])
        return self._decide(maths.filled(best, E_, rows.full, has_cue))

    def _decide(self, E: Tensor) -> Tensor:
        out: Tensor = self.heads(E)
        return out
