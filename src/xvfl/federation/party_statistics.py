"""Statistics of what each party sends, from which a poisoned or broken party can be recognized.

Shapes: B rows, k parties, v views, d embedding width, m = min(d, MOMENT_WIDTH).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SKETCH_ROWS = 32
"""Rows of an answer that are compared with earlier answers."""
STORED_SKETCHES = 128
"""Answers that a new answer is compared with."""
RATE = 0.1
"""Weight of a new answer in the running statistics."""
MOMENT_WIDTH = 64
"""Coordinates of an embedding that moments and sketches use, evenly spaced over all members."""
MIN_DISTANCE = 1e-3
"""Distance from the median row that counts as a difference, relative to the largest one."""
TINY = 1e-30


@dataclass(frozen=True)
class AnswerStatistics:
    """Statistics of one answer of every party, over the rows that the party observed."""

    rows: Tensor
    """(k,) number of these rows."""
    rms: Tensor
    """(k,) root mean square of all values."""
    largest: Tensor
    """(k,) largest root mean square of one row and view."""
    spread: Tensor
    """(k,) root mean square of the deviation from the mean row, relative to `rms`; 0 if all rows
    are equal."""
    moment: Tensor
    """(k, m, m) second moments of m coordinates of the first view, with norm 1."""


@torch.no_grad()
def answer_statistics(values: Tensor, counted: Tensor) -> AnswerStatistics:
    """Compute the statistics of embeddings (B, k, v, d) over the counted rows (B, k)."""
    rows = counted.sum(0)
    weight = counted.to(values.dtype) / rows.clamp(min=1)
    square = values.square().mean(-1)
    rms = (square.mean(-1) * weight).sum(0).sqrt()
    largest = (square.amax(-1) * counted).amax(0).sqrt() if len(values) else torch.zeros_like(rms)
    first = values[:, :, 0]
    part = (_select_columns(first) * counted.unsqueeze(-1)).transpose(0, 1)
    moment = part.mT @ part
    moment = moment / moment.flatten(1).norm(dim=1).clamp(min=TINY).view(-1, 1, 1)
    return AnswerStatistics(rows, rms, largest, spread(first, counted), moment)


def _select_columns(values: Tensor) -> Tensor:
    """Select m evenly spaced coordinates. (…, d) to (…, m)"""
    width = values.shape[-1]
    if width <= MOMENT_WIDTH:
        return values
    return values[..., torch.arange(MOMENT_WIDTH, device=values.device) * width // MOMENT_WIDTH]


@torch.no_grad()
def spread(values: Tensor, counted: Tensor) -> Tensor:
    """Compute the deviation of the counted rows (B, k) of (B, k, d) from their mean row. (k,)

    It is the root mean square of the deviation, relative to that of the values.
    """
    weight = counted.to(values.dtype) / counted.sum(0).clamp(min=1)
    mean = (values * weight.unsqueeze(-1)).sum(0)
    # The difference of two moments would lose small spreads to rounding.
    deviation = ((values - mean).square().mean(-1) * weight).sum(0).sqrt()
    level = (values.square().mean(-1) * weight).sum(0).sqrt()
    return deviation / level.clamp(min=TINY)


@torch.no_grad()
def sketch(values: Tensor) -> Tensor | None:
    """Describe one party's answer (n, d) by its first rows, centered and scaled.

    The scalar product of two sketches is the correlation of the answers. Rows far from the median
    row are moved towards it; otherwise a few of them would determine the correlation. None if there
    are too few rows, or if too few of them differ.
    """
    rows = _select_columns(values[:SKETCH_ROWS])
    if len(rows) < SKETCH_ROWS // 2:
        return None
    centered = rows - rows.median(0).values
    length = centered.norm(dim=1)
    limit = length.topk(SKETCH_ROWS // 4).values[-1]
    if not float(limit) > MIN_DISTANCE * float(length.max()):
        return None
    centered = centered * (limit / length.clamp(min=limit)).unsqueeze(1)
    centered = centered - centered.mean(0)
    total = centered.square().sum()
    result = values.new_zeros(SKETCH_ROWS * rows.shape[1])
    flat = (centered / total.sqrt()).flatten()
    result[: len(flat)] = flat
    return result


@torch.no_grad()
def inconsistency(first: Tensor, second: Tensor) -> float:
    """Compare two answers (n, d) for the same rows and weights.

    Return the squared difference, relative to the variance of the first answer: 0 for equal
    answers, about 2 for independent noise.
    """
    variance = (first - first.mean(0)).square().sum()
    return float((first - second).square().sum() / variance.clamp(min=TINY))


class History:
    """What one party has sent so far, for one kind of answer in training."""

    def __init__(self) -> None:
        """Start without answers."""
        self.count = 0
        """Number of answers."""
        self.rms = self.largest = 0.0
        """Running geometric mean of `rms`; decaying maximum of `largest`."""
        self._moment: Tensor | None = None
        self._sketches: Tensor | None = None
        self._evaluated: Tensor | None = None
        self._steps = torch.full((STORED_SKETCHES,), -1)
        self._next = 0

    def update(self, rms: float, largest: float, moment: Tensor | None) -> None:
        """Add the statistics of an answer."""
        if self.count:
            self.rms = math.exp((1 - RATE) * math.log(self.rms) + RATE * math.log(rms))
            self.largest = max((1 - RATE) * self.largest, largest)
        else:
            self.rms, self.largest = rms, largest
        if moment is not None:
            old = self._moment
            self._moment = moment.clone() if old is None else old.lerp_(moment, RATE)
        self.count += 1

    def drift(self, moment: Tensor) -> float:
        """Return 1 − the cosine between second moments and those of the history; 0 to 1."""
        if self._moment is None:
            return 0.0
        return 1 - float((self._moment * moment).sum() / self._moment.norm().clamp(min=TINY))

    def repeats(self, answer: Tensor, step: int) -> tuple[float, int]:
        """Store a sketch; return the largest correlation with that of another step, and the step.

        A batch that is repeated after a fault has the same step and the same answer. Step -1 is the
        last stored evaluation.
        """
        correlation, repeated = self.correlation(answer, step)
        if self._evaluated is not None and (value := float(self._evaluated @ answer)) > correlation:
            correlation, repeated = value, -1
        if self._sketches is None:
            self._sketches = answer.new_zeros(STORED_SKETCHES, len(answer))
        self._sketches[self._next], self._steps[self._next] = answer, step
        self._next = (self._next + 1) % STORED_SKETCHES
        return correlation, repeated

    def correlation(self, answer: Tensor, step: int = -1) -> tuple[float, int]:
        """Return the largest correlation of a sketch with that of another step, and the step."""
        if self._sketches is None:
            return -1.0, -1
        other = (self._steps >= 0) & (self._steps != step)
        value, at = (self._sketches @ answer).masked_fill(~other, -1.0).max(0)
        return float(value), int(self._steps[at])

    def store_evaluation(self, answer: Tensor) -> None:
        """Store the sketch of an answer for validation rows, in place of the last one."""
        self._evaluated = answer
