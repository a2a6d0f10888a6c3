"""True columns of a party's rows, and how well an attack recovers them. Needs torch only.

Shapes: n rows, m components, q columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from xvfl.audit.components import paired_rank_correlations, rank_correlations, ranks
from xvfl.primitives.rows import PartyTable

Metric = Literal["numbers", "categories", "R²", "AUC"]
METRIC_NAMES: dict[Metric, str] = {
    "numbers": "mean |ρ| of numbers",
    "categories": "mean |2·AUC − 1| of categories",
    "R²": "R² of numbers",
    "AUC": "AUC",
}
MIN_SHARE = 0.01
"""Smallest share of a category that is scored."""


@dataclass(frozen=True)
class Measured:
    """What one attack reaches, by one metric."""

    attack: str
    metric: Metric
    value: float
    control: float
    """The same attack and score with columns (or labels) whose rows are shuffled: chance."""

    @property
    def excess(self) -> float:
        """How far the value is above chance."""
        return self.value - self.control


@dataclass(frozen=True)
class Columns:
    """The columns that an attack tries to recover.

    Parameters
    ----------
    values : Tensor of shape (n, q)
        Numbers, and for each category of a column whether the row has it.
    observed : bool Tensor of shape (n, q)
        Which values are observed; others are not scored.
    numeric : bool Tensor of shape (q,)
        Which columns are numbers.
    """

    values: Tensor
    observed: Tensor
    numeric: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Tensor) -> "Columns":
        """Select rows."""
        return Columns(self.values[rows], self.observed[rows], self.numeric)

    def select(self, columns: Tensor) -> "Columns":
        """Select columns by a mask or by their numbers."""
        return Columns(self.values[:, columns], self.observed[:, columns], self.numeric[columns])

    def shuffled(self, rng: torch.Generator) -> "Columns":
        """Permute the rows, so that nothing can be learned about them: the control."""
        return self.take(torch.randperm(len(self), generator=rng).to(self.values.device))

    def filled(self, known: Tensor) -> Tensor:
        """Return the values, with means of the observed known rows where missing. (n, q)"""
        weight = self.observed[known].double()
        values = self.values.double()
        mean = (values[known] * weight).sum(0) / weight.sum(0).clamp(min=1)
        return torch.where(self.observed, values, mean)


def true_columns(table: PartyTable, places: Tensor) -> Columns:
    """Return the encoded columns of a table at `places`; see `scored_columns`."""
    layout, values = table.layout, table.values.flatten(1)
    if layout.image is not None:
        observed = table.observed.repeat(1, layout.image[0])
        numeric = torch.ones(values.shape[1], dtype=torch.bool)
    else:
        features = layout.feature_of_column[: layout.dense]
        observed = table.observed[:, torch.tensor(features, dtype=torch.long, device=table.device)]
        numeric = torch.tensor([layout.features[i].kind == "numeric" for i in features])
    every = Columns(values, observed, numeric.to(table.device, torch.bool))
    return every.select(places.to(table.device))


def scored_columns(table: PartyTable, limit: int = 256) -> Tensor:
    """Choose the encoded columns on which attacks are scored: numbers and frequent categories. (q,)

    Hashed categories are left out: an embedding shows their learned vectors, not their values. Of
    more than `limit` columns, as of large images, every n-th is taken.
    """
    every = true_columns(table, torch.arange(table.values[0].numel()))
    share = (every.values * every.observed).sum(0) / every.observed.sum(0).clamp(min=1)
    occurs = every.numeric | ((share >= MIN_SHARE) & (share <= 1 - MIN_SHARE))
    kept = occurs.nonzero().flatten()
    return kept[:: max(-(-len(kept) // limit), 1)]


def score_components(
    attack: str, components: Tensor, columns: Columns, rng: torch.Generator
) -> list[Measured]:
    """Score components: for each column, the largest |ρ| of any component."""
    ranked = ranks(components)

    def best(columns: Columns) -> Tensor:
        return rank_correlations(ranked, columns.values, columns.observed).abs().amax(0)

    return measure(attack, best, columns, rng)


def score_guess(columns: Columns, guess: Tensor) -> Tensor:
    """Return |ρ| of a guess (n, q) for each column. (q,)"""
    return paired_rank_correlations(guess, columns.values, columns.observed).abs()


def measure(
    attack: str, score: Callable[[Columns], Tensor], columns: Columns, rng: torch.Generator
) -> list[Measured]:
    """Apply a score of each column (q,) to the columns and to shuffled ones."""
    found, control = score(columns), score(columns.shuffled(rng))
    return by_kind(attack, found, control, columns)


def by_kind(attack: str, found: Tensor, control: Tensor, columns: Columns) -> list[Measured]:
    """Average |ρ| of columns (q,), separately for numbers and categories.

    A guess that ranks all rows of a category above all others has ρ = √(3p(1 − p)), if p is the
    share of the category; divided by it, |ρ| is |2·AUC − 1|.
    """
    weight = columns.observed.double()
    share = (columns.values.double() * weight).sum(0) / weight.sum(0).clamp(min=1)
    largest = (3 * share * (1 - share)).clamp(min=1e-9).sqrt()
    largest = torch.where(columns.numeric, 1.0, largest)
    found, control = ((each / largest).clamp(max=1) for each in (found, control))
    measured = []
    kinds: list[tuple[Metric, Tensor]] = [
        ("numbers", columns.numeric),
        ("categories", ~columns.numeric),
    ]
    for metric, chosen in kinds:
        scored = chosen & ~found.isnan() & ~control.isnan()
        if bool(scored.any()):
            values = (float(each[scored].mean()) for each in (found, control))
            measured.append(Measured(attack, metric, *values))
    return measured


def explained(columns: Columns, guess: Tensor) -> float | None:
    """Return the mean R² of a guess of the numbers; a column worse than its mean counts as 0."""
    numbers = columns.select(columns.numeric)
    weight = numbers.observed.double()
    count = weight.sum(0).clamp(min=1)
    true, guess = numbers.values.double(), guess[:, columns.numeric].double()
    mean = (true * weight).sum(0) / count
    total = ((true - mean).square() * weight).sum(0)
    error = ((true - guess).square() * weight).sum(0)
    varies = total / count > 1e-8
    if not bool(varies.any()):
        return None
    return float((1 - error[varies] / total[varies]).clamp(min=0).mean())
