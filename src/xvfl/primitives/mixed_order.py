"""The order of an epoch with labeled and unlabeled rows: every batch has the same share of both.

An epoch is one pass over the labeled rows. Where fewer rows are labeled than `MIN_LABELED_SHARE`,
it uses only some of the unlabeled rows, others in each epoch.
"""

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

MIN_LABELED_SHARE = Fraction(1, 4)
"""Smallest share of labeled rows in a batch."""
UNLABELED_WEIGHT = 3.0
"""Weight of an unlabeled row in the loss; chosen on development rows of three data sets."""

Stream = Callable[[int, int], Tensor]
"""Returns the rows from a start to a stop of an order."""


def labeled_share(labeled: int, unlabeled: int) -> Fraction:
    """Return the share of labeled rows in every batch."""
    return max(Fraction(labeled, labeled + unlabeled), MIN_LABELED_SHARE)


def epoch_size(labeled: int, unlabeled: int) -> int:
    """Return the number of rows of an epoch."""
    return int(labeled / labeled_share(labeled, unlabeled))


def row_weights(labeled: int, unlabeled: int) -> tuple[float, float]:
    """Return the weights of a labeled and of an unlabeled row.

    The loss of the labeled rows of a batch, divided by the batch size, is then their mean.
    """
    return float(1 / labeled_share(labeled, unlabeled)), UNLABELED_WEIGHT


def mix(labeled: Stream, unlabeled: Stream, share: Fraction) -> Stream:
    """Interleave two orders evenly, so that each stretch of rows has the share of labeled rows."""

    def rows(start: int, stop: int) -> Tensor:
        before = torch.arange(start, stop + 1) * share.numerator // share.denominator
        first, last = int(before[0]), int(before[-1])
        is_labeled = before.diff() > 0
        order = torch.empty(stop - start, dtype=torch.long)
        order[is_labeled] = labeled(first, last)
        order[~is_labeled] = unlabeled(start - first, stop - last)
        return order

    return rows
