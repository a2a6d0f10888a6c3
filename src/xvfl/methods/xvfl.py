"""X-VFL: cross completion, decision subspace alignment, and self completion.

The paper's loss is `maths.overall`; self completion, with guidance, is ours, with a weight, 0 = the
paper. Its ablations are switches of the same method.
Shapes: B rows, k parties, d embedding width, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.methods import ablation_maths
from xvfl.methods.base import Federation, Mode, View
from xvfl.nets import ConcatHead
from xvfl.nets.row_wise import apply_to_rows, row_wise
from xvfl.primitives.rows import Rows


@dataclass(frozen=True)
class Weights:
    """Weights and switches of the loss."""

    lambda1: float | Tensor
    """A number, or one for each of several runs. (R,)"""
    lambda2: float | Tensor
    self_completion: float = 0.0
    stop_gradient: bool = False
    detach_cue: bool = False
    cross_completion: bool = True
    aggregation: str = "mean"
    n_masks: int = 2
    guidance: float = 0.0


Asked = tuple[Tensor, Tensor]
"""Inputs of the head (B, s, n), and which of them a term looks at (B, s)."""
Decided = tuple[dict[str, Tensor], Tensor, Tensor]
"""Terms of each row, decisions on what parties made alone (B, s, C), and together (B, C)."""
ALL_MODES = frozenset[Mode](("local", "assisted", "collaborative", "peers"))
UNCOMPLETED = frozenset[Mode](("local", "collaborative"))


class XVFL:
    """Train and predict as the paper says, plus self completion."""

    def __init__(self, heads: nn.Module, weights: Weights, completing: bool = True) -> None:
        """Take the head h; without `completing`, prediction leaves gaps neutral-filled.

        Where embeddings are put side by side, h is a head over k·d numbers in `ConcatHead`.
        """
        self.heads = heads
        self.weights = weights
        self.completing = completing
        self._picks = row_wise(heads)
        self.join = ablation_maths.AGGREGATIONS[weights.aggregation]
        with_cues = ALL_MODES if weights.cross_completion else ALL_MODES - {"assisted"}
        self.modes: frozenset[Mode] = with_cues if completing else UNCOMPLETED

    def select_parties(self, parties: Sequence[int]) -> "XVFL":
        """Leave zeros in the unreachable parties' blocks, where there are blocks (D5, D7)."""
        heads = (
            self.heads.select_parties(parties) if isinstance(self.heads, ConcatHead) else self.heads
        )
        return XVFL(heads, self.weights, self.completing)

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Name the terms: decision, dsalign1, dsalign2 and, where it weighs anything, self."""
        w = self.weights
        views: list[View] = ["masked", "self"] * w.n_masks if w.self_completion else []
        source = maths.sources(rows.full, rows.seen) if w.cross_completion else rows.seen
        seen = rows.seen.unsqueeze(2).expand(-1, -1, len(views))
        wanted = torch.cat([source.unsqueeze(2), seen], 2)
        made = federation.embed(rows, ["plain", *views], wanted)
        own = self.join.alone(made[:, :, 1:]).flatten(1, 2), seen.flatten(1)
        shared = self._completed if w.cross_completion else self._uncompleted
        per_row, out, together = shared(federation, rows, source, made[:, :, 0], own)
        if w.self_completion:
            alone = maths.self_completion_loss(out, rows.seen, rows.y)
            if w.guidance:
                alone = torch.lerp(alone, maths.guidance_loss(out, together, rows.seen), w.guidance)
            per_row["self"] = w.self_completion * alone
        return {name: (term * rows.weight).mean() for name, term in per_row.items()}

    def _completed(
        self, federation: Federation, rows: Rows, source: Tensor, E: Tensor, own: Asked
    ) -> Decided:
        """Name the paper's terms of each row; decide what each party made alone, and together."""
        w, aligned = self.weights, rows.full.all(1)
        cue, has_cue = maths.cues(E.detach() if w.detach_cue else E, source)
        wanted = aligned.unsqueeze(1) | ~rows.full & has_cue
        E_ = federation.complete(cue, aligned, wanted)
        shared = maths.head_inputs(E, E_, rows.full, has_cue, self.join)
        out, alone = self._out((shared, maths.used_mask(rows.full)), own)
        decided = maths.split_logits(out)
        terms = maths.overall(
            decided,
            rows.full,
            rows.y,
            _of_rows(w.lambda1, rows),
            _of_rows(w.lambda2, rows),
            stop_gradient=w.stop_gradient,
        )
        return terms, alone, maths.joint_logits(decided, rows.full)

    def _uncompleted(
        self, federation: Federation, rows: Rows, source: Tensor, E: Tensor, own: Asked
    ) -> Decided:
        """Do the same where cross completion is off."""
        w = self.weights
        shared = ablation_maths.head_inputs_uncompleted(E, rows.full, source, self.join)
        wanted = ablation_maths.used_mask_uncompleted(rows.full, source)
        out, alone = self._out((shared, wanted), own)
        decided = ablation_maths.split_logits_uncompleted(out)
        terms = ablation_maths.overall_uncompleted(
            decided,
            rows.full,
            rows.seen,
            rows.y,
            _of_rows(w.lambda2, rows),
            stop_gradient=w.stop_gradient,
        )
        return terms, alone, ablation_maths.joint_logits_uncompleted(decided, rows.full, rows.seen)

    def _out(self, *asked: Asked) -> Sequence[Tensor]:
        """Put all inputs of a step through the head, in one call."""
        x = torch.cat([each for each, _ in asked], 1)
        wanted = torch.cat([each for _, each in asked], 1) if self._picks else None
        out = apply_to_rows(self.heads, wanted, x.flatten(0, 1)).view(*x.shape[:2], -1)
        return torch.split(out, [each.shape[1] for each, _ in asked], 1)

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Decide a batch: alone, assisted, by all, or by the full peers of `party`. (B, C)"""
        if mode == "peers":
            E = federation.embed(rows, ["plain"])[:, :, 0]
            return self._decide(self.join.over(E, maths.others(rows.full, party)))
        E, best = self._alone(federation, rows)
        if mode == "local":
            return self._decide(self.join.alone(best)[:, party])
        if not (self.completing and self.weights.cross_completion):
            return self._decide(self.join.over(best, rows.seen))
        cue, has_cue = maths.cues(E, maths.sources(rows.full, rows.seen))
        E_ = federation.complete(cue, torch.zeros_like(rows.full[:, 0]))
        if self.weights.self_completion:
            E_ = maths.average_completions(E_, best, rows.seen)
        if mode == "collaborative":
            return self._decide(maths.filled(best, E_, rows.full, has_cue, self.join))
        return self._assisted(E, best, E_, rows.full, party)

    def _assisted(self, E: Tensor, best: Tensor, E_: Tensor, full: Tensor, party: int) -> Tensor:
        """Decide for one party: as alone where it is full or nobody else is, else with a cue.

        The paper's reading is h(Ẽ_i). With self completion the party takes the mean of Ẽ_i and the
        embeddings its cue is made of, as far as one party can go toward the joint decision.
        """
        peers = maths.others(full, party)
        alone = (full[:, party] | ~peers.any(1)).unsqueeze(-1)
        own = torch.zeros_like(full).index_fill(1, torch.tensor([party], device=full.device), True)
        helped = torch.where(own.unsqueeze(-1), E_, E)
        if self.weights.self_completion:
            together = self.join.over(helped, peers | own)
        else:
            together = self.join.alone(E_)[:, party]
        return self._decide(torch.where(alone, self.join.alone(best)[:, party], together))

    def _alone(self, federation: Federation, rows: Rows) -> tuple[Tensor, Tensor]:
        """Embed as observed, and with what a party can do by itself about its gaps. (B, k, d)"""
        trained = self.weights.cross_completion or self.weights.self_completion > 0
        if not (self.completing and trained):
            E = federation.embed(rows, ["plain"])[:, :, 0]
            return E, E
        E, own = federation.embed(rows, ["plain", "self"]).unbind(2)
        return E, torch.where(rows.full.unsqueeze(-1), E, own)

    def _decide(self, E: Tensor) -> Tensor:
        out: Tensor = self.heads(E)
        return out


def _of_rows(weight: float | Tensor, rows: Rows) -> float | Tensor:
    """Spread each run's weight over its rows."""
    if isinstance(weight, Tensor):
        return weight.to(rows.weight).unsqueeze(1).expand(-1, len(rows) // rows.runs).flatten()
    return weight
