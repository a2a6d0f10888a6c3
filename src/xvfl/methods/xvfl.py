"""X-VFL: cross completion, decision subspace alignment, and self completion.

The paper's loss is `maths.overall`. Self completion and guidance are part of xvfl+; with weight 0
the method is the paper's. Ablations are switches of the same method.
Shapes: B rows, k parties, d embedding width, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xvfl import maths
from xvfl.methods import ablation_maths
from xvfl.methods.base import Federation, Mode, View, mode_key
from xvfl.nets import AdaptedHead, ConcatHead
from xvfl.nets.row_wise import apply_to_rows, row_wise
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, Task


@dataclass(frozen=True)
class XVFLWeights:
    """Weights and switches of the loss."""

    lambda1: float | Tensor
    """A number, or one for each of several runs, (R,)."""
    lambda2: float | Tensor
    self_completion: float = 0.0
    stop_gradient: bool = False
    detach_cue: bool = False
    cross_completion: bool = True
    aggregation: str = "mean"
    n_masks: int = 2
    guidance: float = 0.0
    joint_masks: bool = True
    self_views: bool = True
    """Whether parties also embed rows completed from their own embedding; uploads have none."""


HeadInputs = tuple[Tensor, Tensor]
"""Inputs of the head (B, s, n), and which of them a loss term uses (B, s)."""
RowLosses = tuple[dict[str, Tensor], Tensor, Tensor]
"""Loss terms of each row, logits of the parties' own views (B, s, C), and joint logits (B, C)."""
DecisionWeights = dict[str, Sequence[float] | Tensor]
"""Weights of decisions by `mode_key`: n numbers, or (R, n) for R runs."""
COMPLETED, OBSERVED = (0.0, 1.0), (1.0, 0.0)
"""Weights of the observed and the completed decision that use one of them alone."""
ALL_MODES = frozenset[Mode](("local", "assisted", "collaborative", "peers"))
MODES_WITHOUT_COMPLETION = frozenset[Mode](("local", "collaborative"))


class XVFL:
    """X-VFL, with optional self completion.

    Parameters
    ----------
    heads
        The head h; with aggregation "concat", a `ConcatHead` over k·d numbers. An `AdaptedHead`
        also maps the parties' embeddings to a common space; cues are not mapped.
    weights
        Weights and switches of the loss.
    completing
        Whether predictions complete missing features; otherwise they are zero-filled.
    task
        What the head predicts: a class or a number.
    """

    def __init__(
        self,
        heads: nn.Module,
        weights: XVFLWeights,
        completing: bool = True,
        task: Task = CLASSIFICATION,
    ) -> None:
        self.heads, self.task = heads, task
        self.weights = weights
        self.completing = completing
        self._skips_rows = row_wise(heads)
        self.join = ablation_maths.AGGREGATIONS[weights.aggregation]
        # Without self views, assisted prediction pools the embeddings of all parties.
        assists = weights.cross_completion or not weights.self_views
        with_cues = ALL_MODES if assists else ALL_MODES - {"assisted"}
        self.modes: frozenset[Mode] = with_cues if completing else MODES_WITHOUT_COMPLETION
        self.decision_weights: DecisionWeights = {}
        """Weights of the `decisions` of a mode and party; others have the `default_weights`."""
        self.default_weights = COMPLETED

    @property
    def pools(self) -> bool:
        """Whether `decisions` may be weighed; the paper's method only completes."""
        return self.completing and self.weights.self_completion > 0

    def select_parties(self, parties: Sequence[int]) -> "XVFL":
        """Return the method for a subset of the parties; a `ConcatHead` gets zeros (D5, D7)."""
        heads = self.heads
        if isinstance(heads, ConcatHead | AdaptedHead):
            heads = heads.select_parties(parties)
        method = XVFL(heads, self.weights, self.completing, self.task)
        method.decision_weights = self.decision_weights
        method.default_weights = self.default_weights
        return method

    def without_completion(self) -> "XVFL":
        """Return the method for predictions of observed features alone; it shares the weights.

        Pooled decisions stay pooled: the weight of the completed one goes to the observed one.
        """
        if not (self.pools and "collaborative" in self.decision_weights):
            return XVFL(self.heads, self.weights, False, self.task)
        method = XVFL(self.heads, self.weights, task=self.task)
        method.default_weights = OBSERVED
        for key, weights in self.decision_weights.items():
            pair, others = torch.as_tensor(weights).tensor_split([2], -1)
            observed = torch.stack([pair.sum(-1), torch.zeros_like(pair[..., 0])], -1)
            method.decision_weights[key] = torch.cat([observed, others], -1)
        return method

    def loss(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute the terms decision, dsalign1, dsalign2 and, with self completion, self.

        With self completion, a step that is not `completing` has only masked copies in the term
        self, and no other term.
        """
        if self.weights.self_completion and not rows.completing:
            per_row = {"self": self._masked_losses(federation, rows)}
        else:
            per_row = self._completing_losses(federation, rows)
        return {name: (term * rows.weight).mean() for name, term in per_row.items()}

    def _masked_losses(self, federation: Federation, rows: Rows) -> Tensor:
        """Compute the loss of masked copies of each row. (B,)"""
        w = self.weights
        needed = rows.seen.unsqueeze(2).expand(-1, -1, w.n_masks)
        embeddings = federation.embed(rows, ["masked"] * w.n_masks, needed)
        copies = self._copies(self._adapt(embeddings), rows.seen)
        (logits,) = self._apply_head(rows.runs, copies)
        return w.self_completion * maths.self_completion_loss(
            logits, self._deciding(rows.seen), rows.y, self.task.loss
        )

    def _completing_losses(self, federation: Federation, rows: Rows) -> dict[str, Tensor]:
        """Compute all terms of each row. (B,)"""
        w = self.weights
        copy: list[View] = ["masked", "self"] if w.self_views else ["masked"]
        views: list[View] = copy * w.n_masks if w.self_completion else []
        source = maths.sources(rows.full, rows.seen) if w.cross_completion else rows.seen
        seen = rows.seen.unsqueeze(2).expand(-1, -1, len(views))
        needed = torch.cat([source.unsqueeze(2), seen], 2)
        embeddings = federation.embed(rows, ["plain", *views], needed)
        copies = self._copies(self._adapt(embeddings[:, :, 1:]), rows.seen)
        row_losses = self._losses_completed if w.cross_completion else self._losses_uncompleted
        terms, logits, joint = row_losses(federation, rows, source, embeddings[:, :, 0], copies)
        if w.self_completion:
            deciding = self._deciding(rows.seen)
            loss = maths.self_completion_loss(logits, deciding, rows.y, self.task.loss)
            if w.guidance:
                guided = maths.guidance_loss(logits, joint, deciding, self.task.distance)
                loss = torch.lerp(loss, guided, w.guidance)
            terms["self"] = w.self_completion * loss
        return terms

    def _copies(self, E: Tensor, seen: Tensor) -> HeadInputs:
        """Return the head inputs of copies E (B, k, v, d): of each party, and of all together."""
        inputs, n_copies = self.join.alone(E), E.shape[2]
        if self.weights.joint_masks and n_copies:
            together = torch.stack([self.join.over(copy, seen) for copy in E.unbind(2)], 1)
            inputs = torch.cat([inputs, together.unsqueeze(1)], 1)
        used = self._deciding(seen).unsqueeze(2).expand(-1, -1, n_copies)
        return inputs.flatten(1, 2), used.flatten(1)

    def _deciding(self, seen: Tensor) -> Tensor:
        """Return which parties predict from copies, the last being all together. (B, k + 1)"""
        if not self.weights.joint_masks:
            return seen
        return torch.cat([seen, seen.any(1, keepdim=True)], 1)

    def _losses_completed(
        self, federation: Federation, rows: Rows, source: Tensor, E: Tensor, own: HeadInputs
    ) -> RowLosses:
        """Compute the paper's loss terms."""
        w, aligned = self.weights, rows.full.all(1)
        cue, has_cue = maths.cues(E.detach() if w.detach_cue else E, source)
        needed = aligned.unsqueeze(1) | ~rows.full & has_cue
        E, E_ = self._adapt(E), self._adapt(federation.complete(cue, aligned, needed))
        inputs = maths.head_inputs(E, E_, rows.full, has_cue, self.join)
        used = maths.used_mask(rows.full)
        out, own_logits = self._apply_head(rows.runs, (inputs, used), own)
        logits = maths.split_logits(out)
        l1, l2 = (_expand_to_rows(each, rows) for each in (w.lambda1, w.lambda2))
        stop, loss = w.stop_gradient, self.task.loss
        terms = maths.overall(logits, rows.full, rows.y, l1, l2, stop_gradient=stop, loss=loss)
        return terms, own_logits, maths.joint_logits(logits, rows.full)

    def _losses_uncompleted(
        self, federation: Federation, rows: Rows, source: Tensor, E: Tensor, own: HeadInputs
    ) -> RowLosses:
        """Compute the loss terms without cross completion."""
        w, E = self.weights, self._adapt(E)
        inputs = ablation_maths.head_inputs_uncompleted(E, rows.full, source, self.join)
        used = ablation_maths.used_mask_uncompleted(rows.full, source)
        out, own_logits = self._apply_head(rows.runs, (inputs, used), own)
        logits = ablation_maths.split_logits_uncompleted(out)
        full, seen = rows.full, rows.seen
        dsalign2 = maths.dsalign_joint(logits, full, w.stop_gradient)
        terms = {
            "decision": ablation_maths.decision_loss_uncompleted(
                logits, full, seen, rows.y, self.task.loss
            ),
            "dsalign2": _expand_to_rows(w.lambda2, rows) * dsalign2,
        }
        return terms, own_logits, ablation_maths.joint_logits_uncompleted(logits, full, seen)

    def _apply_head(self, stacked: int, *inputs: HeadInputs) -> Sequence[Tensor]:
        """Apply the head to all inputs of a step in one call."""
        x, used = inputs[0]
        if len(inputs) > 1:
            x, used = (torch.cat(parts, 1) for parts in zip(*inputs, strict=True))
        needed = used if self._skips_rows else None
        out = apply_to_rows(self.heads, needed, x.flatten(0, 1), stacked=stacked)
        out = out.view(*x.shape[:2], out.shape[-1])
        return torch.split(out, [each.shape[1] for each, _ in inputs], 1)

    def logits(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the logits of a batch: local, assisted, collaborative or by peers. (B, C)"""
        if mode == "peers":
            E = self._adapt(federation.embed(rows, ["plain"])[:, :, 0])
            return self._apply_to(self.join.over(E, maths.others(rows.full, party)))
        weights = self.decision_weights.get(mode_key(mode, federation.names[party]))
        if weights is not None:
            weights = torch.as_tensor(weights)
            if mode in MODES_WITHOUT_COMPLETION and not weights[..., 1:].any():
                observed = self._observed_decision(federation, rows, mode, party)
                return self.task.pool(observed, weights[..., :1])
            if mode == "collaborative" and not weights[..., 2].any():
                embedded = self._embed(federation, rows)
                return self.task.pool(
                    self._joint_decisions(federation, rows, embedded), weights[..., :2]
                )
            return self.task.pool(self.decisions(federation, rows, mode, party), weights)
        embedded = self._embed(federation, rows)
        return self._apply_to(self._completed_input(federation, rows, embedded, mode, party))

    def decisions(self, federation: Federation, rows: Rows, mode: Mode, party: int) -> Tensor:
        """Compute the decisions of a mode that `decision_weights` weigh (D9). (B, n, C)

        Log-probabilities, or numbers, of the row as observed and completed; in mode "collaborative"
        also the combined ones of the parties that observed any of it: their sum, or their mean.
        """
        embedded, names = self._embed(federation, rows), federation.names
        if mode == "local":
            return self._own_decisions(rows, embedded, party)
        if mode == "collaborative":
            joint = self._joint_decisions(federation, rows, embedded)
            own = [self._local_decision(rows, embedded, i, name) for i, name in enumerate(names)]
            parties = self.task.pool_parties(torch.stack(own, 1), rows.seen).unsqueeze(1)
            return torch.cat([joint, parties], 1)
        completed = self._completed_input(federation, rows, embedded, mode, party)
        peers = maths.assistants(rows.full, rows.seen, party, partial=True)
        observed = self.join.over(embedded.E, peers | _only(party, rows.seen) & rows.seen)
        local = self._local_decision(rows, embedded, party, names[party]).unsqueeze(1)
        assisted = self._decide(rows.runs, observed, completed, torch.ones_like(rows.full[:, 0]))
        return torch.where(peers.any(1).view(-1, 1, 1), assisted, local)

    def _observed_decision(
        self, federation: Federation, rows: Rows, mode: Mode, party: int
    ) -> Tensor:
        """Compute the first of the `decisions` alone, which needs no completion. (B, 1, C)"""
        E = self._adapt(federation.embed(rows, ["plain"])[:, :, 0])
        together = mode == "collaborative"
        x = self.join.over(E, rows.seen) if together else self.join.alone(E)[:, party]
        return self.task.decisions(self._apply_to(x).unsqueeze(1))

    def _joint_decisions(self, federation: Federation, rows: Rows, embedded: "_Embedded") -> Tensor:
        """Compute the decisions of all parties, of rows as observed and completed. (B, 2, C)"""
        completed = self._completed_input(federation, rows, embedded, "collaborative", 0)
        observed = self.join.over(embedded.E, rows.seen)
        return self._decide(rows.runs, observed, completed, ~rows.full.all(1))

    def _completed_input(
        self, federation: Federation, rows: Rows, embedded: "_Embedded", mode: Mode, party: int
    ) -> Tensor:
        """Compute the input of the head in a mode, with missing features completed. (B, n)"""
        best = embedded.completed
        if mode == "local":
            return self.join.alone(best)[:, party]
        if not (self.completing and self.weights.cross_completion):
            return self._pooled_input(rows, best, mode, party)
        cue, has_cue = maths.cues(embedded.sent, maths.sources(rows.full, rows.seen))
        needed = ~rows.full & has_cue if mode == "collaborative" else _only(party, has_cue)
        E_ = self._adapt(federation.complete(cue, torch.zeros_like(rows.full[:, 0]), needed))
        if self.weights.self_completion:
            E_ = maths.average_completions(E_, best, rows.seen)
        if mode == "collaborative":
            return maths.filled(best, E_, rows.full, has_cue, self.join)
        return self._assisted_input(rows, embedded, E_, party)

    def _pooled_input(self, rows: Rows, best: Tensor, mode: Mode, party: int) -> Tensor:
        """Pool the parties that observed a row; in mode "assisted" where a peer assists. (B, n)"""
        joint = self.join.over(best, rows.seen)
        if mode != "assisted":
            return joint
        partial = self.weights.self_completion > 0
        peers = maths.assistants(rows.full, rows.seen, party, partial)
        return torch.where(peers.any(1, keepdim=True), joint, self.join.alone(best)[:, party])

    def _assisted_input(self, rows: Rows, embedded: "_Embedded", E_: Tensor, party: int) -> Tensor:
        """Compute the input of assisted prediction; that of local where no peer assists.

        The paper's prediction is h(Ẽ_i). With self completion, the head's input is the mean of Ẽ_i
        and the embeddings that the cue averages (D8), which is closest to the joint prediction.
        """
        full, partial = rows.full, self.weights.self_completion > 0
        peers = maths.assistants(full, rows.seen, party, partial)
        local = ~peers.any(1, keepdim=True)
        if partial:
            own = _only(party, full)
            with_own = torch.where(own.unsqueeze(-1), E_, embedded.E)
            assisted = self.join.over(with_own, peers | own)
        else:
            assisted = self.join.alone(E_)[:, party]
        return torch.where(local, self.join.alone(embedded.completed)[:, party], assisted)

    def _local_decision(self, rows: Rows, embedded: "_Embedded", party: int, name: str) -> Tensor:
        """Compute the decision of local prediction. (B, C)"""
        weights = self.decision_weights.get(mode_key("local", name), self.default_weights)
        return self.task.pool(self._own_decisions(rows, embedded, party), weights)

    def _own_decisions(self, rows: Rows, embedded: "_Embedded", party: int) -> Tensor:
        observed, completed = (
            self.join.alone(each)[:, party] for each in (embedded.E, embedded.completed)
        )
        return self._decide(rows.runs, observed, completed, ~rows.full[:, party])

    def _decide(self, runs: int, observed: Tensor, completed: Tensor, gaps: Tensor) -> Tensor:
        """Compute the decisions of both inputs, which are equal without `gaps` (B,). (B, 2, C)"""
        x, used = torch.stack([observed, completed], 1), torch.ones_like(gaps)
        (out,) = self._apply_head(runs, (x, torch.stack([used, gaps], 1)))
        before, after = out.unbind(1)
        after = torch.where(gaps.unsqueeze(1), after, before)
        return self.task.decisions(torch.stack([before, after], 1))

    @property
    def prediction_views(self) -> tuple[View, ...]:
        """The views that a prediction embeds."""
        w = self.weights
        has_completers = w.cross_completion or w.self_completion > 0
        completes = self.completing and has_completers and w.self_views
        return ("plain", "self") if completes else ("plain",)

    def _embed(self, federation: Federation, rows: Rows) -> "_Embedded":
        """Embed rows as observed, and with self completion where they are not full."""
        if "self" not in self.prediction_views:
            sent = federation.embed(rows, ["plain"])[:, :, 0]
            E = self._adapt(sent)
            return _Embedded(sent, E, E)
        needed = torch.stack([torch.ones_like(rows.full), ~rows.full], 2)
        sent, own = federation.embed(rows, ["plain", "self"], needed).unbind(2)
        E = self._adapt(sent)
        completed = torch.where(rows.full.unsqueeze(-1), E, self._adapt(own))
        return _Embedded(sent, E, completed)

    def _adapt(self, E: Tensor) -> Tensor:
        return self.heads.adapt(E) if isinstance(self.heads, AdaptedHead) else E

    def _apply_to(self, x: Tensor) -> Tensor:
        logits: Tensor = self.heads(x)
        return logits


@dataclass(frozen=True)
class _Embedded:
    """Embeddings of rows for prediction, (B, k, d)."""

    sent: Tensor
    """As the parties send them; cues average them."""
    E: Tensor
    """As the head takes them: the rows as observed."""
    completed: Tensor
    """As the head takes them: with self completion where a row is not full."""


def _only(party: int, like: Tensor) -> Tensor:
    """Mark one party in every row. (B, k)"""
    return (torch.arange(like.shape[1], device=like.device) == party).expand_as(like)


def _expand_to_rows(weight: float | Tensor, rows: Rows) -> float | Tensor:
    """Repeat each run's weight for its rows."""
    if isinstance(weight, Tensor):
        return weight.to(rows.weight).repeat_interleave(len(rows) // len(weight))
    return weight
