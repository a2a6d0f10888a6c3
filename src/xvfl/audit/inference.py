"""Membership and label inference: was a row learned from, what is its label. Torch and numpy only.

Shapes: n rows, c masked copies, d embedding width.
"""

import numpy as np
import torch
from torch import Tensor

from xvfl.audit.components import principal_directions
from xvfl.audit.decoders import ridge_guesses, standardized
from xvfl.audit.recovery import Columns, Measured
from xvfl.audit.scoring import Array, class_auc
from xvfl.audit.upload_attacks import AttackOptions
from xvfl.primitives.metrics import auroc

NEIGHBORS = 5
WHITENED = 64
"""Number of principal components in the distance to the mean."""


def membership_attacks(
    views: Tensor,
    learned: Tensor,
    errors: Tensor | None = None,
    options: AttackOptions | None = None,
) -> list[Measured]:
    """Distinguish rows that the encoder learned from and held-out rows.

    Parameters
    ----------
    views : Tensor of shape (n, 1 + c, d)
        The stored embeddings.
    learned : bool Tensor of shape (n,)
        Whether the encoder learned from the row.
    errors : Tensor of shape (n,), optional
        Reconstruction error of each row by the party's decoder; an attacker must steal the decoder
        to compute it.
    options : AttackOptions, optional
        Strength of the attacks.

    Returns
    -------
    list of Measured
        AUC of the best statistic of the embeddings, each with the better sign, of a classifier that
        knows half of the rows, and of the reconstruction error.
    """
    options = options or AttackOptions()
    rows = _balanced(learned, options)
    if not len(rows):
        return []
    views, learned = views[rows].float(), learned[rows]
    statistics = _statistics(views)
    found = [
        _auc("membership, embeddings", statistics, learned, options),
        _classifier(views[:, 0], learned, options),
    ]
    if errors is not None:
        one = errors[rows].unsqueeze(1)
        found.append(_auc("membership, stolen decoder", one, learned, options))
    return found


def _balanced(learned: Tensor, options: AttackOptions) -> Tensor:
    """Sample as many learned as held-out rows."""
    rng, parts = options.generator("membership"), []
    places = [mask.nonzero().flatten() for mask in (learned, ~learned)]
    count = min(*map(len, places), options.max_rows // 2)
    for each in places:
        order = torch.randperm(len(each), generator=rng).to(each.device)
        parts.append(each[order[:count]])
    return torch.cat(parts) if count >= NEIGHBORS else places[0][:0]


def _statistics(views: Tensor) -> Tensor:
    """Return statistics of each row that learning may change. (n, statistics)"""
    plain = views[:, 0]
    white = (plain - plain.mean(0)) @ principal_directions(plain, WHITENED)
    near = torch.cdist(plain, plain).topk(NEIGHBORS + 1, largest=False).values[:, 1:].mean(1)
    found = [plain.norm(dim=1), white.norm(dim=1), near]
    if views.shape[1] > 1:
        found.append((views[:, 1:] - plain.unsqueeze(1)).norm(dim=2).mean(1))
    return torch.stack(found, 1)


def _classifier(plain: Tensor, learned: Tensor, options: AttackOptions) -> Measured:
    """Learn membership from half of the rows; predict the others."""
    order = torch.randperm(len(plain), generator=options.generator("half")).to(plain.device)
    known, rest = order[: len(order) // 2], order[len(order) // 2 :]
    aucs = []
    for target in (learned, _shuffled(learned, options)):
        column = Columns(
            target.double().unsqueeze(1),
            torch.ones_like(target).unsqueeze(1),
            torch.ones(1, dtype=torch.bool, device=plain.device),
        )
        guesses = ridge_guesses(standardized(plain), column, known)
        aucs.append(max(_signed_auc(each[rest, 0], target[rest]) for each in guesses))
    return Measured("membership, classifier", "AUC", *aucs)


def _auc(attack: str, statistics: Tensor, positive: Tensor, options: AttackOptions) -> Measured:
    """Return the AUC of the best statistic with the better sign, beside shuffled rows."""

    def best(positive: Tensor) -> float:
        y = positive.long().cpu().numpy()
        return max(class_auc(each, y, 1) for each in _arrays(statistics))

    return Measured(attack, "AUC", best(positive), best(_shuffled(positive, options)))


def _arrays(statistics: Tensor) -> list[Array]:
    return [each.double().cpu().numpy() for each in statistics.unbind(1)]


def _shuffled(mask: Tensor, options: AttackOptions) -> Tensor:
    order = torch.randperm(len(mask), generator=options.generator("control"))
    return mask[order.to(mask.device)]


def _signed_auc(score: Tensor, positive: Tensor) -> float:
    """Return the AUC of a score whose sign is known."""
    order = score.double().cpu().numpy()
    auc = auroc(np.stack([-order, order], 1), positive.cpu().numpy().astype(np.int64))
    return 0.5 if np.isnan(auc) else auc


def label_attack(
    held_out: Tensor, y: Tensor, options: AttackOptions | None = None
) -> list[Measured]:
    """Guess labels from what a party receives in training: the list of held-out rows.

    Parameters
    ----------
    held_out : bool Tensor of shape (n,)
        The list that the coordinator sends.
    y : Tensor of shape (n,), dtype int64
        Class numbers; −1 without a label.
    options : AttackOptions, optional
        Seed of the control.

    Returns
    -------
    list of Measured
        AUC of the class that is guessed best.
    """
    options = options or AttackOptions()
    labeled = y >= 0
    listed, y = held_out[labeled].double(), y[labeled].cpu()
    if not len(y):
        return []

    def best(score: Tensor) -> float:
        array = score.cpu().numpy()
        return max(class_auc(array, y.numpy(), int(label)) for label in np.unique(y.numpy()))

    control = _shuffled(listed, options)
    return [Measured("labels, held-out list", "AUC", best(listed), best(control))]
