"""Fit the weights of decisions and the temperatures on validation rows. Needs torch only.

Outputs are divided by a temperature. For numbers this is a least-squares fit of their spread.
Shapes: R runs, N rows of a run, n decisions, m candidates, C outputs.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from xvfl.maths import is_labeled
from xvfl.methods.base import Method, Mode, mode_key
from xvfl.methods.members import Members
from xvfl.methods.pooling import pooling_method
from xvfl.primitives.rows import Rows
from xvfl.primitives.task import CLASSIFICATION, Task
from xvfl.training.predict import (
    all_decisions,
    logits,
    mode_party_pairs,
    predictable_rows,
    some_rows,
)
from xvfl.training.protocols import ReachableFederation

Temperatures = dict[str, float]
"""One temperature for each mode and party, by `mode_key`."""
CompletionLosses = dict[str, tuple[float, float]]
"""Mean loss with the chosen weights, and with the completed decision alone, by `mode_key`."""
MIN_ROWS = 20
"""Fewest validation rows for a temperature."""
MIN_ROWS_TO_POOL = 50
"""Fewest validation rows for the weights of decisions."""
SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Candidates for the share of the completed decision."""
OWN_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Candidates for the weight of the parties' own decisions in collaborative prediction."""


def candidate_weights(mode: Mode, several_members: bool = False) -> Tensor:
    """List the weights of decisions to choose from, the default first. (m, n)

    Several members complete in few of their steps, so their default is the mean of the row as
    observed and completed.
    """
    default = 0.5 if several_members else 1.0
    ordered = sorted(SHARES, key=lambda share: share != default)
    shares = [(1 - share, share) for share in ordered]
    if mode != "collaborative":
        return torch.tensor(shares)
    return torch.tensor([(*pair, own) for own in OWN_WEIGHTS for pair in shares])


def calibrate(
    method: Method,
    federation: ReachableFederation,
    rows: Rows,
    task: Task = CLASSIFICATION,
    losses: CompletionLosses | None = None,
) -> Temperatures:
    """Fit the weights of decisions in place, then a temperature for every mode and party.

    `losses` receives what each choice of weights changes.
    """
    temperatures = {}
    for key, out, y, counted in _fit_every_mode(method, federation, rows, task, losses):
        scale = task.fit_scale(out.double(), y, counted.double())
        temperatures[key] = 1 / scale.item()
    return temperatures


def fit_decision_weights(method: Method, federation: ReachableFederation, rows: Rows) -> None:
    """Choose the weights of a method's decisions on validation rows, in place (D9).

    Rows of several runs are calibrated run by run.
    """
    for _ in _fit_every_mode(method, federation, rows, CLASSIFICATION):
        pass


def _fit_every_mode(
    method: Method,
    federation: ReachableFederation,
    rows: Rows,
    task: Task,
    losses: CompletionLosses | None = None,
) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Choose the weights of decisions mode by mode: local first, because others use its weights.

    Yields the key of the mode and party, the logits with these weights (R, N, C), the labels and
    which rows count (R, N).
    """
    pooling, rows = pooling_method(method), some_rows(rows)
    if pooling is not None:
        pooling.decision_weights.clear()
    for mode, party in mode_party_pairs(method, federation):
        counted = predictable_rows(rows, mode, party)
        some = rows.take(counted.nonzero().flatten()) if rows.runs == 1 else rows
        if len(some) < MIN_ROWS:
            continue
        key, device = mode_key(mode, federation.names[party]), some.device
        y = some.y.view(some.runs, -1)
        counted = predictable_rows(some, mode, party).view(y.shape)
        if pooling is None or mode == "peers":
            out = logits(method, federation, some, mode, party, device)
        else:
            decisions = all_decisions(method, federation, some, mode, party, device)
            by_run = decisions.view(*y.shape, *decisions.shape[1:])
            candidates = candidate_weights(mode, isinstance(method, Members))
            if torch.equal(decisions[:, 0], decisions[:, 1]):
                # No row is completed: candidates differ only in the weight of other decisions.
                candidates = candidates[(candidates[:, :2] == candidates[0, :2]).all(1)]
            chosen = choose_weights(by_run, y, counted, candidates, task)
            out = task.pool(decisions, chosen)
            completed = candidate_weights(mode)[:1].to(chosen)
            if losses is not None:
                weight = (counted & is_labeled(y)).double()
                total = [
                    pooled_losses(by_run.double(), each, y, weight, task).sum() / weight.sum()
                    for each in (chosen, completed.expand_as(chosen))
                ]
                losses[key] = total[0].item(), total[1].item()
            if not torch.equal(chosen, completed.expand_as(chosen)):
                weights = chosen if rows.runs > 1 else chosen[0].tolist()
                pooling.decision_weights[key] = weights
        yield key, out.view(*y.shape, -1), y, counted


def choose_weights(
    decisions: Tensor,
    y: Tensor,
    counted: Tensor,
    candidates: Tensor,
    task: Task = CLASSIFICATION,
) -> Tensor:
    """Choose the candidate with the smallest loss, each at its own temperature. (R, n)

    The first candidate is chosen unless the best one improves on it by more than one standard error
    of the mean difference, and in a run with fewer than `MIN_ROWS_TO_POOL` rows.

    Parameters
    ----------
    decisions : Tensor of shape (R, N, n, C)
        Log-probabilities, or numbers.
    y : Tensor of shape (R, N)
        Class numbers, or standardized numbers.
    counted : Tensor of shape (R, N), dtype bool
        The rows to use.
    candidates : Tensor of shape (m, n)
        Weights of the decisions.
    task : Task, default=CLASSIFICATION
        What is predicted.
    """
    decisions, weight = decisions.double(), (counted & is_labeled(y)).double()
    candidates = candidates.to(decisions)
    count = weight.sum(1)

    def losses(weights: Tensor) -> Tensor:
        return pooled_losses(decisions, weights, y, weight, task)

    default = losses(candidates[0])
    chosen, best = candidates[:1].repeat(len(y), 1), default
    for candidate in candidates[1:]:
        loss = losses(candidate)
        better = (loss.sum(1) < best.sum(1)).unsqueeze(1)
        chosen, best = torch.where(better, candidate, chosen), torch.where(better, loss, best)
    gain = default - best
    mean = gain.sum(1) / count
    variance = ((gain - mean.unsqueeze(1)).square() * weight).sum(1) / (count - 1)
    significant = (mean > (variance / count).sqrt()) & (count >= MIN_ROWS_TO_POOL)
    return torch.where(significant.unsqueeze(1), chosen, candidates[:1])


def pooled_losses(
    decisions: Tensor, weights: Tensor, y: Tensor, weight: Tensor, task: Task
) -> Tensor:
    """Return the weighted losses of rows with some weights of the decisions, at their scale. (R, N)

    See `choose_weights`; `weight` (R, N) is that of the rows.
    """
    out = task.pool(decisions.flatten(0, 1), weights).view(*y.shape, -1)
    scaled = out * task.fit_scale(out, y, weight).view(-1, 1, 1)
    return task.loss(scaled.flatten(0, 1), y.flatten()).view(y.shape) * weight
